"""Where the channels of a feature map lie: first, as in PyTorch, or last, as [N, H, W, C].

An op over maps is written once, for channels first. With the attribute `layout` = "hwc" the same op
takes and gives its maps, and weights of the form [O, C, KH, KW], with dimension 1 moved to the end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Axis, Lowering, Op
from gradlet.ops.lib.pointwise import same_index_axes
from gradlet.ops.lib.tiling import Region

LAYOUTS = ("chw", "hwc")
Each = TypeVar("Each")


def channels_last(attrs: Attrs) -> bool:
    return attrs.get("layout") == "hwc"


def last_order(rank: int) -> tuple[int, ...]:
    """The permutation that moves dimension 1 to the end."""
    return (0, *range(2, rank), 1) if rank > 1 else tuple(range(rank))


def spatial(attrs: Attrs, shape: Shape) -> Shape:
    """The extents of a map, or of a kernel, without batch and channels."""
    return shape[1:-1] if channels_last(attrs) else shape[2:]


def all_but_channels(attrs: Attrs, shape: Shape) -> tuple[int, ...]:
    kept = len(shape) - 1 if channels_last(attrs) else 1
    return tuple(dim for dim in range(len(shape)) if dim != kept)


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

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if not channels_last(attrs):
            return self.chw_shape(attrs, *ins)
        given = [_first(s) if self._is_map(i) else s for i, s in enumerate(ins)]
        pairs = zip(self.outputs, self.chw_shape(attrs, *given), strict=True)
        return tuple(_last(s) if n in self.maps else s for n, s in pairs)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        if not channels_last(attrs):
            return self.chw_reference(attrs, *ins)
        given = [_channels_first(v) if self._is_map(i) else v for i, v in enumerate(ins)]
        made = self.chw_reference(attrs, *given)
        pairs = zip(self.outputs, made, strict=True)
        return tuple(v.transpose(last_order(v.ndim)) if n in self.maps else v for n, v in pairs)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        axes = self.chw_axes(self.chw_site(site))
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

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        if channels_last(site.attrs):
            moved = {slot: _first(region) for slot, region in parts.items() if slot in self.maps}
            parts = {**parts, **moved}
        return self.chw_tile_attrs(self.chw_site(site), parts)

    def lower(self, site: Site) -> Lowering:
        lowering = self.chw_lower(self.chw_site(site))
        if not channels_last(site.attrs):
            return lowering
        return replace(lowering, mode=f"{lowering.mode}_hwc")

    def torch(self, attrs: Attrs, *ins: str) -> str:
        if not channels_last(attrs):
            return self.chw_torch(attrs, *ins)
        given = [f"{v}.movedim(-1, 1)" if self._is_map(i) else v for i, v in enumerate(ins)]
        return f"({self.chw_torch(attrs, *given)}).movedim(1, -1)"

    def chw_site(self, site: Site) -> Site:
        """The same node, as it would be with channels first."""
        if not channels_last(site.attrs):
            return site
        ins = [_planar(t) if self._is_map(i) else t for i, t in enumerate(site.ins)]
        pairs = zip(self.outputs, site.outs, strict=True)
        outs = [_planar(t) if name in self.maps else t for name, t in pairs]
        return replace(site, ins=tuple(ins), outs=tuple(outs))

    def _is_map(self, index: int) -> bool:
        return self.inputs[index].rstrip("?") in self.maps


def _planar(tensor: Tensor) -> Tensor:
    return replace(tensor, shape=_first(tensor.shape))


def _channels_first(value: Array) -> Array:
    return (
        value.transpose(0, value.ndim - 1, *range(1, value.ndim - 1)) if value.ndim > 1 else value
    )
