"""Rearrangements that are made of reshape, transpose, slice, expand and concat."""

from __future__ import annotations

from gradlet.ops.concat import cut, join
from gradlet.ops.crop import sliced
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.shape import reshaped, transposed


@from_torch("aten.narrow.default")
def _torch_narrow(imp: Importer, call: Call) -> str:
    x, dim, start, length = imp.tensor(call.args[0]), *map(int, call.args[1:4])
    extent = imp.shape(x)[dim]
    return sliced(imp, x, [(dim % len(imp.shape(x)), start % extent, start % extent + length, 1)])


@from_torch("aten.roll.default")
def _torch_roll(imp: Importer, call: Call) -> str:
    x, shifts, dims = imp.tensor(call.args[0]), call.args[1], call.arg(2, ())
    shape = imp.shape(x)
    if not dims:  # the whole tensor as one line
        line = reshaped(imp, x, (-1,))
        return reshaped(imp, _rolled(imp, line, int(shifts[0]), 0), shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(imp, x, int(shift), int(dim) % len(shape))
    return x


def _rolled(imp: Importer, x: str, shift: int, dim: int) -> str:
    extent = imp.shape(x)[dim]
    shift %= extent
    if not shift:
        return x
    first, last = cut(imp, x, [extent - shift, shift], dim)
    return join(imp, [last, first], dim)


@from_torch("aten.repeat_interleave.self_int")
def _torch_repeat_interleave(imp: Importer, call: Call) -> str:
    """Every element several times in a row."""
    x, times, dim = imp.tensor(call.args[0]), int(call.args[1]), call.arg(2)
    x = reshaped(imp, x, (-1,)) if dim is None else x
    shape = imp.shape(x)
    dim = (dim or 0) % len(shape)
    column = reshaped(imp, x, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    wide = imp.add("expand", [column], {"shape": (*shape[: dim + 1], times, *shape[dim + 1 :])})
    return reshaped(imp, wide, (*shape[:dim], shape[dim] * times, *shape[dim + 1 :]))


@from_torch("aten.hstack.default", "aten.vstack.default", "aten.dstack.default")
@from_torch("aten.column_stack.default")
def _torch_stacks(imp: Importer, call: Call) -> str:
    parts = [imp.tensor(value) for value in call.args[0]]
    rank = len(imp.shape(parts[0]))
    match call.target.split(".")[1]:
        case "hstack":
            return join(imp, parts, min(rank - 1, 1))
        case "vstack":
            rows = [reshaped(imp, p, (1, *imp.shape(p))) if rank == 1 else p for p in parts]
            return join(imp, rows, 0)
        case "column_stack":
            columns = [reshaped(imp, p, (*imp.shape(p), 1)) if rank == 1 else p for p in parts]
            return join(imp, columns, 1)
    deep = [
        reshaped(imp, p, (*(1,) * (rank == 1), *imp.shape(p), *(1,) * (rank < 3))) for p in parts
    ]
    return join(imp, deep, 2)


@from_torch("aten.tensor_split.sections", "aten.tensor_split.indices")
def _torch_tensor_split(imp: Importer, call: Call) -> list[str]:
    x, how, dim = imp.tensor(call.args[0]), call.args[1], int(call.arg(2, 0))
    total = imp.shape(x)[dim]
    if isinstance(how, int):
        sizes = [total // how + (index < total % how) for index in range(how)]
    else:
        ends = [min(int(end) % (total + 1), total) for end in how]
        sizes = [b - a for a, b in zip([0, *ends], [*ends, total], strict=True)]
    return cut(imp, x, sizes, dim)


def _blocks_to_space(imp: Importer, x: str, block: int, *, channels_last: bool) -> str:
    """[.., c * b * b, h, w] as [.., c, h * b, w * b]; channels may vary faster than the blocks."""
    *lead, deep, h, w = imp.shape(x)
    if deep % (block * block):
        raise imp.unsupported(f"{deep} channels in blocks of {block} x {block}")
    rank, c = len(lead), deep // (block * block)
    apart = (block, block, c) if channels_last else (c, block, block)
    y = reshaped(imp, x, (*lead, *apart, h, w))
    channel, up, left = (2, 0, 1) if channels_last else (0, 1, 2)
    order = [*range(rank), *(rank + d for d in (channel, 3, up, 4, left))]
    return reshaped(imp, transposed(imp, y, order), (*lead, c, h * block, w * block))


def _space_to_blocks(imp: Importer, x: str, block: int, *, channels_last: bool) -> str:
    *lead, c, h, w = imp.shape(x)
    if h % block or w % block:
        raise imp.unsupported(f"a plane of {h} x {w} in blocks of {block} x {block}")
    rank = len(lead)
    y = reshaped(imp, x, (*lead, c, h // block, block, w // block, block))
    inner = (2, 4, 0, 1, 3) if channels_last else (0, 2, 4, 1, 3)
    y = transposed(imp, y, [*range(rank), *(rank + d for d in inner)])
    return reshaped(imp, y, (*lead, c * block * block, h // block, w // block))


@from_torch("aten.pixel_shuffle.default", "aten.pixel_unshuffle.default")
def _torch_pixel_shuffle(imp: Importer, call: Call) -> str:
    x, block = imp.tensor(call.args[0]), int(call.args[1])
    if "unshuffle" in call.target:
        return _space_to_blocks(imp, x, block, channels_last=False)
    return _blocks_to_space(imp, x, block, channels_last=False)


@from_onnx("DepthToSpace", "SpaceToDepth")
def _onnx_depth(imp: Importer, call: Call) -> str:
    x, block = imp.tensor(call.args[0]), int(call.need("blocksize"))
    channels_last = call.attrs.get("mode", "DCR") == "DCR"
    rearranged = _space_to_blocks if call.target == "SpaceToDepth" else _blocks_to_space
    return rearranged(imp, x, block, channels_last=channels_last)


@from_torch("aten.channel_shuffle.default")
def _torch_channel_shuffle(imp: Importer, call: Call) -> str:
    x, groups = imp.tensor(call.args[0]), int(call.args[1])
    n, c, *rest = imp.shape(x)
    apart = reshaped(imp, x, (n, groups, c // groups, *rest))
    order = [0, 2, 1, *range(3, len(rest) + 3)]
    return reshaped(imp, transposed(imp, apart, order), (n, c, *rest))
