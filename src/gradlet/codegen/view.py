"""Everything that the templates of a project print, from its plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradlet.codegen.golden import AT_END, Golden, golden_level, sample_count
from gradlet.codegen.names import comment, identifiers, initializer, size_text, string
from gradlet.codegen.oracle import oracle_source
from gradlet.codegen.regions import arenas, mixed_regions, place, regions, word_members
from gradlet.codegen.tiles import Link, arguments, chained, sizes_type, tiled_call
from gradlet.ir.elements import F32, Element
from gradlet.ir.graph import Array, Graph, Node
from gradlet.ops.dropout import dropout_state
from gradlet.ops.learning.labels import LOSSES
from gradlet.ops.learning.loss_scale import scale_of
from gradlet.ops.learning.optimizer import clip_of, hyper_of, optimizer_of
from gradlet.planner.launch import Ref
from gradlet.planner.model import FARTHEST, KINDS, L1, Call, Plan
from gradlet.planner.parts import parts
from gradlet.runtime import headers, startup
from gradlet.support.compiler import BASE, DEVICE_ONLY, HOST_ONLY, QUICK
from gradlet.targets.target import Target, simulator_options

PIECE = 256
"""Calls in one C function: the time that compilers take grows with the square of its length."""


def node_op(nodes: Mapping[str, Node], call: Call) -> str:
    """The ops that a call computes, of the nodes of its graph by their names."""
    return "+".join(nodes[name].op for name in call.nodes)


def parameter_count(plan: Plan) -> int:
    return sum(tensor.elements for tensor in plan.graph.of_role("param"))


def view_of(plan: Plan, expected: Golden) -> dict[str, Any]:
    """Everything that the templates print."""
    graph, places = plan.graph, plan.buffer_of()
    names = identifiers(n for n in places if n in graph.tensors)
    mixed = mixed_regions(plan)
    accessors = _of_tensors(graph)
    tensors = {n: _tensor(plan, n, names, mixed, accessors) for n in names}
    calls = _calls(plan, names)
    inputs = [tensors[name] for name in graph.inputs]
    results = _accessors("output", graph.results or graph.outputs)
    outputs = [
        {**tensors[name], "accessor": accessor}
        for name, accessor in zip(graph.outputs, results, strict=True)
    ]
    return {
        "model": comment(graph.name),
        "prefix": plan.prefix,
        "PREFIX": plan.prefix.upper(),
        **_of_target(plan.target),
        "level": plan.level.name,
        "sizes_level": plan.sizes_level.name,
        "most_views": plan.most_views,
        "align": plan.level.align,
        "batch": graph.batch,
        "accumulate": graph.accumulate,
        "layout": graph.layout,
        "stored": list(_stored(plan, tensors)),
        "inputs": inputs,
        "outputs": outputs,
        "word_members": word_members(plan),
        "element_headers": element_headers(plan),
        "golden_elements": _golden_elements(plan),
        "parameter_c": _common_type(tensors[name]["c"] for name in graph.trained),
        "targets": [tensors[name] for name in graph.targets],
        "loss": names[graph.loss],
        "losses_text": " + ".join(node.op for node in graph.nodes if node.op in LOSSES),
        "optimizer": optimizer_of(graph).name,
        "settings": [{**item, "tensor": names[item["tensor"]]} for item in settings(plan)],
        "loss_scale": names.get(scale_of(graph), ""),
        "dropout": names.get(dropout_state(graph), ""),
        "parameters": [tensors[name] for name in graph.trained],
        "params": parameter_count(plan),
        "tensors": list(tensors.values()),
        "calls": calls,
        "sizes": list(_sizes(plan)),
        "parts": [
            {"name": name, "pieces": _pieces(name, [calls[index] for index in members])}
            for name, members in parts(graph, plan.calls).items()
        ],
        "regions": list(regions(plan)),
        "used": plan.used,
        "macs": plan.macs(),
        "arenas": list(arenas(plan)),
        **{f"{k}_bytes": sum(map(plan.region_bytes, (k, L1 + k, FARTHEST + k))) for k in KINDS},
        **_golden_view(plan, expected, tensors),
    }


def _of_target(target: Target) -> dict[str, Any]:
    """The device, and how programs for it are compiled."""
    return {
        "target_name": target.name,
        "cores": target.cores,
        "port": target.port,
        "port_headers": headers(target.port),
        "stack": target.stack,
        "flags": target.flags,
        "base_flags": BASE,
        "host_flags": HOST_ONLY,
        "device_flags": DEVICE_ONLY,
        "quick": QUICK,
        "startup": [f"{target.port}/{name}" for name in startup(target.port)],
        "gvsoc": target.gvsoc,
        "memories": target.memories,
        "l1_level": target.memories[0].name,
        "home_level": target.home.name,
        "machine": dict(target.machine),
        "sim_options": " ".join(simulator_options(target)) if target.machine else "",
    }


def _stored(plan: Plan, tensors: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What lies otherwise than in the model, by the name that its user knows."""
    for name, (view, order) in plan.graph.stored.items():
        accessor = tensors[name]["accessor"] if name in tensors else ""
        known = f"{plan.prefix}_{accessor}()" if accessor else comment(name)
        yield {"name": known, "view": view, "order": order}


