"""How the front ends spell recurrent layers: whole layers, cells, and ONNX's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape
from gradlet.ops.concat import cut, join
from gradlet.ops.dropout import drop
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch

_LAYERS = ("aten.rnn_tanh.input", "aten.rnn_relu.input", "aten.gru.input", "aten.lstm.input")
_CELLS = (
    "aten.rnn_tanh_cell.default",
    "aten.rnn_relu_cell.default",
    "aten.gru_cell.default",
    "aten.lstm_cell.default",
)


@dataclass(frozen=True)
class Weights:
    """Of one direction of one layer; `inner` is what the recurrent bias is called."""

    w_ih: str
    w_hh: str
    bias: str | None = None
    inner: str | None = None


@dataclass(frozen=True)
class Kind:
    op: str
    attrs: Attrs
    batch_first: bool = False

    @property
    def states(self) -> int:
        return 2 if self.op == "lstm" else 1

    @property
    def time(self) -> int:
        return 1 if self.batch_first else 0


def _direction(
    imp: Importer, kind: Kind, x: str, weights: Weights, states: Sequence[str], reverse: bool
) -> tuple[str, list[str]]:
    """All outputs of one direction, and each state after the last time as [1, batch, hidden]."""
    separate = kind.op.startswith("gru")  # the reset gate comes between the two biases
    operands = [x, weights.w_ih]
    if weights.bias is not None and weights.inner is not None:
        operands.append(weights.bias if separate else imp.add("add", [weights.bias, weights.inner]))
    gx = imp.add("matmul", operands, {"layout": "nt"})
    scan = [gx, weights.w_hh]
    if separate:
        rows = imp.shape(weights.w_hh)[0]
        scan.append(weights.inner or imp.constant(np.zeros(rows, np.float32)))
    attrs = {**kind.attrs, "batch_first": kind.batch_first, "reverse": reverse}
    results = imp.add_many(kind.op, [*scan, *states], attrs)
    return results[0], [_last(imp, kind, results[i], reverse) for i in range(kind.states)]


def _last(imp: Importer, kind: Kind, y: str, reverse: bool) -> str:
    shape = imp.shape(y)
    times, batch = shape[kind.time], shape[1 - kind.time]
    start, size = [0, 0, 0], list(shape)
    start[kind.time], size[kind.time] = 0 if reverse else times - 1, 1
    attrs: Attrs = {"start": tuple(start), "step": (1, 1, 1), "size": tuple(size)}
    part = imp.add("slice", [y], attrs) if times > 1 else y
    return imp.add("reshape", [part], {"shape": (1, batch, shape[2])})


def _flat_state(imp: Importer, state: str) -> str:
    """[1, batch, hidden] without the 1."""
    return imp.add("reshape", [state], {"shape": imp.shape(state)[1:]})


@from_torch(*_LAYERS)
def _torch_layer(imp: Importer, call: Call) -> list[str]:
    kind = _torch_kind(call, bool(call.args[8]))
    biased, layers, dropout, training, both = call.args[3:8]
    if not isinstance(call.args[2], list | tuple):
        raise imp.unsupported("packed sequences; pass a padded tensor")
    x = imp.tensor(call.args[0])
    given = call.args[1] if kind.op == "lstm" else [call.args[1]]
    directions = 2 if both else 1
    states = [cut(imp, imp.tensor(s), [1] * (layers * directions), 0) for s in given]
    params = [imp.param(value) for value in call.args[2]]
    each = 4 if biased else 2
    if len(params) != each * layers * directions:
        raise imp.unsupported("projections (proj_size)")
    final: list[list[str]] = [[] for _ in states]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = Weights(*params[each * index : each * (index + 1)])
            before = [_flat_state(imp, state[index]) for state in states]
            y, after = _direction(imp, kind, x, weights, before, direction == 1)
            outputs.append(y)
            for kept, value in zip(final, after, strict=True):
                kept.append(value)
        x = join(imp, outputs, 2)
        if training and layer + 1 < layers:
            x = drop(imp, x, float(dropout))
    return [x, *(join(imp, values, 0) for values in final)]


@from_torch(*_CELLS)
def _torch_cell(imp: Importer, call: Call) -> str | list[str]:
    """One time: a sequence of length one."""
    kind = _torch_kind(call, batch_first=False)
    states = call.args[1] if kind.op == "lstm" else [call.args[1]]
    params = [imp.param(value) for value in call.args[2:] if value is not None]
    x = _as_sequence(imp, imp.tensor(call.args[0]))
    before = [imp.tensor(state) for state in states]
    _, after = _direction(imp, kind, x, Weights(*params), before, reverse=False)
    flat = [_flat_state(imp, state) for state in after]
    return flat if kind.op == "lstm" else flat[0]


def _as_sequence(imp: Importer, x: str) -> str:
    return imp.add("reshape", [x], {"shape": (1, *imp.shape(x))})


def _torch_kind(call: Call, batch_first: bool) -> Kind:
    name = call.target.split(".")[1].removesuffix("_cell")
    if name in ("gru", "lstm"):
        return Kind(name, {}, batch_first)
    return Kind("rnn", {"relu": name == "rnn_relu"}, batch_first)


ORDER = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}
"""Where ONNX keeps each of our gates: GRU has z, r, h and LSTM i, o, f, c."""
DEFAULTS = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}


@from_onnx("RNN", "GRU", "LSTM")
def _onnx_layer(imp: Importer, call: Call) -> list[str]:
    batch_first = bool(call.attrs.get("layout", 0))
    kind = _onnx_kind(imp, call, batch_first)
    both = call.attrs.get("direction", "forward") == "bidirectional"
    backward = call.attrs.get("direction", "forward") == "reverse"
    x, order = imp.tensor(call.args[0]), ORDER[call.target]
    _refuse_lengths(imp, call, imp.shape(x)[1 if batch_first else 0])
    weights = _onnx_weights(imp, call, 2 if both else 1, order)
    peepholes: list[list[str]] = [[]] * len(weights)
    if call.arg(7) is not None:
        peepholes = _pieces(imp, call.args[7], len(weights), (0, 2, 1), 1)  # they are i, o, f
    hidden = imp.shape(weights[0].w_hh)[1]
    batch = imp.shape(x)[0 if batch_first else 1]
    outputs, final = [], []
    for index, part in enumerate(weights):
        states = [
            _onnx_state(imp, call.arg(5 + s), index, len(weights), (batch, hidden), batch_first)
            for s in range(kind.states)
        ]
        states += peepholes[index]
        y, after = _direction(imp, kind, x, part, states, backward or index == 1)
        outputs.append(y)
        final.append(after)
    return [_onnx_output(imp, outputs, batch_first), *_onnx_final(imp, final, batch_first)]


def _onnx_output(imp: Importer, outputs: Sequence[str], batch_first: bool) -> str:
    """[time, directions, batch, hidden], or [batch, time, directions, hidden]."""
    y = join(imp, outputs, 2)
    first, second, width = imp.shape(y)
    count = len(outputs)
    y = imp.add("reshape", [y], {"shape": (first, second, count, width // count)})
    return y if batch_first else imp.add("transpose", [y], {"axes": (0, 2, 1, 3)})


def _onnx_final(imp: Importer, final: Sequence[Sequence[str]], batch_first: bool) -> list[str]:
    """Each state as [directions, batch, hidden], or the batch before the directions."""
    stacked = [join(imp, states, 0) for states in zip(*final, strict=True)]
    if not batch_first:
        return stacked
    return [imp.add("transpose", [state], {"axes": (1, 0, 2)}) for state in stacked]


def _onnx_kind(imp: Importer, call: Call, batch_first: bool) -> Kind:
    default = DEFAULTS[call.target]
    given = [name.decode().lower() for name in call.attrs.get("activations", [])]
    both = call.attrs.get("direction", "forward") == "bidirectional"
    relu = call.target == "RNN" and set(given) == {"relu"}
    if given and not relu and given not in (default, default * (2 if both else 1)):
        raise imp.unsupported(f"activations {', '.join(given)}; there are {', '.join(default)}")
    if call.attrs.get("clip"):
        raise imp.unsupported("clipping inside the cell")
    if call.attrs.get("input_forget"):
        raise imp.unsupported("coupled input and forget gates")
    if call.target == "RNN":
        return Kind("rnn", {"relu": relu}, batch_first)
    if call.target == "GRU" and not call.attrs.get("linear_before_reset", 0):
        return Kind("gru_reset", {}, batch_first)
    return Kind(call.target.lower(), {}, batch_first)


def _refuse_lengths(imp: Importer, call: Call, times: int) -> None:
    if call.arg(4) is not None and (imp.static(call.args[4]) != times).any():
        raise imp.unsupported("sequences of different lengths in a batch")


def _onnx_weights(
    imp: Importer, call: Call, directions: int, order: tuple[int, ...]
) -> list[Weights]:
    w_ih = _pieces(imp, call.args[1], directions, order, 1)
    w_hh = _pieces(imp, call.args[2], directions, order, 1)
    if call.arg(3) is None:
        return [Weights(a[0], b[0]) for a, b in zip(w_ih, w_hh, strict=True)]
    biases = _pieces(imp, call.args[3], directions, order, 2)
    return [Weights(a[0], b[0], *c) for a, b, c in zip(w_ih, w_hh, biases, strict=True)]


def _pieces(
    imp: Importer, value: Any, directions: int, order: tuple[int, ...], parts: int
) -> list[list[str]]:
    """A weight by direction and part, its gates in our order.

    What the file stores is stored anew in that order; what is computed is taken apart.
    """
    stored = imp.stored(value)
    if stored is not None:
        places = np.arange(stored.size).reshape(stored.shape)
        names = ["forward", "reverse"][:directions]
        ends = [""] if parts == 1 else [".ih", ".hh"]
        return [
            [
                imp.piece(value, f"{name}{end}", _reordered(half, order))
                for half, end in zip(np.split(whole, parts), ends, strict=True)
            ]
            for whole, name in zip(places, names, strict=True)
        ]
    result = []
    for whole in cut(imp, imp.param(value), [1] * directions, 0):
        flat = imp.add("reshape", [whole], {"shape": imp.shape(whole)[1:]})
        rows = imp.shape(flat)[0] // (parts * len(order))
        blocks = cut(imp, flat, [rows] * (parts * len(order)), 0)
        halves = [blocks[i * len(order) : (i + 1) * len(order)] for i in range(parts)]
        result.append([join(imp, [half[gate] for gate in order], 0) for half in halves])
    return result


def _reordered(rows: Array, order: tuple[int, ...]) -> Array:
    blocks = np.split(rows, len(order))
    return np.concatenate([blocks[index] for index in order])


def _onnx_state(
    imp: Importer,
    value: Any,
    direction: int,
    directions: int,
    shape: tuple[int, int],
    batch_first: bool,
) -> str:
    if value is None:
        return imp.constant(np.zeros(shape, np.float32))
    parts = cut(imp, imp.tensor(value), [1] * directions, 1 if batch_first else 0)
    return imp.add("reshape", [parts[direction]], {"shape": shape})


@from_toml("rnn", "gru", "lstm")
def _toml_layer(imp: Importer, call: Call) -> str:
    """One layer on [batch, time, features]; its output at all times."""
    x, hidden = call.args[0], int(call.need("hidden"))
    batch, _, features = imp.shape(x)
    rows = {"rnn": 1, "gru": 3, "lstm": 4}[call.target] * hidden
    relu: Attrs = {"relu": call.attrs.get("activation", "tanh") == "relu"}
    kind = Kind(call.target, relu if call.target == "rnn" else {}, batch_first=True)
    both = bool(call.attrs.get("bidirectional", False))
    outputs = []
    for end in ("", "_reverse")[: 2 if both else 1]:
        shapes: dict[str, Shape] = {"weight_ih": (rows, features), "weight_hh": (rows, hidden)}
        if call.attrs.get("bias", True):
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        params = [imp.param((name + end, shape, hidden)) for name, shape in shapes.items()]
        states = [imp.constant(np.zeros((batch, hidden), np.float32)) for _ in range(kind.states)]
        outputs.append(_direction(imp, kind, x, Weights(*params), states, bool(end))[0])
    return join(imp, outputs, 2)
