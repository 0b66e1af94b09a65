"""What an op is: one class with its facts. An op file registers one `Op` per kind of node, and
beside it how the front ends spell it (importer.py), so that everything Python knows of an op stands
in one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.tiling import Ranges, Region, regions, shrunk


class ShapeError(GradletError):
    """Operands that do not fit together; `infer` puts the user's module in front."""


@dataclass(frozen=True)
class Work:
    """What a node costs at least: multiply-accumulates, bytes that must be touched once, and
    additions that are no multiply-accumulates. padded: those of the multiply-accumulates that meet
    padding, which kernels may leave out."""

    macs: int
    bytes: int
    adds: int = 0
    padded: int = 0


@dataclass(frozen=True)
class Span:
    """How a tile along an axis selects a range of one dimension of one operand.

    Steps [a, b) of the axis touch elements [a*step + start, (b-1)*step + start + extent), cut to
    the dimension. step 1, start 0, extent 1 is a plain slice; anything else is a halo.
    """

    operand: str
    dim: int
    step: int = 1
    start: int = 0
    extent: int = 1

    def range(self, begin: int, end: int, size: int) -> tuple[int, int]:
        low = begin * self.step + self.start
        high = (end - 1) * self.step + self.start + self.extent
        return max(0, min(low, size)), max(0, min(high, size))

    def inside(self, at: int, size: int) -> int:
        """How many elements one step touches."""
        low, high = self.range(at, at + 1, size)
        return high - low


@dataclass(frozen=True)
class Axis:
    """One loop of a node. The results of a reduction's tiles are added up, in order, and make the
    result of the node; others are free.

    An operand without a span along the axis is needed whole for every tile of it.
    """

    name: str
    size: int
    spans: tuple[Span, ...]
    reduction: bool = False


Size = int | float | tuple[int, ...]
Arrays = Sequence[Array]


@dataclass(frozen=True)
class Lowering:
    """The kernel family and mode that compute a node, with the sizes that it takes.

    repeat is how often the kernel is called, one step after the other, with a barrier between.
    """

    family: str
    mode: str
    sizes: Mapping[str, Size]
    repeat: int = 1


