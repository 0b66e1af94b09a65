"""A family of kernels, as its TOML says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradlet.ir.elements import ELEMENTS, F32, Element
from gradlet.kernels.arithmetic import expanded


@dataclass(frozen=True)
class Operand:
    """One pointer argument. dtype '' is the kernel's own. group: operands that together may stay in
    what a narrow kernel computes with, written in place of a dtype."""

    name: str
    dtype: str = ""
    optional: bool = False
    group: str = ""

    @staticmethod
    def parse(text: str) -> Operand:
        name, _, kind = text.rstrip("?").partition(":")
        dtype, group = (kind, "") if kind in ELEMENTS else ("", kind)
        return Operand(name, dtype, text.endswith("?"), group)


@dataclass(frozen=True)
class Epilogue:
    """What a fused store does, and touches besides the value and the result: states, then
    settings. It is named by the op that the store swallows: the update of a weight, or an
    elementwise one of the result alone, to which it is all the same what was there before
    (`fresh`)."""

    doc: str
    store: str
    outputs: tuple[Operand, ...] = ()
    inputs: tuple[Operand, ...] = ()
    code: str = ""  # C in front of the kernel
    fresh: bool = False

    @staticmethod
    def parse(item: Mapping[str, Any]) -> Epilogue:
        sides = {
            side: tuple(map(Operand.parse, item.get(side, ()))) for side in ("outputs", "inputs")
        }
        return Epilogue(**{**item, **sides})


UPDATE = "update"
"""In a mode's list of epilogues: every update that there is."""
IN_ASSEMBLER = ("sum", "relu", "sgd", "momentum")
"""The stores that kernels in assembler can do (xpulp/isa/store.py); C can do any."""


@dataclass(frozen=True)
class Mode:
    """register_block: by the name of an axis of the op, arithmetic over the sizes: so many steps
    along it do fast kernels take at a time, the last ones at the price of all."""

    name: str
    doc: str
    outputs: tuple[Operand, ...]
    inputs: tuple[Operand, ...]
    epilogues: tuple[str, ...]
    register_block: Mapping[str, str]

    @property
    def typed(self) -> bool:
        """Whether every operand has a type of its own, so that the kernel's means nothing."""
        return all(operand.dtype for operand in (*self.outputs, *self.inputs))


MUST, MAY = "must", "may"
ANY, NARROW = "any", "narrow"
"""In a variant's list of elements: all that have fractions; those of them that are computed with in
a wider type."""


@dataclass(frozen=True)
class Variant:
    """One implementation. `needs`, `scratch` (elements) and `cost` are arithmetic over the sizes,
    its own parameters and `cores`. cost is the cycles of the busiest core, of the target's [cost],
    for those whose multiply-adds do not tell; a generator may have a function for it instead.

    streams: operands that the kernel itself copies to its scratch, piece by piece: those that
    `must` not lie in L1, and those that `may` lie anywhere; weights that it updates it copies back
    as well. epilogues: the only ones that it has, if not all of its mode. rank: of several that
    fit, the highest is taken; portable C stands below what is written for an instruction set.
    elements: those that it is rendered for. steps: it is called so often, with the number of the
    step, and a barrier between. released: inputs that only step 0 reads. keeps: those of them whose
    part of the scratch stays as long as they are the same: of the first of these step 2 takes the
    place of step 0 then, of the second step 3. exact: its errors are those of plain sums; else its
    generator says how large they are. sums: "chunked" where they are narrow for a while, which is
    to be asked for."""

    name: str
    template: str
    isa: str
    modes: tuple[str, ...]
    needs: str
    scratch: str
    params: tuple[tuple[str, Any], ...]
    rank: int
    generator: str = ""  # a module of gradlet.kernels.xpulp: more values for the template
    cost: str = ""
    streams: tuple[tuple[str, str], ...] = ()
    elements: tuple[str, ...] = (F32.name,)
    epilogues: tuple[str, ...] | None = None
    steps: int = 1
    released: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    exact: bool = True
    sums: str = F32.name

    def takes(self, element: Element) -> bool:
        kinds = {element.name}
        if element.is_float:
            kinds |= {ANY, NARROW} if element.accumulate else {ANY}
        return bool(kinds & set(self.elements))

    def stores(self, epilogue: str) -> bool:
        if self.epilogues is not None and epilogue not in self.epilogues:
            return False
        return self.isa != "xpulp" or epilogue in ("", *IN_ASSEMBLER)

    def streamed(self, how: str = MUST) -> tuple[str, ...]:
        return tuple(name for name, given in self.streams if given == how)

    @property
    def order(self) -> tuple[bool, int, str, tuple[str, ...], tuple[str, ...]]:
        """Those of one rank exclude each other: any order will do, if it is always the same."""
        return self.isa != "c", self.rank, self.name, self.modes, self.elements


