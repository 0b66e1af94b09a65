"""Long short-term memory, gates in the order input, forget, cell, output.

c = f c + i g, h = o tanh(c). The cell states of all times are a result of their own. Peepholes
p = [input, forget, output] let these gates see the cell state: the first two that before, the last
the new one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Site
from gradlet.ops.base import register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.tiling import slice_attrs
from gradlet.ops.recurrent.layer import Scan, ScanGrad, as_stored, in_order, sigmoid, states_before


@register
class Lstm(Scan):
    name = "lstm"
    inputs = ("gx", "w", "h0", "c0", "p?")
    outputs = ("y", "c", "kept")
    family = "lstm"
    gates = 4
    keeps = (1, 1, 4)
    states = ("h0", "c0")
    sequences = ("gx", "y", "c", "kept")
    overwrites = ("gx",)
    overwriter = "kept"
    torch_source = """
def _lstm(gx, w, h, c, p, batch_first, reverse):
    times = gx.unbind(1 if batch_first else 0)
    pi, pf, po = p.chunk(3) if p is not None else (0, 0, 0)
    kept = []
    for x in reversed(times) if reverse else times:
        i, f, g, o = (x + h @ w.T).chunk(4, -1)
        i, f, g = (i + pi * c).sigmoid(), (f + pf * c).sigmoid(), g.tanh()
        c = f * c + i * g
        o = (o + po * c).sigmoid()
        h = o * c.tanh()
        kept.append((h, c, torch.cat([i, f, g, o], -1)))
    kept = kept[::-1] if reverse else kept
    return tuple(torch.stack(values, 1 if batch_first else 0) for values in zip(*kept))
"""

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        gx, w, h, c = in_order(attrs, ins[0]), *ins[1:4]
        size = w.shape[1]
        pi, pf, po = _peepholes(ins[4:], size)
        y, cells, kept = (np.empty((*gx.shape[:2], k * size)) for k in self.keeps)
        for t, x in enumerate(gx):
            i, f, g, o = np.split(x + h @ w.T, 4, axis=1)
            i, f, g = sigmoid(i + pi * c), sigmoid(f + pf * c), np.tanh(g)
            c = cells[t] = f * c + i * g
            o = sigmoid(o + po * c)
            h = y[t] = o * np.tanh(c)
            kept[t] = np.concatenate([i, f, g, o], axis=1)
        return tuple(as_stored(attrs, value) for value in (y, cells, kept))

    def gradient_inputs(self, site: Site, grads: Sequence[str]) -> list[str]:
        c, kept = site.node.outputs[1:]
        w, c0, *peepholes = (site.node.inputs[index] for index in (1, 3, 4)[: len(site.ins) - 2])
        return [c, kept, w, c0, *filter(None, [grads[1]]), *peepholes]

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        if len(site.ins) == 5 and not grads[1]:  # peepholes come after the gradient of the cells
            unused = emit.add("affine", [site.node.outputs[1]], {"slope": 0.0, "offset": 0.0})
            grads = [grads[0], unused, grads[2]]
        result = super().vjp(emit, site, grads, wanted)
        if "p" in wanted:
            result["p"] = self._peephole_grad(emit, site, result["gx"])
        return result

    def _peephole_grad(self, emit: Emitter, site: Site, dgx: str) -> str:
        """Per gate and unit, the sum of its gradient times the cell state that it saw."""
        size = self.extents(site)[2]
        c, c0 = site.node.outputs[1], site.node.inputs[3]
        before = states_before(emit, site, c, c0)
        sums = []
        for gate, seen in ((0, before), (1, before), (3, c)):
            part = slice_attrs(emit.shape(dgx), 2, gate * size, (gate + 1) * size)
            terms = emit.add("mul", [emit.add("slice", [dgx], part), seen])
            sums.append(emit.add("sum", [terms], {"axes": (0, 1)}))
        return emit.add("concat", sums, {"axis": 0})


def _peepholes(given: Sequence[Array], size: int) -> Sequence[Array]:
    return np.split(given[0] if given else np.zeros(3 * size), 3)


@register
class LstmGrad(ScanGrad):
    name = "lstm_grad"
    inputs = ("dy", "c", "kept", "w", "c0", "dc?", "p?")
    outputs = ("dgx", "dh0?", "dc0?")
    family = "lstm"
    gates = 4
    made = (4,)
    sequences = ("dy", "c", "kept", "dc?", "dgx")
    overwrites = ("kept",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, cells, kept = (in_order(attrs, value) for value in ins[:3])
        w, c0 = ins[3:5]
        dcells = in_order(attrs, ins[5]) if len(ins) > 5 else np.zeros(dy.shape)
        pi, pf, po = _peepholes(ins[6:], w.shape[1])
        dgx = np.empty(kept.shape)
        dh: Array = np.zeros(c0.shape)
        dc: Array = np.zeros(c0.shape)
        for t in reversed(range(len(dy))):
            i, f, g, o = np.split(kept[t], 4, axis=1)
            before, squashed = cells[t - 1] if t else c0, np.tanh(cells[t])
            dh = dh + dy[t]
            do = dh * squashed * o * (1 - o)
            dc = dc + dcells[t] + dh * o * (1 - squashed**2) + po * do
            parts = [
                dc * g * i * (1 - i),
                dc * before * f * (1 - f),
                dc * i * (1 - g**2),
                do,
            ]
            dgx[t] = np.concatenate(parts, axis=1)
            dc, dh = dc * f + pi * parts[0] + pf * parts[1], dgx[t] @ w
        return (as_stored(attrs, dgx), *([dh, dc] if attrs["initial"] else []))
