"""The walk of layout.py over a forward graph, from which that of pairs derives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradlet.frontends.passes import layout_order as order
from gradlet.frontends.passes.layout_order import Order, Placing, identity
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.graph import Attrs, Graph, Node, Shape
from gradlet.ops import OPS
from gradlet.ops.base import ints
from gradlet.ops.lib.channels import MapOp, last_order

SPATIAL = ("conv2d", "conv_transpose", "max_pool2d", "avg_pool2d", "resample2d")


@dataclass(frozen=True)
class Laid:
    """A tensor of the new graph, and how it holds one of the model's."""

    name: str
    placing: Placing


class Walk:
    """Writes the graph once more. Data are laid out by whoever reads them first."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(graph.name, reserved=(*graph.inputs, *graph.data))
        self.laid: dict[str, Laid] = {}
        self.stored: dict[str, Placing] = {}
        self.samples = dict(graph.samples)
        self.wishes = _wishes(graph)
        self.turned: dict[tuple[str, tuple[object, ...]], str] = {}
        self.module = ""

    def run(self) -> tuple[Graph, list[Placing]]:
        for name in self.graph.inputs:
            self._input(name)
        for node in self.graph.nodes:
            self.module = node.module
            for name, laid in zip(node.outputs, self._node(node), strict=True):
                self.laid[name] = laid
        outputs, places = [], []
        for name in self.graph.outputs:
            rank = len(self._shape(name))
            last = Placing(self._shape(name), last_order(rank))
            as_is = rank > 2 and self._settled(name).placing == last
            places.append(last if as_is else Placing.plain(self._shape(name)))
            outputs.append(self.fit(name, places[-1].order))
        updates = tuple((self._plain(old), self._plain(new)) for old, new in self.graph.updates)
        builder = self.builder
        result = replace(
            self.graph,
            tensors=builder.tensors,
            nodes=tuple(builder.nodes),
            outputs=tuple(outputs),
            updates=updates,
            data=builder.data,
            samples=self.samples,
        )
        return result, places

    def _shape(self, name: str) -> Shape:
        return self.graph.tensors[name].shape

    def _input(self, name: str) -> None:
        tensor = self.graph.tensors[name]
        placing = self.wishes.get(name, Placing.plain(tensor.shape))
        if not placing.keeps(tensor.shape):
            placing = Placing.plain(tensor.shape)
        self.builder.external(name, placing.shape(tensor.shape), tensor.role, tensor.dtype)
        self.laid[name] = Laid(name, placing)
        if not placing.is_identity:
            self.stored[name] = placing
            if name in self.samples:
                micro = [placing.apply(value) for value in self.samples[name]]
                self.samples[name] = np.stack(micro)

    def _is_open(self, name: str) -> bool:
        """Whether a tensor has data that nobody has read yet, and may be laid out in any way."""
        return name not in self.laid and name in self.graph.data

    def _store(self, name: str, placing: Placing, shape: Shape = ()) -> None:
        """In that shape, if it is neither the model's nor one that the order makes of it."""
        tensor = self.graph.tensors[name]
        value = placing.apply(self.graph.data[name])
        value = value.reshape(shape) if shape else value
        self.builder.value(name, value, tensor.role, tensor.dtype)
        self.laid[name] = Laid(name, placing)
        if not placing.is_identity:
            self.stored[name] = placing

    def _settled(self, name: str) -> Laid:
        if self._is_open(name):
            self._store(name, Placing.plain(self._shape(name)))
        return self.laid[name]

    def _add(self, op: str, inputs: Sequence[str], attrs: Attrs) -> str:
        return self.builder.add(op, inputs, attrs, module=self.module)

    def _plain(self, name: str) -> str:
        return self.fit(name, identity(len(self._shape(name))))

    def fit(self, name: str, wanted: Order) -> str:
        """An operand under an order of dimensions, of which it may lack the first few."""
        shape = self._shape(name)
        lead = len(wanted) - len(shape)
        if wanted[:lead] == identity(lead):  # what it lacks stays in front
            wanted, lead = tuple(dim - lead for dim in wanted[lead:]), 0
        if self._is_open(name) and not lead:
            self._store(name, Placing(shape, wanted))
        laid = self._settled(name)
        if not lead and laid.placing == Placing(shape, wanted):
            return laid.name
        if (name, wanted) not in self.turned:
            self.turned[name, wanted] = self._turn(laid, shape, wanted)
        return self.turned[name, wanted]

    def _turn(self, laid: Laid, shape: Shape, wanted: Order) -> str:
        """Views and a transpose that bring a tensor into another order."""
        lead = len(wanted) - len(shape)
        padded, split, current = (1,) * lead + shape, laid.placing.split, laid.placing.order
        if split == shape:
            current = (*range(lead), *(dim + lead for dim in current))
            return self._permuted(laid.name, padded, current, wanted)
        plain = self._permuted(laid.name, split, current, identity(len(split)))
        return self._permuted(plain, padded, identity(len(wanted)), wanted)

    def _permuted(self, name: str, shape: Shape, current: Order, wanted: Order) -> str:
        """From one order of `shape` to another; the tensor may be any view of the first."""
        result = tuple(shape[dim] for dim in wanted)
        if order.same_bytes(shape, current, wanted):
            return self._viewed(name, result)
        start = self._viewed(name, tuple(shape[dim] for dim in current))
        return self._add("transpose", [start], {"axes": order.between(current, wanted)})

    def _viewed(self, name: str, shape: Shape) -> str:
        same = self.builder.tensors[name].shape == shape
        return name if same else self._add("reshape", [name], {"shape": shape})

    def _node(self, node: Node) -> list[Laid]:
        if node.op in SPATIAL:
            return self._spatial(node)
        if node.op == "reshape":
            return [self._reshape(node)]
        if node.op == "transpose":
            return [self._transpose(node)]
        if node.op == "matmul":
            return [self._product(node)]
        if node.op == "dropout":
            return [self._dropout(node)]
        if order.is_elementwise(self.graph.site(node)):
            scattered = self._elementwise_views(node)
            if scattered:
                return scattered
        rule = order.rule_of(self.graph.site(node))
        if rule:
            return [self._along(node, rule)]
        return self._emit(node, [self._plain(name) for name in node.inputs], node.attrs)

    def _emit(self, node: Node, inputs: Sequence[str], attrs: Attrs) -> list[Laid]:
        names = self.builder.add_many(node.op, inputs, attrs, module=node.module)
        shapes = [self._shape(name) for name in node.outputs]
        return [Laid(n, Placing.plain(s)) for n, s in zip(names, shapes, strict=True)]

    def _spatial(self, node: Node) -> list[Laid]:
        op = OPS[node.op]
        assert isinstance(op, MapOp)
        inputs = [
            self.fit(name, last_order(len(self._shape(name))))
            if slot.rstrip("?") in op.maps
            else self._plain(name)
            for slot, name in zip(op.inputs, node.inputs, strict=False)
        ]
        made = self._add(node.op, inputs, {**node.attrs, "layout": "hwc"})
        shape = self._shape(node.outputs[0])
        return [Laid(made, Placing(shape, last_order(len(shape))))]

    def _reshape(self, node: Node) -> Laid:
        """Another shape of the same bytes, wherever the order of the dimensions lets it be."""
        name, shape = node.inputs[0], self._shape(node.outputs[0])
        wish = self.wishes.get(node.outputs[0], Placing.plain(shape))
        before = order.through(wish, self._shape(name))
        if self._is_open(name) and before:
            self._store(name, before)
        laid = self._settled(name)
        placing = order.through(laid.placing, shape)
        if placing:
            return Laid(self._viewed(laid.name, placing.shape(shape)), placing)
        if before and before.keeps(self._shape(name)):  # turned now, so that nobody has to later
            return Laid(self._viewed(self.fit(name, before.order), wish.shape(shape)), wish)
        return Laid(self._viewed(self._plain(name), shape), Placing.plain(shape))

    def _transpose(self, node: Node) -> Laid:
        name, axes = node.inputs[0], ints(node.attrs, "axes")
        shape, result = self._shape(name), self._shape(node.outputs[0])
        laid = self._settled(name)
        if laid.placing.keeps(shape):
            free = Placing(result, tuple(axes.index(dim) for dim in laid.placing.order))
            wish = self.wishes.get(node.outputs[0])
            if not laid.placing.is_identity or wish == free:
                return Laid(laid.name, free)
        return self._emit(node, [self._plain(name)], node.attrs)[0]

    def _elementwise_views(self, node: Node) -> list[Laid]:
        """Functions of elements do not mind how a flattened map is ordered, if all are alike."""
        laid = [self._settled(n) if not self._is_open(n) else None for n in node.inputs]
        first = laid[0].placing if laid[0] else None
        shape = self._shape(node.outputs[0])
        if first is None or first.keeps(shape):
            return []
        same = all(item and item.placing == first for item in laid)
        if not same or any(self._shape(name) != shape for name in node.inputs):
            return []
        names = [item.name for item in laid if item]
        return [Laid(self._add(node.op, names, node.attrs), first)]

    def _dropout(self, node: Node) -> Laid:
        """The same elements are lost as if the tensor lay as in the model."""
        laid, state = self._settled(node.inputs[0]), self._plain(node.inputs[1])
        placing = laid.placing
        turned = {"view": placing.split, "order": placing.order}
        attrs = node.attrs if placing.is_identity else {**node.attrs, **turned}
        return Laid(self._add("dropout", [laid.name, state], attrs), placing)

    def _along(self, node: Node, rule: order.Rule) -> Laid:
        """An op that works under the order of its largest operand, with other attributes."""
        rank = rule.rank
        wanted = self._chosen(node, rank)
        attrs, result = rule.under(node.attrs, wanted)
        if attrs is None:
            return self._emit(node, [self._plain(n) for n in node.inputs], node.attrs)[0]
        inputs = [
            self.fit(name, wanted) if slot < rule.operands else self._plain(name)
            for slot, name in enumerate(node.inputs)
        ]
        made = self._add(node.op, inputs, attrs)
        return Laid(made, Placing(self._shape(node.outputs[0]), result))

    def _chosen(self, node: Node, rank: int) -> Order:
        """The order of the largest operand; a wish where that costs nothing."""
        wish = self.wishes.get(node.outputs[0])
        fits = wish and wish.keeps(self._shape(node.outputs[0])) and len(wish.order) == rank
        if wish and fits and all(self._is_free(name, wish.order) for name in node.inputs):
            return wish.order
        full = [n for n in node.inputs if len(self._shape(n)) == rank and not self._is_open(n)]
        for name in sorted(full, key=lambda n: -self.graph.tensors[n].elements):
            placing = self.laid[name].placing
            if placing.keeps(self._shape(name)):
                return placing.order
        return identity(rank)

    def _is_free(self, name: str, wanted: Order) -> bool:
        if self._is_open(name):
            return True
        placing, shape = self.laid[name].placing, self._shape(name)
        if not placing.keeps(shape):
            return False
        lead = len(wanted) - len(shape)
        own = (*range(lead), *(dim + lead for dim in placing.order))
        return order.same_bytes((1,) * lead + shape, own, wanted)

    def _product(self, node: Node) -> Laid:
        """A product with a stored weight takes flattened maps, and makes them, as they lie."""
        a, b, *bias = node.inputs
        layout, shape = str(node.attrs["layout"]), self._shape(node.outputs[0])
        left = Placing.plain(self._shape(a))
        if not self._is_open(a) and self.laid[a].placing.splits_last(self._shape(a)):
            left = self.laid[a].placing
        result = Placing.plain(shape)
        wish = self.wishes.get(node.outputs[0])
        if wish and wish.splits_last(shape) and all(map(self._is_open, bias)):
            result = wish
        weight = self._is_open(b) and len(self._shape(b)) == 2 and layout in ("nn", "nt")
        if not weight or (left.is_identity and result.is_identity):
            return self._emit(node, [self._plain(n) for n in node.inputs], node.attrs)[0]
        columns, rows = left.of_last(self._shape(a)), result.of_last(shape)
        parts = (rows, columns) if layout == "nt" else (columns, rows)
        self._store(b, order.side_by_side(*parts))
        for name in filter(self._is_open, bias):
            self._store(name, rows)
        # a bias that lies already, or is computed, is as in the model, and so is the result
        added = [self._plain(name) if result.is_identity else self.laid[name].name for name in bias]
        first = self._plain(a) if left.is_identity else self.laid[a].name
        inputs = [first, self.laid[b].name, *added]
        return Laid(self._add("matmul", inputs, node.attrs), result)


def _wishes(graph: Graph) -> dict[str, Placing]:
    """How the readers of each tensor would like it to lie, found from the end."""
    wishes: dict[str, Placing] = {}
    for node in reversed(graph.nodes):
        site = graph.site(node)
        op = OPS[node.op]
        wish = wishes.get(node.outputs[0])
        for slot, tensor in zip(op.inputs, site.ins, strict=False):
            own: Placing | None = None
            if node.op in SPATIAL and isinstance(op, MapOp):
                if slot.rstrip("?") in op.maps:
                    own = Placing(tensor.shape, last_order(len(tensor.shape)))
            elif wish:
                own = order.back(site, wish, tensor)
            if own:
                wishes.setdefault(tensor.name, own)
    return wishes