class Op(ABC):
    """The facts of one kind of node. Subclasses fill them in; OPS holds one instance of each.

    linear      the result is bounded by the same op over absolute values (for tolerances)
    exact       the result is copied, not computed: no rounding
    overwrites  inputs whose memory an output may take over, element for element
    overwriter  which output that is, if not the first
    view        the output is the first input's bytes under another shape
    counts      made of sums, products and quotients: of whole numbers they are not rounded where
                float32 has the result
    stops       no gradient passes
    adds_once   optional operands that are added to the result: of the tiles of a reduction, only
                the first has them
    layouts     orders of the dimensions in memory that it takes, where it matters
    integers    operands that hold indices, or whole numbers of another kind
    untyped     numbers or integers, whichever the operand holds
    additions   that an element of the result takes
    torch_source  functions that the PyTorch spelling calls

    Operands at the end whose names end in `?` may be left out, outputs as well.
    """

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[tuple[str, ...]] = ("y",)
    linear: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    overwrites: ClassVar[tuple[str, ...]] = ()
    overwriter: ClassVar[str] = ""
    torch_source: ClassVar[str] = ""
    view: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    stops: ClassVar[bool] = False
    adds_once: ClassVar[tuple[str, ...]] = ()
    layouts: ClassVar[tuple[str, ...]] = ("any",)
    integers: ClassVar[tuple[str, ...]] = ()
    untyped: ClassVar[bool] = False
    additions: ClassVar[int] = 0

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        """That of the first operand, unless the op says otherwise."""
        return (ins[0],) * len(self.outputs)

    @abstractmethod
    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]: ...

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        """Gradients of the wanted inputs, by input name, from those of the outputs."""
        if self.stops:
            return {}
        raise GradletError(f"{self.name} cannot be differentiated")

    def rows_dim(self, site: Site, slot: str) -> int | None:
        """The dimension of the result that the rows of an operand make, one each, if they do: then
        the gradient of some rows takes no more than that part of the result's gradient."""
        return None

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, self.additions * site.outs[0].elements)

    def roundings(self, site: Site, out: Tensor) -> float:
        """How many roundings an element of a result goes through, one after the other."""
        work = self.work(site)
        return 1 + (work.macs + work.adds) / max(out.elements, 1)

    def stores(self, site: Site) -> int:
        """How many numbers are stored, one made of the other, on the way to an element of a
        result: each is rounded to the element type."""
        return 1

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """Size of what is rounded on the way to each result, where terms may cancel."""
        if self.linear and not self.exact:
            return self.reference(attrs, *(np.abs(operand) for operand in ins))
        return results

    @abstractmethod
    def axes(self, site: Site) -> tuple[Axis, ...]: ...

    def flat(self, site: Site) -> Site:
        """The same computation of the same bytes with fewer dimensions, where there is one: its
        tiles need not end where a dimension does."""
        return site

    def tile(self, site: Site, ranges: Ranges) -> Site | None:
        """The node that computes some steps of some axes from parts of the operands, by the same
        kernel; None if no node of this op does."""
        parts = regions(site, self, ranges)
        attrs = self.tile_attrs(site, parts)
        if attrs is None:
            return None
        tile = shrunk(site, self, parts, attrs)
        try:  # whatever the op would refuse anywhere else is no tile
            shapes = self.shape(attrs, *(tensor.shape for tensor in tile.ins))
        except ShapeError:
            return None
        return tile if shapes == tuple(tensor.shape for tensor in tile.outs) else None

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        """Attributes of the node over these parts of the operands, if there is one: all that
        depends on sizes, on borders or on places in the whole has to be put right."""
        return site.attrs

    @abstractmethod
    def lower(self, site: Site) -> Lowering: ...

    def backing_sizes(self, site: Site, number: int) -> Mapping[str, Size]:
        """What the kernel of a tile needs to know besides if it fetches its part of this input by
        itself from the whole; nothing if no kernel does."""
        return {}

    def torch(self, attrs: Attrs, *ins: str) -> str:
        """The forward op as a PyTorch expression, for the oracle; gradients need none."""
        raise GradletError(f"{self.name} has no PyTorch spelling")

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return (ins[0],) * len(self.outputs)

    def check_dtypes(self, *ins: Tensor) -> None:
        for tensor in ins:
            if tensor.dtype == "i32":
                raise ShapeError(f"'{tensor.name}' holds integers; floating point is needed")

    def infer(
        self, attrs: Attrs, ins: tuple[Tensor, ...], module: str = ""
    ) -> tuple[tuple[Shape, str], ...]:
        """Shapes and dtypes of the outputs, or an error that names module and shapes."""
        try:
            self.check_dtypes(*ins)
            shapes = self.shape(attrs, *(tensor.shape for tensor in ins))
        except ShapeError as error:
            where = f"module '{module}': " if module else ""
            operands = ", ".join(map(str, ins))
            raise GradletError(f"{where}{self.name}({operands}): {error}") from None
        dtypes = self.dtypes(*(tensor.dtype for tensor in ins))[: len(shapes)]
        return tuple(zip(shapes, dtypes, strict=True))

    def operand(self, site: Site, name: str) -> Tensor | None:
        """The tensor in the named slot, or None for an optional one that is left out."""
        slots = [slot.rstrip("?") for slot in self.inputs]
        if name in slots:
            index = slots.index(name)
            return site.ins[index] if index < len(site.ins) else None
        return site.outs[[slot.rstrip("?") for slot in self.outputs].index(name)]

    def slots(self, site: Site) -> list[tuple[str, Tensor]]:
        """Inputs, then outputs, as far as they are there, by the names of their slots."""
        pairs = [(self.inputs, site.ins), (self.outputs, site.outs)]
        return [
            (slot.rstrip("?"), tensor)
            for names, tensors in pairs
            for slot, tensor in zip(names, tensors, strict=False)
        ]


OPS: dict[str, Op] = {}


OpClass = TypeVar("OpClass", bound=type[Op])


def register(cls: OpClass) -> OpClass:
    OPS[cls.name] = cls()
    return cls


def each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """One number for each dimension, from one for all or from as many."""
    items = [value] if isinstance(value, int) else list(value)
    return tuple(int(n) for n in (items * dims if len(items) == 1 else items))


def pair(value: Any) -> tuple[int, int]:
    """An int or a one- or two-element sequence, as PyTorch takes them, as (height, width)."""
    items = [value] if isinstance(value, int) else list(value)
    if len(items) not in (1, 2):
        raise GradletError(f"{items} should be one number, or height and width")
    return (int(items[0]), int(items[-1]))


def ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def integer(attrs: Attrs, name: str) -> int:
    value = attrs[name]
    assert isinstance(value, int)
    return value


def number(attrs: Attrs, name: str) -> float:
    value = attrs[name]
    assert isinstance(value, int | float)
    return float(value)
