"""How the front ends spell padding: with a number, mirrored, repeated or taken from the other end.

All but the first are joined from slices of the tensor, one dimension after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.ops.concat import join
from gradlet.ops.crop import sliced
from gradlet.ops.flip import flipped
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch

MODES = {"replicate": "edge", "circular": "wrap"}  # PyTorch's names for ONNX's


def pad(
    imp: Importer,
    x: str,
    before: Sequence[int],
    after: Sequence[int],
    mode: str = "constant",
    value: float = 0.0,
) -> str:
    """Widen each dimension by so many elements before and after; negative numbers cut off."""
    shape = imp.shape(x)
    cuts = [
        (dim, max(-b, 0), shape[dim] + min(a, 0), 1)
        for dim, (b, a) in enumerate(zip(before, after, strict=True))
        if b < 0 or a < 0
    ]
    x = sliced(imp, x, cuts)
    start, end = ([max(n, 0) for n in side] for side in (before, after))
    if not any((*start, *end)):
        return x
    if mode == "constant":
        size = tuple(n + b + a for n, b, a in zip(imp.shape(x), start, end, strict=True))
        attrs = {"start": tuple(start), "step": (1,) * len(size), "size": size}
        return imp.add("pad", [x], {**attrs, "value": float(value)} if value else attrs)
    for dim, (b, a) in enumerate(zip(start, end, strict=True)):
        x = _widened(imp, x, dim, b, a, mode)
    return x


def _widened(imp: Importer, x: str, dim: int, before: int, after: int, mode: str) -> str:
    extent = imp.shape(x)[dim]
    most = {"reflect": extent - 1, "wrap": extent}.get(mode, max(before, after))
    if max(before, after) > most:
        raise imp.unsupported(
            f"{max(before, after)} elements of padding by '{mode}' beside {extent}; at most {most}"
        )

    def part(begin: int, end: int) -> str:
        return sliced(imp, x, [(dim, begin, end, 1)])

    match mode:
        case "reflect":
            sides = (
                flipped(imp, part(1, before + 1), [dim]) if before else "",
                flipped(imp, part(extent - 1 - after, extent - 1), [dim]) if after else "",
            )
        case "wrap":
            sides = (
                part(extent - before, extent) if before else "",
                part(0, after) if after else "",
            )
        case "edge":
            sides = (
                _repeated(imp, part(0, 1), dim, before) if before else "",
                _repeated(imp, part(extent - 1, extent), dim, after) if after else "",
            )
        case _:
            raise imp.unsupported(f"padding by '{mode}'")
    return join(imp, [name for name in (sides[0], x, sides[1]) if name], dim)


def _repeated(imp: Importer, x: str, dim: int, times: int) -> str:
    shape = tuple(times if d == dim else n for d, n in enumerate(imp.shape(x)))
    return x if times == 1 else imp.add("expand", [x], {"shape": shape})


@from_torch("aten.pad.default", "aten.constant_pad_nd.default")
def _torch_pad(imp: Importer, call: Call) -> str:
    x, pads = imp.tensor(call.args[0]), list(call.args[1])
    mode, value = call.arg(2, "constant"), call.arg(3, 0)
    if call.target == "aten.constant_pad_nd.default":
        mode, value = "constant", call.arg(2, 0)
    rank = len(imp.shape(x))
    before, after = [0] * rank, [0] * rank
    for index in range(len(pads) // 2):
        before[rank - 1 - index], after[rank - 1 - index] = pads[2 * index : 2 * index + 2]
    return pad(imp, x, before, after, MODES.get(mode, mode), float(value))


@from_onnx("Pad")
def _onnx_pad(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    pads = [int(n) for n in imp.static(call.args[1])]
    value = 0.0 if call.arg(2) is None else float(np.asarray(imp.static(call.args[2])).reshape(()))
    rank = len(imp.shape(x))
    dims = range(rank) if call.arg(3) is None else [int(d) % rank for d in imp.static(call.args[3])]
    before, after = [0] * rank, [0] * rank
    for index, dim in enumerate(dims):
        before[dim], after[dim] = pads[index], pads[index + len(pads) // 2]
    return pad(imp, x, before, after, str(call.attrs.get("mode", "constant")), value)
