"""Reshape (flatten, squeeze, view: no bytes move) and transpose (any permutation)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Span, ints, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.lib.pointwise import MAX_RANK, row_major, same_index_axes, strided_copy
from gradlet.ops.lib.tiling import Region, tile_shape


@register
class Reshape(Op):
    name = "reshape"
    inputs = ("x",)
    linear = True
    exact = True
    view = True
    untyped = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        target = ints(attrs, "shape")
        if np.prod(target, dtype=int) != np.prod(ins[0], dtype=int):
            raise ShapeError(f"{ins[0]} cannot be viewed as {target}")
        return (target,)

    def check_dtypes(self, *ins: Tensor) -> None:
        """Indices may be viewed as well."""

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0].reshape(ints(attrs, "shape")),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add("reshape", [grads[0]], {"shape": site.ins[0].shape})}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        pairs = zip(site.ins[0].shape, site.outs[0].shape, strict=False)
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        return same_index_axes(tuple(n for n, _ in shared), ("x", "y"))

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        return {"shape": tile_shape(parts["y"])}

    def lower(self, site: Site) -> Lowering:
        return strided_copy((site.outs[0].elements,), (1,))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.reshape({ints(attrs, 'shape')})"


@register
class Transpose(Op):
    name = "transpose"
    inputs = ("x",)
    linear = True
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        axes = ints(attrs, "axes")
        if sorted(axes) != list(range(len(ins[0]))):
            raise ShapeError(f"{axes} is not a permutation of the dimensions")
        return (tuple(ins[0][axis] for axis in axes),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0].transpose(ints(attrs, "axes")),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        inverse = tuple(int(axis) for axis in np.argsort(ints(site.attrs, "axes")))
        return {"x": emit.add("transpose", [grads[0]], {"axes": inverse})}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return tuple(
            Axis(f"dim{dim}", site.outs[0].shape[dim], (Span("x", source), Span("y", dim)))
            for dim, source in enumerate(ints(site.attrs, "axes"))
        )

    def lower(self, site: Site) -> Lowering:
        steps = row_major(site.ins[0].shape)
        strides = tuple(steps[axis] for axis in ints(site.attrs, "axes"))
        return strided_copy(site.outs[0].shape, strides)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.permute({ints(attrs, 'axes')})"


def permutation_steps(shape: Shape, axes: Shape) -> list[Shape]:
    """A permutation as permutations one behind the other, each of no more dimensions than kernels
    take, with neighbours that stay together as one. The first of several brings the first two to
    the front, where they stay together."""
    runs: list[list[int]] = []
    last = -1
    for axis in axes:
        between = shape[last + 1 : axis] if last < axis else ()
        if runs and (shape[axis] == 1 or (last < axis and all(n == 1 for n in between))):
            runs[-1].append(axis)
        else:
            runs.append([axis])
        last = last if shape[axis] == 1 else axis
    if len(runs) <= MAX_RANK:
        return [axes]
    front = [*runs[0], *runs[1]]
    middle = (*front, *(axis for axis in range(len(shape)) if axis not in front))
    rest = tuple(middle.index(axis) for axis in axes)
    return [middle, *permutation_steps(tuple(shape[axis] for axis in middle), rest)]


def reshaped(imp: Importer, x: str, shape: Sequence[int]) -> str:
    """Reshape with at most one -1; nothing is added when the shape stays."""
    own = imp.shape(x)
    target = [int(extent) for extent in shape]
    if target.count(-1) > 1 or any(extent < -1 for extent in target):
        raise imp.unsupported(f"the shape {target}; at most one extent may be -1")
    if target.count(-1) == 1:
        known = int(np.prod([extent for extent in target if extent != -1], dtype=int))
        target[target.index(-1)] = int(np.prod(own, dtype=int)) // max(known, 1)
    return x if tuple(target) == own else imp.add("reshape", [x], {"shape": tuple(target)})


def _flatten(imp: Importer, x: str, start: int, end: int) -> str:
    shape = imp.shape(x)
    start, end = start % max(len(shape), 1), end % max(len(shape), 1)
    return reshaped(imp, x, (*shape[:start], -1, *shape[end + 1 :]))


def transposed(imp: Importer, x: str, axes: Sequence[int]) -> str:
    rank = len(imp.shape(x))
    order = tuple(int(axis) % max(rank, 1) for axis in axes)
    return x if order == tuple(range(rank)) else imp.add("transpose", [x], {"axes": order})


def swapped(imp: Importer, x: str, first: int = -2, second: int = -1) -> str:
    """x with two dimensions in each other's place."""
    axes = list(range(len(imp.shape(x))))
    if axes:
        axes[first], axes[second] = axes[second], axes[first]
    return transposed(imp, x, axes)


