"""Two narrow elements in an instruction: what needs no wider arithmetic. A sum of two numbers of 16
bits that is rounded to 24 bits and then to its own is the one that is rounded at once."""

from __future__ import annotations

from typing import Any

from gradlet.ir.elements import Element
from gradlet.kernels.xpulp.isa.arithmetic import Line
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, SCRATCH, Asm
from gradlet.kernels.xpulp.isa.narrow import FORMATS, LANES, load_half_post, store_half_post

ONES = 0x00010001
AT_ONCE = 2
"""Words, so that no load is waited for."""
RELU: tuple[Line, ...] = (("vfle", "t", "x", "zero"), ("pv.sub", "t", "t", "ones"))
"""t: what of x stays, a NaN among it."""
SLOPE: tuple[Line, ...] = (("vflt", "t", "zero", "y"), ("pv.sub", "t", "zero", "t"))
WORDS: dict[str, tuple[tuple[str, ...], tuple[Line, ...]]] = {
    "relu": (("x",), (*RELU, ("and", "x", "x", "t"))),
    "relu_grad": (("x", "y"), (*SLOPE, ("and", "x", "x", "t"))),
    "add_relu": (("x", "b"), (("vfadd", "x", "x", "b"), *RELU, ("and", "x", "x", "t"))),
    "add_relu_grad": (
        ("x", "b", "y"),
        (("vfadd", "x", "x", "b"), *SLOPE, ("and", "x", "x", "t")),
    ),
    "add": (("x", "b"), (("vfadd", "x", "x", "b"),)),
    "sub": (("x", "b"), (("vfsub", "x", "x", "b"),)),
    "mul": (("x", "b"), (("vfmul", "x", "x", "b"),)),
}
"""The inputs, and what is done to a word of each; x is the result."""
OPS = {"vfadd": 0x41, "vfsub": 0x42, "vfmul": 0x43, "vflt": 0x52, "vfle": 0x54}


def in_words(mode: str, element: Element) -> bool:
    """A product may be too small for a float, if the range of the element is not smaller."""
    return bool(element.accumulate) and mode in WORDS and not (element.upper and mode == "mul")


def words(name: str, mode: str, element: Element) -> str:
    """The C function name(to, inputs, count), of elements that lie side by side; count is not 0."""
    asm, (inputs, body) = Asm(name), WORDS[mode]
    to, *pointers, count = ARGUMENTS[: len(inputs) + 2]
    free = [*SCRATCH, *ARGUMENTS[len(inputs) + 2 :]]
    ones, pairs = free.pop(), free.pop()
    names = (*inputs, "t")
    places = [dict(zip(names, free[i * len(names) :], strict=False)) for i in range(AT_ONCE)]
    few, out = asm.fresh(), asm.fresh()

    def elements(parts: list[dict[str, str]], *, single: bool) -> None:
        step = element.bytes if single else element.bytes * LANES
        for operand, pointer in zip(inputs, pointers, strict=True):
            for place in parts:
                load = load_half_post if single else Asm.lw_post
                load(asm, place[operand], pointer, step)
        for line in body:
            for place in parts:
                _line(asm, element, line, {**place, "ones": ones})
        for place in parts:
            store = store_half_post if single else Asm.sw_post
            store(asm, place["x"], to, step)

    asm.li(ones, ONES)
    asm("srli", pairs, count, (LANES * AT_ONCE).bit_length() - 1)
    asm("andi", count, count, LANES * AT_ONCE - 1)
    asm.branch("beqz", pairs, to=few)
    with asm.loop(0, pairs):
        elements(places, single=False)
    asm.branch("beqz", count, to=out)
    asm.label(few)
    with asm.loop(0, count):
        elements(places[:1], single=True)
    asm.label(out)
    asm("ret")
    taken = "".join(f"const {element.c} *{operand}, " for operand in inputs)
    return asm.function(f"{element.c} *to, {taken}int count")


def _line(asm: Asm, element: Element, line: Line, named: dict[str, str]) -> None:
    op, *operands = line
    registers: list[Any] = [named.get(name, name) for name in operands]
    if op == "pv.sub":
        asm(".insn r 0x57, 0, 0x04,", *registers)
    elif op in OPS:
        asm(f".insn r 0x33, {FORMATS[element.name].vector}, {OPS[op]},", *registers)
    else:
        asm(str(op), *registers)
