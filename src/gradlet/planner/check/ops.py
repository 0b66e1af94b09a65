"""Whether the tiles of a call are what its op says of itself: axes, regions, sizes, and sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from gradlet.ir.graph import Node, Shape, Site
from gradlet.kernels.catalogue import Kernel, fetched, streamed
from gradlet.ops import OPS
from gradlet.ops.base import Axis, Span
from gradlet.planner.check.fusions import channel_sizes, own_operands
from gradlet.planner.launch import Launch
from gradlet.planner.model import BIAS_GRADIENT, LINEAR_BACKWARD, Call
from gradlet.planner.tiling import Region, Tiling

BESIDE = "beside"
SINGLE_TILES = (LINEAR_BACKWARD,)
"""Fusions whose calls are not cut: their tiling only says where operands are."""


def tiling_faults(site: Site, call: Call, nodes: Sequence[Node]) -> Iterator[str]:
    """site: of the call's first node, in as few dimensions as it has; nodes: all of the call's."""
    tiling = call.tiling
    assert tiling is not None
    if call.fusion in SINGLE_TILES:
        yield from _single_tile(call, tiling)
        return
    found = [
        *_axes(site, tiling),
        *_operands(site, call, tiling, nodes),
        *_launches(site, call, tiling),
    ]
    yield from found or _sizes(site, call, tiling)


def _single_tile(call: Call, tiling: Tiling) -> Iterator[str]:
    """Every operand is there as a whole, or its kernel fetches it; the launches are those of the
    call, the first one perhaps by a kernel that fetches."""
    first, *others = call.whole
    kernel = tiling.launches[0].kernel if tiling.launches else first.kernel
    if tiling.axes or tiling.launches != (replace(first, kernel=kernel), *others):
        yield "it does something else than the call"
    elif (kernel.family, kernel.mode, kernel.epilogue) != (
        first.kernel.family,
        first.kernel.mode,
        first.kernel.epilogue,
    ):
        yield f"{kernel.name} does not compute its first node"
    if [view.tensor if view else "" for view in tiling.views] != [*call.operands]:
        yield "its views are on other operands"
    elif any(view and (view.spans or view.once) for view in tiling.views):
        yield "a view sees a part of an operand"
    yield from _fetched(call, tiling)


def _fetched(call: Call, tiling: Tiling) -> Iterator[str]:
    """What the kernel fetches itself has no view that does; what it updates is written back."""
    first = tiling.launches[0]
    own = {first.operands[number] for number in streamed(first.kernel)}
    if own != {n for n, view in enumerate(tiling.views) if view and view.fetched}:
        yield f"{first.kernel.name} fetches other operands than those without a view"


def _axes(site: Site, tiling: Tiling) -> Iterator[str]:
    known = {axis.name: axis for axis in OPS[site.node.op].axes(site)}
    names = [axis.name for axis in tiling.axes]
    if len(set(names)) < len(names):
        yield "an axis is split twice"
    for axis in tiling.axes:
        own = known.get(axis.name)
        if own is None or (own.size, own.reduction) != (axis.size, axis.reduction):
            yield f"the op has no such axis as {axis.name} of {axis.size}"
        elif len(axis.classes) != -(-axis.size // axis.tile) or axis.tile < 1:
            yield f"the tiles of {axis.name} do not make up the whole"
    inside = [axis.reduction for axis in tiling.axes]
    if inside != sorted(inside):
        yield "a sum is left before it is complete: its loop is not inside"


def _operands(site: Site, call: Call, tiling: Tiling, nodes: Sequence[Node]) -> Iterator[str]:
    """Each view is on the operand of its position, and sees of it what the op says."""
    op, fused = OPS[site.node.op], call.fusion == BIAS_GRADIENT
    partial = [site.outs[0].name, *([nodes[2].outputs[0]] if fused else [])]
    sums = partial if len(tiling.views) > len(call.operands) else []
    seen = [view.tensor if view else "" for view in tiling.views]
    if seen != [*call.operands, *sums]:
        yield f"views are on {seen}, operands are {[*call.operands, *sums]}"
        return
    slots = _slots(site, call, nodes) + [op.outputs[0].rstrip("?"), BESIDE][: len(sums)]
    for view, slot in zip(tiling.views, slots, strict=True):
        if view is None:
            continue
        spans = _spans(site, tiling, slot) if slot != BESIDE else _beside_spans(site, call, tiling)
        if sorted(map(repr, spans)) != sorted(map(repr, view.spans)):
            yield f"the regions of '{view.tensor}' are not those that the op reads or writes"
        if view.once != (slot in op.adds_once):
            yield f"'{view.tensor}' is added once too often"
    yield from _fetched(call, tiling)
    if not _backing_sizes(site, call):
        for view in (w for w in tiling.views if w and w.fetched):
            if any(
                not _in_one_run(view.shape, view.region(_in_order(tiling, index)))
                for index in _samples(tiling)
            ):
                yield f"{call.kernel.name} cannot fetch such regions of '{view.tensor}'"


def _slots(site: Site, call: Call, nodes: Sequence[Node]) -> list[str]:
    """The slot of the first node's op that each operand of the call is cut like."""
    op = OPS[site.node.op]
    results = [slot.rstrip("?") for slot in op.outputs]
    operands = [slot.rstrip("?") for slot in op.inputs]
    # settings of an update are needed whole; what follows goes with the result
    more = [("" if call.updates else results[0])] * (len(call.inputs) - len(operands))
    made = results[:1] * len(call.outputs) if call.updates else results[: len(call.outputs)]
    if call.fusion == BIAS_GRADIENT:
        beside = len(nodes[3].outputs)
        made[-beside:] = [BESIDE] * beside
    return [*made, *operands, *more]