@dataclass(frozen=True)
class Family:
    name: str
    doc: str
    sizes: tuple[tuple[str, int], ...]  # (field, elements; 0 for a plain number)
    modes: Mapping[str, Mode]
    variants: tuple[Variant, ...]
    fractions: frozenset[str] = frozenset()  # sizes that are floats, written "name:f32"
    stepped: bool = False  # called once per step, with its number


def family(label: str, value: Mapping[str, Any], updates: Sequence[str] = ()) -> Family:
    modes = {
        name: Mode(
            name,
            item["doc"],
            tuple(map(Operand.parse, item["outputs"])),
            tuple(map(Operand.parse, item["inputs"])),
            tuple(_epilogues(item.get("epilogues", ()), updates)),
            item.get("register_block", {}),
        )
        for name, item in value["modes"].items()
    }
    fractions = [text.removesuffix(":f32") for text in value["sizes"] if text.endswith(":f32")]
    sizes = tuple(_field(text.removesuffix(":f32")) for text in value["sizes"])
    variants = sorted(_variants(value), key=lambda variant: variant.order)
    for variant in variants:
        if taken := {name for name, _ in variant.params} & {"cores", *(name for name, _ in sizes)}:
            raise ValueError(f"{label}: {variant.name}: {taken} are sizes and parameters")
    stepped = bool(value.get("stepped", False))
    return Family(label, value["doc"], sizes, modes, tuple(variants), frozenset(fractions), stepped)


def _epilogues(names: Sequence[str], updates: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield from updates if name == UPDATE else [name]


def _variants(value: Mapping[str, Any]) -> Iterator[Variant]:
    """Each entry for each of its cases, which have more keys, and each point of its space. What an
    entry and a case need must both hold."""
    terms = value.get("terms", {})
    for entry in value["variants"]:
        for case in entry.get("cases", [{}]):
            item = {**entry, **case}
            needs = [f"({x['needs']})" for x in (entry, case) if "needs" in x]
            for point in item.get("space", [{}]):
                params = {name: number for name, number in point.items() if name != "rank"}
                yield Variant(
                    item["name"].format(**params),
                    item["template"],
                    item.get("isa", "c"),
                    tuple(item.get("modes", ())),
                    expanded(" and ".join(needs), terms),
                    expanded(item.get("scratch", ""), terms),
                    tuple(params.items()),
                    point.get("rank", item.get("rank", 0)),
                    item.get("generator", ""),
                    expanded(item.get("cost", ""), terms),
                    tuple(item.get("streams", {}).items()),
                    tuple(item.get("elements", (F32.name,))),
                    tuple(item["epilogues"]) if "epilogues" in item else None,
                    item.get("steps", 1),
                    tuple(item.get("released", ())),
                    tuple(item.get("keeps", ())),
                    item.get("exact", item.get("sums", F32.name) == F32.name),
                    item.get("sums", F32.name),
                )


def _field(text: str) -> tuple[str, int]:
    name, _, count = text.rstrip("]").partition("[")
    return name, int(count or 0)
