"""Where the channels of a feature map lie: first, as in PyTorch, last, as [N, H, W, C], or in
pairs, as [N, C/2, H, W, 2].

An op over maps is written once, for channels first. With the attribute `layout` = "hwc" the same op
takes and gives its maps, and weights of the form [O, C, KH, KW], with dimension 1 moved to the end;
with "chw2" two neighbours of dimension 1 lie side by side, which makes a word of two numbers of 16
bits. An odd last channel has a zero beside it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Span
from gradlet.ops.lib.pointwise import same_index_axes
from gradlet.ops.lib.tiling import Region

PAIRED = "chw2"
"""Of the layouts, the one with channels in pairs; only some ops over maps have it."""
LAYOUTS = ("chw", "hwc", PAIRED)
Each = TypeVar("Each")


def channels_last(attrs: Attrs) -> bool:
    return attrs.get("layout") == "hwc"


def last_order(rank: int) -> tuple[int, ...]:
    """The permutation that moves dimension 1 to the end."""
    return (0, *range(2, rank), 1) if rank > 1 else tuple(range(rank))


def in_pairs(attrs: Attrs) -> bool:
    return attrs.get("layout") == PAIRED


def paired_shape(shape: Shape, dim: int = 1) -> Shape:
    """With two neighbours of a dimension side by side."""
    return (*shape[:dim], -(-shape[dim] // 2), *shape[dim + 1 :], 2)


def paired(value: Array, dim: int = 1) -> Array:
    """The same of an array; an odd last one gets a zero beside it."""
    odd = value.shape[dim] % 2
    padded = np.pad(value, [(0, odd if d == dim else 0) for d in range(value.ndim)])
    split = padded.reshape(*value.shape[:dim], -1, 2, *value.shape[dim + 1 :])
    return np.moveaxis(split, dim + 1, -1)


def unpaired(value: Array, dim: int = 1, channels: int | None = None) -> Array:
    """The way back; what is behind so many channels is left out."""
    joined = np.moveaxis(value, -1, dim + 1)
    made = joined.reshape(*value.shape[:dim], -1, *value.shape[dim + 1 : -1])
    return made[(slice(None),) * dim + (slice(channels),)]


def spatial(attrs: Attrs, shape: Shape) -> Shape:
    """The extents of a map, or of a kernel, without batch and channels."""
    if in_pairs(attrs):
        return shape[2:-1]
    return shape[1:-1] if channels_last(attrs) else shape[2:]


def all_but_channels(attrs: Attrs, shape: Shape) -> tuple[int, ...]:
    kept = {len(shape) - 1} if channels_last(attrs) else {1}
    if in_pairs(attrs):
        kept = {1, len(shape) - 1}
    return tuple(dim for dim in range(len(shape)) if dim not in kept)


def plane_axes(shape: Shape, operands: Sequence[str]) -> tuple[Axis, ...]:
    """Along batch and channels, which all operands have in common."""
    axes = zip(("batch", "channels"), same_index_axes(shape[:2], operands), strict=True)
    return tuple(replace(axis, name=name) for name, axis in axes)


def _first(shape: tuple[Each, ...]) -> tuple[Each, ...]:
    return (shape[0], shape[-1], *shape[1:-1]) if len(shape) > 1 else shape


def _last(shape: Shape) -> Shape:
    return tuple(shape[dim] for dim in last_order(len(shape)))


class MapOp(Op):
    """An op whose operands and results in `maps` may have their channels last."""

    maps: ClassVar[tuple[str, ...]]
    layouts: ClassVar[tuple[str, ...]] = ("chw", "hwc")

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return super().shape(attrs, *ins)

    @abstractmethod
    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]: ...

    @abstractmethod
    def chw_axes(self, site: Site) -> tuple[Axis, ...]: ...

    @abstractmethod
    def chw_lower(self, site: Site) -> Lowering: ...

    def chw_torch(self, attrs: Attrs, *ins: str) -> str:
        return super().torch(attrs, *ins)

    def chw_tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        return super().tile_attrs(site, parts)

    def paired_dim(self, attrs: Attrs, slot: str) -> int:
        """Of an operand in `maps`: the dimension whose neighbours lie side by side in pairs."""
        return 1

    def channels_known(self, attrs: Attrs, ins: Mapping[str, Shape]) -> Mapping[str, int]:
        """How many channels operands in pairs have, where an odd one may be the last."""
        return {}

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if not _moved(attrs):
            return self.chw_shape(attrs, *ins)
        made = self.chw_shape(attrs, *self._planar_shapes(attrs, ins))
        pairs = zip(self.outputs, made, strict=True)
        return tuple(self._laid_shape(attrs, n, s) if n in self.maps else s for n, s in pairs)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        if not _moved(attrs):
            return self.chw_reference(attrs, *ins)
        known: Mapping[str, int] = {}
        if in_pairs(attrs):
            known = self.channels_known(attrs, self._by_slot([v.shape for v in ins]))
        given = [
            self._planar_value(attrs, slot, v, known.get(slot)) if slot in self.maps else v
            for slot, v in self._by_slot(ins).items()
        ]
        made = self.chw_reference(attrs, *given)
        pairs = zip(self.outputs, made, strict=True)
        return tuple(self._laid_value(attrs, n, v) if n in self.maps else v for n, v in pairs)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        planar = self.chw_site(site)
        axes = self.chw_axes(planar)
        if in_pairs(site.attrs):
            return tuple(self._in_pairs(axis, site.attrs) for axis in axes)
        if not channels_last(site.attrs):
            return axes

        def moved(name: str, dim: int) -> int:
            tensor = self.operand(site, name)
            if name not in self.maps or tensor is None:
                return dim
            return last_order(len(tensor.shape)).index(dim)

        return tuple(
            replace(axis, spans=tuple(replace(s, dim=moved(s.operand, s.dim)) for s in axis.spans))
            for axis in axes
        )

    def _in_pairs(self, axis: Axis, attrs: Attrs) -> Axis:
        """An axis of channels, of which a step is a pair."""

        def is_halved(span: Span) -> bool:
            return span.operand in self.maps and span.dim == self.paired_dim(attrs, span.operand)

        if not any(map(is_halved, axis.spans)):
            return axis
        spans = tuple(s if is_halved(s) else replace(s, step=2, extent=2) for s in axis.spans)
        return replace(axis, size=-(-axis.size // 2), spans=spans)

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        planar = self.chw_site(site)
        if _moved(site.attrs):
            whole = dict(self.slots(planar))
            moved = {
                slot: self._planar_region(site.attrs, slot, region, whole[slot].shape)
                for slot, region in parts.items()
                if slot in self.maps
            }
            parts = {**parts, **moved}
        return self.chw_tile_attrs(planar, parts)

    def lower(self, site: Site) -> Lowering:
        lowering = self.chw_lower(self.chw_site(site))
        if not _moved(site.attrs):
            return lowering
        return replace(lowering, mode=f"{lowering.mode}_{site.attrs['layout']}")

    def torch(self, attrs: Attrs, *ins: str) -> str:
        if not _moved(attrs):
            return self.chw_torch(attrs, *ins)
        if in_pairs(attrs):
            return self._torch_in_pairs(attrs, ins)
        given = [f"{v}.movedim(-1, 1)" if self._is_map(i) else v for i, v in enumerate(ins)]
        return f"({self.chw_torch(attrs, *given)}).movedim(1, -1)"

    def _torch_in_pairs(self, attrs: Attrs, ins: Sequence[str]) -> str:
        known = self.channels_known(attrs, {})

        def joined(slot: str, value: str) -> str:
            dim = self.paired_dim(attrs, slot)
            text = f"{value}.movedim(-1, {dim + 1}).flatten({dim}, {dim + 1})"
            return f"{text}.narrow({dim}, 0, {known[slot]})" if slot in known else text

        given = [joined(n, v) if n in self.maps else v for n, v in self._by_slot(ins).items()]
        around = "(0, 0) * (y.dim() - 2) + (0, y.shape[1] % 2)"
        made = f"F.pad((y := {self.chw_torch(attrs, *given)}), {around})"
        return f"{made}.unflatten(1, (-1, 2)).movedim(2, -1)"

    def chw_site(self, site: Site) -> Site:
        """The same node, as it would be with channels first."""
        if not _moved(site.attrs):
            return site
        shapes = self._planar_shapes(site.attrs, [t.shape for t in site.ins])
        ins = tuple(replace(t, shape=s) for t, s in zip(site.ins, shapes, strict=True))
        if in_pairs(site.attrs):
            made = self.chw_shape(site.attrs, *shapes)
            outs = tuple(replace(t, shape=s) for t, s in zip(site.outs, made, strict=True))
            return replace(site, ins=ins, outs=outs)
        pairs = zip(self.outputs, site.outs, strict=True)
        turned = (replace(t, shape=_first(t.shape)) if n in self.maps else t for n, t in pairs)
        return replace(site, ins=ins, outs=tuple(turned))

    def _is_map(self, index: int) -> bool:
        return self.inputs[index].rstrip("?") in self.maps

    def _by_slot(self, ins: Sequence[Each]) -> dict[str, Each]:
        return {slot.rstrip("?"): v for slot, v in zip(self.inputs, ins, strict=False)}

    def _planar_shapes(self, attrs: Attrs, ins: Sequence[Shape]) -> list[Shape]:
        """Of the operands, as they would be with channels first."""
        slots = self._by_slot(ins)
        if not in_pairs(attrs):
            return [_first(s) if slot in self.maps else s for slot, s in slots.items()]
        known = self.channels_known(attrs, slots)

        def joined(slot: str, shape: Shape) -> Shape:
            dim = self.paired_dim(attrs, slot)
            if len(shape) <= dim + 1 or shape[-1] != 2:
                raise ShapeError(f"'{slot}' {shape} has no pairs of channels")
            return (*shape[:dim], known.get(slot, 2 * shape[dim]), *shape[dim + 1 : -1])

        return [joined(slot, s) if slot in self.maps else s for slot, s in slots.items()]

    def _laid_shape(self, attrs: Attrs, slot: str, shape: Shape) -> Shape:
        if in_pairs(attrs):
            return paired_shape(shape, self.paired_dim(attrs, slot))
        return _last(shape)

    def _planar_value(self, attrs: Attrs, slot: str, value: Array, channels: int | None) -> Array:
        if in_pairs(attrs):
            return unpaired(value, self.paired_dim(attrs, slot), channels)
        return _channels_first(value)

    def _laid_value(self, attrs: Attrs, slot: str, value: Array) -> Array:
        if in_pairs(attrs):
            return paired(value, self.paired_dim(attrs, slot))
        return value.transpose(last_order(value.ndim))

    def _planar_region(self, attrs: Attrs, slot: str, region: Region, shape: Shape) -> Region:
        """A part of an operand, as it would be with channels first."""
        if not in_pairs(attrs):
            return _first(region)
        dim = self.paired_dim(attrs, slot)
        begin, end = region[dim]
        return (*region[:dim], (2 * begin, min(2 * end, shape[dim])), *region[dim + 1 : -1])


def _moved(attrs: Attrs) -> bool:
    return channels_last(attrs) or in_pairs(attrs)


def _channels_first(value: Array) -> Array:
    return (
        value.transpose(0, value.ndim - 1, *range(1, value.ndim - 1)) if value.ndim > 1 else value
    )
