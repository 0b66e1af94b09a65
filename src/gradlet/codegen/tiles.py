"""Tiled calls in C: a small function per kernel, and the table that the runtime walks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradlet.codegen.names import size_text
from gradlet.kernels import catalogue
from gradlet.ops.base import Size
from gradlet.planner.model import Call, Plan
from gradlet.planner.parts import followers
from gradlet.planner.tile.table import BOX_WORDS, HOP_WORDS, STEP_WORDS, Table, all_sizes, table_of
from gradlet.planner.tiling import Lines

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
    table, riding = table_of(tiling), tiling.riding
    frame = {row.position: place for place, row in enumerate(table.rows)}

    def argument(position: int, *, once: bool = True) -> str:
        window = tiling.windows[position]
        if window is None or (window.once and not once):
            return "0"
        return f"f->t[{frame[position]}]" if position in frame else f"T_{names[window.tensor]}"

    own, behind = (list(zip(*filter(None, both), strict=True)) for both in all_sizes(tiling))
    return {
        "functions": list(_functions(plan, call, scratch, argument)),
        "tiles": tiling.count,
        "axes": len(tiling.axes),
        "reductions": sum(not axis.reduction for axis in tiling.axes),
        "ahead": int(tiling.ahead),
        "repeat": call.repeat,
        "idle": sum(1 << number for number in riding.idle) if riding else 0,
        "count": [axis.count for axis in tiling.axes],
        "size_steps": len(table.steps) - table.size_steps,
        "first_step": WORD * STEP_WORDS * table.size_steps,
        "windows": list(_windows(plan, table, names)),
        "steps": [f"{axis}, AT(hops) + {WORD * HOP_WORDS * hop}" for axis, hop in table.steps],
        "hops": [f"{far}, {box}" for far, box in table.hops],
        "boxes": [_box(box) for box in table.boxes],
        "all_sizes": [_initial(sizes) for sizes in own],
        "finish_sizes": [_initial(sizes) for sizes in behind],
        "sizes_types": _types(plan, call.kernel, riding.kernel if riding else None),
        "finish_types": _types(plan, tiling.finish, riding.finish if riding else None),
    }


def _initial(sizes: Sequence[Mapping[str, Size]]) -> str:
    return ", ".join(f"{{{size_text(part)}}}" for part in sizes)


def _types(plan: Plan, *used: catalogue.Kernel | None) -> list[str]:
    return [catalogue.sizes_type(kernel.family, plan.prefix) for kernel in used if kernel]


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


def _functions(plan: Plan, call: Call, scratch: str, argument: Any) -> Iterator[dict[str, Any]]:
    """One for each role that the table knows, with the kernels that it runs."""
    tiling = call.tiling
    assert tiling is not None
    riding = tiling.riding
    roles = [
        ("first", call.kernel, riding.kernel if riding else None),
        ("more", tiling.more, riding.more if riding else None),
    ]
    for role, kernel, rider in roles:
        if kernel is None:
            continue
        used = [_own(plan, call, kernel, scratch, argument, first=role == "first")]
        if riding and rider:
            used.append(_beside(plan, kernel, rider, "f->sizes", map(argument, riding.operands)))
        yield {"role": role, "kernels": used}
    if tiling.finish is None:
        return
    used = [_over(plan, tiling.finish, map(argument, tiling.finish_operands), "f->finish_sizes")]
    if riding and riding.finish:
        operands = map(argument, riding.finish_operands)
        used.append(_beside(plan, tiling.finish, riding.finish, "f->finish_sizes", operands))
    yield {"role": "finish", "kernels": used}


def _over(
    plan: Plan, kernel: catalogue.Kernel, operands: Iterable[str], sizes: str
) -> dict[str, str]:
    arguments = ", ".join(["me", *operands, sizes])
    return {"symbol": kernel.symbol(plan.prefix), "arguments": arguments}


def _beside(
    plan: Plan,
    kernel: catalogue.Kernel,
    rider: catalogue.Kernel,
    sizes: str,
    operands: Iterable[str],
) -> dict[str, str]:
    """A rider; its sizes are right behind those of the kernel that carries it."""
    carrier = catalogue.sizes_type(kernel.family, plan.prefix)
    return _over(plan, rider, operands, f"(const void *)((const {carrier} *){sizes} + 1)")


def _own(
    plan: Plan, call: Call, kernel: catalogue.Kernel, scratch: str, argument: Any, *, first: bool
) -> dict[str, str]:
    """The kernel over the operands of a frame."""
    tiling = call.tiling
    assert tiling is not None
    made, taken = map(len, catalogue.operands(kernel))
    inputs = len(call.outputs)
    results = [tiling.made_in] if tiling.made_in else list(range(made))
    operands = [argument(p, once=first) for p in (*results, *range(inputs, inputs + taken))]
    if scratch and catalogue.variant_of(kernel).scratch:
        operands.append(scratch)
    if catalogue.families()[kernel.family].stepped:
        operands.append("step")
    return _over(plan, kernel, operands, "f->sizes")
