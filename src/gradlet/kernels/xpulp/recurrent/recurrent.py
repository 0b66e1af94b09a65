"""One time of a recurrent layer: products with the state, then the curves of the gates.

A core has some of the units. `lines` adds the products of lines of weights with a vector to what is
given: forward these are rows of the matrix, backward columns. k ascends in one chain, so it does
not matter in how many pieces the weights come.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import MAPS as PLAIN
from gradlet.kernels.xpulp.elementwise.elementwise import Map, stretch
from gradlet.kernels.xpulp.elementwise.sigmoids import KNOWN, TANH, TEXTS
from gradlet.kernels.xpulp.gemm.product import Operand
from gradlet.kernels.xpulp.isa.arithmetic import SEED, Line
from gradlet.kernels.xpulp.isa.asm import IDLE, SAVED, SCRATCH, Asm, Registers
from gradlet.kernels.xpulp.recurrent.gates import PROGRAMS, gates

BLOCKS = (8, 4, 2, 1)
TO, FROM, WEIGHTS, X, LINES, COUNT, PITCH = (f"a{i}" for i in range(7))
PARAMETERS = (
    "float *to, const float *from, const float *w, const float *x, int lines, int count, int pitch"
)
NEAR = (("near", "y"),)
"""What is read again soon is stored twice: with the sequence, which may be far, and in scratch."""


def _curve(inputs: tuple[str, ...], body: tuple[Line, ...], **more: Any) -> Map:
    """The result of the body is y."""
    used = {word for line in body for word in line[1:]}
    literals = {name: value for name, value in KNOWN.items() if name in used}
    return Map(inputs, body, "y", literals=literals, at_once=1, **more)


def _named(lines: tuple[Line, ...], result: str) -> tuple[Line, ...]:
    """The same with y as its result."""
    return tuple(tuple("y" if word == result else word for word in line) for line in lines)


_TANH = _named(TANH, "e")
MAPS: dict[str, dict[str, Map]] = {
    "rnn": {
        "squashed": _curve(("x",), _TANH, more=NEAR),
        "cut": Map(("x",), PLAIN["relu"].body, "t", more=(("near", "t"),)),
    },
    "lstm_grad": {"squashed": _curve(("x",), _TANH)},
}


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    maps = {name: stretch(name, item) for name, item in MAPS.get(mode, {}).items()}
    texts = {name: f"{text}f" for name, text in TEXTS.items()}
    if mode in PROGRAMS:
        maps["gates"] = gates(mode)
    inside = not mode.endswith("_grad")
    return {"lines": lines(inside=inside), "maps": maps, "inside": inside, **texts, "seed": SEED}


def lines(*, inside: bool) -> str:
    """to = from + lines times x, in blocks of 8, then what is left over by smaller ones."""
    asm = Asm("lines")
    names = {size: asm.fresh() for size in BLOCKS}
    out, saved = asm.fresh(), SAVED[:6]
    asm.compressed(True)
    asm.push(saved)
    for size, following in zip(BLOCKS, (*BLOCKS[1:], 0), strict=True):
        asm.label(names[size])
        if size > 1:
            asm("addi", "t0", "zero", size)
            asm.branch("blt", LINES, "t0", to=names[following])
        else:
            asm.branch("beqz", LINES, to=out)
        _block(asm, size, inside, Registers((*SCRATCH, *IDLE, "a7", *saved)))
        asm("addi", LINES, LINES, -size)
        if size == BLOCKS[0]:
            asm.branch("j", to=names[size])
    asm.label(out)
    asm.pop(saved)
    return asm.function(PARAMETERS)


def _block(asm: Asm, size: int, inside: bool, regs: Registers) -> None:
    stream = Operand("s", size, inside, "step")
    regs.named |= {"step": PITCH}
    weights, x, value = regs.take("p_s", "p_x", "value")
    flow = regs.take(*(f"flow{i}" for i in range(min(size, 2))))
    sums = regs.take(*(f"sum{i}" for i in range(size)))
    for total in sums:
        asm.lw_post(total, FROM, 4)
    if inside and size > 1:
        regs.take("back_s")
        stream.prepare(asm, regs)
    asm.mv(weights, WEIGHTS)
    asm.mv(x, X)
    asm.compressed(False)
    with asm.loop(0, COUNT):
        stream.load(asm, regs, flow[0], stream.order[0])
        asm.lw_post(value, x, 4)
        for turn, line in enumerate(stream.order):
            if turn + 1 < size:
                stream.load(asm, regs, flow[(turn + 1) % 2], stream.order[turn + 1])
            asm("fmadd.s", sums[line], flow[turn % 2], value, sums[line])
    asm.compressed(True)
    for total in sums:
        asm.sw_post(total, TO, 4)
    if inside:
        asm("slli", flow[0], PITCH, size.bit_length() - 1)
        asm("add", WEIGHTS, WEIGHTS, flow[0])
    else:
        asm("addi", WEIGHTS, WEIGHTS, 4 * size)
