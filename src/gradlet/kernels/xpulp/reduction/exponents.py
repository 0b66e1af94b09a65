"""exp(z - largest z) of a line and their sum, as every softmax needs them.

exp(x) for x <= 0 is that of arithmetic.py. Nothing is waited for: an addition takes one cycle, and
behind each load stands what is left of the element before.

log(x) for x >= 1: x = m 2^e with m about 1, and the series of atanh, cut short as a polynomial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import Map, stretch
from gradlet.kernels.xpulp.isa.arithmetic import EXPONENT, EXPONENTIAL, bits, exponential
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SAVED, SCRATCH, Asm, Registers
from gradlet.kernels.xpulp.reduction.normalize import sum_of_line

LOG = {"l3": "0.149414062", "l2": "0.199890137", "l1": "0.33333379", "root": "0.70703125"}
"""root: about the smallest m."""
MAPS = {
    "scaled": Map(("x",), (("fmul.s", "x", "x", "factor"),), "x", ("factor",), "common"),
    "less": Map(
        ("x",),
        (("fsub.s", "x", "x", "top"), ("fsub.s", "x", "x", "log")),
        "x",
        ("top", "log"),
        "common",
    ),
    "spread": Map(
        ("dy", "y"),
        (("fsub.s", "dy", "dy", "total"), ("fmul.s", "dy", "y", "dy")),
        "dy",
        ("total",),
        "common",
    ),
    "log_spread": Map(
        ("dy", "y"),
        (*exponential("y", "e"), ("fnmsub.s", "dy", "e", "total", "dy")),
        "dy",
        ("total",),
        "common",
        literals=EXPONENTIAL,
        at_once=1,
    ),
}
"""What is done with a line in the end."""
STORING = ("grad", "softmax", "cross_entropy")
"""Modes that use the exponentials again; the others want the logarithm of the sum."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    if mode == "softmax_grad":
        return {"spread": stretch("spread", MAPS["spread"]), "product": _product()}
    if mode == "log_softmax_grad":
        made = {"spread": stretch("spread", MAPS["log_spread"]), "sum": sum_of_line()}
        return made | {name: f"{text}f" for name, text in EXPONENT.items()}
    made = {name: f"{text}f" for name, text in {**EXPONENT, **LOG}.items()}
    store = mode in STORING
    made["exponents"] = _exponents(store)
    made["scaled"] = stretch("scaled", MAPS["scaled"]) if store else ""
    made["less"] = stretch("less", MAPS["less"]) if mode == "log_softmax" else ""
    return made


def _exponents(store: bool) -> str:
    asm = Asm("exponents")
    kept = SAVED[: 1 + store]
    regs = Registers([*ARGUMENTS, *SCRATCH, *IDLE, *kept])
    regs.take("from", "count", "step", *(["to"] if store else []))
    regs.take("x", "e", "total", "top", "t", "r")
    asm.compressed(True)
    asm.push(kept)
    work = (regs["x"], *regs.rest[:4])
    largest(asm, regs["top"], regs["from"], regs["count"], regs["step"], work)
    for name, number in EXPONENTIAL.items():
        asm.li(regs.one(name), number)
    asm.mv(regs["e"], "zero")
    asm.mv(regs["total"], "zero")
    asm.compressed(False)
    with asm.loop(0, regs["count"]):
        _element(asm, regs, store)
    asm.compressed(True)
    asm("fadd.s", regs["total"], regs["total"], regs["e"])
    if not store:
        logarithm(asm, regs)
    asm.mv("a0", regs["top"])
    asm.mv("a1", regs["total"])
    asm.pop(kept)
    parameters = "const float *from, int count, int step" + (", float *to" if store else "")
    return asm.function(parameters, result="peak")


