"""A captured model with the channels of its feature maps in pairs, as [N, C/2, H, W, 2].

The walk of layout.py with other wishes: a convolution asks for pairs and makes them, functions of
elements go along, and pooling takes a pair of channels as an image of its own with two channels, of
which the last dimension is one. An odd number of inputs gets zeros beside it in the program itself;
whatever else an op insists on lies as in the model.
"""

from __future__ import annotations

from gradlet.frontends.passes.layout_order import Placing
from gradlet.frontends.passes.layout_walk import Laid, Walk
from gradlet.ir.graph import Attrs, Graph, Node, Shape
from gradlet.ops.base import integer
from gradlet.ops.lib.channels import PAIRED, paired_shape

POOLS = ("max_pool2d", "avg_pool2d")


def in_pairs(shape: Shape, dim: int = 1) -> Placing:
    """Two neighbours of a dimension side by side; there is an even number of them."""
    split = (*shape[:dim], shape[dim] // 2, 2, *shape[dim + 1 :])
    return Placing(split, (*range(dim + 1), *range(dim + 2, len(split)), dim + 1))


class PairWalk(Walk):
    """Tensors in pairs have a dimension more than those of the model, the last one."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.wishes = {}

    def _spatial(self, node: Node) -> list[Laid]:
        shape, made = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        if node.op == "conv2d":
            groups = integer(node.attrs, "groups")
            if groups == 1:
                return [self._conv(node, 1)]
            if groups == shape[1] == made[1] and groups % 2 == 0:
                return [self._conv(node, 0)]
        elif node.op in POOLS and shape[1] % 2 == 0:
            return [self._pool(node)]
        return self._emit(node, [self._plain(name) for name in node.inputs], node.attrs)

    def _conv(self, node: Node, weight_dim: int) -> Laid:
        x, w, *bias = node.inputs
        inputs = [self._paired(x, 1), self._paired(w, weight_dim), *map(self._plain, bias)]
        made = self._add("conv2d", inputs, {**node.attrs, "layout": PAIRED})
        shape = self._shape(node.outputs[0])
        if shape[1] % 2 == 0:
            return Laid(made, in_pairs(shape))
        rank = len(shape)
        axes = (0, 1, rank, *range(2, rank))
        joined = self._add("transpose", [made], {"axes": axes})
        even = (shape[0], shape[1] + 1, *shape[2:])
        whole = self._viewed(joined, even)
        return Laid(self._add("slice", [whole], _from_start(shape)), Placing.plain(shape))

    def _pool(self, node: Node) -> Laid:
        """Each pair of channels is an image with channels last."""
        name, shape, made = (
            node.inputs[0],
            self._shape(node.inputs[0]),
            self._shape(node.outputs[0]),
        )
        given = self._paired(name, 1)
        images = self._viewed(given, (shape[0] * shape[1] // 2, *shape[2:], 2))
        pooled = self._add(node.op, [images], {**node.attrs, "layout": "hwc"})
        return Laid(self._viewed(pooled, paired_shape(made)), in_pairs(made))

    def _paired(self, name: str, dim: int) -> str:
        """An operand with two neighbours of a dimension side by side."""
        shape = self._shape(name)
        if shape[dim] % 2 == 0:
            wanted = in_pairs(shape, dim)
            if self._is_open(name):
                self._store(name, wanted, paired_shape(shape, dim))
            laid = self._settled(name)
            if laid.placing == wanted:
                return self._viewed(laid.name, paired_shape(shape, dim))
        key = (name, (PAIRED, dim))
        if key not in self.turned:
            self.turned[key] = self._in_pairs(self._plain(name), shape, dim)
        return self.turned[key]

    def _in_pairs(self, name: str, shape: Shape, dim: int) -> str:
        """By copies; an odd last one gets a zero beside it."""
        even = (*shape[:dim], -(-shape[dim] // 2) * 2, *shape[dim + 1 :])
        if even != shape:
            name = self._add("pad", [name], _from_start(even))
        placing = in_pairs(even, dim)
        split = self._viewed(name, placing.split)
        return self._add("transpose", [split], {"axes": placing.order})

    def _elementwise_views(self, node: Node) -> list[Laid]:
        """Functions of elements do not mind how many dimensions there are, if all are alike."""
        laid = [None if self._is_open(name) else self._settled(name) for name in node.inputs]
        first, shape = laid[0], self._shape(node.outputs[0])
        if first is None or first.placing.keeps(shape):
            return super()._elementwise_views(node)
        same = all(item is not None and item.placing == first.placing for item in laid)
        if not same or any(self._shape(name) != shape for name in node.inputs):
            return []
        seen = self.builder.tensors[first.name].shape
        names = [self._viewed(item.name, seen) for item in laid if item]
        return [Laid(self._add(node.op, names, node.attrs), first.placing)]


def _from_start(size: Shape) -> Attrs:
    """Attributes of a slice or a border that leaves the first element where it is."""
    return {"start": (0,) * len(size), "step": (1,) * len(size), "size": size}
