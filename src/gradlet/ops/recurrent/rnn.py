"""The plain recurrent layer: h = tanh(gx + w h), or a ReLU in place of the tanh."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Site
from gradlet.ops.base import Size, register
from gradlet.ops.recurrent.layer import Scan, ScanGrad, as_stored, in_order


@register
class Rnn(Scan):
    name = "rnn"
    inputs = ("gx", "w", "h0")
    family = "rnn"
    gates = 1
    keeps = (1,)
    sequences = ("gx", "y")
    overwrites = ("gx",)
    torch_source = """
def _rnn(gx, w, h, relu, batch_first, reverse):
    times = gx.unbind(1 if batch_first else 0)
    y = []
    for x in reversed(times) if reverse else times:
        h = (x + h @ w.T).relu() if relu else (x + h @ w.T).tanh()
        y.append(h)
    return torch.stack(y[::-1] if reverse else y, 1 if batch_first else 0)
"""

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        gx, w, h = in_order(attrs, ins[0]), ins[1], ins[2]
        y = np.empty((*gx.shape[:2], w.shape[1]))
        for t, x in enumerate(gx):
            a = x + h @ w.T
            h = y[t] = np.maximum(a, 0) if attrs["relu"] else np.tanh(a)
        return (as_stored(attrs, y),)

    def gradient_inputs(self, site: Site, grads: Sequence[str]) -> list[str]:
        return [site.node.outputs[0], site.node.inputs[1]]

    def sizes(self, site: Site) -> dict[str, Size]:
        return {**super().sizes(site), "relu": int(bool(site.attrs["relu"]))}


@register
class RnnGrad(ScanGrad):
    name = "rnn_grad"
    inputs = ("dy", "y", "w")
    outputs = ("dgx", "dh0?")
    family = "rnn"
    gates = 1
    made = (1,)
    sequences = ("dy", "y", "dgx")
    overwrites = ("dy",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, y, w = in_order(attrs, ins[0]), in_order(attrs, ins[1]), ins[2]
        dgx = np.empty(dy.shape)
        back: Array = np.zeros(dy.shape[1:])
        for t in reversed(range(len(dy))):
            slope = (y[t] > 0) if attrs["relu"] else 1 - y[t] ** 2
            dgx[t] = (dy[t] + back) * slope
            back = dgx[t] @ w
        return (as_stored(attrs, dgx), *([back] if attrs["initial"] else []))

    def sizes(self, site: Site) -> dict[str, Size]:
        return {**super().sizes(site), "relu": int(bool(site.attrs["relu"]))}
