"""How the front ends spell what sorting gives: largest elements, their places, medians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlet.ops.crop import sliced
from gradlet.ops.elementwise import affine
from gradlet.ops.extreme import largest
from gradlet.ops.flip import flipped
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.importers.scatter import one_hot
from gradlet.ops.shape import reshaped


def first_of(imp: Importer, x: str, axis: int, count: int, *, descending: bool) -> tuple[str, str]:
    """The first elements in order, and where they stand."""
    if not imp.shape(x):
        x, axis = reshaped(imp, x, (1,)), 0
    attrs = {"axis": axis % len(imp.shape(x)), "count": count, "largest": descending}
    y, order = imp.add_many("sort", [x], attrs)
    return y, order


def place_of(imp: Importer, x: str, axis: int | None, keepdim: bool, *, least: bool) -> str:
    """Where the largest or the smallest element stands: the first of several."""
    rank = len(imp.shape(x))
    if axis is None:
        order = first_of(imp, reshaped(imp, x, (-1,)), 0, 1, descending=not least)[1]
        return reshaped(imp, order, (1,) * rank if keepdim else ())
    order = first_of(imp, x, axis, 1, descending=not least)[1]
    return order if keepdim else _without(imp, order, axis)


def _without(imp: Importer, x: str, axis: int) -> str:
    shape = list(imp.shape(x))
    del shape[axis]
    return reshaped(imp, x, shape)


@from_torch("aten.topk.default")
def _torch_topk(imp: Importer, call: Call) -> Sequence[str]:
    x, count, axis = imp.tensor(call.args[0]), int(call.args[1]), int(call.arg(2, -1))
    return first_of(imp, x, axis, count, descending=bool(call.arg(3, True)))


@from_torch("aten.sort.default", "aten.sort.stable", "aten.argsort.default", "aten.argsort.stable")
@from_torch("aten.msort.default")
def _torch_sort(imp: Importer, call: Call) -> str | Sequence[str]:
    x, rest = imp.tensor(call.args[0]), list(call.args[1:])
    axis, descending = (0, False) if "msort" in call.target else (-1, False)
    if "stable" in call.target:
        rest = rest[1:]
    if rest:
        axis, descending = int(rest[0]), bool(rest[1])
    count = imp.shape(x)[axis] if imp.shape(x) else 1
    y, order = first_of(imp, x, axis, count, descending=descending)
    if "argsort" in call.target:
        return order
    return y if "msort" in call.target else (y, order)


@from_torch("aten.argmax.default", "aten.argmin.default")
def _torch_argmax(imp: Importer, call: Call) -> str:
    axis, keepdim = call.arg(1), bool(call.arg(2, False))
    return place_of(imp, imp.tensor(call.args[0]), axis, keepdim, least="argmin" in call.target)


@from_torch("aten.max.dim", "aten.min.dim")
def _torch_max_dim(imp: Importer, call: Call) -> list[str]:
    """The places are sorted out only if something reads them."""
    x, least = imp.tensor(call.args[0]), "min" in call.target
    axis, keepdim = int(call.args[1]), bool(call.arg(2, False))
    return [
        largest(imp, x, (axis,), keepdim, first=True, least=least),
        place_of(imp, x, axis, keepdim, least=least),
    ]


@from_torch("aten.kthvalue.default", "aten.median.dim", "aten.median.default")
def _torch_kth(imp: Importer, call: Call) -> str | Sequence[str]:
    """The k-th smallest; a median is the lower one of two."""
    x = imp.tensor(call.args[0])
    if call.target == "aten.median.default":
        return _kth(imp, reshaped(imp, x, (-1,)), None, 0, False)[0]
    median = "median" in call.target
    count = None if median else int(call.args[1])
    axis, keepdim = call.args[1:3] if median else call.args[2:4]
    return _kth(imp, x, count, int(axis), bool(keepdim))


def _kth(imp: Importer, x: str, count: int | None, axis: int, keepdim: bool) -> list[str]:
    axis %= len(imp.shape(x))
    count = (imp.shape(x)[axis] - 1) // 2 + 1 if count is None else count
    y, order = first_of(imp, x, axis, count, descending=False)
    kept = [sliced(imp, part, [(axis, count - 1, count, 1)]) for part in (y, order)]
    return kept if keepdim else [_without(imp, part, axis) for part in kept]


@from_onnx("TopK")
def _onnx_topk(imp: Importer, call: Call) -> Sequence[str]:
    x, count = imp.tensor(call.args[0]), int(imp.static(call.args[1]).reshape(()))
    axis, descending = int(call.attrs.get("axis", -1)), bool(call.attrs.get("largest", 1))
    return first_of(imp, x, axis, count, descending=descending)


@from_onnx("ArgMax", "ArgMin")
def _onnx_arg(imp: Importer, call: Call) -> str:
    x: Any = imp.tensor(call.args[0])
    axis, keepdim = int(call.attrs.get("axis", 0)), bool(call.attrs.get("keepdims", 1))
    least, last = call.target == "ArgMin", bool(call.attrs.get("select_last_index", 0))
    if not last:
        return place_of(imp, x, axis, keepdim, least=least)
    axis %= len(imp.shape(x))
    place = place_of(imp, flipped(imp, x, [axis]), axis, keepdim, least=least)
    return affine(imp, place, -1.0, imp.shape(x)[axis] - 1.0)


@from_onnx("Hardmax")
def _onnx_hardmax(imp: Importer, call: Call) -> str:
    x, axis = imp.tensor(call.args[0]), int(call.attrs.get("axis", -1))
    axis %= len(imp.shape(x))
    return one_hot(imp, place_of(imp, x, axis, False, least=False), imp.shape(x)[axis], axis)