def largest(
    asm: Asm, top: str, source: str, count: str, step: str | int, work: Sequence[str]
) -> None:
    """Of a line, by loop 0."""
    first, second, at, odd, pairs = work
    one = asm.fresh()
    asm.lw(top, source)
    asm("andi", odd, count, 1)
    asm("srli", pairs, count, 1)
    asm.mv(at, source)
    if isinstance(step, str):  # the first one of an odd number is there already
        asm.mac(at, odd, step)
    else:
        asm("slli", odd, odd, step.bit_length() - 1)
        asm("add", at, at, odd)
    asm.branch("beqz", pairs, to=one)
    with asm.loop(0, pairs):
        for value in (first, second):
            asm.lw_post(value, at, step)
        for value in (first, second):
            asm("fmax.s", top, top, value)
    asm.label(one)


def _element(asm: Asm, regs: Registers, store: bool) -> None:
    """Below the least the result is 0: it is masked out; or x counts as the least where only the
    sum is of use, as it has at least one 1. NaN, which has no sign here, goes through both."""
    x, e, t, r, low = (regs[name] for name in ("x", "e", "t", "r", "count"))
    asm.lw_post(x, regs["from"], regs["step"])
    asm("fadd.s", regs["total"], regs["total"], e)
    asm("fsub.s", x, x, regs["top"])
    if not store:
        asm.minu(x, x, regs["least"])
    asm("fmadd.s", t, x, regs["log2e"], regs["magic"])
    if store:
        asm("flt.s", low, x, regs["least"])
    asm("fsub.s", r, t, regs["magic"])
    asm("fnmsub.s", r, r, regs["ln2"], x)
    asm("slli", t, t, 23)
    asm("fmadd.s", e, regs["c5"], r, regs["c4"])
    for name in ("c3", "c2", "one", "one"):
        asm("fmadd.s", e, e, r, regs[name])
    asm("add", e, e, t)
    if store:
        asm("addi", low, low, -1)
        asm("and", e, e, low)
        asm.sw_post(e, regs["to"], regs["step"])


def logarithm(asm: Asm, regs: Registers) -> None:
    """Of the total, in its place; a NaN is lost on the way and put back at the end."""
    total, e, m, p, s = (regs[name] for name in ("total", "e", "t", "x", "r"))
    z, l3, l2, l1 = (regs[name] for name in ("c5", "c4", "c3", "c2"))
    asm.li(e, bits(LOG["root"]))
    asm("sub", e, total, e)
    asm("srai", e, e, 23)
    asm("slli", m, e, 23)
    asm("sub", m, total, m)
    asm("fsub.s", s, m, regs["one"])
    asm("fadd.s", m, m, regs["one"])
    asm("fdiv.s", s, s, m)
    asm("fcvt.s.w", e, e)
    for name, register in (("l3", l3), ("l2", l2), ("l1", l1)):
        asm.li(register, bits(LOG[name]))
    asm("fmul.s", z, s, s)
    asm("fmadd.s", p, l3, z, l2)
    asm("fmadd.s", p, p, z, l1)
    asm("fmul.s", p, p, z)
    asm("fadd.s", s, s, s)
    asm("fmadd.s", s, s, p, s)
    asm("fmadd.s", s, e, regs["ln2"], s)
    asm("fsub.s", total, total, total)
    asm("fadd.s", total, s, total)


def _product() -> str:
    """The sum of products of two lines, one chain."""
    asm, single, out = Asm("product"), "single", "out"
    a, b, count, step, total, pairs, *values = (*ARGUMENTS[:4], *SCRATCH[:6])
    asm.sum_in_pairs(total, count, pairs, single)
    with asm.loop(0, pairs):
        for value, pointer in zip(values, (a, b, a, b), strict=True):
            asm.lw_post(value, pointer, step)
        asm("fmadd.s", total, values[0], values[1], total)
        asm("fmadd.s", total, values[2], values[3], total)
    asm.compressed(True)
    asm.branch("beqz", count, to=out)
    asm.label(single)
    asm.lw(values[0], a)
    asm.lw(values[1], b)
    asm("fmadd.s", total, values[0], values[1], total)
    asm.label(out)
    asm.mv("a0", total)
    asm("ret")
    return asm.function("const float *a, const float *b, int count, int step", result="float")