def _spans(site: Site, tiling: Tiling, slot: str) -> Iterator[tuple[int, object]]:
    known = {axis.name: axis for axis in OPS[site.node.op].axes(site)}
    for number, axis in enumerate(tiling.axes):
        for span in known[axis.name].spans if axis.name in known else ():
            if span.operand == slot:
                yield number, span


def _beside_spans(site: Site, call: Call, tiling: Tiling) -> Iterator[tuple[int, object]]:
    """What is made beside is cut where free axes cut what it sums up."""
    for number, _ in _spans(site, tiling, summed_slot(site, call)):
        if not tiling.axes[number].reduction:
            yield number, Span(BESIDE, 0)


def summed_slot(site: Site, call: Call) -> str:
    """The operand of the first node that is summed up beside."""
    position = call.whole[1].operands[-2]
    assert position is not None
    return OPS[site.node.op].inputs[position - len(call.outputs)]


def _launches(site: Site, call: Call, tiling: Tiling) -> Iterator[str]:
    """A sum of tiles is started once, added to, and gone on with once; all else runs each time."""
    summed = any(axis.reduction for axis in tiling.axes)
    main, *others = call.whole
    whens = [launch.when.tiles for launch in tiling.launches if launch.barrier]
    ends = bool(summed and main.kernel.epilogue) or any(launch.barrier for launch in others)
    expected = [*(("first", "later") if summed else ("every",)), *(("last",) if ends else ())]
    if whens != expected:
        yield f"its launches run at {', '.join(whens)} tiles, not at {', '.join(expected)}"
        return
    yield from _kernels(main.kernel, tiling, summed)
    partial = len(tiling.views) > len(call.operands)
    if partial != (call.updates and summed):
        yield "the update of a sum of tiles does not come after the last of them"
    elif ends and _at_the_end(tiling) != _epilogue_operands(call, partial):
        yield "what follows has other operands"
    result = len(call.operands) if partial else 0
    for launch in tiling.launches[: 1 + summed]:
        later = launch.when.tiles == "later"
        if launch.operands != own_operands(call, launch.kernel, result, later):
            yield f"{launch.kernel.name} has operands of another node"
    if call.fusion == BIAS_GRADIENT:
        yield from _beside(site, call, tiling)


def _at_the_end(tiling: Tiling) -> tuple[int | None, ...]:
    """What the launch behind the last tile works on."""
    return next(each.operands for each in tiling.launches if each.when.tiles == "last")


def _epilogue_operands(call: Call, partial: bool) -> tuple[int | None, ...]:
    if partial:
        return _update_operands(call, 0, len(call.operands))
    stated = [launch.operands for launch in call.whole[1:] if launch.barrier]
    return stated[0] if stated else (0, 0)  # else the kernel's own, in place


def _kernels(whole: Kernel, tiling: Tiling, summed: bool) -> Iterator[str]:
    """Tiles are computed by kernels for the same op as the whole; where a sum goes over several
    tiles, by one that begins it and one that adds to it, and neither goes on with a part."""
    kernels = [launch.kernel for launch in tiling.launches]
    like = (whole.family, whole.mode)
    if (kernels[0].family, kernels[0].mode) != like:
        yield f"{kernels[0].name} does not compute its first node"
    if kernels[0].epilogue != ("" if summed else whole.epilogue):
        yield f"{kernels[0].name} takes a part of a sum for the whole"
    if not summed:
        return
    if (kernels[1].family, kernels[1].mode, kernels[1].epilogue) != (*like, "sum"):
        yield f"{kernels[1].name} does not add tiles up"
    if tiling.launches[1].sizes != tiling.launches[0].sizes:
        yield f"{kernels[1].name} adds tiles of other sizes"


def _update_operands(call: Call, first: int, gradient: int) -> tuple[int, ...]:
    """Weights and states from `first` on are replaced; then a gradient, and the settings."""
    end = call.own_outputs if first < call.own_outputs else len(call.outputs)
    states = range(first, end)
    return (*states, first, gradient, len(call.operands) - 1, *states[1:])


