"""Element by element: loads, a few instructions, a store, for two elements at a time.

The C around it cuts the work into stretches. An operand moves on by 4 bytes, or by as much as a
register says: one of its own, which may be 0 where it is broadcast, or one for all and the result;
"each": the result has one of its own as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlet.xpulp.asm import ARGUMENTS, IDLE, SCRATCH, Asm

AT_ONCE = 2
"""So that no load is waited for."""
TEMPORARY = ("t", "u")
GOES_WITH = {"b": "w"}
"""A bias has the step of its weight, where that is given."""


@dataclass(frozen=True)
class Map:
    """y of the inputs; constants and steps are arguments of the function behind their number."""

    inputs: tuple[str, ...]
    body: tuple[tuple[str | int, ...], ...]
    result: str
    constants: tuple[str, ...] = ()
    steps: str | tuple[str, ...] = ""  # "own", "common" or "each"; or their names
    packed: bool = False  # the constants are in memory, where the argument `numbers` points to

    @property
    def step_names(self) -> tuple[str, ...]:
        if isinstance(self.steps, tuple):
            return self.steps
        own = tuple(f"{name}_step" for name in self.inputs)
        return {"": (), "own": own, "common": ("step",), "each": (*own, "to_step")}[self.steps]


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
    "sgd": Map(
        ("w", "g"),
        (("fmadd.s", "g", "decay", "w", "g"), ("fmadd.s", "g", "rate", "g", "w")),
        "g",
        ("rate", "decay"),
    ),
    "add": Map(("a", "b"), (("fadd.s", "a", "a", "b"),), "a", steps="own"),
    "sub": Map(("a", "b"), (("fsub.s", "a", "a", "b"),), "a", steps="own"),
    "mul": Map(("a", "b"), (("fmul.s", "a", "a", "b"),), "a", steps="own"),
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


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    """map: what it is called here; more: further functions that the template uses."""
    made = {name: stretch(name, MAPS[name]) for name in params.get("more", ())}
    return {"stretch": stretch("stretch", MAPS[params.get("map", mode)]), **made}


def stretch(name: str, item: Map) -> str:
    """The C function name(to, inputs, count, constants, steps in bytes); count is not 0."""
    asm = Asm(name)
    numbers = ("numbers",) if item.packed else item.constants
    names = ("to", *item.inputs, "count", *numbers, *item.step_names)
    argument = dict(zip(names, ARGUMENTS, strict=False))
    number, last, out = argument["count"], asm.fresh(), asm.fresh()
    pairs = SCRATCH[0]  # only until the loop begins
    asm.compressed(True)
    if item.packed:
        _unpack(asm, item, argument)
    asm("srli", pairs, number, AT_ONCE.bit_length() - 1)
    asm("andi", number, number, AT_ONCE - 1)
    asm.branch("beqz", pairs, to=last)
    asm.compressed(False)
    with asm.loop(0, pairs):
        _elements(asm, item, argument, AT_ONCE)
    asm.compressed(True)
    asm.branch("beqz", number, to=out)
    asm.label(last)
    _elements(asm, item, argument, 1)
    asm.label(out)
    asm("ret")
    parameters = ["float *to", *(f"const float *{name}" for name in item.inputs), "int count"]
    parameters += ["const void *numbers"] if item.packed else [f"float {n}" for n in numbers]
    parameters += [f"int {name}" for name in item.step_names]
    return asm.function(", ".join(parameters))


def _unpack(asm: Asm, item: Map, argument: dict[str, str]) -> None:
    """The last constant takes the place of the pointer."""
    pointer, free = argument["numbers"], [SCRATCH[-1], *IDLE]
    for place, name in enumerate(item.constants):
        last = place == len(item.constants) - 1
        argument[name] = pointer if last else free.pop()
        asm.lw(argument[name], pointer, 4 * place)


def _elements(asm: Asm, item: Map, argument: dict[str, str], count: int) -> None:
    used = {word for line in item.body for word in line[1:]}
    own = [*item.inputs, *(name for name in TEMPORARY if name in used)]
    places = [{name: SCRATCH[i * len(own) + j] for j, name in enumerate(own)} for i in range(count)]
    common = argument.get("step", 4)
    to_step = argument.get("to_step", common)
    for name in item.inputs:
        for place in places:
            along = argument.get(f"{GOES_WITH.get(name)}_step", common)
            step = argument.get(f"{name}_step", along)
            asm.lw_post(place[name], argument[name], step)
    for op, *operands in item.body:
        for place in places:
            named = [place.get(str(o), argument.get(str(o), o)) for o in operands]
            asm(str(op), *named)
    for place in places:
        value = place.get(item.result, argument.get(item.result, item.result))
        asm.sw_post(value, argument["to"], to_step)
