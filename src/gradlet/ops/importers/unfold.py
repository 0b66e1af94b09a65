"""Windows as a dimension of their own: slices with a stride, side by side."""

from __future__ import annotations

from itertools import product

import numpy as np

from gradlet.ops.base import pair
from gradlet.ops.concat import join
from gradlet.ops.crop import sliced
from gradlet.ops.importer import Call, Importer, from_torch
from gradlet.ops.importers.padding import pad
from gradlet.ops.shape import reshaped


@from_torch("aten.unfold.default")
def _torch_unfold(imp: Importer, call: Call) -> str:
    """All windows of a size along a dimension; their elements become the last dimension."""
    x = imp.tensor(call.args[0])
    dim, size, step = (int(n) for n in call.args[1:4])
    dim %= len(imp.shape(x))
    last = (imp.shape(x)[dim] - size) // step * step  # where the last window begins
    parts = [sliced(imp, x, [(dim, at, at + last + 1, step)]) for at in range(size)]
    return join(imp, [reshaped(imp, part, (*imp.shape(part), 1)) for part in parts], -1)


@from_torch("aten.im2col.default")
def _torch_im2col(imp: Importer, call: Call) -> str:
    """[N, C, H, W] as [N, C * window, windows], as nn.Unfold has it."""
    x = imp.tensor(call.args[0])
    kernel, dilation, padding, stride = (pair(value) for value in call.args[1:5])
    around = (0, 0, *padding)
    x = pad(imp, x, around, around)
    n, c, *size = imp.shape(x)
    parts = []
    for place in product(*map(range, kernel)):
        cuts = []
        for axis, at in enumerate(place):
            begin = at * dilation[axis]
            span = dilation[axis] * (kernel[axis] - 1) + 1
            end = begin + (size[axis] - span) // stride[axis] * stride[axis] + 1
            cuts.append((2 + axis, begin, end, stride[axis]))
        part = sliced(imp, x, cuts)
        parts.append(reshaped(imp, part, (n, c, 1, int(np.prod(imp.shape(part)[2:])))))
    y = join(imp, parts, 2)
    return reshaped(imp, y, (n, c * len(parts), imp.shape(y)[3]))


@from_torch("aten.col2im.default")
def _torch_col2im(imp: Importer, call: Call) -> str:
    """Windows laid where they came from, and added up where they overlap, as nn.Fold has it."""
    x = imp.tensor(call.args[0])
    output, kernel, dilation, padding, stride = (pair(value) for value in call.args[1:6])
    single = len(imp.shape(x)) == 2
    if single:
        x = reshaped(imp, x, (1, *imp.shape(x)))
    n, channels = imp.shape(x)[0], imp.shape(x)[1] // int(np.prod(kernel))
    whole = tuple(extent + 2 * around for extent, around in zip(output, padding, strict=True))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    counts = [(w - s) // step + 1 for w, s, step in zip(whole, spans, stride, strict=True)]
    x = reshaped(imp, x, (n, channels, int(np.prod(kernel)), *counts))
    y = ""
    for number, place in enumerate(product(*map(range, kernel))):
        part = reshaped(imp, sliced(imp, x, [(2, number, number + 1, 1)]), (n, channels, *counts))
        start = (0, 0, *(at * d for at, d in zip(place, dilation, strict=True)))
        attrs = {"start": start, "step": (1, 1, *stride), "size": (n, channels, *whole)}
        laid = imp.add("pad", [part], attrs)
        y = imp.add("add", [y, laid]) if y else laid
    cut = [
        (2 + d, a, a + extent, 1) for d, (a, extent) in enumerate(zip(padding, output, strict=True))
    ]
    y = sliced(imp, y, cut)
    return reshaped(imp, y, imp.shape(y)[1:]) if single else y