def _beside(site: Site, call: Call, tiling: Tiling) -> Iterator[str]:
    """What is made beside tiles sums up every part of its operand, and that once."""
    whole, slot = call.whole[1], summed_slot(site, call)
    summed = any(axis.reduction for axis in tiling.axes)
    launches = [launch for launch in tiling.launches if not launch.barrier]
    ends = [(launch.when.tiles, launch.kernel.epilogue) for launch in launches]
    alone = [("every", whole.kernel.epilogue)]
    if ends != ([("first", ""), ("later", "sum"), ("last", "")] if summed else alone):
        yield "what is made beside the tiles is not summed as they are"
        return
    own = len(call.operands) + 1
    updated = _update_operands(call, whole.operands[0] or 0, own)
    sums = (own, whole.operands[-2])
    places = [sums, sums, updated] if summed else [whole.operands]
    if [launch.operands for launch in launches] != places:
        yield "what is made beside the tiles has other operands"
    yield from _beside_sizes(site, tiling, slot, launches)


def _beside_sizes(
    site: Site, tiling: Tiling, slot: str, launches: Sequence[Launch]
) -> Iterator[str]:
    """launches: those that are made beside; slot: the operand that they sum up."""
    op = OPS[site.node.op]
    axes = {axis.name: axis for axis in op.axes(site)}
    free = [axis for axis in axes.values() if not axis.reduction]
    kept = {span.dim for axis in free for span in axis.spans if span.operand == slot}
    unmoved = {axis.name for axis in free if slot not in _seen(axis)}
    for index in _samples(tiling):
        ranges = _ranges(tiling, index)
        tile = op.operand((op.tile(site, ranges) if ranges else site) or site, slot)
        assert tile is not None
        again = any(begin > 0 for name, (begin, _) in ranges.items() if name in unmoved)
        summed = channel_sizes(tile.shape, kept)
        tile_class = tiling.tile_class(index)
        for launch in launches:
            last = launch.when.tiles == "last"
            wanted = {"count": summed["channels"]} if last else summed
            skipped = any(index[number] for number in launch.when.first_along)
            if skipped != again or dict(launch.sizes[tile_class]) != wanted:
                yield f"what is made beside tile {index} does not sum up what that sees"
                return


def _ranges(tiling: Tiling, index: Sequence[int]) -> dict[str, tuple[int, int]]:
    """What a tile covers of each axis."""
    return {
        axis.name: (at * axis.tile, min((at + 1) * axis.tile, axis.size))
        for axis, at in zip(tiling.axes, index, strict=True)
    }


def _seen(axis: Axis) -> set[str]:
    return {span.operand for span in axis.spans}


def _sizes(site: Site, call: Call, tiling: Tiling) -> Iterator[str]:
    """Every tile along each axis, and every class, gets the sizes of that part of the op, and of
    the whole of what its kernel fetches itself."""
    op, whole = OPS[site.node.op], _backing_sizes(site, call)
    for index in _samples(tiling):
        ranges = _ranges(tiling, index)
        part = op.tile(site, ranges) if ranges else site
        number = 0
        for axis, at in zip(tiling.axes, index, strict=True):
            number = number * (max(axis.classes) + 1) + axis.classes[at]
        own_sizes = tiling.launches[0].sizes
        given = own_sizes[number] if number < len(own_sizes) else None
        if part is None or given != {**op.lower(part).sizes, **whole}:
            yield f"tile {index} is computed with the sizes of another"
            return


def _backing_sizes(site: Site, call: Call) -> dict[str, object]:
    """The extents of the whole of what the kernel fetches itself."""
    op = OPS[site.node.op]
    return {k: v for n in fetched(call.kernel) for k, v in op.backing_sizes(site, n).items()}


def _in_one_run(shape: Shape, region: Region) -> bool:
    """Behind the first dimension of which it has a part, it has all of each."""
    parts = [high - low for low, high in region]
    begun = next((dim for dim, part in enumerate(parts) if part > 1), len(parts))
    return parts[begun + 1 :] == list(shape[begun + 1 :])


def _in_order(tiling: Tiling, index: Sequence[int]) -> list[tuple[int, int]]:
    return [axis.range(at) for axis, at in zip(tiling.axes, index, strict=True)]


def _samples(tiling: Tiling) -> Iterator[tuple[int, ...]]:
    first = [0] * len(tiling.axes)
    for place, axis in enumerate(tiling.axes):
        for at in range(axis.count):
            yield (*first[:place], at, *first[place + 1 :])
    classes = (
        [axis.classes.index(tile_class) for tile_class in set(axis.classes)] for axis in tiling.axes
    )
    yield from product(*classes)
