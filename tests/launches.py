"""Calls whose launches are others than the plan's, for what a checker must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradlet.planner.launch import Launch
from gradlet.planner.model import Call
from gradlet.planner.tiling import Tiling


def with_launch(call: Call, number: int, **changes: Any) -> Call:
    """Of those over whole operands."""
    launches = [replace(x, **changes) if n == number else x for n, x in enumerate(call.whole)]
    return replace(call, whole=tuple(launches))


def with_tiles(
    tiling: Tiling, wanted: Callable[[Launch], bool], change: Callable[[Launch], Launch | None]
) -> Tiling:
    """Some launches of tiles are changed, or left out."""
    found = [change(launch) if wanted(launch) else launch for launch in tiling.launches]
    return replace(tiling, launches=tuple(filter(None, found)))


def at(tiles: str) -> Callable[[Launch], bool]:
    return lambda launch: launch.when.tiles == tiles


def partial_sums(tiling: Tiling) -> bool:
    """Whether something behind the last tile goes on with a sum that is no result."""
    return any(at("first")(launch) and launch.operands[0] != 0 for launch in tiling.launches)