SETTINGS = {"lr": "learning_rate", "eps": "epsilon"}


def settings(plan: Plan) -> Iterator[dict[str, Any]]:
    """What may be set at run time: the name of its setter, and where it lies."""
    hyper, clip = hyper_of(plan.graph), clip_of(plan.graph)
    for index, name in enumerate(optimizer_of(plan.graph).hyper):
        yield {"name": SETTINGS.get(name, name), "tensor": hyper, "index": index}
    if clip:
        yield {"name": "clip", "tensor": clip, "index": 0}


def _tensor(
    plan: Plan,
    name: str,
    names: Mapping[str, str],
    mixed: Collection[str],
    accessors: Mapping[str, str],
) -> dict[str, Any]:
    tensor, buffer = plan.graph.tensors[name], plan.buffer_of()[name]
    union = buffer.kind == "arena" or buffer.region in mixed
    element = tensor.element
    return {
        "name": string(name),
        "id": names[name],
        "accessor": accessors.get(name, ""),
        "c": element.c,
        "element": element.name,
        "rounds": element.store.format("values[i]") if element.accumulate else "",
        "shape": tensor.shape,
        "elements": tensor.elements,
        "place": place(plan.prefix, buffer.region, buffer.offset, element if union else None),
    }


def _of_tensors(graph: Graph) -> dict[str, str]:
    """The function that leads to each input, target and output."""
    kinds = {
        "input": (graph.inputs, list(map(graph.own_name, graph.inputs))),
        "target": (graph.targets, list(map(graph.own_name, graph.targets))),
        "output": (graph.outputs, graph.results or graph.outputs),
    }
    return {
        name: accessor
        for kind, (names, known) in kinds.items()
        for name, accessor in zip(names, _accessors(kind, known), strict=True)
    }


def _accessors(kind: str, names: Sequence[str]) -> list[str]:
    """Of several inputs, targets or outputs these end as the model calls them, as far as C
    allows."""
    found = identifiers(names)
    return [kind if len(names) == 1 else f"{kind}_{found[name]}" for name in names]


def _calls(plan: Plan, names: Mapping[str, str]) -> list[dict[str, Any]]:
    nodes, chain = {node.name: node for node in plan.graph.nodes}, chained(plan)
    sizes = {key: f"sizes_{number}" for number, key in enumerate(plan.distinct_sizes)}
    return [
        _call(plan, index, call, names, chain, nodes, sizes)
        for index, call in enumerate(plan.calls)
    ]


def _sizes(plan: Plan) -> Iterator[dict[str, str]]:
    """By the numbers that the calls know them by."""
    for launch in plan.distinct_sizes.values():
        yield {"type": sizes_type(plan, launch), "text": size_text(launch.sizes[0])}


