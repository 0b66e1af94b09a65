"""What else a kernel of the catalogue says of itself: its steps and its errors."""

from __future__ import annotations

from dataclasses import dataclass

from gradlet.kernels.catalogue import Kernel, generator_of, operands, variant_of


def steps(kernel: Kernel) -> int:
    """How often it is called for one result, with a barrier between."""
    return variant_of(kernel).steps


def released(kernel: Kernel) -> tuple[int, ...]:
    """Which of its inputs are read by its first step alone, by number."""
    own = variant_of(kernel).released
    return tuple(n for n, operand in enumerate(operands(kernel)[1]) if operand.name in own)


def kept(kernel: Kernel) -> dict[int, int]:
    """Of which operands the first step keeps something in scratch as long as they are the same, by
    their numbers among outputs and inputs, and which step takes its place then."""
    outputs, inputs = operands(kernel)
    names = [operand.name for operand in (*outputs, *inputs)]
    return {names.index(name): 2 + n for n, name in enumerate(variant_of(kernel).keeps)}


def is_exact(kernel: Kernel) -> bool:
    """Whether its errors are those of plain sums."""
    return variant_of(kernel).exact


@dataclass(frozen=True)
class Growth:
    """How much larger the errors of a result may be than those of plain sums: so many times the
    largest of its neighbours in a row, as far away as `reach`."""

    factor: float = 1.0
    reach: int = 0


def growth(kernel: Kernel) -> Growth:
    variant = variant_of(kernel)
    if variant.exact:
        return Growth()
    known = {**dict(variant.params), "element": kernel.element}
    return Growth(*generator_of(variant).growth(kernel.mode, known))