def _unsqueeze(imp: Importer, x: str, axes: Sequence[int]) -> str:
    shape = list(imp.shape(x))
    rank = len(shape) + len(axes)
    for axis in sorted(int(axis) % rank for axis in axes):
        shape.insert(axis, 1)
    return reshaped(imp, x, shape)


def _squeeze(imp: Importer, x: str, axes: Sequence[int] | None) -> str:
    shape = imp.shape(x)
    gone = range(len(shape)) if axes is None else [int(axis) % len(shape) for axis in axes]
    return reshaped(imp, x, [n for dim, n in enumerate(shape) if dim not in gone or n != 1])


@from_torch("aten.view.default", "aten.reshape.default")
def _torch_view(imp: Importer, call: Call) -> str:
    return reshaped(imp, imp.tensor(call.args[0]), call.args[1])


@from_torch("aten.ravel.default")
def _torch_ravel(imp: Importer, call: Call) -> str:
    return reshaped(imp, imp.tensor(call.args[0]), (-1,))


@from_torch("aten.atleast_1d.default", "aten.atleast_2d.default")
def _torch_atleast(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    missing = max(0, int(call.target[len("aten.atleast_")]) - len(imp.shape(x)))
    return reshaped(imp, x, (*(1,) * missing, *imp.shape(x)))


@from_torch("aten.flatten.using_ints")
def _torch_flatten(imp: Importer, call: Call) -> str:
    return _flatten(imp, imp.tensor(call.args[0]), call.arg(1, 0), call.arg(2, -1))


@from_torch("aten.unsqueeze.default", "aten.unsqueeze_.default")
def _torch_unsqueeze(imp: Importer, call: Call) -> str:
    return _unsqueeze(imp, imp.tensor(call.args[0]), [call.args[1]])


@from_torch("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze_.dim")
@from_torch("aten.squeeze_.default", "aten.squeeze_.dims")
def _torch_squeeze(imp: Importer, call: Call) -> str:
    axes = call.arg(1)
    return _squeeze(imp, imp.tensor(call.args[0]), [axes] if isinstance(axes, int) else axes)


@from_torch("aten.permute.default")
def _torch_permute(imp: Importer, call: Call) -> str:
    return transposed(imp, imp.tensor(call.args[0]), call.args[1])


@from_torch("aten.transpose.int", "aten.t.default", "aten.numpy_T.default")
@from_torch("aten.transpose_.default", "aten.t_.default", "aten.swapaxes_.default")
@from_torch("aten.swapdims_.default")
def _torch_transpose(imp: Importer, call: Call) -> str:
    pair = call.args[1:3] if len(call.args) > 2 else (0, -1)
    return swapped(imp, imp.tensor(call.args[0]), *pair)


@from_torch(
    "aten.contiguous.default",
    "aten.clone.default",
    "aten.alias.default",
    "aten.lift_fresh_copy.default",
)
@from_onnx("Identity")
def _same(imp: Importer, call: Call) -> str:
    return imp.tensor(call.args[0])


@from_onnx("Reshape")
def _onnx_reshape(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    target = [int(extent) for extent in imp.static(call.args[1])]
    if not call.attrs.get("allowzero", 0):
        own = imp.shape(x)
        target = [own[dim] if extent == 0 else extent for dim, extent in enumerate(target)]
    return reshaped(imp, x, target)


@from_onnx("Flatten")
def _onnx_flatten(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    shape = imp.shape(x)
    axis = call.attrs.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return reshaped(imp, x, (int(np.prod(shape[:axis], dtype=int)), -1))


@from_onnx("Transpose")
def _onnx_transpose(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    return transposed(imp, x, call.attrs.get("perm", range(len(imp.shape(x)))[::-1]))


@from_onnx("Squeeze", "Unsqueeze")
def _onnx_squeeze(imp: Importer, call: Call) -> str:
    axes = call.attrs.get("axes")  # an operand since opset 13
    if axes is None and call.arg(1) is not None:
        axes = [int(axis) for axis in np.atleast_1d(imp.static(call.args[1]))]
    x = imp.tensor(call.args[0])
    return _squeeze(imp, x, axes) if call.target == "Squeeze" else _unsqueeze(imp, x, axes or [])


@from_toml("flatten")
def _toml_flatten(imp: Importer, call: Call) -> str:
    return _flatten(imp, call.args[0], 1, -1)


@from_toml("reshape")
def _toml_reshape(imp: Importer, call: Call) -> str:
    return reshaped(imp, call.args[0], (imp.shape(call.args[0])[0], *call.need("shape")))


@from_toml("transpose")
def _toml_transpose(imp: Importer, call: Call) -> str:
    return transposed(imp, call.args[0], call.need("axes"))
