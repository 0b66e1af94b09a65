"""Tiled calls in C: a small function per kernel, and the table that the runtime walks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from gradlet.codegen.names import size_text
from gradlet.kernels import catalogue, source, traits
from gradlet.planner.launch import Launch, Ref
from gradlet.planner.model import Call, Plan
from gradlet.planner.parts import followers
from gradlet.planner.tile.layout import OFFSET, REGION, STEP, VIEW, WORD
from gradlet.planner.tile.table import Table, functions, sized, table_of


@dataclass(frozen=True)
class Link:
    """Which of the two places for tables a call has, whether its own is there already, and the call
    whose table and first regions it fetches ahead, or -1."""

    place: int
    ready: bool
    following: int


def chained(plan: Plan) -> dict[int, Link]:
    """How tiled calls follow one another."""
    after = followers(plan.graph, plan.calls)
    links: dict[int, Link] = {}
    for index, call in enumerate(plan.calls):
        if call.tiling is None:
            continue
        following = after.get(index, -1)
        if following >= 0 and plan.calls[following].tiling is None:
            following = -1
        before = links.get(index - 1)
        ready = before is not None and before.following == index
        place = 1 - before.place if before is not None and ready else 0
        links[index] = Link(place, ready, following)
    return links


def tiled_call(plan: Plan, call: Call, names: Mapping[str, str], scratch: str) -> dict[str, Any]:
    """What the template prints of a tiled call."""
    tiling = call.tiling
    assert tiling is not None
    table = table_of(tiling)
    frame = {row.position: place for place, row in enumerate(table.rows)}

    def operand(position: Ref) -> str:
        view = None if position is None else tiling.views[position]
        if view is None:
            return "0"
        return f"f->t[{frame[position]}]" if position in frame else f"T_{names[view.tensor]}"

    own, behind = sized(tiling)
    return {
        "functions": list(_functions(plan, call, partial(arguments, operand, scratch))),
        "tiles": tiling.count,
        "head": table.head(tiling, len(table.rows)),
        "first_step": table.first_step,
        "views": list(_views(plan, table, names)),
        "steps": [f"{axis}, AT(offsets) + {OFFSET.size * offset}" for axis, offset in table.steps],
        "offsets": [f"{backing}, {region}" for backing, region in table.offsets],
        "regions": [REGION.initial(asdict(region)) for region in table.regions],
        "all_sizes": _initial(own),
        "last_sizes": _initial(behind),
        "sizes_types": [sizes_type(plan, launch) for launch in own],
        "last_types": [sizes_type(plan, launch) for launch in behind],
    }


def _initial(launches: Sequence[Launch]) -> list[str]:
    """By tile class, the sizes of all launches."""
    classes = zip(*(launch.sizes for launch in launches), strict=True)
    return [", ".join(f"{{{size_text(part)}}}" for part in parts) for parts in classes]


def sizes_type(plan: Plan, launch: Launch) -> str:
    return source.sizes_type(launch.kernel.family, plan.prefix)


def arguments(
    operand: Callable[[Ref], str], scratch: str, launch: Launch, sizes: str, step: str = "step"
) -> str:
    """What a kernel is called with; operand: the C of an operand."""
    given = ["me", *map(operand, launch.operands)]
    if scratch and catalogue.variant_of(launch.kernel).scratch:
        given.append(scratch)
    if catalogue.stepped(launch.kernel):
        given.append(step)
    return ", ".join([*given, sizes])


def beside(kernel: catalogue.Kernel) -> str:
    """C: when a launch beside this one runs in a tile: with its first step, as what that alone
    reads is gone behind it."""
    return "if (!f->skips && step == 0) " if traits.steps(kernel) > 1 else "if (!f->skips) "


def tile_step(kernel: catalogue.Kernel) -> str:
    """C: the step that a kernel is told in a tile."""
    return "GL_STEP(f, step)" if traits.kept(kernel) else "step"


def _views(plan: Plan, table: Table, names: Mapping[str, str]) -> Iterator[str]:
    places = plan.buffer_of()
    for row in table.rows:
        view = row.view
        stages = [places[name] for name in view.stage_buffers]
        yield VIEW.initial(
            {
                **row.fields(),
                "backing": f"(char *)T_{names[view.tensor]}" if view.tensor in names else "0",
                "l1": tuple(
                    f"(char *)&{plan.prefix}_{stage.region}[{stage.offset // WORD}]"
                    for stage in stages
                ),
                "regions": f"AT(regions) + {REGION.size * row.first_region}"
                if row.regions
                else "0",
                "first_step": f"AT(steps) + {STEP.size * row.first_step}" if row.steps else "0",
            }
        )


def _functions(
    plan: Plan, call: Call, arguments: Callable[[Launch, str, str], str]
) -> Iterator[dict[str, Any]]:
    """Those that the table knows, with the kernels that they run; the sizes of each are right
    behind those of the one before."""
    assert call.tiling is not None
    for role, launches in functions(call.tiling).items():
        sizes = "f->last_sizes" if role == "last" else "f->sizes"
        kernels: list[dict[str, str]] = []
        for launch in launches:
            symbol = launch.kernel.symbol(plan.prefix)
            given = arguments(launch, sizes, tile_step(launch.kernel))
            when = beside(launches[0].kernel) if kernels else ""
            kernels.append({"symbol": symbol, "arguments": given, "when": when})
            sizes = f"(const void *)((const {sizes_type(plan, launch)} *){sizes} + 1)"
        yield {"role": role, "kernels": kernels}
