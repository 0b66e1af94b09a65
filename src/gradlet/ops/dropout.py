"""Dropout: a mask that is a function of seed, step, layer and place, and therefore never stored.

The state holds seed, step, and whether anything is dropped at all: `predict` passes everything on.
All of the hash is 32-bit arithmetic, the same in C, in numpy and in PyTorch's oracle.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradlet.ir.graph import Array, Attrs, Graph, Shape, Site, Tensor
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Size, integer, ints, number, register
from gradlet.ops.elementwise import affine
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.lib.pointwise import merge, padded, row_major, same_index_axes
from gradlet.ops.lib.tiling import Region, tile_shape

STATE = "dropout_state"
SEED, STEP, ACTIVE = range(3)
BITS = 24  # of the hash that are compared with p
FIRST, SECOND, STRIDE = 0x6A09E667, 0xBB67AE85, 0x9E3779B1  # odd, from irrational numbers


def _mixed(value: Array) -> Array:
    """Every bit of 32 depends on every other; in uint64, so that products do not overflow."""
    value = value & 0xFFFFFFFF
    for shift, factor in ((16, FIRST), (13, SECOND)):
        value = (value ^ (value >> shift)) * factor & 0xFFFFFFFF
    mixed: Array = value ^ (value >> 16)
    return mixed


def kept(attrs: Attrs, state: Array, count: int) -> Array:
    """Which of the first elements stay, as booleans."""
    return _kept_at(attrs, state, np.arange(count))


def uniform(salt: int, state: Array, count: int) -> Array:
    """The numbers from 0 to 1 that decide: what is below p is lost."""
    drawn: Array = _drawn({"salt": salt, "group": 1}, state, np.arange(count)) / 2.0**BITS
    return drawn


def _kept_at(attrs: Attrs, state: Array, places: Array) -> Array:
    stay: Array = _drawn(attrs, state, places) >= np.uint64(_threshold(attrs))
    return stay


def _drawn(attrs: Attrs, state: Array, places: Array) -> Array:
    seed, step = (np.asarray(state[i], np.int64).astype(np.uint64) for i in (SEED, STEP))
    salt = np.uint64(integer(attrs, "salt"))
    key = _mixed(_mixed(_mixed(seed) + salt) + step)
    group = places.astype(np.uint64) // np.uint64(integer(attrs, "group"))
    hashed = _mixed(key + group * np.uint64(STRIDE))
    drawn: Array = hashed >> np.uint64(32 - BITS)
    return drawn


def _ordered(attrs: Attrs) -> bool:
    return "order" in attrs or "steps" in attrs


def _lies(attrs: Attrs, shape: Shape) -> tuple[Shape, tuple[int, ...], int]:
    """How elements as they lie have their places in the model's order: the extents under which
    they lie, the steps of the places along these, and the place of the first."""
    begin = integer(attrs, "begin") if "begin" in attrs else 0
    if "steps" in attrs:
        return ints(attrs, "extents"), ints(attrs, "steps"), begin
    if "order" not in attrs:
        return shape, row_major(shape), begin
    view, order = ints(attrs, "view"), ints(attrs, "order")
    strides = row_major(view)
    return tuple(view[dim] for dim in order), tuple(strides[dim] for dim in order), 0


def _kept_as_it_lies(attrs: Attrs, state: Array, shape: Shape) -> Array:
    """The mask of the model's order of elements, for a tensor that lies in another."""
    extents, steps, begin = _lies(attrs, shape)
    places = begin + sum(
        (index * step for index, step in zip(np.indices(extents), steps, strict=True)),
        np.zeros(extents, int),
    )
    return _kept_at(attrs, state, places).reshape(shape)


def _threshold(attrs: Attrs) -> int:
    whole: int = round(number(attrs, "p") * 2**BITS)
    return whole


def _scale(attrs: Attrs) -> float:
    p = number(attrs, "p")
    return 1 / (1 - p) if p < 1 else 0.0


