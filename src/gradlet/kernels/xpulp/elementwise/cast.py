"""Between floats and narrow elements: nothing is computed but what loads and stores do."""

from __future__ import annotations

from typing import Any

from gradlet.ir.elements import F32
from gradlet.kernels.xpulp.elementwise.elementwise import Map, stretch


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    narrow = params["element"]
    taken, given = (narrow, F32) if mode == "widen" else (F32, narrow)
    return {"stretch": stretch("stretch", Map(("x",), (), "x"), taken, given)}
