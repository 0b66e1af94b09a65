"""Writes docs/support.md: every op with its gradients, types, layouts, kernels and spellings.

Nothing of it is typed by hand. Gradients are what the ops' own `vjp` returns on the rows of the
case table, types and kernels are those of the catalogue that the same rows are lowered to.

    python -m tests.support > docs/support.md
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradlet.ir.builder import GraphBuilder
from gradlet.ir.graph import Graph, Site
from gradlet.kernels import catalogue
from gradlet.ops import ONNX, OPS, TOML, TORCH, Op
from gradlet.ops.learning.optimizer import Update
from gradlet.training.autodiff import _BackwardEmitter
from tests.cases import CASES
from tests.helpers import op_graph, op_training_graph

PAGE = Path(__file__).parent.parent / "docs" / "support.md"
FRONT_ENDS = {"PyTorch": TORCH, "ONNX": ONNX, "TOML": TOML}


@dataclass
class Facts:
    """What the rows of the case table show of an op."""

    gradients: set[str] = field(default_factory=set)
    by: set[str] = field(default_factory=set)
    families: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)


def facts() -> dict[str, Facts]:
    found: dict[str, Facts] = defaultdict(Facts)
    for case in CASES:
        for site in op_training_graph(case).sites():
            _note_kernels(found[site.node.op], site)
        graph = op_graph(case)
        for site in graph.sites():
            _note_gradients(found[site.node.op], graph, site)
    return found


def _note_kernels(fact: Facts, site: Site) -> None:
    lowering = OPS[site.node.op].lower(site)
    fact.families.add(lowering.family)
    mode = catalogue.families()[lowering.family].modes[lowering.mode]
    made = [
        k for k in catalogue.kernels() if (k.family, k.mode) == (lowering.family, lowering.mode)
    ]
    fact.types.update(kernel.dtype for kernel in made)
    fact.types.update(operand.dtype for operand in mode.inputs if operand.dtype)


def _note_gradients(fact: Facts, graph: Graph, site: Site) -> None:
    """Ask the op for the gradients of all its operands that hold numbers."""
    op = OPS[site.node.op]
    slots = [slot.rstrip("?") for slot in op.inputs]
    wanted = [slot for slot, t in zip(slots, site.ins, strict=False) if t.role == "param"]
    builder = GraphBuilder("", graph)
    grads = [builder.external(f"d_{t.name}", t.shape, "gradient", t.dtype) for t in site.outs]
    before = len(builder.nodes)
    if type(op).vjp is not Op.vjp:
        fact.gradients.update(op.vjp(_BackwardEmitter(builder, {}), site, grads, wanted))
    fact.by.update(node.op for node in builder.nodes[before:])


def spellings() -> Mapping[str, Mapping[str, list[str]]]:
    """Names by front end and by the op file that converts them."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for front_end, table in FRONT_ENDS.items():
        for name, function in sorted(table.items()):
            found[function.__module__.rpartition(".")[2]][front_end].append(name)
    return found


def page() -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(_lines())).rstrip() + "\n"


def _lines() -> Iterator[str]:
    known, spelled = facts(), spellings()
    files: dict[str, list[str]] = defaultdict(list)
    backward = {name for fact in known.values() for name in fact.by}
    for name in OPS:
        if known[name].gradients or name not in backward:
            files[_file(name)].append(name)
    yield from _HEAD.strip().splitlines()
    for file in sorted({*files, *spelled}):
        yield f"\n## {file}\n"
        if files[file]:
            yield "| op | gradients of | made by | types | layouts | kernels |"
            yield "|---|---|---|---|---|---|"
            yield from (_row(name, known[name]) for name in sorted(files[file]))
            yield ""
        for front_end, names in spelled[file].items():
            yield f"{front_end}: {', '.join(f'`{name}`' for name in names)}\n"


def _file(name: str) -> str:
    """Where an op is defined; one that is made from a row of a table is where its base is."""
    modules = (base.__module__ for base in type(OPS[name]).__mro__)
    return next(m for m in modules if m.startswith("gradlet.ops.")).rpartition(".")[2]


def _row(name: str, fact: Facts) -> str:
    op = OPS[name]
    if isinstance(op, Update):
        gradients = "(an optimizer)"
    elif not fact.gradients:
        gradients = "(stops them)" if op.stops else "(none)"
    else:
        gradients = _listing(fact.gradients)
    cells = (name, gradients, _listing(fact.by), _listing(fact.types))
    return f"| {' | '.join((*cells, _listing(op.layouts), _listing(fact.families)))} |"


def _listing(names: object) -> str:
    return ", ".join(sorted(map(str, names)))  # type: ignore[call-overload]


_HEAD = """
# What is supported

Written by `python -m tests.support`; a test keeps it true. A section is a file of `gradlet/ops`.
Its table has the ops of the file: the operands whose gradients the op itself gives, the ops that
compute these gradients, the element types and layouts of its kernels, and their families. Ops that
only gradients are made of have no row. Below are the operations of the front ends that the file
converts, to its own ops or to those of other files.
"""


if __name__ == "__main__":
    print(page(), end="")