@register
class Dropout(Op):
    """x / (1 - p), or 0 with probability p; `group` neighbours share their fate.

    A tensor that does not lie as the model has it, but viewed as `view` and permuted by `order`,
    loses the same elements. So does a part, whose elements have their places from `begin` on, one
    after the other, or in `steps` along `extents`.
    """

    name = "dropout"
    inputs = ("x", "state")
    integers = ("state",)
    overwrites = ("x",)
    torch_source = """
def _mixed(v):
    v = v & 0xFFFFFFFF
    for shift, factor in ((16, 0x6A09E667), (13, 0xBB67AE85)):
        v = (v ^ (v >> shift)) * factor & 0xFFFFFFFF
    return v ^ (v >> 16)


def _dropout(x, state, salt, group, threshold, scale, view, order):
    if not state[2]:
        return x
    key = _mixed(_mixed(_mixed(state[0]) + salt) + state[1])
    place = torch.arange(x.numel()).reshape(view).permute(order).reshape(x.shape) // group
    return torch.where(_mixed(key + place * 0x9E3779B1) >> 8 >= threshold, x * scale, 0.0)
"""

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins[1] != (3,):
            raise ShapeError("the state is seed, step and whether anything is dropped")
        return (ins[0],)

    def check_dtypes(self, *ins: Tensor) -> None:
        if not ins[0].element.is_float or ins[1].dtype != "i32":
            raise ShapeError("a tensor of floats and a state of integers are needed")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        x, state = ins
        if not state[ACTIVE]:
            return (x,)
        return (np.where(_kept_as_it_lies(attrs, state, x.shape), x * _scale(attrs), 0.0),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add("dropout", [grads[0], site.node.inputs[1]], site.attrs)}

    def roundings(self, site: Site, out: Tensor) -> float:
        return 2  # the scale is rounded as well

    def axes(self, site: Site) -> tuple[Axis, ...]:
        shape = site.outs[0].shape
        axes = same_index_axes(shape, ("x", "y"))
        extents, _, _ = _lies(site.attrs, shape)
        if extents == shape:
            return axes
        return axes[:1] if extents[:1] == shape[:1] else ()

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        (extents, steps, begin), region = _lies(site.attrs, site.ins[0].shape), parts["x"]
        if extents != site.ins[0].shape:  # a view: the axis is the dimension that both have
            region = (region[0], *((0, n) for n in extents[1:]))
        begin += sum(low * step for (low, _), step in zip(region, steps, strict=True))
        kept = {name: site.attrs[name] for name in ("p", "group", "salt")}
        if _ordered(site.attrs):
            return {**kept, "extents": tile_shape(region), "steps": steps, "begin": begin}
        _, (apart,) = merge(tile_shape(region), [steps])
        neighbours = apart in ((), (1,))  # all others would take another kernel than the whole
        return {**kept, "begin": begin} if neighbours else None

    def lower(self, site: Site) -> Lowering:
        sizes: dict[str, Size] = {"count": site.outs[0].elements}
        sizes |= {"group": integer(site.attrs, "group")}
        sizes |= {"salt": integer(site.attrs, "salt"), "threshold": _threshold(site.attrs)}
        shape, along, begin = _lies(site.attrs, site.outs[0].shape)
        extents, (steps,) = merge(shape, [along])
        sizes |= {"extent": padded(extents, 1), "step": padded(steps, 0), "begin": begin}
        mode = "apply_ordered" if _ordered(site.attrs) else "apply"
        return Lowering("dropout", mode, {**sizes, "scale": _scale(site.attrs)})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        numbers: list[object] = [integer(attrs, "salt"), integer(attrs, "group"), _threshold(attrs)]
        view: object = attrs.get("view", (-1,))
        order: object = attrs.get("order", (0,))
        numbers = [*numbers, repr(_scale(attrs)), view, order]
        return f"_dropout({', '.join(ins)}, {', '.join(map(str, numbers))})"


@register
class DropoutStep(Op):
    """The state of the next step, which has other masks."""

    name = "dropout_step"
    inputs = ("state",)
    integers = ("state",)
    outputs = ("next",)
    exact = True
    overwrites = ("state",)

    def check_dtypes(self, *ins: Tensor) -> None:
        if ins[0].dtype != "i32":
            raise ShapeError("the state holds integers")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        after = ins[0].copy()
        after[STEP] += 1
        return (after,)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return ()

    def lower(self, site: Site) -> Lowering:
        none: dict[str, Size] = {"extent": padded((), 1), "step": padded((), 0), "scale": 0.0}
        return Lowering("dropout", "step", {**dict.fromkeys(_SIZES, 0), **none})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"({ins[0]} + torch.tensor([0, 1, 0])).int()"


_SIZES = ("count", "group", "salt", "threshold", "begin")


