"""Gated recurrent units, gates in the order reset, update, new.

`gru` resets what the product makes of the state (PyTorch): n = tanh(gx + r (w h + b)).
`gru_reset` resets the state before the product (ONNX's default): n = tanh(gx + w (r h) + b).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Site
from gradlet.ops.base import register
from gradlet.ops.emitter import Emitter
from gradlet.ops.recurrent.layer import SCAN, Scan, ScanGrad, as_stored, in_order, sigmoid


class _Gru(Scan):
    inputs = ("gx", "w", "b", "h0")
    outputs = ("y", "kept", "q")
    family = "gru"
    gates = 3
    keeps = (1, 3, 1)
    sequences = ("gx", "y", "kept", "q")
    overwrites = ("gx",)
    overwriter = "kept"

    def gradient_inputs(self, site: Site, grads: Sequence[str]) -> list[str]:
        return [*site.node.outputs, site.node.inputs[1], site.node.inputs[3]]

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        gx, w, b, h = in_order(attrs, ins[0]), *ins[1:]
        y, kept, q = (np.empty((*gx.shape[:2], k * w.shape[1])) for k in self.keeps)
        for t, x in enumerate(gx):
            rz, n, q[t] = self.gate(x, w, b, h)
            z = rz[:, w.shape[1] :]
            h = y[t] = (1 - z) * n + z * h
            kept[t] = np.concatenate([rz, n], axis=1)
        return tuple(as_stored(attrs, value) for value in (y, kept, q))

    @staticmethod
    @abstractmethod
    def gate(x: Array, w: Array, b: Array, h: Array) -> tuple[Array, Array, Array]:
        """Of one time: the gates reset and update, the new gate, and what else is kept."""


@register
class Gru(_Gru):
    """Keeps the gates, and q = w h + b of the new gate."""

    name = "gru"
    product = 1
    torch_source = """
def _gru(gx, w, b, h, batch_first, reverse):
    times = gx.unbind(1 if batch_first else 0)
    kept = []
    for x in reversed(times) if reverse else times:
        (xr, xz, xn), (hr, hz, q) = x.chunk(3, -1), (h @ w.T + b).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * q).tanh()
        h = (1 - z) * n + z * h
        kept.append((h, torch.cat([r, z, n], -1), q))
    kept = kept[::-1] if reverse else kept
    return tuple(torch.stack(values, 1 if batch_first else 0) for values in zip(*kept))
"""

    @staticmethod
    def gate(x: Array, w: Array, b: Array, h: Array) -> tuple[Array, Array, Array]:
        size, a = w.shape[1], h @ w.T + b
        rz, q = sigmoid(x[:, : 2 * size] + a[:, : 2 * size]), a[:, 2 * size :]
        return rz, np.tanh(x[:, 2 * size :] + rz[:, :size] * q), q


@register
class GruReset(_Gru):
    """Keeps the gates, and q = r h, which the new gate sees in place of the state."""

    name = "gru_reset"
    phases = 2
    torch_source = """
def _gru_reset(gx, w, b, h, batch_first, reverse):
    times = gx.unbind(1 if batch_first else 0)
    (wr, wz, wn), (br, bz, bn) = w.chunk(3), b.chunk(3)
    kept = []
    for x in reversed(times) if reverse else times:
        xr, xz, xn = x.chunk(3, -1)
        r, z = (xr + h @ wr.T + br).sigmoid(), (xz + h @ wz.T + bz).sigmoid()
        n = (xn + (r * h) @ wn.T + bn).tanh()
        kept.append(((1 - z) * n + z * h, torch.cat([r, z, n], -1), r * h))
        h = kept[-1][0]
    kept = kept[::-1] if reverse else kept
    return tuple(torch.stack(values, 1 if batch_first else 0) for values in zip(*kept))
"""

    @staticmethod
    def gate(x: Array, w: Array, b: Array, h: Array) -> tuple[Array, Array, Array]:
        size = w.shape[1]
        rz = sigmoid(x[:, : 2 * size] + h @ w[: 2 * size].T + b[: 2 * size])
        q = rz[:, :size] * h
        return rz, np.tanh(x[:, 2 * size :] + q @ w[2 * size :].T + b[2 * size :]), q

    def weight_grad(self, emit: Emitter, site: Site, dg: str) -> str:
        y, _, q = site.node.outputs
        attrs = {name: site.attrs[name] for name in SCAN}
        return emit.add("recurrent_weight_grad", [dg, y, site.node.inputs[3], q], attrs)


class _GruGrad(ScanGrad):
    inputs = ("dy", "y", "kept", "q", "w", "h0")
    family = "gru"
    gates = 3
    overwrites = ("kept",)


@register
class GruGrad(_GruGrad):
    """dgx, and dgh, the gradient of w h + b, which the reset gate has scaled."""

    name = "gru_grad"
    outputs = ("dgx", "dgh", "dh0?")
    made = (3, 3)
    sequences = ("dy", "y", "kept", "q", "dgx", "dgh")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, y, kept, q = (in_order(attrs, value) for value in ins[:4])
        w, h0 = ins[4:]
        dgx, dgh = np.empty(kept.shape), np.empty(kept.shape)
        back: Array = np.zeros(h0.shape)
        for t in reversed(range(len(dy))):
            r, z, n = np.split(kept[t], 3, axis=1)
            before = y[t - 1] if t else h0
            dh = dy[t] + back
            dn = dh * (1 - z) * (1 - n**2)
            dz = dh * (before - n) * z * (1 - z)
            dr = dn * q[t] * r * (1 - r)
            dgx[t] = np.concatenate([dr, dz, dn], axis=1)
            dgh[t] = np.concatenate([dr, dz, dn * r], axis=1)
            back = dh * z + dgh[t] @ w
        results = (as_stored(attrs, dgx), as_stored(attrs, dgh))
        return (*results, back) if attrs["initial"] else results


@register
class GruResetGrad(_GruGrad):
    name = "gru_reset_grad"
    outputs = ("dgx", "dh0?")
    phases = 2
    made = (3,)
    sequences = ("dy", "y", "kept", "q", "dgx")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, y, kept, _ = (in_order(attrs, value) for value in ins[:4])
        w, h0 = ins[4:]
        size = w.shape[1]
        dgx = np.empty(kept.shape)
        back: Array = np.zeros(h0.shape)
        for t in reversed(range(len(dy))):
            r, z, n = np.split(kept[t], 3, axis=1)
            before = y[t - 1] if t else h0
            dh = dy[t] + back
            dn = dh * (1 - z) * (1 - n**2)
            dz = dh * (before - n) * z * (1 - z)
            dq = dn @ w[2 * size :]
            dr = dq * before * r * (1 - r)
            dgx[t] = np.concatenate([dr, dz, dn], axis=1)
            back = dh * z + dq * r + dgx[t, :, : 2 * size] @ w[: 2 * size]
        return (as_stored(attrs, dgx), *([back] if attrs["initial"] else []))
