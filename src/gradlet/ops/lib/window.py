"""A window that slides over a plane: the geometry that convolution and pooling share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradlet.ir.graph import Array, Attrs
from gradlet.ops.base import Axis, ShapeError, Span, ints, pair
from gradlet.ops.importer import Call, Importer
from gradlet.ops.lib.tiling import Region

Sides = tuple[int, int, int, int]
"""Top, left, bottom, right."""


@dataclass(frozen=True)
class Window:
    """How a kernel slides over a plane; shared by convolution and pooling."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: Sides
    dilation: tuple[int, int]

    @property
    def reach(self) -> tuple[int, int]:
        """Extent of the dilated kernel."""
        (kernel_h, kernel_w), (dilation_h, dilation_w) = self.kernel, self.dilation
        return (kernel_h - 1) * dilation_h + 1, (kernel_w - 1) * dilation_w + 1

    def output(self, height: int, width: int) -> tuple[int, int]:
        top, left, bottom, right = self.padding
        if min(self.padding) < 0:
            raise ShapeError(f"negative padding {self.padding}")
        if min(*self.kernel, *self.stride, *self.dilation) < 1:
            raise ShapeError("kernel, stride and dilation must be at least 1")
        rows = (height + top + bottom - self.reach[0]) // self.stride[0] + 1
        cols = (width + left + right - self.reach[1]) // self.stride[1] + 1
        if rows < 1 or cols < 1:
            raise ShapeError(
                f"a {self.reach[0]}x{self.reach[1]} window does not fit into "
                f"{height + top + bottom}x{width + left + right}"
            )
        return rows, cols

    def windows(self, x: Array, fill: float = 0.0) -> Array:
        """View of x as [N, C, OH, OW, KH, KW]."""
        top, left, bottom, right = self.padding
        rows, cols = self.output(*x.shape[2:])
        padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(padded, self.reach, axis=(2, 3))
        strided = view[:, :, :: self.stride[0], :: self.stride[1]]
        return strided[:, :, :rows, :cols, :: self.dilation[0], :: self.dilation[1]]

    def taps(self, i: int, j: int, size: Sequence[int]) -> tuple[slice, ...]:
        """The elements of the padded input that meet kernel tap (i, j), one per output."""
        starts = (i * self.dilation[0], j * self.dilation[1])
        spans = [
            slice(start, start + (n - 1) * s + 1, s)
            for start, n, s in zip(starts, size, self.stride, strict=True)
        ]
        return (slice(None), slice(None), *spans)

    def inside(self, x: Sequence[int], y: Sequence[int]) -> int:
        """How many taps of all windows of a plane meet the input, not its padding."""
        found = 1
        for axis, (size, count) in enumerate(zip(x, y, strict=True)):
            places = (
                at * self.stride[axis] - self.padding[axis] + tap * self.dilation[axis]
                for at in range(count)
                for tap in range(self.kernel[axis])
            )
            found *= sum(0 <= place < size for place in places)
        return found

    def forward_span(self, operand: str, axis: int) -> Span:
        """What rows (axis 0) or columns (1) of the input an output row or column needs."""
        return Span(operand, 2 + axis, self.stride[axis], -self.padding[axis], self.reach[axis])

    def backward_axis(self, axis: int, extent: int, gradient: str, result: str) -> Axis:
        """The axis of an input gradient, in blocks of `stride` rows so that steps are whole."""
        stride, pad, reach = self.stride[axis], self.padding[axis], self.reach[axis]
        first = -((reach - 1 - pad) // stride)
        last = (stride - 1 + pad) // stride
        spans = (
            Span(gradient, 2 + axis, 1, first, max(0, last - first + 1)),
            Span(result, 2 + axis, stride, 0, stride),
        )
        return Axis(("rows", "columns")[axis], -(-extent // stride), spans)

    def forward_tile(self, x: Region, y: Region, size: Sequence[int]) -> Sides | None:
        """The padding of a part of the output, from a part of an input of this size; None where
        windows lie beside the input, as no padding says that."""
        before, after = [], []
        for axis, (begin, end) in enumerate(y[2:]):
            low = begin * self.stride[axis] - self.padding[axis]
            high = (end - 1) * self.stride[axis] - self.padding[axis] + self.reach[axis]
            if high <= 0 or low >= size[axis]:
                return None
            before.append(x[2 + axis][0] - low)
            after.append(max(0, high - x[2 + axis][1]))
        return (before[0], before[1], after[0], after[1])

    def backward_tile(self, gradient: Region, result: Region) -> Sides | None:
        """The padding of a part of the input's gradient, from a part of the output's; None where
        it would be negative, as it may be if it is wider than the kernel."""
        before, after = [], []
        for axis, (begin, end) in enumerate(result[2:]):
            low, high = gradient[2 + axis]
            before.append(self.padding[axis] + begin - low * self.stride[axis])
            last = (high - low - 1) * self.stride[axis] + self.reach[axis]
            after.append(max(0, last - before[-1] - (end - begin)))
        return (before[0], before[1], after[0], after[1]) if min(before) >= 0 else None

    def sizes(self) -> dict[str, int]:
        return {
            "kernel_h": self.kernel[0],
            "kernel_w": self.kernel[1],
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
            "pad_top": self.padding[0],
            "pad_left": self.padding[1],
            "dilation_h": self.dilation[0],
            "dilation_w": self.dilation[1],
        }


def window(attrs: Attrs, kernel: Sequence[int]) -> Window:
    top, left, bottom, right = ints(attrs, "padding")
    return Window(
        pair(kernel), pair(attrs["stride"]), (top, left, bottom, right), pair(attrs["dilation"])
    )


def same_padding(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    *,
    extra_first: bool = False,
) -> tuple[int, ...]:
    """Padding that keeps ceil(size / stride) outputs; an odd one goes last unless told."""
    begin, end = [], []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        begin.append(total - total // 2 if extra_first else total // 2)
        end.append(total - begin[-1])
    return (*begin, *end)


def onnx_padding(
    imp: Importer, call: Call, size: Sequence[int], kernel: Sequence[int]
) -> tuple[int, ...]:
    """At the beginning of each dimension, then at the end of each."""
    mode, ones = call.attrs.get("auto_pad", "NOTSET"), [1] * len(kernel)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        stride, dilation = (call.attrs.get(key, ones) for key in ("strides", "dilations"))
        return same_padding(size, kernel, stride, dilation, extra_first=mode == "SAME_LOWER")
    if mode not in ("NOTSET", "VALID"):
        raise imp.unsupported(f"auto_pad={mode}")
    return tuple(call.attrs.get("pads", [0] * 2 * len(kernel)))


def conv_attrs(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: Any
) -> Attrs:
    return {
        "stride": tuple(stride),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
        "groups": int(groups),
    }


def toml_padding(value: Any) -> Sides:
    """One number, (height, width) or (top, left, bottom, right)."""
    if isinstance(value, list) and len(value) == 4:
        return (value[0], value[1], value[2], value[3])
    height, width = pair(value)
    return (height, width, height, width)