def dropout_state(graph: Graph) -> str:
    """The state that the layers of dropout share, if there are any."""
    states = (node.inputs[1] for node in graph.nodes if node.op == "dropout")
    return next((name for name in states if graph.tensors[name].role == "state"), "")


def drop(imp: Importer, x: str, p: float, group: int = 1, salt: int | None = None) -> str:
    """x with dropout in training; the state and the numbering of the layers are shared."""
    if not 0 <= p <= 1:
        raise imp.unsupported(f"dropout with a probability of {p}")
    if p == 0:
        return x
    state = imp.state(STATE, np.array([0, 0, 1], np.int32))
    attrs = {"p": p, "group": group, "salt": imp.count("dropout") if salt is None else salt}
    return imp.add("dropout", [x, state], attrs)


def bernoulli(imp: Importer, shape: Shape, keep: float, salt: int | None = None) -> str:
    """1 with the probability `keep`, else 0, as in stochastic depth; `keep` itself where nothing is
    dropped: what divides by it then passes everything on."""
    ones = imp.constant(np.ones(shape, np.float32))
    if not 0 < keep <= 1:
        raise imp.unsupported(f"draws of 1 with a probability of {keep}")
    return affine(imp, drop(imp, ones, 1 - keep, salt=salt), keep)


@from_torch("aten.bernoulli_.float", "aten.bernoulli.p")
def _torch_bernoulli(imp: Importer, call: Call) -> str:
    shape = tuple(call.args[0].meta["val"].shape)
    return bernoulli(imp, shape, float(call.arg(1, 0.5)))


@from_torch("aten.bernoulli.default")
def _torch_bernoulli_of(imp: Importer, call: Call) -> str:
    chances = np.unique(imp.static(call.args[0]))
    if len(chances) != 1:
        raise imp.unsupported("draws with different probabilities; one for all is there")
    return bernoulli(imp, tuple(call.args[0].meta["val"].shape), float(chances[0]))


@from_torch("aten.dropout.default", "aten.dropout_.default")
@from_torch("aten.feature_dropout.default", "aten.feature_dropout_.default")
def _torch_dropout(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    whole = "feature" in call.target  # a channel at a time
    group = int(np.prod(imp.shape(x)[2:], dtype=int)) if whole else 1
    return drop(imp, x, float(call.args[1]), group) if call.args[2] else x


ALPHA = 1.7580993408473766
"""What a SELU makes of large negative numbers, without its sign: what is lost becomes that."""


@from_torch("aten.alpha_dropout.default", "aten.alpha_dropout_.default")
@from_torch("aten.feature_alpha_dropout.default", "aten.feature_alpha_dropout_.default")
def _torch_alpha_dropout(imp: Importer, call: Call) -> str:
    """scale * x where it is kept, else -scale * ALPHA, and both moved so that the mean stays.

    `kept` is 1 / (1 - p) or 0; where nothing is dropped it is 1, and so is `rest`, else 0.
    """
    x, p = imp.tensor(call.args[0]), float(call.args[1])
    if not call.args[2] or p == 0:
        return x
    if p == 1:
        return affine(imp, x, 0.0)
    shape = imp.shape(x)
    drawn = (*shape[:2], *(1,) * len(shape[2:])) if "feature" in call.target else shape
    kept = drop(imp, imp.constant(np.ones(drawn, np.float32)), p)
    rest = drop(imp, imp.constant(np.ones((1,), np.float32)), 1.0, salt=0)
    keep = float(np.sqrt((1 - p) / (1 + ALPHA**2 * p)))  # scale * (1 - p)
    factor = imp.add("add", [affine(imp, kept, keep), affine(imp, rest, 1 - keep)])
    moved = affine(imp, kept, ALPHA * keep, -ALPHA * keep)
    return imp.add("add", [imp.add("mul", [x, factor]), moved])


@from_onnx("Dropout")
def _onnx_dropout(imp: Importer, call: Call) -> str:
    ratio = 0.5 if call.arg(1) is None else float(imp.static(call.args[1]))
    if call.arg(2) is not None and bool(imp.static(call.args[2])) and ratio:
        raise imp.unsupported("dropout in training mode; capture the module itself")
    return imp.tensor(call.args[0])


@from_toml("dropout")
def _toml_dropout(imp: Importer, call: Call) -> str:
    return drop(imp, call.args[0], float(call.attrs.get("p", 0.5)))
