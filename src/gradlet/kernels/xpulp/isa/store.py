"""How a block of sums in registers gets into memory: stored, or as an update of what is there.

The words of the work that are used: c, moment (its distance from c in bytes), n4, the settings of
the update, and spill0 on. `word(op, register, name)` loads or stores one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gradlet.kernels.xpulp.isa.asm import Asm, AssemblyError
from gradlet.kernels.xpulp.isa.narrow import Narrow, load_half, store_half_post

Word = Callable[[str, str, str], None]
SETTINGS = {"": (), "sum": (), "relu": (), "sgd": ("rate", "decay")}
"""rate is negative."""
TEMPORARY = {"": 0, "sum": 2, "relu": 0, "sgd": 2}


def store_block(
    asm: Asm,
    epilogue: str,
    groups: Sequence[Sequence[str]],
    free: Sequence[str],
    word: Word,
    n4: str = "",
    across: int = 0,
    meanwhile: Callable[[], None] = lambda: None,
    c: str = "",
) -> None:
    """Each group is consecutive in memory, n4 bytes behind the one before.

    c is moved behind the last group, or by `across` bytes. c, n4: their registers, if any.
    meanwhile: what can be done until the pointer is there.
    """
    needed = [*([] if n4 else ["n4"]), *SETTINGS[epilogue]]
    spare = len(free) - 1 - len(needed) - max(TEMPORARY[epilogue], bool(across))
    if spare < 0:
        raise AssemblyError(f"{-spare} registers are missing for the store")
    pointer, *others = free if across or not c else [c, *free]
    if across and c:
        asm.mv(pointer, c)
    elif not c:
        word("lw", pointer, "c")
    named = dict(zip(needed, others, strict=False))
    named["n4"] = n4 or named["n4"]
    for name in needed:
        word("lw", named[name], name)
    meanwhile()
    temporary = others[len(needed) :]
    if across and c:
        asm("addi", c, c, across)
    elif across:
        asm("addi", temporary[0], pointer, across)
        word("sw", temporary[0], "c")
    for group in groups:
        elements = [(group[i], 4 * i) for i in (*range(1, len(group)), 0)]
        for at in range(0, len(elements), 2):
            _pair(asm, epilogue, elements[at : at + 2], pointer, named, temporary)
    if not across and not c:
        word("sw", pointer, "c")


def _pair(
    asm: Asm,
    epilogue: str,
    elements: Sequence[tuple[str, int]],
    pointer: str,
    named: dict[str, str],
    temporary: Sequence[str],
) -> None:
    """Two at a time, so that no load is waited for. The last of a group is at the pointer itself,
    and moves it on."""
    pairs = list(zip(elements, temporary, strict=False)) if TEMPORARY[epilogue] else []
    for (_, offset), old in pairs:
        asm.lw(old, pointer, offset)
    for (value, _), old in pairs:
        if epilogue == "sum":
            asm("fadd.s", value, old, value)
        else:
            asm("fmadd.s", value, named["decay"], old, value)
    for (value, _), old in pairs if epilogue == "sgd" else []:
        asm("fmadd.s", value, named["rate"], value, old)
    for value, _ in elements if epilogue == "relu" else []:
        asm.max(value, value, "zero")  # as integers: the FPU makes no negative NaN
    for value, offset in elements:
        if offset:
            asm.sw(value, pointer, offset)
        else:
            asm.sw_post(value, pointer, named["n4"])


def store_momentum(
    asm: Asm,
    groups: Sequence[Sequence[str]],
    registers: Sequence[str],
    word: Word,
    spill: int,
    across: int = 0,
    narrow: Narrow | None = None,
) -> None:
    """The same as an update with momentum: more than the registers hold, so the sums go to memory
    first (to `spill` behind sp), and a loop over them needs little code. It takes loop 0, and all
    of the given registers."""
    sums = [value for group in groups for value in group]
    for place, value in enumerate(sums):
        asm.sw(value, "sp", spill + 4 * place)
    c, moment, n4, rate, decay, mu, nesterov, source, left, length, *work = registers
    for name, register in (
        ("c", c),
        ("moment", moment),
        ("n4", n4),
        ("rate", rate),
        ("decay", decay),
        ("momentum", mu),
        ("nesterov", nesterov),
    ):
        word("lw", register, name)
    asm("add", moment, moment, c)
    asm("slli", nesterov, nesterov, 1)  # -0 is 0 as well
    asm("sltu", nesterov, "zero", nesterov)
    asm("sub", nesterov, "zero", nesterov)  # all ones, or 0
    asm("addi", source, "sp", spill)
    asm("addi", left, "zero", len(groups))
    asm("addi", length, "zero", len(groups[0]))
    if across:
        asm("addi", work[4], c, across)
    asm("addi", n4, n4, -(2 if narrow else 4) * len(groups[0]))
    again = asm.label()
    with asm.loop(0, length):
        _with_momentum(asm, c, moment, (rate, decay, mu, nesterov), source, work, narrow)
    asm("add", c, c, n4)
    asm("add", moment, moment, n4)
    asm("addi", left, left, -1)
    asm.branch("bnez", left, to=again)
    word("sw", work[4] if across else c, "c")


def _with_momentum(
    asm: Asm,
    c: str,
    moment: str,
    settings: tuple[str, str, str, str],
    source: str,
    work: Sequence[str],
    narrow: Narrow | None,
) -> None:
    """One element, as gl_momentum_step() has it; both ways are computed and one is taken."""
    (rate, decay, mu, nesterov), (slope, old, kept, ahead, *_) = settings, work
    if narrow:
        load_half(asm, old, c)
        load_half(asm, kept, moment)
        asm.lw_post(slope, source, 4)
        narrow.widen(asm, old, old)
        narrow.widen(asm, kept, kept)
    else:
        asm.lw(old, c)
        asm.lw_post(slope, source, 4)
        asm.lw(kept, moment)
    asm("fmadd.s", slope, decay, old, slope)
    asm("fmadd.s", kept, mu, kept, slope)
    asm("fmadd.s", ahead, mu, kept, slope)
    if narrow:
        narrow.join(asm, slope, kept, kept)
        store_half_post(asm, slope, moment, 2)
    else:
        asm.sw_post(kept, moment, 4)
    asm("xor", ahead, ahead, kept)
    asm("and", ahead, ahead, nesterov)
    asm("xor", kept, kept, ahead)
    asm("fmadd.s", old, rate, kept, old)
    if narrow:
        narrow.join(asm, old, old, old)
        store_half_post(asm, old, c, 2)
    else:
        asm.sw_post(old, c, 4)


def store_one(
    asm: Asm,
    epilogue: str,
    value: str,
    named: Mapping[str, str],
    step: str,
    spare: Sequence[str],
) -> None:
    """A single result, at y; y and the moment move on by `step`, a register. The settings are
    loaded each time, which is cheap where results are few. named: y, moment, hyper."""
    y, (old, setting, kept, *_) = named["y"], spare
    if not epilogue:
        asm.sw_post(value, y, step)
        return
    asm.lw(old, y)
    if epilogue == "sum":
        asm("fadd.s", value, old, value)
        asm.sw_post(value, y, step)
        return
    asm.lw(setting, named["hyper"], 4)
    if epilogue == "momentum":
        asm.lw(kept, named["moment"])
    asm("fmadd.s", value, setting, old, value)
    if epilogue == "momentum":
        plain = asm.fresh()
        asm.lw(setting, named["hyper"], 8)
        asm("fmadd.s", kept, setting, kept, value)
        asm.sw_post(kept, named["moment"], step)
        asm("fmadd.s", value, setting, kept, value)
        asm.lw(setting, named["hyper"], 12)
        asm("slli", setting, setting, 1)  # -0 is 0 as well
        asm.branch("bnez", setting, to=plain)
        asm.mv(value, kept)
        asm.label(plain)
    asm.lw(setting, named["hyper"], 0)
    asm("fnmsub.s", value, setting, value, old)
    asm.sw_post(value, y, step)