def _pieces(name: str, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The functions of a part of the step: itself, or what it calls one after the other."""
    if len(calls) <= PIECE:
        return [{"name": name, "calls": calls}]
    starts = range(0, len(calls), PIECE)
    return [
        {"name": f"{name}_{number}", "calls": calls[start : start + PIECE]}
        for number, start in enumerate(starts, 1)
    ]


def _call(
    plan: Plan,
    index: int,
    call: Call,
    names: Mapping[str, str],
    chain: Mapping[int, Link],
    nodes: Mapping[str, Node],
    sizes: Mapping[str, str],
) -> dict[str, Any]:
    scratch = ""
    if call.scratch:
        buffer = plan.buffer_of()[call.scratch]
        scratch = place(plan.prefix, buffer.region, buffer.offset, call.kernel.element.sums)
    module = nodes[call.nodes[0]].module
    return {
        "index": index,
        "tiled": tiled_call(plan, call, names, scratch) if call.tiling else None,
        "link": chain.get(index),
        "phases": [] if call.tiling else _phases(plan, call, names, scratch, sizes),
        "comment": comment(
            f"{' and '.join(call.nodes)}: {node_op(nodes, call)}"
            + (f" of {module}" if module else "")
        ),
    }


def _golden_view(
    plan: Plan, expected: Golden, tensors: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    graph = plan.graph
    fed = {name: graph.samples[name] for name in graph.fed}
    count = sample_count(plan)
    samples = [
        {**tensors[name], "rows": list(_sample_rows(graph.tensors[name].element, value[:count]))}
        for name, value in fed.items()
    ]
    checks, first = [], 0
    elements = [element["name"] for element in _golden_elements(plan)]
    for check in expected.checks:
        tensor = tensors[check.tensor]
        numbers = {"call": check.call, "first": first, "count": len(check.index)}
        checks.append({**tensor, **numbers, "element": elements.index(tensor["element"])})
        first += len(check.index)
    return {
        "golden_level": golden_level(plan),
        "golden_steps": len(expected.losses),
        "golden_samples": count,
        "samples": samples,
        "losses": golden_floats(expected.losses),
        "losses_allowed": golden_floats(expected.losses_allowed),
        "values": first,
        "index": initializer(np.asarray([i for c in expected.checks for i in c.index])),
        "expected": golden_floats([v for c in expected.checks for v in c.expected]),
        "allowed": golden_floats([v for c in expected.checks for v in c.allowed]),
        "checks": checks,
        "check_rows": [repr((c.tensor, c.call == AT_END, c.index)) for c in expected.checks],
        "oracle": oracle_source(graph),
        "trained": list(graph.trained),
        "trained_elements": [elements.index(tensors[n]["element"]) for n in graph.trained],
        "output_elements": [elements.index(tensors[n]["element"]) for n in graph.outputs],
        "gradients": list(graph.grads),
        "updates": list(graph.updates),
    }


def _phases(
    plan: Plan, call: Call, names: Mapping[str, str], scratch: str, sizes: Mapping[str, str]
) -> list[list[dict[str, Any]]]:
    """The launches of a call without tiles, from one barrier to the next."""

    def operand(position: Ref) -> str:
        return "0" if position is None else f"T_{names[call.operands[position]]}"

    phases: list[list[dict[str, Any]]] = []
    for launch in call.whole:
        step, given = "step" if launch.repeat > 1 else "0", f"&{sizes[launch.sizes_key]}"
        own = {
            "symbol": launch.kernel.symbol(plan.prefix),
            "arguments": arguments(operand, scratch, launch, given, step),
            "repeat": launch.repeat,
            "when": "",
        }
        phases += [[own]] if launch.barrier else []
        if not launch.barrier:
            own["when"] = "if (step == 0) " if phases[-1][0]["repeat"] > 1 else ""
            phases[-1].append(own)
    return phases


def _sample_rows(element: Element, samples: Array) -> Iterator[str]:
    """Samples in C, as they lie in memory."""
    for sample in samples:
        if element.accumulate:
            bits = element.stored(sample).view(f"u{element.bytes}")
            yield initializer(bits, form="{{{}}}")
        else:
            yield initializer(sample)


def element_headers(plan: Plan) -> list[str]:
    """Of the runtime, for the element types of tensors."""
    return sorted({tensor.element.header for tensor in plan.graph.tensors.values()} - {""})


def _golden_elements(plan: Plan) -> list[dict[str, str]]:
    """Element types whose numbers the golden program looks at, float32 first."""
    found = {t.element for t in plan.graph.tensors.values() if t.element.is_float}
    return [
        {"name": element.name, "c": element.c, "load": element.load.format("at[i]")}
        for element in sorted(found, key=lambda element: (element != F32, element.name))
    ]


def _common_type(types: Iterable[str]) -> str:
    found = set(types)
    return found.pop() if len(found) == 1 else "void"


def golden_floats(values: Any) -> str:
    return initializer(np.asarray(values, dtype=np.float64))
