"""Recurrent layers, time by time, as ONNX's documentation writes them down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from gradlet.frontends.onnx.oracle.base import NotWritten, Operator, at, operator

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "softsign": F.softsign,
    "softplus": F.softplus,
}
_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


@operator("RNN", "GRU", "LSTM")
def _layer(op: Operator, args: Sequence[Any]) -> Any:
    """Y [times, directions, batch, hidden], the last H and, of an LSTM, the last C."""
    x, w, r = args[:3]
    first = bool(op.get("layout", 0))
    x = x.transpose(0, 1) if first else x
    hidden = r.shape[-1]
    _check(op, args, x)
    outputs, finals = [], []
    for direction in range(w.shape[0]):
        bias = at(args, 3)
        halves = [0.0, 0.0] if bias is None else bias[direction].split(bias.shape[1] // 2)
        start = []
        for index in (5, 6) if op.kind == "LSTM" else (5,):
            given = at(args, index)
            given = given.transpose(0, 1) if first and given is not None else given
            zero = torch.zeros(x.shape[1], hidden, dtype=x.dtype)
            start.append(zero if given is None else given[direction])
        backwards = op.get("direction", "forward") == "reverse" or direction == 1
        peep = at(args, 7)
        peep = None if peep is None else peep[direction].split(hidden)
        step = _step(op, direction, peep)
        states, ys = start, []
        for at_time in x.flip(0) if backwards else x:
            states = step(at_time @ w[direction].T + halves[0], r[direction], halves[1], *states)
            ys.append(states[0])
        outputs.append(torch.stack(ys[::-1] if backwards else ys))
        finals.append(states)
    y = torch.stack(outputs, 1)
    last = [torch.stack(values) for values in zip(*finals, strict=True)]
    if first:
        y, last = y.permute(2, 0, 1, 3), [value.transpose(0, 1) for value in last]
    return (y, *last)


def _check(op: Operator, args: Sequence[Any], x: Any) -> None:
    lengths = at(args, 4)
    if lengths is not None and (lengths != x.shape[0]).any():
        raise NotWritten("with sequences of different lengths")
    if op.get("clip") or op.get("input_forget", 0):
        raise NotWritten("with clip or input_forget")


def _step(op: Operator, direction: int, peep: Any) -> Callable[..., list[Any]]:
    default = _DEFAULTS[op.kind]
    names = [name.lower() for name in op.get("activations") or default * (direction + 1)]
    own = names[direction * len(default) : (direction + 1) * len(default)]
    if not set(own) <= set(_FUNCTIONS):
        raise NotWritten(f"with {', '.join(own)}")
    functions = [_FUNCTIONS[name] for name in own]
    if op.kind == "RNN":
        return lambda gx, r, bias, h: [functions[0](gx + h @ r.T + bias)]
    if op.kind == "GRU":
        return lambda gx, r, bias, h: [_gru(op, functions, gx, r, bias, h)]
    return lambda gx, r, bias, h, c: _lstm(functions, peep, gx + h @ r.T + bias, c)


def _gru(op: Operator, functions: Any, gx: Any, r: Any, bias: Any, h: Any) -> Any:
    f, g = functions
    xz, xr, xh = gx.chunk(3, -1)
    rz, rr, rh = r.chunk(3)
    if isinstance(bias, float):
        bz = br = bh = 0.0
    else:
        bz, br, bh = bias.chunk(3)
    z, reset = f(xz + h @ rz.T + bz), f(xr + h @ rr.T + br)
    if op.get("linear_before_reset", 0):
        new = g(xh + reset * (h @ rh.T + bh))
    else:
        new = g(xh + (reset * h) @ rh.T + bh)
    return (1 - z) * new + z * h


def _lstm(functions: Any, peep: Any, gates: Any, c: Any) -> list[Any]:
    f, g, last = functions
    i, o, forget, cell = gates.chunk(4, -1)
    pi, po, pf = peep or (0.0, 0.0, 0.0)
    i, forget = f(i + pi * c), f(forget + pf * c)
    c = forget * c + i * g(cell)
    return [f(o + po * c) * last(c), c]
