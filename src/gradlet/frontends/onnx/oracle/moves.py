"""Elements that move: views, cuts, joins, lookups, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradlet.frontends.onnx.oracle.base import NotWritten, Operator, at, operator, whole


@operator("Shape", "Size")
def _shape(op: Operator, args: Sequence[Any]) -> Any:
    if op.kind == "Size":
        return torch.tensor(args[0].numel())
    extents = list(args[0].shape)
    return torch.tensor(extents[op.get("start", 0) : op.get("end")], dtype=torch.int64)


@operator("Reshape")
def _reshape(op: Operator, args: Sequence[Any]) -> Any:
    x, wanted = args[0], whole(args[1])
    if not op.get("allowzero", 0):
        wanted = [x.shape[i] if extent == 0 else extent for i, extent in enumerate(wanted)]
    return x.reshape(wanted)


@operator("Flatten")
def _flatten(op: Operator, args: Sequence[Any]) -> Any:
    x, axis = args[0], op.get("axis", 1)
    rows = torch.Size(x.shape[:axis]).numel()
    return x.reshape(rows, x.numel() // max(rows, 1))


def _given_axes(op: Operator, args: Sequence[Any]) -> list[int] | None:
    given: list[int] | None = op.get("axes")
    return given if at(args, 1) is None else whole(args[1])


@operator("Squeeze")
def _squeeze(op: Operator, args: Sequence[Any]) -> Any:
    x, axes = args[0], _given_axes(op, args)
    if axes is None:
        return x.squeeze()
    gone = {axis % x.ndim for axis in axes}
    return x.reshape([extent for i, extent in enumerate(x.shape) if i not in gone])


@operator("Unsqueeze")
def _unsqueeze(op: Operator, args: Sequence[Any]) -> Any:
    x, axes = args[0], _given_axes(op, args) or []
    new = {axis % (x.ndim + len(axes)) for axis in axes}
    extents = iter(x.shape)
    return x.reshape([1 if i in new else next(extents) for i in range(x.ndim + len(axes))])


@operator("Transpose")
def _transpose(op: Operator, args: Sequence[Any]) -> Any:
    return args[0].permute(op.get("perm") or list(range(args[0].ndim))[::-1])


@operator("Expand")
def _expand(op: Operator, args: Sequence[Any]) -> Any:
    return args[0].expand(torch.broadcast_shapes(args[0].shape, torch.Size(whole(args[1]))))


@operator("Tile")
def _tile(op: Operator, args: Sequence[Any]) -> Any:
    return args[0].repeat(whole(args[1]))


@operator("Concat")
def _concat(op: Operator, args: Sequence[Any]) -> Any:
    return torch.cat(list(args), op.get("axis"))


@operator("Split")
def _split(op: Operator, args: Sequence[Any]) -> Any:
    x, axis = args[0], op.get("axis", 0)
    if at(args, 1) is not None:
        return torch.split(x, whole(args[1]), axis)
    extent, parts = x.shape[axis], len(op.outputs)
    return torch.split(x, -(-extent // parts), axis)


@operator("Slice")
def _slice(op: Operator, args: Sequence[Any]) -> Any:
    x, starts, ends = args[0], whole(args[1]), whole(args[2])
    axes = whole(args[3]) if at(args, 3) is not None else list(range(len(starts)))
    steps = whole(args[4]) if at(args, 4) is not None else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        picked = range(x.shape[axis])[start:end:step]
        x = x.index_select(axis, torch.tensor(list(picked), dtype=torch.int64))
    return x


@operator("Gather")
def _gather(op: Operator, args: Sequence[Any]) -> Any:
    x, indices = args
    axis = op.get("axis", 0) % x.ndim
    indices = torch.where(indices < 0, indices + x.shape[axis], indices).long()
    rows = x.index_select(axis, indices.reshape(-1))
    return rows.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


@operator("GatherElements")
def _gather_elements(op: Operator, args: Sequence[Any]) -> Any:
    x, indices = args
    axis = op.get("axis", 0)
    return x.gather(axis, torch.where(indices < 0, indices + x.shape[axis], indices).long())


@operator("GatherND")
def _gather_nd(op: Operator, args: Sequence[Any]) -> Any:
    x, indices = args[0], args[1].long()
    if op.get("batch_dims", 0):
        raise NotWritten("with batch_dims")
    return x[tuple(indices.unbind(-1))]


@operator("ScatterElements")
def _scatter_elements(op: Operator, args: Sequence[Any]) -> Any:
    x, indices, updates = args
    axis, how = op.get("axis", 0), op.get("reduction", "none")
    indices = torch.where(indices < 0, indices + x.shape[axis], indices).long()
    if how == "none":
        return x.scatter(axis, indices, updates)
    if how != "add":
        raise NotWritten(f"with reduction '{how}'")
    return x.scatter_add(axis, indices, updates)


@operator("ScatterND")
def _scatter_nd(op: Operator, args: Sequence[Any]) -> Any:
    x, indices, updates = args
    how = op.get("reduction", "none")
    if how not in ("none", "add"):
        raise NotWritten(f"with reduction '{how}'")
    return x.index_put(tuple(indices.long().unbind(-1)), updates, accumulate=how == "add")


@operator("TopK")
def _top_k(op: Operator, args: Sequence[Any]) -> Any:
    largest = bool(op.get("largest", 1))
    return torch.topk(args[0], int(args[1]), op.get("axis", -1), largest, bool(op.get("sorted", 1)))


@operator("Trilu")
def _trilu(op: Operator, args: Sequence[Any]) -> Any:
    diagonal = int(args[1]) if at(args, 1) is not None else 0
    return (torch.triu if op.get("upper", 1) else torch.tril)(args[0], diagonal)


@operator("Pad")
def _pad(op: Operator, args: Sequence[Any]) -> Any:
    """Along each axis by itself, as a list of places; -1 is the constant."""
    x, pads, mode = args[0], whole(args[1]), op.get("mode", "constant")
    axes = whole(args[3]) if at(args, 3) is not None else list(range(x.ndim))
    fill = args[2].reshape(()) if at(args, 2) is not None else torch.zeros((), dtype=x.dtype)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        extent = x.shape[axis]
        places = [_place(i, extent, mode) for i in range(-before, extent + after)]
        picked = x.index_select(axis, torch.tensor([max(place, 0) for place in places]))
        inside = torch.tensor([place >= 0 for place in places])
        shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
        x = torch.where(inside.reshape(shape), picked, fill)
    return x


def _place(index: int, extent: int, mode: str) -> int:
    if 0 <= index < extent:
        return index
    if mode == "constant":
        return -1
    if mode == "edge":
        return min(max(index, 0), extent - 1)
    if mode == "wrap":
        return index % extent
    period = max(2 * extent - 2, 1)
    return min(index % period, period - index % period)


@operator("DepthToSpace")
def _depth_to_space(op: Operator, args: Sequence[Any]) -> Any:
    (n, c, h, w), b = args[0].shape, op.get("blocksize")
    if op.get("mode", "DCR") == "DCR":
        y = args[0].reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = args[0].reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // b**2, h * b, w * b)


@operator("SpaceToDepth")
def _space_to_depth(op: Operator, args: Sequence[Any]) -> Any:
    (n, c, h, w), b = args[0].shape, op.get("blocksize")
    y = args[0].reshape(n, c, h // b, b, w // b, b)
    y = y.permute(0, 1, 3, 5, 2, 4) if op.get("mode") == "CRD" else y.permute(0, 3, 5, 1, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)
