"""Slices with a step, and their adjoint: a tensor laid into a larger one of zeros or a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Arrays, Axis, Lowering, Op, ShapeError, Size, Span, ints, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.flip import flipped
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.lib.pointwise import padded, row_major, strided_copy
from gradlet.ops.lib.tiling import Region, tile_shape


def _index(attrs: Attrs, size: Shape) -> tuple[slice, ...]:
    """Where `size` elements lie in the larger tensor."""
    starts, steps = ints(attrs, "start"), ints(attrs, "step")
    return tuple(
        slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, size, steps, strict=True)
    )


def _check_inside(attrs: Attrs, small: Shape, large: Shape) -> None:
    starts, steps = ints(attrs, "start"), ints(attrs, "step")
    if not len(small) == len(large) == len(starts) == len(steps):
        raise ShapeError("start, step and shapes need the same rank")
    for a, s, n, total in zip(starts, steps, small, large, strict=True):
        if a < 0 or s < 1 or n < 1 or a + (n - 1) * s >= total:
            raise ShapeError(f"{n} elements from {a} in steps of {s} are not inside {total}")


def _tiled(attrs: Attrs, *, small: Region, large: Region, size: Region) -> Attrs:
    """Where a part of the small tensor lies in a part of the large one."""
    starts, steps = ints(attrs, "start"), ints(attrs, "step")
    places = zip(starts, steps, small, large, strict=True)
    start = tuple(a + inner[0] * s - outer[0] for a, s, inner, outer in places)
    return {**attrs, "start": start, "size": tile_shape(size)}


@register
class Slice(Op):
    name = "slice"
    inputs = ("x",)
    linear = True
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        size = ints(attrs, "size")
        _check_inside(attrs, size, ins[0])
        return (size,)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0][_index(attrs, ints(attrs, "size"))],)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        attrs = {"start": site.attrs["start"], "step": site.attrs["step"]}
        return {"x": emit.add("pad", [grads[0]], {**attrs, "size": site.ins[0].shape})}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        starts, steps = ints(site.attrs, "start"), ints(site.attrs, "step")
        return tuple(
            Axis(f"dim{dim}", n, (Span("x", dim, steps[dim], starts[dim]), Span("y", dim)))
            for dim, n in enumerate(site.outs[0].shape)
        )

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        return _tiled(site.attrs, small=parts["y"], large=parts["x"], size=parts["y"])

    def lower(self, site: Site) -> Lowering:
        strides = row_major(site.ins[0].shape)
        starts, steps = ints(site.attrs, "start"), ints(site.attrs, "step")
        walked = tuple(step * stride for step, stride in zip(steps, strides, strict=True))
        first = sum(a * stride for a, stride in zip(starts, strides, strict=True))
        return strided_copy(site.outs[0].shape, walked, first)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        parts = [f"{s.start}:{s.stop}:{s.step}" for s in _index(attrs, ints(attrs, "size"))]
        return f"{ins[0]}[{', '.join(parts)}]"


def _value(attrs: Attrs) -> float:
    return float(attrs.get("value", 0.0))  # type: ignore[arg-type]


@register
class Pad(Op):
    """`value` is what lies around the operand; nothing unless told."""

    name = "pad"
    inputs = ("x",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        size = ints(attrs, "size")
        _check_inside(attrs, ins[0], size)
        return (size,)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        result = np.full(ints(attrs, "size"), _value(attrs), ins[0].dtype)
        result[_index(attrs, ins[0].shape)] = ins[0]
        return (result,)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """The operand is copied; the number around it may be rounded."""
        return self.reference(attrs, np.zeros_like(ins[0]))

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        attrs = {"start": site.attrs["start"], "step": site.attrs["step"]}
        return {"x": emit.add("slice", [grads[0]], {**attrs, "size": site.ins[0].shape})}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        starts, steps = ints(site.attrs, "start"), ints(site.attrs, "step")
        axes = []
        for dim, (small, large) in enumerate(
            zip(site.ins[0].shape, site.outs[0].shape, strict=True)
        ):
            if steps[dim] == 1:
                spans = (Span("x", dim, 1, -starts[dim]), Span("y", dim))
                axes.append(Axis(f"dim{dim}", large, spans))
            elif small == 1:
                axes.append(Axis(f"dim{dim}", large, (Span("y", dim),)))
        return tuple(axes)

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        """A part with nothing of the operand has no place for it: the shape is refused."""
        return _tiled(site.attrs, small=parts["x"], large=parts["y"], size=parts["y"])

    def lower(self, site: Site) -> Lowering:
        shape = site.ins[0].shape
        sizes: dict[str, Size] = {
            "extent": padded(site.outs[0].shape, 1),
            "inner": padded(shape, 1),
            "start": padded(ints(site.attrs, "start"), 0),
            "step": padded(ints(site.attrs, "step"), 1),
            "value": _value(site.attrs),
        }
        return Lowering("pad", "fill", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        places = f"{attrs['start']}, {attrs['step']}, {attrs['size']}"
        return f"_pad({ins[0]}, {places}, float('{_value(attrs)}'))"


def sliced(imp: Importer, x: str, cuts: Sequence[tuple[int, int, int, int]]) -> str:
    """x cut along dimensions by (dim, start, end, step), as Python cuts."""
    shape, backwards = imp.shape(x), []
    start, step, size = [0] * len(shape), [1] * len(shape), list(shape)
    for dim, begin, end, stride in cuts:
        chosen = range(shape[dim])[slice(begin, end, stride)]
        if stride < 0 and chosen:
            chosen = chosen[::-1]
            backwards.append(dim)
        start[dim], step[dim], size[dim] = chosen.start, abs(stride), len(chosen)
    if 0 in size:
        return imp.constant(np.zeros(size, np.float32))
    attrs = {"start": tuple(start), "step": tuple(step), "size": tuple(size)}
    y = x if tuple(size) == shape else imp.add("slice", [x], attrs)
    return flipped(imp, y, backwards)


@from_torch("aten.slice.Tensor")
def _torch_slice(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    dim = call.arg(1, 0) % len(imp.shape(x))
    end = call.arg(3, imp.shape(x)[dim])
    return sliced(imp, x, [(dim, call.arg(2, 0), end, call.arg(4, 1))])


@from_torch("aten.select.int")
def _torch_select(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    shape = imp.shape(x)
    dim = call.args[1] % len(shape)
    index = call.args[2] % shape[dim]
    y = sliced(imp, x, [(dim, index, index + 1, 1)])
    return imp.add("reshape", [y], {"shape": (*shape[:dim], *shape[dim + 1 :])})


@from_onnx("Slice")
def _onnx_slice(imp: Importer, call: Call) -> str:
    x = imp.param(call.args[0])
    rank = len(imp.shape(x))
    starts, ends = ([int(n) for n in imp.static(call.args[i])] for i in (1, 2))
    dims = range(len(starts)) if call.arg(3) is None else [int(d) for d in imp.static(call.args[3])]
    steps = [1] * len(starts) if call.arg(4) is None else [int(n) for n in imp.static(call.args[4])]
    cuts = [(d % rank, a, b, s) for d, a, b, s in zip(dims, starts, ends, steps, strict=True)]
    return sliced(imp, x, cuts)
