"""Which parameters are trained: what `--update` may say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from gradlet.errors import GradletError
from gradlet.ir.graph import Graph, Node
from gradlet.ops import OPS

BIASES = {"conv2d": "b", "matmul": "bias", "normalize": "b", "frozen_norm": "b", "gru": "b"}
"""Operands that are added to each channel, by op. Elsewhere the name has to tell."""

NORMS = ("normalize", "frozen_norm")


ROWS = re.compile(r"(.+)\[(\d*):(\d*)\]")


def select(graph: Graph, update: str) -> list[str]:
    """Parameters named by `all`, or by parts with commas between: `last:N` (layers), `biases`,
    `norms`, names, module paths and patterns. Those of which only rows are named are not in it."""
    names = [tensor.name for tensor in graph.of_role("param")]
    if not names:
        raise GradletError(f"model '{graph.name}' has no parameters to train")
    parts = _parts(update)
    if not parts:
        raise GradletError(f"--update names no parameter; {_listing(names)}")
    whole = [part for part in parts if not ROWS.fullmatch(part)]
    chosen = {name for part in whole for name in _chosen(graph, names, part)}
    return [name for name in names if name in chosen]


def select_rows(graph: Graph, update: str) -> dict[str, tuple[int, int]]:
    """The rows that parts such as `conv1[0:8]` name, by parameter."""
    names = [tensor.name for tensor in graph.of_role("param")]
    whole = set(select(graph, update))
    found: dict[str, tuple[int, int]] = {}
    for part in _parts(update):
        match = ROWS.fullmatch(part)
        for name in _chosen(graph, names, match[1]) if match else ():
            assert match is not None
            rows = _range(graph, name, part, match[2], match[3])
            if found.setdefault(name, rows) != rows:
                raise GradletError(f"--update {update}: '{name}' can have one range of rows")
    return {name: rows for name, rows in found.items() if name not in whole}


def _range(graph: Graph, name: str, part: str, begin: str, end: str) -> tuple[int, int]:
    tensor = graph.tensors[name]
    size = tensor.shape[0] if tensor.shape else 0
    rows = (int(begin or 0), int(end or size))
    if not 0 <= rows[0] < rows[1] <= size:
        raise GradletError(f"--update {part}: {tensor} has rows 0 to {size - 1}, so up to 0:{size}")
    return rows


def _parts(update: str) -> list[str]:
    return [part for part in (text.strip() for text in update.split(",")) if part]


def _chosen(graph: Graph, names: Sequence[str], part: str) -> list[str]:
    """`all` is all, whatever a model calls its parameters; one that is called as another keyword is
    goes first."""
    if part == "all":
        return list(names)
    if hits := _named(graph, names, part):
        return hits
    if part.startswith("last:"):
        return _last(graph, part)
    if part == "biases":
        hits = _biases(graph, names)
    elif part == "norms":
        hits = [n for n in names if any(node.op in NORMS for node, _ in _readers(graph, n))]
    else:
        raise GradletError(f"--update: no parameter matches '{part}'; {_listing(names)}")
    if not hits:
        raise GradletError(f"--update: model '{graph.name}' has no {part}; {_listing(names)}")
    return hits


def _named(graph: Graph, names: Sequence[str], part: str) -> list[str]:
    """By the model's own names: exactly, as a pattern, or as the path of a module."""
    known = {name: graph.own_name(name) for name in names}
    path = part.rstrip(".") + "."
    exact = [name for name, own in known.items() if own == part]
    return exact or [
        n for n, own in known.items() if fnmatchcase(own, part) or own.startswith(path)
    ]


def _last(graph: Graph, part: str) -> list[str]:
    layers = layers_of(graph)
    count = part.removeprefix("last:")
    if not count.isdigit() or not 1 <= int(count) <= len(layers):
        raise GradletError(f"--update {part}: between 1 and {len(layers)} layers are there")
    return [name for layer in layers[-int(count) :] for name in layer]


def _biases(graph: Graph, names: Sequence[str]) -> list[str]:
    def is_bias(name: str) -> bool:
        if re.search(r"(^|_)bias(_|$)", name.rpartition(".")[2]):
            return True
        return any(BIASES.get(node.op) == slot for node, slot in _readers(graph, name))

    return [name for name in names if is_bias(name)]


def _readers(graph: Graph, name: str) -> list[tuple[Node, str]]:
    """Who reads a parameter, also under another shape, and in which slot."""
    found = []
    seen = {name}
    for node in graph.nodes:
        slots = [slot.rstrip("?") for slot in OPS[node.op].inputs]
        for slot, operand in zip(slots, node.inputs, strict=False):
            if operand in seen:
                found.append((node, slot))
                seen.update(node.outputs if OPS[node.op].view else ())
    return found


def layers_of(graph: Graph) -> list[list[str]]:
    """Parameters by layer: those of one node, or of nodes of one module that follow each other."""
    names = {tensor.name for tensor in graph.of_role("param")}
    layers: list[list[str]] = []
    module = ""
    for node in graph.nodes:
        if node.phase != "forward":
            continue
        own = [name for name in node.inputs if name in names]
        if own and node.module and node.module == module:
            layers[-1] += own
        elif own:
            layers.append(own)
            module = node.module
    return layers


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"there are {', '.join(names[:12])}{more}"
