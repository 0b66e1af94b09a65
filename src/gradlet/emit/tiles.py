"""Tiled calls in C: a small function per kernel, and the table that the runtime walks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradlet import kernels
from gradlet.emit.names import size_text
from gradlet.plan.model import Call, Plan
from gradlet.plan.parts import followers
from gradlet.plan.table import BOX_WORDS, HOP_WORDS, STEP_WORDS, Table, table_of
from gradlet.plan.tiling import Lines

WORD = 4
MOVED_AT_FIRST = 128  # no axis changes the box, which is fetched before the first tile


@dataclass(frozen=True)
class Link:
    """Which of the two places for tables a call has, whether its own is there already, and the call
    whose table and first boxes it fetches ahead, or -1."""

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

    def argument(position: int, *, once: bool = True) -> str:
        window = tiling.windows[position]
        if window is None or (window.once and not once):
            return "0"
        return f"f->t[{frame[position]}]" if position in frame else f"T_{names[window.tensor]}"

    functions = [_function(plan, call, "first", call.kernel, scratch, argument)]
    if tiling.more:
        functions.append(_function(plan, call, "more", tiling.more, scratch, argument))
    if tiling.finish:
        functions.append(_finish(plan, call, argument))
    return {
        "functions": functions,
        "tiles": tiling.count,
        "axes": len(tiling.axes),
        "reductions": sum(not axis.reduction for axis in tiling.axes),
        "ahead": int(tiling.ahead),
        "repeat": call.repeat,
        "count": [axis.count for axis in tiling.axes],
        "size_steps": len(table.steps) - table.size_steps,
        "first_step": WORD * STEP_WORDS * table.size_steps,
        "windows": list(_windows(plan, table, names)),
        "steps": [f"{axis}, AT(hops) + {WORD * HOP_WORDS * hop}" for axis, hop in table.steps],
        "hops": [f"{far}, {box}" for far, box in table.hops],
        "boxes": [_box(box) for box in table.boxes],
        "all_sizes": [size_text(sizes) for sizes in tiling.sizes],
        "finish_sizes": [size_text(sizes) for sizes in tiling.finish_sizes],
        "finish_type": kernels.sizes_type(tiling.finish.family, plan.prefix)
        if tiling.finish
        else "",
    }


def _box(box: Lines) -> str:
    return f"{box.bytes}, {box.lines}, {box.pitch}, {box.planes}, {box.plane_pitch}"


def _windows(plan: Plan, table: Table, names: Mapping[str, str]) -> Iterator[str]:
    places = plan.buffer_of()
    for row in table.rows:
        window = row.window
        far = f"(char *)T_{names[window.tensor]}" if window.tensor in names else "0"
        slots = [places[name] for name in window.slot_buffers]
        near = ", ".join(
            f"(char *)&{plan.prefix}_{slot.region}[{slot.offset // WORD}]" for slot in slots
        )
        moved_by = sum(1 << axis for axis in window.axes) or MOVED_AT_FIRST
        flags = f"{window.slots}, {int(window.load)}, {int(window.store)}, {moved_by}"
        boxes = f"AT(boxes) + {WORD * BOX_WORDS * row.first_box}" if row.boxes else "0"
        steps = f"AT(steps) + {WORD * STEP_WORDS * row.first_step}" if row.steps else "0"
        numbers = f"{boxes}, {steps}, {row.steps}, {int(window.early)}"
        yield f"{far}, {{{near or 0}}}, {flags}, {numbers}"


def _function(
    plan: Plan, call: Call, role: str, kernel: kernels.Kernel, scratch: str, argument: Any
) -> dict[str, str]:
    """The kernel over the operands of a frame."""
    tiling = call.tiling
    assert tiling is not None
    made, taken = map(len, kernels.operands(kernel))
    first = len(call.outputs)
    results = [tiling.made_in] if tiling.made_in else list(range(made))
    positions = [*results, *range(first, first + taken)]
    arguments = ["me", *(argument(p, once=role == "first") for p in positions)]
    if scratch and kernels.variant_of(kernel).scratch:
        arguments.append(scratch)
    if kernels.catalogue()[kernel.family].stepped:
        arguments.append("step")
    arguments.append("f->sizes")
    return {"role": role, "symbol": kernel.symbol(plan.prefix), "arguments": ", ".join(arguments)}


def _finish(plan: Plan, call: Call, argument: Any) -> dict[str, str]:
    """What comes behind, on the result where it is."""
    tiling = call.tiling
    assert tiling is not None
    assert tiling.finish is not None
    operands = map(argument, tiling.finish_operands)
    arguments = ", ".join(["me", *operands, "f->finish_sizes"])
    return {"role": "finish", "symbol": tiling.finish.symbol(plan.prefix), "arguments": arguments}
