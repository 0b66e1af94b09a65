"""The gates of a recurrent unit and what comes out of them, unit by unit, in one function.

Sigmoid and tanh are routines within it, as the caches of code are small (see sigmoids.py).
Operands with gates move on from gate to gate, and from the last one back to the next unit's first.
There are as many registers as the processor has, so some constants are made where they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlet.kernels.xpulp.elementwise.sigmoids import KNOWN, TANH, sigmoid
from gradlet.kernels.xpulp.isa.arithmetic import Line
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SAVED, SCRATCH, Asm, Registers

LOCAL = {"magic": "", "least": "", "seed": "", "two": "", "end": "t", "b2": "s"}
"""Constants of one instruction, and where they are put if not where the result goes."""
LASTING = ("log2e", "ln2", "c5", "c4", "c3", "c2", "one", "b6", "b5", "b4", "b3")
WORK = ("x", "z", "t", "r", "e", "s", "low", "first", "second")
"""Of the routines; the last two are left alone by them."""
KEPT = (*SAVED, "ra")
Program = tuple[Line, ...]

_NEXT, _BACK = "gate", "back"
GRU: Program = (
    *(
        line
        for name in ("first", "second")
        for line in (
            ("load", "x", "sum", _NEXT),
            ("load", "low", "gx", _NEXT),
            ("fadd.s", "x", "x", "low"),
            ("call", "sigmoid"),
            ("store", "s", "kept", _NEXT),
            ("addi", name, "s", 0),
        )
    ),
    ("load", "low", "sum", _BACK),
    ("load", "x", "gx", _BACK),
    ("store", "low", "q", 4),
    ("fmadd.s", "x", "first", "low", "x"),
    ("call", "tanh"),
    ("load", "low", "before", 4),
    ("store", "e", "kept", _BACK),
    ("fsub.s", "low", "low", "e"),
    ("fmadd.s", "low", "second", "low", "e"),
    ("store", "low", "y", 4),
    ("store", "low", "state", 4),
)
LSTM: Program = (
    *(
        line
        for name in ("first", "second")
        for line in (
            ("load", "x", "sum", _NEXT),
            ("call", "sigmoid"),
            ("store", "s", "kept", _NEXT),
            ("addi", name, "s", 0),
        )
    ),
    ("load", "x", "sum", _NEXT),
    ("call", "tanh"),
    ("load", "x", "before", 4),
    ("store", "e", "kept", _NEXT),
    ("fmul.s", "e", "first", "e"),
    ("fmadd.s", "x", "second", "x", "e"),
    ("store", "x", "now", 4),
    ("store", "x", "c", 4),
    ("call", "tanh"),
    ("load", "x", "sum", _BACK),
    ("addi", "first", "e", 0),
    ("call", "sigmoid"),
    ("store", "s", "kept", _BACK),
    ("fmul.s", "s", "s", "first"),
    ("store", "s", "y", 4),
    ("store", "s", "state", 4),
)
POINTERS = {
    "gru": ("sum", "gx", "before", "kept", "q", "y", "state"),
    "lstm": ("sum", "before", "kept", "now", "c", "y", "state"),
}
"""The first words of the struct; behind them are gate, back and count."""
PROGRAMS = {"gru": GRU, "lstm": LSTM}


def gates(mode: str) -> str:
    """The C function gates(const units *)."""
    asm = Asm("gates")
    regs = Registers((*SCRATCH, *IDLE, *ARGUMENTS[1:], *KEPT, "a0"))
    words = (*POINTERS[mode], _NEXT, _BACK, "count")
    regs.take(*WORK, "link", *LASTING, *words[:-2])
    regs.claim(_BACK, "a0")
    asm.compressed(True)
    asm.push(KEPT)
    count = regs["x"]
    asm.lw(count, "a0", 4 * (len(words) - 1))
    for place, name in enumerate(words[:-1]):
        asm.lw(regs[name], "a0", 4 * place)
    for name in LASTING:
        asm.li(regs[name], KNOWN[name])
    asm.compressed(False)
    with asm.loop(1, count):
        _lines(asm, PROGRAMS[mode], regs.named)
    asm.compressed(True)
    asm.pop(KEPT)
    asm.compressed(False)
    for name, body in (("sigmoid", sigmoid("x")), ("tanh", TANH)):
        asm.label(name)
        _lines(asm, _with_constants(body), regs.named)
        asm("jr", regs["link"])
    return asm.function("const units *u")


def _with_constants(body: Sequence[Line]) -> Program:
    found: list[Line] = []
    for op, to, *operands in body:
        for name in set(operands) & set(LOCAL):
            place = LOCAL[name] or to
            found.append(("lui", place, KNOWN[name] >> 12))
            operands = [place if operand == name else operand for operand in operands]
        found.append((op, to, *operands))
    return tuple(found)


def _lines(asm: Asm, lines: Sequence[Line], regs: dict[str, str]) -> None:
    for op, *operands in lines:
        named: list[Any] = [regs.get(operand, operand) for operand in operands]
        if op == "load":
            asm.lw_post(*named)
        elif op == "store":
            asm.sw_post(*named)
        elif op == "call":
            asm.branch("jal", regs["link"], to=operands[0])
        elif op == "p.minu":
            asm.minu(*named)
        else:
            asm(op, *named)
