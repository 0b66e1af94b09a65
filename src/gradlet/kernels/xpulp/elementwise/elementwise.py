"""Element by element: loads, a few instructions, a store, for one or two elements at a time.

The C around it cuts the work into stretches. An operand moves on by 4 bytes, or by as much as a
register says: one of its own, which may be 0 where it is broadcast, or one for all and the result;
"each": the result has one of its own as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradlet.ir.elements import F32, Element
from gradlet.kernels.xpulp.elementwise.access import Access
from gradlet.kernels.xpulp.elementwise.words import in_words, words
from gradlet.kernels.xpulp.isa.arithmetic import DIVIDED, DIVISION, Line
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SAVED, SCRATCH, Asm, AssemblyError

Rare = tuple[str, str, tuple[Line, ...]]
"""A label, the label where it goes on, and the lines."""
AT_ONCE = 2
"""So that no load is waited for."""
KEPT = (*SAVED, "ra")
ON_STACK = IDLE[-1]
"""Where a ninth argument is put."""
OWN = {"p.max": "max", "p.minu": "minu"}
"""Instructions that the assembler does not know."""
GOES_WITH = {"b": "w"}
"""A bias has the step of its weight, where that is given."""


@dataclass(frozen=True)
class Map:
    """y of the inputs; constants and steps are arguments of the function behind their number.

    A name in the body that is none of these is of the element alone. A line ("rare", branch,
    operands, lines) leaves those up to ("back",) to these other lines, which have no names of their
    own: for one element at a time.
    """

    inputs: tuple[str, ...]
    body: tuple[Line, ...]
    result: str
    constants: tuple[str, ...] = ()
    steps: str | tuple[str, ...] = ""  # "own", "common" or "each"; or their names
    packed: bool = False  # the constants are in memory, where the argument `numbers` points to
    literals: Mapping[str, int] = field(default_factory=dict)  # bits that the function itself makes
    more: tuple[tuple[str, str], ...] = ()  # further results: pointer and value
    at_once: int = AT_ONCE

    @property
    def step_names(self) -> tuple[str, ...]:
        if isinstance(self.steps, tuple):
            return self.steps
        own = tuple(f"{name}_step" for name in self.inputs)
        return {"": (), "own": own, "common": ("step",), "each": (*own, "to_step")}[self.steps]

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("to", *(pointer for pointer, _ in self.more))

    def own(self, known: Mapping[str, str]) -> list[str]:
        """What each element has for itself."""
        lines = [
            *self.body,
            *(line for item in self.body if item[0] == "rare" for line in item[-1]),
        ]
        words = [word for line in lines for word in line[1:] if isinstance(word, str)]
        branches = {line[1] for line in self.body if line[0] == "rare"}
        others = dict.fromkeys(w for w in words if w not in (*known, *branches, "zero"))
        return list(dict.fromkeys((*self.inputs, *others)))


NUMBERS = ("a", "b", "one")
"""Constants of the family `map`."""
CLAMP = (
    ("flt.s", "t", "x", "a"),
    ("flt.s", "u", "b", "x"),
    ("addi", "t", "t", -1),  # 0 where a or b takes the place of x, else all ones
    ("addi", "u", "u", -1),
    *(("xor", "x", "x", "b"), ("and", "x", "x", "u"), ("xor", "x", "x", "b")),
    *(("xor", "x", "x", "a"), ("and", "x", "x", "t"), ("xor", "x", "x", "a")),
)


def _inside(compare: str) -> Map:
    """dy times 1 where x is between a and b, else times 0, which is not always 0."""
    body = (
        (compare, "t", "a", "x"),
        (compare, "x", "x", "b"),
        ("and", "t", "t", "x"),
        ("sub", "t", "zero", "t"),
        ("and", "t", "t", "one"),
        ("fmul.s", "dy", "dy", "t"),
    )
    return Map(("dy", "x"), body, "dy", NUMBERS)


def _extreme(less: str, than: str) -> Map:
    """a where it is not a number or stands out, else b."""
    body = (
        ("feq.s", "u", "a", "a"),
        ("flt.s", "t", less, than),
        ("slt", "t", "t", "u"),
        ("sub", "t", "zero", "t"),
        *(("xor", "b", "b", "a"), ("and", "b", "b", "t"), ("xor", "a", "a", "b")),
    )
    return Map(("a", "b"), body, "a", steps="own")


MAPS = {
    # not fmax: a NaN stays, whatever its sign
    "relu": Map(
        ("x",),
        (("fle.s", "t", "x", "zero"), ("addi", "t", "t", -1), ("and", "t", "x", "t")),
        "t",
    ),
    "relu_grad": Map(
        ("dy", "y"),
        (("flt.s", "t", "zero", "y"), ("sub", "t", "zero", "t"), ("and", "t", "dy", "t")),
        "t",
    ),
    "add_relu": Map(
        ("a", "b"),
        (
            ("fadd.s", "a", "a", "b"),
            ("fle.s", "b", "a", "zero"),
            ("addi", "b", "b", -1),
            ("and", "a", "a", "b"),
        ),
        "a",
    ),
    "add_relu_grad": Map(
        ("a", "b", "y"),
        (
            ("fadd.s", "a", "a", "b"),
            ("flt.s", "y", "zero", "y"),
            ("sub", "y", "zero", "y"),
            ("and", "a", "a", "y"),
        ),
        "a",
    ),
    "sgd": Map(
        ("w", "g"),
        (("fmadd.s", "g", "decay", "w", "g"), ("fmadd.s", "g", "rate", "g", "w")),
        "g",
        ("rate", "decay"),
    ),
    "add": Map(("a", "b"), (("fadd.s", "a", "a", "b"),), "a", steps="own"),
    "sub": Map(("a", "b"), (("fsub.s", "a", "a", "b"),), "a", steps="own"),
    "mul": Map(("a", "b"), (("fmul.s", "a", "a", "b"),), "a", steps="own"),
    "div": Map(("a", "b"), DIVIDED, "a", steps="own", literals=DIVISION, at_once=1),
    "maximum": _extreme("b", "a"),
    "minimum": _extreme("a", "b"),
    "momentum": Map(
        ("w", "g", "m"),
        (
            ("fmadd.s", "g", "decay", "w", "g"),
            ("fmadd.s", "m", "mu", "m", "g"),
            ("fmadd.s", "g", "mu", "m", "g"),
            # mask: all ones with Nesterov
            *(("xor", "g", "g", "m"), ("and", "g", "g", "mask"), ("xor", "g", "g", "m")),
            ("fmadd.s", "w", "rate", "g", "w"),
        ),
        "w",
        ("rate", "decay", "mu", "mask"),
        packed=True,
        more=(("m_next", "m"),),
        at_once=1,
    ),
    "reset": Map((), (), "zero"),
    "neg": Map(("x",), (("fsgnjn.s", "x", "x", "x"),), "x", NUMBERS),
    "abs": Map(("x",), (("fsgnjx.s", "x", "x", "x"),), "x", NUMBERS),
    "affine": Map(("x",), (("fmadd.s", "x", "a", "x", "b"),), "x", NUMBERS),
    "clamp": Map(("x",), CLAMP, "x", NUMBERS),
    "clamp_grad": _inside("fle.s"),
    "hardtanh": Map(("x",), CLAMP, "x", NUMBERS),
    "hardtanh_grad": _inside("flt.s"),
    "leaky_relu": Map(
        ("x",),
        (
            ("fmul.s", "t", "a", "x"),
            ("flt.s", "u", "zero", "x"),
            ("addi", "u", "u", -1),
            *(("xor", "t", "t", "x"), ("and", "t", "t", "u"), ("xor", "t", "t", "x")),
        ),
        "t",
        NUMBERS,
    ),
    "leaky_relu_grad": Map(
        ("dy", "x"),
        (
            ("flt.s", "t", "zero", "x"),
            ("sub", "t", "zero", "t"),
            ("xor", "x", "a", "one"),
            *(("and", "x", "x", "t"), ("xor", "x", "x", "a"), ("fmul.s", "dy", "dy", "x")),
        ),
        "dy",
        NUMBERS,
    ),
    "exp_grad": Map(("dy", "y"), (("fmul.s", "dy", "dy", "y"),), "dy", NUMBERS),
    "sigmoid_grad": Map(
        ("dy", "y"),
        (("fsub.s", "t", "one", "y"), ("fmul.s", "t", "y", "t"), ("fmul.s", "dy", "dy", "t")),
        "dy",
        NUMBERS,
    ),
    "tanh_grad": Map(
        ("dy", "y"),
        (("fnmsub.s", "y", "y", "y", "one"), ("fmul.s", "dy", "dy", "y")),
        "dy",
        NUMBERS,
    ),
    "blend": Map(
        ("old", "new"),
        (("fmul.s", "old", "keep", "old"), ("fmadd.s", "old", "take", "new", "old")),
        "old",
        ("keep", "take"),
    ),
    "value": Map(("x",), CLAMP, "x", ("a", "b")),
    "scale": Map(("x",), (("fmul.s", "x", "x", "factor"),), "x", ("factor",)),
    "frozen": Map(
        ("x",),
        (("fsub.s", "x", "x", "middle"), ("fmadd.s", "x", "x", "scale", "bias")),
        "x",
        ("middle", "scale", "bias"),
        "common",
    ),
    "frozen_grad": Map(("x",), (("fmul.s", "x", "x", "scale"),), "x", ("scale",), "common"),
    "copy": Map(("x",), (), "x", steps="each"),
    "fill": Map((), (), "value", ("value",), "common"),
}


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    """map: what it is called here; more: further functions that the template uses."""
    item, element = MAPS[params.get("map", mode)], params.get("element", F32)
    if in_words(mode, element):
        if not item.steps:
            return {"stretch": words("stretch", mode, element)}
        near = words("neighbours", mode, element)  # of operands that are not broadcast
        return {"stretch": stretch("stretch", item, element), "neighbours": near}
    made = {name: stretch(name, MAPS[name], element) for name in params.get("more", ())}
    return {"stretch": stretch("stretch", item, element), **made, **item.literals}


def stretch(name: str, item: Map, element: Element = F32, to: Element | None = None) -> str:
    """The C function name(results, inputs, count, constants, steps in bytes); count is not 0.

    to: the element of the results, where it is another one."""
    asm, bare = Asm(name), not item.body and to is None
    taken, given = Access(element, bare), Access(to or element, bare)
    numbers = ("numbers",) if item.packed else item.constants
    names = (*item.outputs, *item.inputs, "count", *numbers, *item.step_names)
    argument = dict(zip(names, (*ARGUMENTS, ON_STACK), strict=False))
    places, kept = _registers(item, argument)
    asm.compressed(True)
    if ON_STACK in argument.values():
        asm.lw(ON_STACK, "sp")
    if kept:
        asm.push(kept)
    _constants(asm, item, argument)
    rare = _Loops(asm, item, argument, taken, given).write(places)
    if kept:
        asm.pop(kept)
    else:
        asm("ret")
    for label, back, lines in rare:
        asm.label(label)
        _lines(asm, lines, argument, places[:1])
        asm.branch("j", to=back)
    return asm.function(parameters(item, numbers, element, to or element))


def parameters(item: Map, numbers: Sequence[str], taken: Element, given: Element) -> str:
    found = [*(f"{given.c} *{name}" for name in item.outputs)]
    found += [*(f"const {taken.c} *{name}" for name in item.inputs), "int count"]
    found += ["const void *numbers"] if item.packed else [f"float {n}" for n in numbers]
    return ", ".join([*found, *(f"int {name}" for name in item.step_names)])


def _registers(item: Map, argument: dict[str, str]) -> tuple[list[dict[str, str]], list[str]]:
    """Adds constants to the arguments; what each element has, and what must be saved for it."""
    every = (*SCRATCH, *IDLE, *ARGUMENTS, *KEPT)
    pool = [register for register in every if register not in argument.values()]
    if item.at_once == 1:
        pool.insert(0, argument["count"])  # which the loop itself has
    constants = [*(item.constants if item.packed else ()), *item.literals]
    own = item.own({**argument, **dict.fromkeys(constants, "")})
    needed = item.at_once * len(own)
    if item.packed:  # the last one takes the place of the pointer
        argument[item.constants[-1]] = argument["numbers"]
        constants.remove(item.constants[-1])
    argument |= dict(zip(constants, pool[needed:], strict=False))
    if needed + len(constants) > len(pool):
        raise AssemblyError(f"registers are missing for {own} and {constants}")
    places = [
        dict(zip(own, pool[i * len(own) : (i + 1) * len(own)], strict=True))
        for i in range(item.at_once)
    ]
    return places, [r for r in pool[: needed + len(constants)] if r in KEPT]


def _constants(asm: Asm, item: Map, argument: dict[str, str]) -> None:
    for place, name in enumerate(item.constants if item.packed else ()):
        asm.lw(argument[name], argument["numbers"], 4 * place)
    for name, value in item.literals.items():
        asm.li(argument[name], value)


@dataclass(frozen=True)
class _Loops:
    """taken, given: how inputs and results lie in memory."""

    asm: Asm
    item: Map
    argument: dict[str, str]
    taken: Access
    given: Access

    def write(self, places: list[dict[str, str]]) -> list[Rare]:
        """All elements; what is rare comes back as labels and lines."""
        asm, number = self.asm, self.argument["count"]
        if self.item.at_once == 1:
            with asm.loop(0, number):
                return self._elements(places)
        last, out, pairs = asm.fresh(), asm.fresh(), SCRATCH[0]  # only until the loop begins
        asm("srli", pairs, number, AT_ONCE.bit_length() - 1)
        asm("andi", number, number, AT_ONCE - 1)
        asm.branch("beqz", pairs, to=last)
        asm.compressed(False)
        with asm.loop(0, pairs):
            self._elements(places)
        asm.compressed(True)
        asm.branch("beqz", number, to=out)
        asm.label(last)
        self._elements(places[:1])
        asm.label(out)
        return []

    def _elements(self, places: list[dict[str, str]]) -> list[Rare]:
        asm, argument = self.asm, self.argument
        common = argument.get("step", self.taken.step)
        steps: dict[str, int | str] = {}
        for name in self.item.inputs:
            along = argument.get(f"{GOES_WITH.get(name)}_step", common)
            steps[name] = argument.get(f"{name}_step", along)
            self.taken.load(asm, [place[name] for place in places], argument[name], steps[name])
        for name, step in steps.items():
            self.taken.widen(asm, [place[name] for place in places], step)
        rare = _lines(asm, self.item.body, argument, places)
        step = argument.get("to_step", argument.get("step", self.given.step))
        for pointer, result in (*self.item.more, ("to", self.item.result)):
            values = [place.get(result, argument.get(result, result)) for place in places]
            self.given.store(asm, values, argument[pointer], step)
        return rare


def _lines(
    asm: Asm, lines: Sequence[Line], argument: dict[str, str], places: list[dict[str, str]]
) -> list[Rare]:
    rare: list[Rare] = []
    back = 0  # so many of them have come back
    for op, *operands in lines:
        if op == "back":
            for _, label, _ in rare[back:]:
                asm.label(label)
            back = len(rare)
            continue
        for place in places:
            named: list[Any] = [place.get(o, argument.get(o, o)) for o in operands]
            if op == "rare":
                rare.append((asm.fresh(), asm.fresh(), operands[-1]))
                asm.branch(*named[:-1], to=rare[-1][0])
            elif op in OWN:
                getattr(asm, OWN[op])(*named)
            else:
                asm(str(op), *named)
    return rare
