"""Random small networks: a seed makes a training graph, drawn from nearly every op there is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from gradlet.ir.builder import GraphBuilder
from gradlet.ir.graph import Array, Attrs, Graph, Shape
from gradlet.ir.recipe import Recipe
from gradlet.ops.learning.labels import LABELLED, LOSSES
from gradlet.training.autodiff import needs_gradient, train

Grown = Callable[["Network", str], str]
KINDS: list[Grown] = []


def kind(grown: Grown) -> Grown:
    KINDS.append(grown)
    return grown


EDGE = np.asarray(0.2, np.float32)


class Network:
    """A forward graph over maps [N, C, H, W]; every kind of growth takes one map to another."""

    def __init__(self, seed: int, tops: tuple[int, ...] = (3, 4, 6, 6), most: int = 600) -> None:
        self.most = most
        self.chance = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.builder = GraphBuilder("random")
        shape = tuple(self.chance.randint(1, top) for top in tops)
        self.maps = [self.builder.external("x", shape, "input")]

    def shape(self, name: str) -> Shape:
        return self.builder.tensors[name].shape

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.builder.add(op, inputs, attrs)

    def param(self, *shape: int, positive: bool = False, role: str = "param") -> str:
        value = self.numbers.standard_normal(shape) / np.sqrt(float(np.prod(shape[1:])))
        value = np.abs(value) + 0.5 if positive else value
        return self.builder.value(self.builder.fresh("w"), value.astype(np.float32), role)

    def yes(self, share: float = 0.5) -> bool:
        return self.chance.random() < share

    def pick(self, *options: Any) -> Any:
        return self.chance.choice(options)

    def grow(self) -> None:
        x = self.pick(*self.maps[-3:])
        y = self.pick(*KINDS)(self, x)
        if int(np.prod(self.shape(y))) <= self.most:
            self.maps.append(y)

    def partner(self, x: str) -> str:
        """An operand that broadcasts: another map, or a weight that repeats along dimensions."""
        same = [name for name in self.maps if self.shape(name) == self.shape(x)]
        if self.yes(0.4):
            return str(self.pick(*same))
        own = [n if self.yes() else 1 for n in self.shape(x)]
        return self.param(*own[self.chance.randint(0, 3) :])


@kind
def conv(net: Network, x: str) -> str:
    _, c, h, w = net.shape(x)
    groups = net.pick(1, c)
    out = groups * net.pick(1, 2)
    kernel = (net.chance.randint(1, min(3, h)), net.chance.randint(1, min(3, w)))
    operands = [x, net.param(out, c // groups, *kernel), *([net.param(out)] if net.yes() else [])]
    dilation = tuple(
        2 if 2 * (k - 1) < n and net.yes(0.3) else 1 for k, n in ((kernel[0], h), (kernel[1], w))
    )
    padding = tuple(net.pick(0, 1) for _ in range(4))
    stride = (net.pick(1, 2), net.pick(1, 2))
    return net.add(
        "conv2d", *operands, stride=stride, padding=padding, dilation=dilation, groups=groups
    )


@kind
def conv_of_lines(net: Network, x: str) -> str:
    n, c, h, w = net.shape(x)
    line = net.add("reshape", x, shape=(n, c, h * w))
    kernel = net.chance.randint(1, min(3, h * w))
    attrs = {
        "stride": (net.pick(1, 2),),
        "padding": (net.pick(0, 1), 0),
        "dilation": (1,),
        "groups": 1,
    }
    y = net.add("conv2d", line, net.param(net.pick(1, 2, 3), c, kernel), **attrs)
    return net.add("reshape", y, shape=(*net.shape(y)[:2], 1, net.shape(y)[2]))


@kind
def conv_transposed(net: Network, x: str) -> str:
    _, c, h, w = net.shape(x)
    groups, kernel = net.pick(1, c), (net.pick(1, 2, 3), net.pick(1, 2))
    stride = (net.pick(1, 2), net.pick(1, 2))
    extra = tuple(net.chance.randint(0, s - 1) for s in stride)
    size = tuple(
        (n - 1) * s + k + e for n, s, k, e in zip((h, w), stride, kernel, extra, strict=True)
    )
    attrs: Attrs = {"stride": stride, "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": groups}
    return net.add("conv_transpose", x, net.param(c, net.pick(1, 2), *kernel), **attrs, size=size)


@kind
def pool(net: Network, x: str) -> str:
    h, w = net.shape(x)[2:]
    kernel = (min(net.pick(1, 2, 3), h), min(net.pick(1, 2, 3), w))
    padding = tuple(net.chance.randint(0, k // 2) for k in kernel) * 2
    attrs: dict[str, Any] = {"kernel": kernel, "stride": (net.pick(1, 2), net.pick(1, 2))}
    attrs |= {"padding": padding, "dilation": (1, 1)}
    if net.yes():
        return net.add("max_pool2d", x, **attrs)
    return net.add("avg_pool2d", x, **attrs, count_include_pad=net.yes())


@kind
def resample(net: Network, x: str) -> str:
    size = (net.chance.randint(1, 6), net.chance.randint(1, 6))
    method = net.pick("nearest", "linear", "corners", "mean")
    return net.add("resample2d", x, size=size, method=method)


@kind
def normalize(net: Network, x: str) -> str:
    shape = net.shape(x)
    axes, column = net.pick(
        ((0, 2, 3), (shape[1], 1, 1)), ((2, 3), (shape[1], 1, 1)), ((3,), shape[3:])
    )
    weights = [net.param(*column, positive=True), net.param(*column)][: net.pick(0, 1, 2)]
    return net.add("normalize", x, *weights, axes=axes, eps=0.1, center=net.yes(0.8))


@kind
def frozen_norm(net: Network, x: str) -> str:
    c = net.shape(x)[1]
    statistics = [net.param(c, role="const"), net.param(c, positive=True, role="const")]
    weights = [net.param(c), net.param(c)][: net.pick(0, 1, 2)]
    return net.add("frozen_norm", x, *statistics, *weights, eps=1e-3)


ACTIVATIONS: tuple[tuple[str, Attrs], ...] = (
    *((name, {}) for name in ("relu", "sigmoid", "tanh", "erf", "gelu", "gelu_tanh", "silu")),
    *((name, {}) for name in ("hardswish", "abs", "neg", "sin", "cos", "atan")),
    ("hardsigmoid", {"slope": 1 / 6, "offset": 0.5}),
    ("leaky_relu", {"slope": 0.1}),
    ("elu", {"alpha": 0.7}),
    ("softplus", {"beta": 1.5, "threshold": 20.0}),
    ("clamp", {"low": -0.7, "high": 0.9}),
    ("hardtanh", {"low": 0.0, "high": 6.0}),
    ("affine", {"slope": -1.3, "offset": 0.2}),
    ("hardshrink", {"edge": 0.4}),
    ("threshold", {"threshold": 0.1, "fill": -0.2}),
)


@kind
def activation(net: Network, x: str) -> str:
    name, attrs = net.pick(*ACTIVATIONS)
    return net.add(name, x, **attrs)


@kind
def bounded(net: Network, x: str) -> str:
    """Functions that need small or positive operands."""
    small = net.add("tanh", x)
    if net.yes():
        name, attrs = net.pick(("exp", {}), ("expm1", {}), ("pow", {"exponent": 3.0}))
        return net.add(name, small, **attrs)
    positive = net.add("affine", small, slope=0.5, offset=1.0)
    roots: list[tuple[str, Attrs]] = [
        (name, {}) for name in ("log", "log1p", "sqrt", "root", "reciprocal")
    ]
    name, attrs = net.pick(*roots, ("pow", {"exponent": -0.7}))
    return net.add(name, positive, **attrs)


@kind
def power(net: Network, x: str) -> str:
    base = net.add("affine", net.add("tanh", x), slope=0.5, offset=1.0)
    return net.add("power", base, net.add("tanh", net.partner(x)))


@kind
def masked(net: Network, x: str) -> str:
    """A mask from data, or of two masks, and what it chooses or replaces."""
    edge = net.pick(net.partner(x), net.builder.value(net.builder.fresh("c"), EDGE, "const"))
    mask = net.add(net.pick("gt", "ge", "eq", "ne"), *net.pick((x, edge), (edge, x)))
    if net.yes(0.3):
        mask = net.add(net.pick("mul", "maximum", "ne"), mask, net.add("gt", x, net.partner(x)))
    if net.yes():
        return net.add("masked_fill", x, mask, value=net.pick(0.0, -0.7), keep=net.yes())
    return net.add("select", mask, *net.pick((x, net.partner(x)), (net.partner(x), x)))


@kind
def stepped(net: Network, x: str) -> str:
    """A function without a slope, beside one with it."""
    wide = net.add("affine", x, slope=2.0, offset=0.1)
    step = net.add(net.pick("floor", "ceil", "round", "trunc", "sign"), wide)
    return net.add(net.pick("add", "mul"), net.add("tanh", step), x)


@kind
def softmax(net: Network, x: str) -> str:
    return net.add(net.pick("softmax", "log_softmax"), x, axis=net.chance.randint(0, 3))


@kind
def arithmetic(net: Network, x: str) -> str:
    op = net.pick("add", "add", "sub", "mul", "maximum", "minimum", "div")
    other = net.partner(x)
    if op == "div":
        return net.add(op, x, net.add("affine", net.add("sigmoid", other), slope=1.0, offset=0.5))
    return net.add(op, *net.pick((x, other), (other, x)))


@kind
def residual(net: Network, x: str) -> str:
    c = net.shape(x)[1]
    attrs: Attrs = {"stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    y = net.add("conv2d", net.add("relu", x), net.param(c, c, 3, 3), **attrs)
    return net.add("add", y, x)


@kind
def split_and_join(net: Network, x: str) -> str:
    shape, axis = net.shape(x), net.chance.randint(0, 3)
    first = net.chance.randint(1, shape[axis])
    parts = []
    for begin, size in ((0, first), (first, shape[axis] - first)):
        if size:
            start = tuple(begin if dim == axis else 0 for dim in range(4))
            extent = tuple(size if dim == axis else n for dim, n in enumerate(shape))
            parts.append(net.add("slice", x, start=start, step=(1, 1, 1, 1), size=extent))
    parts = [net.add("tanh", parts[0]), *parts[1:], parts[0]]
    return net.add("concat", *parts, axis=axis)


@kind
def reduction(net: Network, x: str) -> str:
    shape = net.shape(x)
    axes = tuple(sorted(net.chance.sample((1, 2, 3), net.pick(1, 2))))
    kept = tuple(1 if dim in axes else n for dim, n in enumerate(shape))
    first = len(axes) == 1 and net.yes()
    name, attrs = net.pick(("sum", {}), ("max", {"first": first}))
    y = net.add("reshape", net.add(name, x, axes=axes, **attrs), shape=kept)
    return y if net.yes() else net.add("sub", x, y)


@kind
def rearrange(net: Network, x: str) -> str:
    shape = net.shape(x)
    match net.pick("slice", "pad", "flip", "transpose", "cumsum", "expand", "reshape", "detach"):
        case "slice":
            step = (1, 1, net.pick(1, 2), net.pick(1, 2))
            size = tuple(-(-n // s) for n, s in zip(shape, step, strict=True))
            return net.add("slice", x, start=(0, 0, 0, 0), step=step, size=size)
        case "pad":
            start = (0, net.pick(0, 1), net.pick(0, 1), net.pick(0, 1))
            more = [n + s + net.pick(0, 1) for n, s in zip(shape, start, strict=True)]
            size, value = (shape[0], *more[1:]), net.pick(0.0, 0.3)
            return net.add("pad", x, start=start, step=(1,) * 4, size=size, value=value)
        case "flip":
            return net.add("flip", x, axes=net.pick((1,), (2, 3), (3,)))
        case "transpose":
            return net.add("transpose", x, axes=net.pick((0, 1, 3, 2), (0, 2, 3, 1), (0, 3, 1, 2)))
        case "cumsum":
            axis = net.pick(1, 2, 3)
            return net.add("cumsum", x, axis=axis, reverse=net.yes(), exclusive=net.yes())
        case "expand":
            row = net.add("slice", x, start=(0, 0, 0, 0), step=(1,) * 4, size=(*shape[:3], 1))
            return net.add("expand", row, shape=(*shape[:3], net.pick(2, 3)))
        case "detach":
            return net.add("mul", x, net.add("detach", net.add("sigmoid", x)))
    return net.add("reshape", x, shape=(shape[0], shape[2] * shape[1], 1, shape[3]))


@kind
def lookup(net: Network, x: str) -> str:
    """Elements of lines by places that are known, or that sorting finds."""
    axis, shape = net.chance.randint(1, 3), net.shape(x)
    length, attrs = shape[axis], {"axis": axis}
    count = net.chance.randint(1, length)
    sort = {**attrs, "count": count, "largest": net.yes()}
    best, order = net.builder.add_many("sort", [x], sort)
    match net.pick("known", "sorted", "sum", "replaced", "computed", "number"):
        case "known":
            lines = net.pick(shape, tuple(length if dim == axis else 1 for dim in range(4)))
            places = net.numbers.integers(0, length, lines)
            index = net.builder.value(net.builder.fresh("i"), places, "const", "i32")
            return net.add("take", x, index, **attrs)
        case "sum":
            return net.add("put_sum", net.add("tanh", best), order, **attrs, length=length)
        case "replaced":
            return net.add("put", net.add("tanh", x), order, best, **attrs)
        case "computed":
            index = net.add("to_index", net.add("number", order))
            index = net.add("flat_index", index, size=length)
            return net.add("take", net.add("tanh", x), index, **attrs)
        case "number":
            return net.add("mul", best, net.add("number", order))
    return net.add("add", best, net.add("take", net.add("tanh", x), order, **attrs))


@kind
def linear(net: Network, x: str) -> str:
    """Flattened, through a square product, and a map again."""
    n, c, h, w = net.shape(x)
    size = c * h * w
    if size > 250 and net.most > 600:  # too many weights
        return x
    flat = net.add("relu", net.add("reshape", x, shape=(n, size)))
    operands = (flat, net.param(size, size), net.param(size))
    y = net.add("matmul", *operands, layout=net.pick("nn", "nt"))
    return net.add("reshape", y, shape=(n, c, h, w))


def _head(net: Network) -> tuple[str, str]:
    """The output, and a loss that fits it: labels for rows or pixels, or numbers for all."""
    x, loss = net.maps[-1], net.pick(*LOSSES)
    n, c = net.shape(x)[:2]
    output = x
    if net.yes(0.7) or (loss in LABELLED and c < 2):
        rest = int(np.prod(net.shape(x)[1:]))
        flat = net.add("reshape", x, shape=(n, rest))
        output = net.add("matmul", flat, net.param(3, rest), net.param(3), layout="nt")
    return (net.add("log_softmax", output, axis=1) if loss == "nll" else output), loss


def _recipe(net: Network, loss: str, classes: int) -> Recipe:
    options: dict[str, Any] = {"loss": loss, "reduction": net.pick("mean", "sum")}
    if loss in LABELLED and net.yes(0.3):
        options["class_weights"] = tuple(float(v) for v in net.numbers.uniform(0.5, 2, classes))
    if loss == "cross_entropy" and net.yes(0.3):
        options["label_smoothing"] = 0.1
    if loss in ("huber", "smooth_l1"):
        options["delta"] = net.pick(0.3, 1.0)
    if loss == "bce_with_logits" and net.yes():
        options["pos_weight"] = (net.pick(0.4, 3.0),)
    update = net.pick(
        {"momentum": 0.0},
        {"momentum": 0.9},
        {"momentum": 0.8, "nesterov": True},
        {"optimizer": "adam", "eps": 1e-3},  # or a gradient that is but rounding is blown up
        {"optimizer": "adamw", "beta1": 0.8, "eps": 1e-3},
    )
    clip = net.pick({}, {}, {"clip_norm": 0.7}, {"clip_value": 0.05})
    accumulate = net.pick(1, 1, 1, 2)
    return Recipe(lr=0.1, weight_decay=0.01, accumulate=accumulate, **options, **update, **clip)


def network(seed: int) -> Graph:
    """The training graph of a seed."""
    return train(*drawn(seed))


def drawn(seed: int, *, large: bool = False) -> tuple[Graph, Recipe, Array]:
    """A forward graph with a way to train it, and targets."""
    net = Network(seed, (3, 8, 14, 14), 4000) if large else Network(seed)
    for _ in range(net.chance.randint(1, 9)):
        net.grow()
    output, loss = _head(net)
    shape = net.shape(output)
    samples = {"x": net.numbers.standard_normal((2, *net.shape("x"))).astype(np.float32)}
    forward = _used(net.builder, output, samples)
    params = [tensor.name for tensor in forward.of_role("param")]
    if output not in needs_gradient(
        GraphBuilder("", forward), params
    ):  # no gradient reaches a weight
        scale = net.add("mul", output, net.param(1))
        forward = _used(net.builder, scale, samples)
    targets: Array = net.numbers.uniform(0, 1, (2, *shape)).astype(np.float32)
    if loss in LABELLED:
        targets = net.numbers.integers(0, shape[1], (2, shape[0], *shape[2:]))
    return forward, _recipe(net, loss, shape[1]), targets


def _used(builder: GraphBuilder, output: str, samples: dict[str, Array]) -> Graph:
    wanted, nodes = {output}, []
    for node in reversed(builder.nodes):
        if wanted.intersection(node.outputs):
            nodes.append(node)
            wanted.update((*node.inputs, *node.outputs))
    wanted.add("x")
    tensors = {k: t for k, t in builder.tensors.items() if k in wanted}
    data = {k: v for k, v in builder.data.items() if k in wanted}
    return Graph("random", tensors, tuple(nodes[::-1]), ("x",), (output,), data, samples)
