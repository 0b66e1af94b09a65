"""How a block of sums in registers gets into memory: stored, or as an update of what is there.

The words of the work that are used: c, moment (its distance from c in bytes), n4, and the settings
of the update. `word(op, register, name)` loads or stores one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradlet.xpulp.asm import Asm, AssemblyError

Word = Callable[[str, str, str], None]
SETTINGS = {
    "": (),
    "sum": (),
    "sgd": ("rate", "decay"),
    "momentum": ("rate", "decay", "momentum", "nesterov"),
}
"""rate is negative."""
TEMPORARY = {"": 0, "sum": 2, "sgd": 2, "momentum": 3}


def store_block(
    asm: Asm,
    epilogue: str,
    groups: Sequence[Sequence[str]],
    free: Sequence[str],
    word: Word,
    n4: str = "",
    across: int = 0,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Each group is consecutive in memory, n4 bytes behind the one before.

    c is moved behind the last group, or by `across` bytes. n4: its register, if it has one.
    meanwhile: what can be done until the pointer is there.
    """
    settings = SETTINGS[epilogue]
    needed = [*([] if n4 else ["n4"]), *settings]
    spilled = _spill(asm, groups, len(free) - 1 - len(needed) - TEMPORARY[epilogue], word)
    free = [*free, *spilled]
    pointer, *others = free
    word("lw", pointer, "c")
    named = dict(zip(needed, others, strict=False))
    named["n4"] = n4 or named["n4"]
    for name in needed:
        word("lw", named[name], name)
    meanwhile()
    temporary = others[len(needed) :]
    if across:
        asm("addi", temporary[0] if temporary else _none(), pointer, across)
        word("sw", temporary[0], "c")
    moment = ""
    if epilogue == "momentum":
        moment = temporary.pop()
        word("lw", moment, "moment")
        asm("slli", named["nesterov"], named["nesterov"], 1)  # -0 is 0 as well
        asm("add", moment, moment, pointer)
    for index, group in enumerate(groups):
        if spilled and index == len(groups) - 1:
            group = list(groups[0])
            for place, register in enumerate(group):
                word("lw", register, f"spill{place}")
        order = [*range(1, len(group)), 0]
        elements = [(group[i], 4 * i) for i in order]
        update = {"": _plain, "sum": _pairs, "sgd": _pairs, "momentum": _momentum}[epilogue]
        update(asm, elements, pointer, named, temporary, moment)
    if not across:
        word("sw", pointer, "c")


def _none() -> str:
    raise AssemblyError("no register is left for the store")


def _spill(asm: Asm, groups: Sequence[Sequence[str]], left: int, word: Word) -> list[str]:
    """Registers of the last group, if there are too few without; it comes back into the first."""
    if left >= 0:
        return []
    last = list(groups[-1])
    if len(groups) < 2 or left + len(last) < 0:
        raise AssemblyError(f"{-left} registers are missing for the update")
    for place, register in enumerate(last):
        word("sw", register, f"spill{place}")
    return last


def _finish(asm: Asm, register: str, pointer: str, offset: int, step: str) -> None:
    """The last of a group is at the pointer, and moves it on."""
    if offset:
        asm.sw(register, pointer, offset)
    else:
        asm.sw_post(register, pointer, step)


def _plain(
    asm: Asm,
    elements: Sequence[tuple[str, int]],
    pointer: str,
    named: dict[str, str],
    temporary: Sequence[str],
    moment: str,
) -> None:
    for register, offset in elements:
        _finish(asm, register, pointer, offset, named["n4"])


def _pairs(
    asm: Asm,
    elements: Sequence[tuple[str, int]],
    pointer: str,
    named: dict[str, str],
    temporary: Sequence[str],
    moment: str,
) -> None:
    """Two at a time, so that no load is waited for."""
    for at in range(0, len(elements), 2):
        pair = list(zip(elements[at : at + 2], temporary, strict=False))
        for (_, offset), old in pair:
            asm.lw(old, pointer, offset)
        for (value, _), old in pair:
            if "decay" in named:
                asm("fmadd.s", value, named["decay"], old, value)
            else:
                asm("fadd.s", value, old, value)
        for (value, _), old in pair if "rate" in named else []:
            asm("fmadd.s", value, named["rate"], value, old)
        for (value, offset), _ in pair:
            _finish(asm, value, pointer, offset, named["n4"])


def _momentum(
    asm: Asm,
    elements: Sequence[tuple[str, int]],
    pointer: str,
    named: dict[str, str],
    temporary: Sequence[str],
    moment: str,
) -> None:
    old, kept = temporary[:2]
    for slope, offset in elements:
        asm.lw(old, pointer, offset)
        asm.lw(kept, moment, offset)
        asm("fmadd.s", slope, named["decay"], old, slope)
        asm("fmadd.s", kept, named["momentum"], kept, slope)
        _finish(asm, kept, moment, offset, named["n4"])
        plain = asm.fresh()
        asm.branch("beqz", named["nesterov"], to=plain)
        asm("fmadd.s", kept, named["momentum"], kept, slope)
        asm.label(plain)
        asm("fmadd.s", old, named["rate"], kept, old)
        _finish(asm, old, pointer, offset, named["n4"])
