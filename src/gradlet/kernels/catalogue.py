"""The catalogue of kernels: one TOML per family in `families/`, names derived.

A kernel is a family, a mode, an optional epilogue (an update fused into the store), a variant and
a dtype. `gl_f32_gemm_tn_sgd__lanes_4x16` is all of these in that order.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

from gradlet.errors import InternalError
from gradlet.ir.elements import ELEMENTS, F32, Element
from gradlet.ir.graph import Site
from gradlet.kernels.arithmetic import evaluate as evaluate
from gradlet.kernels.family import MAY as MAY
from gradlet.kernels.family import MUST, Epilogue, Family, Operand, Variant, family
from gradlet.ops.base import Size
from gradlet.targets.cost import Cost
from gradlet.targets.target import CHUNKED as CHUNKED
from gradlet.targets.target import INEXACT as INEXACT

FAMILIES = Path(__file__).parent / "families"
WEIGHT = "weight"
"""The group of what an update replaces."""


@dataclass(frozen=True)
class Kernel:
    family: str
    mode: str
    epilogue: str
    variant: str
    dtype: str

    @property
    def name(self) -> str:
        return self.symbol("gl")

    @property
    def element(self) -> Element:
        return ELEMENTS[element_name(self.dtype)]

    def symbol(self, prefix: str) -> str:
        own, *wide = self.dtype.split("/")
        parts = (prefix, own, self.family, self.mode, self.epilogue, *wide)
        return f"{'_'.join(filter(None, parts))}__{self.variant}"


def element_name(dtype: str) -> str:
    """Of a kernel's dtype, which is an element, and behind slashes the groups of operands that stay
    in what it computes with: `f16/weight/state`."""
    return dtype.partition("/")[0]


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return {
        path.stem: tomllib.loads(path.read_text()) for path in sorted(FAMILIES.glob("*/*.toml"))
    }


@cache
def families() -> dict[str, Family]:
    return {label: family(label, value, updates()) for label, value in _tables().items()}


@cache
def epilogues() -> dict[str, Epilogue]:
    """Those of all families, and the sum: it is for all tiles of a reduction but the first."""
    found = {"sum": Epilogue("adds to what is there", "{w} += {value};")}
    for value in _tables().values():
        found |= {k: Epilogue.parse(item) for k, item in value.get("epilogues", {}).items()}
    return found


@cache
def updates() -> tuple[str, ...]:
    """Ops that replace a weight, and that a store can do."""
    return tuple(name for name, item in epilogues().items() if name != "sum" and not item.fresh)


@cache
def maps() -> tuple[str, ...]:
    """Elementwise ops of the result alone that a store can do."""
    return tuple(name for name, item in epilogues().items() if item.fresh)


def forget() -> None:
    """Read all families anew: for tests that add to them."""
    for known in (_tables, families, epilogues, updates, maps):
        known.cache_clear()


def kernels(dtype: str = F32.name) -> Iterator[Kernel]:
    """Every kernel that can be rendered."""
    for entry in families().values():
        for mode in entry.modes.values():
            for variant in entry.variants:
                if variant.modes and mode.name not in variant.modes:
                    continue
                if not variant.takes(ELEMENTS[dtype]) or (dtype != F32.name and mode.typed):
                    continue
                for epilogue in filter(variant.stores, ("", *mode.epilogues)):
                    for mixed in _mixtures(variant, groups(entry.name, mode.name, epilogue), dtype):
                        yield Kernel(entry.name, mode.name, epilogue, variant.name, mixed)


def _mixtures(variant: Variant, known: Sequence[str], dtype: str) -> Iterator[str]:
    """A dtype with every choice of groups that may stay wide."""
    yield dtype
    if ELEMENTS[dtype].accumulate and variant.isa == "c":
        for count in range(1, len(known) + 1):
            for chosen in combinations(known, count):
                yield "/".join((dtype, *chosen))


def groups(family: str, mode: str, epilogue: str) -> tuple[str, ...]:
    """Those that the operands of such kernels have."""
    outputs, inputs = operands(Kernel(family, mode, epilogue, "", ""))
    return tuple(dict.fromkeys(item.group for item in (*outputs, *inputs) if item.group))


def candidates(
    family: str,
    mode: str,
    epilogue: str,
    sizes: Mapping[str, Size],
    isa: tuple[str, ...],
    dtype: str,
    *,
    streamed: Collection[str] = (),
) -> list[Kernel]:
    """Kernels that compute this on a machine with these instruction sets, by rank, the lowest
    first. streamed: the operands that may be left to a kernel that fetches them itself."""
    entry = families()[family]
    if epilogue and epilogue not in entry.modes[mode].epilogues:
        return []
    own, *wide = dtype.split("/")
    wide = [group for group in wide if group in groups(family, mode, epilogue)]
    return [
        Kernel(family, mode, epilogue, variant.name, "/".join((own, *wide)))
        for variant in entry.variants
        if variant.isa in isa
        and (variant.exact or (CHUNKED if variant.sums == CHUNKED else INEXACT) in isa)
        and variant.takes(ELEMENTS[own])
        and (not wide or variant.isa == "c")
        and (not variant.modes or mode in variant.modes)
        and variant.stores(epilogue)
        and set(variant.streamed()) <= set(streamed)
        and fits(variant, sizes)
    ]


def dtype_of(family: str, mode: str, site: Site) -> str:
    """What a kernel has to be rendered for: the element of the operands with none of their own, and
    the groups of operands that are not of it."""
    known = families()[family].modes[mode]
    pairs = (
        *zip(known.outputs, site.outs, strict=False),
        *zip(known.inputs, site.ins, strict=False),
    )
    for operand, tensor in pairs:
        if operand.dtype and operand.dtype != tensor.dtype:
            raise InternalError(
                f"{site.node.op} '{site.node.name}' needs {tensor} in {operand.dtype}"
            )
    own = [(operand, tensor) for operand, tensor in pairs if not operand.dtype]
    grouped = {operand.group: tensor for operand, tensor in own if operand.group}
    found = {tensor.name: tensor.dtype for operand, tensor in own if not operand.group}
    dtype = next(iter(found.values()), F32.name)
    wide = [group for group, tensor in grouped.items() if tensor.dtype != dtype]
    sums = ELEMENTS[dtype].sums.name
    found |= {t.name: t.dtype for o, t in own if o.group and (o.group not in wide)}
    found |= {t.name: t.dtype for o, t in own if o.group in wide and t.dtype != sums}
    if len(set(found.values())) > 1:
        listed = ", ".join(f"'{name}' {dtype}" for name, dtype in found.items())
        raise InternalError(f"{site.node.op} '{site.node.name}' needs one element type: {listed}")
    return "/".join((dtype, *wide))


def fuses(
    family: str,
    mode: str,
    epilogue: str,
    sizes: Mapping[str, Size],
    isa: tuple[str, ...],
    dtype: str,
) -> bool:
    """Whether a kernel of the best rank can do this in its store; a lower one is not worth it."""
    best, able = (candidates(family, mode, e, sizes, isa, dtype)[-1:] for e in ("", epilogue))
    return [_rank(kernel) for kernel in best] <= [_rank(kernel) for kernel in able] != []


def _rank(kernel: Kernel) -> tuple[bool, int]:
    """Assembler before C, then as the family's table says."""
    variant = variant_of(kernel)
    return variant.isa != "c", variant.rank


