"""Joining tensors along a dimension; taking them apart again is done by slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, integer, ints, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.lib.pointwise import same_index_axes
from gradlet.ops.lib.tiling import slice_attrs

MOST = 4  # operands of one node; more are joined in groups


@register
class Concat(Op):
    name = "concat"
    inputs = ("a", "b", "c?", "d?")
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        axis = integer(attrs, "axis")
        if not 0 <= axis < len(ins[0]):
            raise ShapeError(f"there is no dimension {axis}")
        lead, rest = ins[0][:axis], ins[0][axis + 1 :]
        if any(shape[:axis] != lead or shape[axis + 1 :] != rest for shape in ins):
            raise ShapeError(f"the shapes differ in other dimensions than {axis}")
        return ((*lead, sum(shape[axis] for shape in ins), *rest),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.concatenate(ins, axis=integer(attrs, "axis")),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        axis, begin, result = integer(site.attrs, "axis"), 0, {}
        for slot, tensor in zip("abcd", site.ins, strict=False):
            end = begin + tensor.shape[axis]
            if slot in wanted:
                attrs = slice_attrs(site.outs[0].shape, axis, begin, end)
                result[slot] = emit.add("slice", [grads[0]], attrs)
            begin = end
        return result

    def axes(self, site: Site) -> tuple[Axis, ...]:
        names = [slot for slot, _ in self.slots(site)]
        return same_index_axes(site.outs[0].shape, names, (integer(site.attrs, "axis"),))

    def lower(self, site: Site) -> Lowering:
        axis = integer(site.attrs, "axis")
        outer = int(np.prod(site.outs[0].shape[:axis]))
        widths = [tensor.elements // outer for tensor in site.ins]
        return Lowering(
            "concat", "join", {"outer": outer, "width": (*widths, *[0] * (MOST - len(widths)))}
        )

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"torch.cat([{', '.join(ins)}], {attrs['axis']})"


def join(imp: Importer, parts: Sequence[str], axis: int) -> str:
    axis %= len(imp.shape(parts[0]))
    parts = [part for part in parts if 0 not in imp.shape(part)] or list(parts[:1])
    while len(parts) > 1:
        groups = [parts[i : i + MOST] for i in range(0, len(parts), MOST)]
        parts = [
            group[0] if len(group) == 1 else imp.add("concat", group, {"axis": axis})
            for group in groups
        ]
    return parts[0]


def cut(imp: Importer, x: str, sizes: Sequence[int], axis: int) -> list[str]:
    """Neighbouring slices of given sizes along a dimension."""
    shape, parts, begin = imp.shape(x), [], 0
    axis %= len(shape)
    if sum(sizes) != shape[axis]:
        raise imp.unsupported(f"parts of {list(sizes)} do not make up {shape[axis]}")
    for size in sizes:
        attrs = slice_attrs(shape, axis, begin, begin + size)
        if size == 0:
            parts.append(imp.constant(np.zeros(ints(attrs, "size"), np.float32)))
        else:
            parts.append(x if size == shape[axis] else imp.add("slice", [x], attrs))
        begin += size
    return parts


def _pieces(total: int, size: int) -> list[int]:
    return [min(size, total - begin) for begin in range(0, total, size)]


@from_torch("aten.cat.default", "aten.concat.default")
def _torch_cat(imp: Importer, call: Call) -> str:
    return join(imp, [imp.tensor(value) for value in call.args[0]], int(call.arg(1, 0)))


@from_torch("aten.stack.default")
def _torch_stack(imp: Importer, call: Call) -> str:
    parts = [imp.tensor(value) for value in call.args[0]]
    shape = imp.shape(parts[0])
    axis = int(call.arg(1, 0)) % (len(shape) + 1)
    apart = {"shape": (*shape[:axis], 1, *shape[axis:])}
    return join(imp, [imp.add("reshape", [part], apart) for part in parts], axis)


@from_torch("aten.chunk.default", "aten.split.Tensor", "aten.split_with_sizes.default")
def _torch_split(imp: Importer, call: Call) -> list[str]:
    x, how, axis = imp.tensor(call.args[0]), call.args[1], int(call.arg(2, 0))
    total = imp.shape(x)[axis]
    if call.target == "aten.chunk.default":
        how = -(-total // int(how))
    return cut(imp, x, _pieces(total, how) if isinstance(how, int) else how, axis)


@from_torch("aten.unbind.int")
def _torch_unbind(imp: Importer, call: Call) -> list[str]:
    x = imp.tensor(call.args[0])
    shape = imp.shape(x)
    axis = int(call.arg(1, 0)) % len(shape)
    flat = {"shape": (*shape[:axis], *shape[axis + 1 :])}
    return [imp.add("reshape", [part], flat) for part in cut(imp, x, [1] * shape[axis], axis)]


@from_onnx("Concat")
def _onnx_concat(imp: Importer, call: Call) -> str:
    return join(imp, [imp.param(value) for value in call.args], int(call.need("axis")))


@from_onnx("Split")
def _onnx_split(imp: Importer, call: Call) -> list[str]:
    x, axis = imp.param(call.args[0]), int(call.attrs.get("axis", 0))
    sizes: Any = call.attrs.get("split")  # an operand since opset 13
    if sizes is None and call.arg(1) is not None:
        sizes = [int(n) for n in imp.static(call.args[1])]
    if sizes is None:
        total, count = imp.shape(x)[axis], int(call.attrs.get("num_outputs", 0) or call.results)
        sizes = _pieces(total, -(-total // count))
    return cut(imp, x, sizes, axis)


@from_toml("concat")
def _toml_concat(imp: Importer, call: Call) -> str:
    return join(imp, list(call.args), int(call.attrs.get("axis", 1)))
