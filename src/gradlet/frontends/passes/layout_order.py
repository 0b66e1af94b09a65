"""Orders of dimensions: how a tensor lies in memory, and what ops make of it in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops import OPS
from gradlet.ops.base import integer, ints
from gradlet.ops.lib.channels import last_order

Order = tuple[int, ...]
"""Which dimension of the model stands at each place."""

ELEMENTWISE = ("unary", "map", "binary", "mask", "select")
"""Families of kernels that compute each element from the elements at the same place."""


def identity(rank: int) -> Order:
    return tuple(range(rank))


def same_bytes(shape: Shape, one: Order, other: Order) -> bool:
    """Whether both orders put every element at the same address: only ones change places."""
    return [d for d in one if shape[d] != 1] == [d for d in other if shape[d] != 1]


def between(current: Order, wanted: Order) -> Order:
    """The axes of the transpose that leads from one order to the other."""
    return tuple(current.index(dim) for dim in wanted)


@dataclass(frozen=True)
class Placing:
    """A tensor as it lies: viewed as `split`, and then permuted by `order`.

    `split` is the tensor's shape, or a finer one where several dimensions were flattened into one.
    """

    split: Shape
    order: Order

    @staticmethod
    def plain(shape: Shape) -> Placing:
        return Placing(shape, identity(len(shape)))

    @property
    def is_identity(self) -> bool:
        return self.order == identity(len(self.order))

    def keeps(self, shape: Shape) -> bool:
        """Whether the dimensions are those of the tensor, not parts of them."""
        return self.split == shape

    def shape(self, shape: Shape) -> Shape:
        """The shape as it lies, of a tensor of that shape."""
        return tuple(shape[dim] for dim in self.order) if self.keeps(shape) else shape

    def apply(self, value: Array) -> Array:
        turned = value.reshape(self.split).transpose(self.order)
        return np.ascontiguousarray(turned).reshape(self.shape(value.shape))

    def splits_last(self, shape: Shape) -> bool:
        """Whether nothing but the last dimension is in another order inside."""
        lead = len(shape) - 1
        kept = self.split[:lead] == shape[:-1] and self.order[:lead] == identity(lead)
        return kept and not self.keeps(shape)

    def of_last(self, shape: Shape) -> Placing:
        """The same for the last dimension alone."""
        lead = len(shape) - 1
        if not self.splits_last(shape):
            return Placing.plain(shape[-1:])
        return Placing(self.split[lead:], tuple(dim - lead for dim in self.order[lead:]))


def side_by_side(rows: Placing, columns: Placing) -> Placing:
    shifted = tuple(dim + len(rows.split) for dim in columns.order)
    return Placing(rows.split + columns.split, rows.order + shifted)


def through(placing: Placing, shape: Shape) -> Placing | None:
    """How the same bytes are to be seen under another shape, if they can be."""
    split = placing.split
    groups = _groups(split, shape)
    group_of = {dim: g for g, (dims, _) in enumerate(groups) for dim in dims}
    walked = [dim for dim in placing.order if split[dim] != 1]
    met = list(dict.fromkeys(group_of[dim] for dim in walked))
    runs = [[dim for dim in walked if group_of[dim] == g] for g in met]
    if [dim for run in runs for dim in run] != walked:
        return None  # a group is torn apart
    if all(run == sorted(run) for run in runs):
        return _plain_through(shape, [groups[g][1] for g in met])
    torn = [g for g, run in zip(met, runs, strict=True) if run != sorted(run)]
    if met != sorted(met) or any(len(groups[g][1]) > 1 for g in torn):
        return None
    return _split_through(shape, groups, runs, split)


def _groups(one: Shape, other: Shape) -> list[tuple[list[int], list[int]]]:
    """The smallest sets of neighbours, ones left out, that have as many elements in both."""
    left = [d for d, n in enumerate(one) if n != 1]
    right = [d for d, n in enumerate(other) if n != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while left:
        mine, theirs = [left.pop(0)], [right.pop(0)]
        sizes = [one[mine[0]], other[theirs[0]]]
        while sizes[0] != sizes[1]:
            side = 0 if sizes[0] < sizes[1] else 1
            taken = (left, right)[side].pop(0)
            (mine, theirs)[side].append(taken)
            sizes[side] *= (one, other)[side][taken]
        groups.append((mine, theirs))
    return groups


def _plain_through(shape: Shape, groups: Sequence[Sequence[int]]) -> Placing:
    """Dimensions group by group; a one stays behind the dimension that it stands behind."""
    followers: dict[int, list[int]] = {-1: []}
    at = -1
    for dim, extent in enumerate(shape):
        if extent != 1:
            at = dim
            followers[at] = []
        followers[at].append(dim)
    dims = [dim for group in groups for dim in group]
    order = tuple(d for dim in (-1, *dims) for d in followers[dim])
    if same_bytes(shape, order, identity(len(shape))):
        return Placing.plain(shape)
    return Placing(shape, order)


def _split_through(
    shape: Shape,
    groups: Sequence[tuple[list[int], list[int]]],
    runs: Sequence[list[int]],
    split: Shape,
) -> Placing:
    """Dimensions that are flattened in another order than the model's are kept apart."""
    parts: dict[int, list[int]] = {}
    for (_, theirs), run in zip(groups, runs, strict=True):
        if run != sorted(run):
            parts[theirs[0]] = run
    result: list[int] = []
    order: list[int] = []
    for dim, extent in enumerate(shape):
        run = parts.get(dim, [])
        base = len(result)
        result += [split[d] for d in sorted(run)] or [extent]
        order += [base + sorted(run).index(d) for d in run] or [base]
    return Placing(tuple(result), tuple(order))


