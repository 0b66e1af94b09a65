"""How a block of sums gets into memory as numbers of 16 bits: stored, or as an update of what is
there. Two neighbours are one word, wherever it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradlet.kernels.xpulp.isa.asm import Asm, AssemblyError
from gradlet.kernels.xpulp.isa.narrow import (
    LANES,
    Narrow,
    load_half,
    relu,
    store_half,
    store_half_post,
)
from gradlet.kernels.xpulp.isa.store import SETTINGS, Word

OLD = 2
"""Registers for what is there."""


def store_pairs(
    asm: Asm,
    narrow: Narrow,
    epilogue: str,
    groups: Sequence[Sequence[str]],
    free: Sequence[str],
    word: Word,
    meanwhile: Callable[[], None] = lambda: None,
    c: str = "",
    across: int = 0,
) -> None:
    """Each group is consecutive in memory, n4 bytes behind the one before, or `across` bytes; c, in
    memory or in this register, is moved behind the last one. meanwhile: what can be done until it
    is there."""
    pointer, *others = [c, *free] if c else free
    if not c:
        word("lw", pointer, "c")
    needed = (*(() if across else ("n4",)), *SETTINGS[epilogue])
    named = dict(zip(needed, others, strict=False))
    old = others[len(needed) : len(needed) + OLD]
    if len(old) < OLD and epilogue in ("sum", "sgd"):
        raise AssemblyError("registers are missing for the store")
    for name in needed:
        word("lw", named[name], name)
    meanwhile()
    for group in groups:
        starts = range(0, len(group), LANES)
        for start in (*starts[1:], 0):  # the last one moves the pointer on
            pair = group[start : start + LANES]
            if epilogue in ("sum", "sgd"):
                _load(asm, narrow, pair, pointer, 2 * start, old)
                _update(asm, epilogue, pair, old, named)
            _store(asm, narrow, epilogue, pair, pointer, 2 * start, across or named["n4"])
    if not c:
        word("sw", pointer, "c")


def _load(
    asm: Asm, narrow: Narrow, pair: Sequence[str], pointer: str, offset: int, old: Sequence[str]
) -> None:
    first, second = old
    if len(pair) == 1:
        load_half(asm, first, pointer, offset)
        narrow.widen(asm, first, first)
        return
    asm.lw(first, pointer, offset)
    narrow.widen_high(asm, second, first)
    narrow.widen(asm, first, first)


def _update(
    asm: Asm, epilogue: str, pair: Sequence[str], old: Sequence[str], named: dict[str, str]
) -> None:
    pairs = list(zip(pair, old, strict=False))
    for value, before in pairs:
        if epilogue == "sum":
            asm("fadd.s", value, before, value)
        else:
            asm("fmadd.s", value, named["decay"], before, value)
    for value, before in pairs if epilogue == "sgd" else []:
        asm("fmadd.s", value, named["rate"], value, before)


def _store(
    asm: Asm,
    narrow: Narrow,
    epilogue: str,
    pair: Sequence[str],
    pointer: str,
    offset: int,
    step: int | str,
) -> None:
    first = pair[0]
    narrow.join(asm, first, first, pair[-1])
    if epilogue == "relu":
        relu(asm, first)
    if len(pair) == 1:
        if offset:
            store_half(asm, first, pointer, offset)
        else:
            store_half_post(asm, first, pointer, step)
    elif offset:
        asm.sw(first, pointer, offset)
    else:
        asm.sw_post(first, pointer, step)