def fits(variant: Variant, sizes: Mapping[str, Size]) -> bool:
    """Whether a variant takes these sizes."""
    return not variant.needs or bool(evaluate(variant.needs, {**sizes, **dict(variant.params)}))


def variant_of(kernel: Kernel) -> Variant:
    for variant in families()[kernel.family].variants:
        if variant.name != kernel.variant or not variant.takes(kernel.element):
            continue
        if not variant.modes or kernel.mode in variant.modes:
            return variant
    raise KeyError(kernel.name)


def scratch_bytes(kernel: Kernel, sizes: Mapping[str, Size], cores: int) -> int:
    """Scratch holds what is computed with, not what is stored."""
    elements = _amount(variant_of(kernel), "scratch", sizes, cores)
    return elements * kernel.element.sums.bytes


def register_block(kernel: Kernel, axis: str, sizes: Mapping[str, Size]) -> int:
    """How many steps along an axis of the op its fast kernels take at a time."""
    expression = families()[kernel.family].modes[kernel.mode].register_block.get(axis)
    return int(evaluate(expression, sizes)) if expression else 1


def modelled_cost(kernel: Kernel, sizes: Mapping[str, Size], cores: int, constants: Cost) -> float:
    """Cycles of the busiest core; 0 where nothing is known but the number of multiply-adds."""
    variant = variant_of(kernel)
    if variant.cost:
        named = {**vars(constants), **sizes, **dict(variant.params), "cores": cores}
        return float(evaluate(variant.cost, named))
    known = getattr(generator_of(variant), "cost", None) if variant.generator else None
    return known(kernel.mode, sizes, cores, dict(variant.params), constants) if known else 0.0


def cost_matters(kernel: Kernel) -> bool:
    """Whether it depends on the sizes of a tile how good a kernel is."""
    variant = variant_of(kernel)
    return bool(variant.cost) or hasattr(generator_of(variant), "cost")


def generator_of(variant: Variant) -> Any:
    return (
        import_module(f"gradlet.kernels.xpulp.{variant.generator}") if variant.generator else None
    )


def _amount(variant: Variant, field: str, sizes: Mapping[str, Size], cores: int) -> int:
    expression = getattr(variant, field)
    if not expression:
        return 0
    return int(evaluate(expression, {**sizes, **dict(variant.params), "cores": cores}))


def operands(kernel: Kernel) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """Outputs and inputs in the order of the C arguments, the epilogue's after the mode's."""
    mode = families()[kernel.family].modes[kernel.mode]
    if not kernel.epilogue:
        return mode.outputs, mode.inputs
    more, own = epilogues()[kernel.epilogue], mode.outputs[0]
    made, states = mode.outputs, more.outputs
    if own.dtype:  # what an optimizer remembers is as the weight is
        states = tuple(replace(state, dtype=own.dtype, group="") for state in states)
    elif kernel.epilogue in updates():  # what is stored is the weight
        made = (replace(own, group=WEIGHT), *made[1:])
    return (*made, *states), (*mode.inputs, *more.inputs)


def stepped(kernel: Kernel) -> bool:
    """Whether it is called once per step, with the number of the step."""
    return families()[kernel.family].stepped or variant_of(kernel).steps > 1


def fetched(kernel: Kernel, how: str = MUST) -> tuple[int, ...]:
    """Which of its inputs a kernel fetches itself, by number: those that it must or may."""
    made = len(operands(kernel)[0])
    return tuple(n - made for n in streamed(kernel, how) if n >= made)


def streamed(kernel: Kernel, how: str = MUST) -> tuple[int, ...]:
    """The same among all operands, outputs first: weights that it updates it writes back."""
    own = variant_of(kernel).streamed(how)
    return tuple(n for n, operand in enumerate(sum(operands(kernel), ())) if operand.name in own)


def updated(kernel: Kernel) -> bool:
    """Whether the result depends on what its memory held before."""
    return bool(kernel.epilogue) and not epilogues()[kernel.epilogue].fresh