@dataclass(frozen=True)
class Rule:
    """How an op works on operands in another order.

    The first `operands` of them have up to `rank` dimensions and take part; `under` gives the
    attributes and the order of the result, or None for the attributes if the order does not suit.
    """

    rank: int
    operands: int
    under: Callable[[Attrs, Order], tuple[Attrs | None, Order]]


def is_elementwise(site: Site) -> bool:
    single = len(site.outs) == 1
    return single and OPS[site.node.op].lower(site).family in ELEMENTWISE


def rule_of(site: Site) -> Rule | None:
    """None for an op that needs its operands as the model has them."""
    op, rank, count = site.node.op, len(site.ins[0].shape), len(site.ins)
    if op == "expand":
        return Rule(len(site.outs[0].shape), 1, _sized("shape"))
    if op in ("slice", "pad"):
        return Rule(rank, 1, _sized("start", "step", "size"))
    if op in ("concat", "softmax", "log_softmax"):
        return Rule(rank, count, _one_axis)
    if op == "normalize":
        return Rule(rank, count, _axes)
    if op in ("sum", "max", "variance"):
        return Rule(rank, 1, _reduction)
    if op == "frozen_norm":
        return Rule(rank, 1, _channels)
    if is_elementwise(site):
        return Rule(len(site.outs[0].shape), count, lambda attrs, order: (attrs, order))
    return None


def _sized(*names: str) -> Callable[[Attrs, Order], tuple[Attrs, Order]]:
    def under(attrs: Attrs, order: Order) -> tuple[Attrs, Order]:
        turned = {name: tuple(ints(attrs, name)[dim] for dim in order) for name in names}
        return {**attrs, **turned}, order

    return under


def _one_axis(attrs: Attrs, order: Order) -> tuple[Attrs, Order]:
    return {**attrs, "axis": order.index(integer(attrs, "axis"))}, order


def _axes(attrs: Attrs, order: Order) -> tuple[Attrs, Order]:
    return {**attrs, "axes": tuple(sorted(map(order.index, ints(attrs, "axes"))))}, order


def _reduction(attrs: Attrs, order: Order) -> tuple[Attrs, Order]:
    left = [dim for dim in order if dim not in ints(attrs, "axes")]
    return _axes(attrs, order)[0], tuple(sorted(left).index(dim) for dim in left)


def _channels(attrs: Attrs, order: Order) -> tuple[Attrs | None, Order]:
    if order == identity(len(order)):
        return attrs, order
    return ({**attrs, "layout": "hwc"} if order == last_order(len(order)) else None), order


def back(site: Site, wish: Placing, tensor: Tensor) -> Placing | None:
    """How an operand should lie so that the result lies as is wished."""
    shape, rank = site.outs[0].shape, len(tensor.shape)
    if site.node.op == "reshape":
        return through(wish, tensor.shape)
    if (is_elementwise(site) or site.node.op == "dropout") and tensor.shape == shape:
        return wish
    if not wish.keeps(shape):
        return None
    if site.node.op == "transpose":
        axes = ints(site.attrs, "axes")
        return Placing(tensor.shape, tuple(axes[dim] for dim in wish.order))
    rule = rule_of(site)
    slot = site.node.inputs.index(tensor.name)
    if rule is None or rule.rank != len(shape) or slot >= rule.operands:
        return None
    lead = rule.rank - rank  # an operand may lack the first dimensions, if they stay in front
    if wish.order[:lead] != identity(lead):
        return None
    return Placing(tensor.shape, tuple(dim - lead for dim in wish.order[lead:]))
