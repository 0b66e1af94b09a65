"""Writes a plan as a C project. Nothing is decided here, and nothing but the plan is looked at."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

import gradlet
from gradlet import kernels, recorded
from gradlet.compiler import BASE, DEVICE_ONLY, HOST_ONLY, QUICK
from gradlet.dtypes import DTYPES
from gradlet.emit.folder import MANIFEST, changes, contents, sealed
from gradlet.emit.golden import AT_END, Golden, golden, golden_level, sample_count
from gradlet.emit.install import recover, refuse_foreign, write_folder, writing
from gradlet.emit.names import comment, identifiers, initializer, literal, size_text, string
from gradlet.emit.oracle import oracle_source
from gradlet.emit.regions import WORD, arenas, mixed_regions, regions
from gradlet.emit.tiles import Link, chained, tiled_call
from gradlet.errors import GradletError
from gradlet.files import locked
from gradlet.graph import Graph
from gradlet.ops.base import Size
from gradlet.ops.dropout import dropout_state
from gradlet.ops.optimizer import clip_of, hyper_of, optimizer_of
from gradlet.plan.model import FAR, KINDS, NEAR, Call, Plan
from gradlet.plan.parts import parts
from gradlet.recorded import Recording
from gradlet.target import simulator_options

NOT_RECORDED = "the project was made from a plan, without its module"
PLAN = "plan.json"
JUDGED_BY = (PLAN, recorded.FILE)
"""What everything else in the project is compared with."""
BUILT = ("kernels/*.c",)
"""What the Makefile builds whether we wrote it or not."""
STARTUP = ("start.S", "team.c")
RUNTIME = Path(__file__).parent.parent / "c" / "runtime"


@dataclass(frozen=True)
class Project:
    """A written project: its folder, and the plan that it came from."""

    folder: Path
    plan: Plan

    @property
    def manifest(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text("utf-8"))
        return value

    @property
    def recording(self) -> Recording:
        """What the user's own module did in training, when the project was built."""
        try:
            return Recording.loads((self.folder / recorded.FILE).read_bytes())
        except FileNotFoundError:
            return Recording(absent=f"the project has no {recorded.FILE}; build it again")

    @property
    def changes(self) -> tuple[str, ...]:
        """How the folder differs, at this moment, from what was built of the plan."""
        found = changes(self.folder, BUILT)
        built = contents(self.folder).recorded.get(PLAN)
        same = built == hashlib.sha256(_plan_text(self.plan).encode()).hexdigest()
        return found if same else (*found, f"{PLAN} (of another build)")


def emit(
    plan: Plan, folder: Path, recording: Recording | None = None, *, force: bool = False
) -> Project:
    """Write the project. A folder that is not an earlier project of ours is left alone, and so are
    files that were edited, unless forced. The recording is what the user's own module did."""
    refuse_foreign(folder, force=force)
    files = project_files(plan, recording or Recording(absent=NOT_RECORDED))
    with writing(folder):
        write_folder(folder, files, force=force)
    return Project(folder, plan)


def load(folder: Path | str) -> Project:
    """Read a project back. Its sources may have been edited, but not what they were made from."""
    folder = Path(folder)
    recover(folder)
    with locked(Path(os.path.realpath(folder)).parent, shared=True):
        found = contents(folder)
        if not found.ours:
            raise GradletError(
                f"'{folder}' is not a Gradlet project: {found.fault}; "
                f"make one with `gradlet build MODEL -o {folder}`"
            )
        spoilt = [n for n in JUDGED_BY if found.actual.get(n, "") != found.recorded.get(n)]
        if found.fault or spoilt:
            fault = found.fault or f"{spoilt[0]} was edited or deleted after the build"
            raise GradletError(
                f"'{folder}' cannot be trusted: {fault}. Put back what was there, or build it "
                "again with --force, or into another folder"
            )
        text = (folder / PLAN).read_text("utf-8")
    try:
        return Project(folder, Plan.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise GradletError(
            f"'{folder}/{PLAN}' is of another version of Gradlet ({error!r}); build it again"
        ) from None


def project_files(plan: Plan, recording: Recording) -> dict[str, bytes]:
    """Every file of the project, by path: texts as UTF-8, anything else as it is."""
    expected = golden(plan)
    view = _view(plan, expected)
    prefix = plan.prefix
    used = sorted({k for call in plan.calls for k in call.kernels}, key=lambda kernel: kernel.name)
    header = f"{prefix}_kernels.h"
    files: dict[str, str | bytes] = {
        f"{prefix}.h": _render("net.h", view),
        f"{prefix}.c": _render("net.c", view),
        "weights.c": _render("weights.c", view),
        "main.c": _render("main.c", view),
        "golden.h": _render("golden.h", view),
        "golden.py": _render("golden.py", view),
        header: kernels.header(used, prefix),
        "gl.h": (RUNTIME / "gl.h").read_text(),
        **({"gl_tiles.h": (RUNTIME / "gl_tiles.h").read_text()} if plan.tilings else {}),
        "gl_schedule.h": (RUNTIME / "gl_schedule.h").read_text(),
        "gl_print.h": (RUNTIME / "gl_print.h").read_text(),
        **_port_files(plan.target.port, view),
        "Makefile": _render("Makefile", view),
        "CMakeLists.txt": _render("CMakeLists.txt", view),
        "README.md": _render("README.md", view),
        PLAN: _plan_text(plan),
        recorded.FILE: recording.dumps(),
    }
    for kernel in used:
        files[f"kernels/{kernel.symbol(prefix)}.c"] = kernels.render(kernel, prefix)
    encoded = {n: f.encode() if isinstance(f, str) else f for n, f in sorted(files.items())}
    return {**encoded, MANIFEST: _manifest(plan, encoded)}


def _plan_text(plan: Plan) -> str:
    return plan.dumps() + "\n"


def _port_files(port: str, view: Mapping[str, Any]) -> dict[str, str]:
    """The port, and for a device what links a program; there the host's port stands beside."""

    def runtime(*names: str) -> dict[str, str]:
        return {name: (RUNTIME / name).read_text() for name in names}

    if port == "host":
        host = (RUNTIME / "gl_port_host.h").read_text()
        return {"gl_port.h": host, **runtime("gl_dma_host.h")}
    return {
        "gl_port.h": _render("gl_port.h", view),
        **runtime("gl_port_host.h", "gl_dma_host.h", f"gl_port_{port}.h", f"gl_dma_{port}.h"),
        **{f"{port}/{name}": (RUNTIME / port / name).read_text() for name in STARTUP},
        f"{port}/link.ld": _render("link.ld", view),
    }


def _manifest(plan: Plan, files: Mapping[str, bytes]) -> bytes:
    nodes = [
        {
            "name": call.name,
            "nodes": list(call.all_nodes),
            "op": node_op(plan, call),
            "phase": call.phase,
            "kernel": call.kernel.name,
            "macs": call.macs,
            "tile": _tile(call),
        }
        for call in plan.calls
    ]
    value = {
        "gradlet": gradlet.__version__,
        "model": plan.graph.name,
        "prefix": plan.prefix,
        "target": plan.target.name,
        "cores": plan.target.cores,
        "layout": plan.graph.layout,
        "stored": {
            name: {"view": list(view), "order": list(order)}
            for name, (view, order) in plan.graph.stored.items()
        },
        "params": parameter_count(plan),
        "macs": plan.macs(),
        "memory": plan.memory(),
        "nodes": nodes,
        "kernels": sorted({k.name for call in plan.calls for k in call.kernels}),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    return sealed(value)


def _tile(call: Call) -> dict[str, Any] | None:
    """How far each axis is split, in the order of the loops; None where the whole runs at once."""
    tiling = call.tiling
    if tiling is None:
        return None
    return {
        "axes": {axis.name: [axis.tile, axis.size] for axis in tiling.axes},
        "tiles": tiling.count,
        "buffers": "double" if tiling.ahead else "single",
        "copied": [w.tensor for w in tiling.windows if w and (w.load or w.store)],
    }


def node_op(plan: Plan, call: Call) -> str:
    ops = {node.name: node.op for node in plan.graph.nodes}
    return "+".join(ops[name] for name in call.all_nodes)


def parameter_count(plan: Plan) -> int:
    return sum(tensor.elements for tensor in plan.graph.of_role("param"))


def _view(plan: Plan, expected: Golden) -> dict[str, Any]:
    """Everything that the templates print."""
    graph, places = plan.graph, plan.buffer_of()
    names = identifiers(n for n in places if n in graph.tensors)
    tensors = {n: _tensor(plan, n, names) for n in names}
    chain = chained(plan)
    calls = [_call(plan, index, call, names, chain) for index, call in enumerate(plan.calls)]
    inputs = [tensors[name] for name in graph.inputs]
    return {
        "model": comment(graph.name),
        "prefix": plan.prefix,
        "PREFIX": plan.prefix.upper(),
        "target_name": plan.target.name,
        "cores": plan.target.cores,
        "port": plan.target.port,
        "stack": plan.target.stack,
        "flags": plan.target.flags,
        "base_flags": BASE,
        "host_flags": HOST_ONLY,
        "device_flags": DEVICE_ONLY,
        "quick": QUICK,
        "startup": [f"{plan.target.port}/{name}" for name in STARTUP],
        "memories": plan.target.memories,
        "machine": dict(plan.target.machine),
        "sim_options": " ".join(simulator_options(plan.target)) if plan.target.machine else "",
        "level": plan.level.name,
        "sizes_level": plan.sizes_level.name,
        "near_level": plan.target.memories[0].name,
        "home_level": plan.target.home.name,
        "most_windows": plan.most_windows,
        "align": plan.level.align,
        "batch": graph.tensors[graph.inputs[0]].shape[0],
        "accumulate": graph.accumulate,
        "layout": graph.layout,
        "stored": list(_stored(plan, tensors)),
        "inputs": inputs,
        "outputs": [tensors[name] for name in graph.outputs],
        "target": tensors[graph.target],
        "loss": names[graph.loss],
        "loss_op": graph.producer()[graph.loss].op,
        "optimizer": optimizer_of(graph).name,
        "settings": [{**item, "tensor": names[item["tensor"]]} for item in settings(plan)],
        "dropout": names.get(dropout_state(graph), ""),
        "parameters": [tensors[name] for name in graph.trained],
        "params": parameter_count(plan),
        "tensors": list(tensors.values()),
        "calls": calls,
        "parts": [
            {"name": name, "calls": [calls[index] for index in members]}
            for name, members in parts(graph, plan.calls).items()
        ],
        "regions": list(regions(plan)),
        "used": plan.used,
        "macs": plan.macs(),
        "arenas": list(arenas(plan)),
        **{f"{k}_bytes": sum(map(plan.region_bytes, (k, NEAR + k, FAR + k))) for k in KINDS},
        **_golden_view(plan, expected, tensors),
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


def _tensor(plan: Plan, name: str, names: Mapping[str, str]) -> dict[str, Any]:
    graph = plan.graph
    tensor, buffer = graph.tensors[name], plan.buffer_of()[name]
    accessor = {graph.target: "target", **dict.fromkeys(graph.outputs, "output")}.get(name, "")
    if name in graph.inputs:
        accessor = "input" if len(graph.inputs) == 1 else f"input_{_input_ids(graph)[name]}"
    union = buffer.kind == "arena" or buffer.region in mixed_regions(plan)
    member = f".{tensor.dtype}" if union else ""
    return {
        "name": string(name),
        "id": names[name],
        "accessor": accessor,
        "c": DTYPES[tensor.dtype].c,
        "shape": tensor.shape,
        "elements": tensor.elements,
        "place": f"&{plan.prefix}_{buffer.region}[{buffer.offset // WORD}]{member}",
    }


def _input_ids(graph: Graph) -> dict[str, str]:
    """How the accessors of several inputs end: as the model calls them, as far as C allows."""
    found = identifiers(map(graph.own_name, graph.inputs))
    return {name: found[graph.own_name(name)] for name in graph.inputs}


def _call(
    plan: Plan, index: int, call: Call, names: Mapping[str, str], chain: Mapping[int, Link]
) -> dict[str, Any]:
    operands = [f"T_{names[n]}" if n else "0" for n in (*call.outputs, *call.inputs)]
    behind = len(call.follow.operands) - 2 if call.follow else 0  # operands of what follows alone
    made, first = call.rider.made if call.rider else len(call.outputs), len(call.outputs)
    arguments = ["me", *operands[:made], *operands[first : len(operands) - behind]]
    scratch = ""
    if call.scratch:
        place = plan.buffer_of()[call.scratch]
        scratch = f"&{plan.prefix}_{place.region}[{place.offset // WORD}].f32"
        arguments.append(scratch)
    if kernels.catalogue()[call.kernel.family].stepped:
        arguments.append("step" if call.repeat > 1 else "0")
    arguments.append(f"&sizes_{index}")
    modules = {node.name: node.module for node in plan.graph.nodes}
    module = modules[call.nodes[0]]
    return {
        "index": index,
        "repeat": call.repeat,
        "symbol": call.kernel.symbol(plan.prefix),
        "arguments": ", ".join(arguments),
        "sizes": size_text(call.sizes),
        "tiled": tiled_call(plan, call, names, scratch) if call.tiling else None,
        "link": chain.get(index),
        "follow": _also(plan, call.behind.kernel, call.behind.sizes, call.behind.operands, operands)
        if call.behind and not call.tiling
        else None,
        "rider": _also(
            plan, call.rider.kernel, call.rider.sizes, call.rider.operands(call), operands
        )
        if call.rider and not call.tiling
        else None,
        "sizes_type": kernels.sizes_type(call.kernel.family, plan.prefix),
        "comment": comment(
            f"{' and '.join(call.all_nodes)}: {node_op(plan, call)}"
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
        {**tensors[name], "rows": [initializer(sample) for sample in value[:count]]}
        for name, value in fed.items()
    ]
    checks, first = [], 0
    for check in expected.checks:
        tensor = tensors[check.tensor]
        checks.append({**tensor, "call": check.call, "first": first, "count": len(check.index)})
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
        "gradients": list(graph.grads),
        "updates": list(graph.updates),
    }


def _also(
    plan: Plan,
    kernel: kernels.Kernel,
    sizes: Mapping[str, Size],
    positions: Sequence[int],
    operands: Sequence[str],
) -> dict[str, str]:
    """A further kernel of a call, over some of its operands."""
    return {
        "symbol": kernel.symbol(plan.prefix),
        "arguments": ", ".join(["me", *(operands[position] for position in positions)]),
        "sizes": size_text(sizes),
        "sizes_type": kernels.sizes_type(kernel.family, plan.prefix),
    }


def golden_floats(values: Any) -> str:
    return initializer(np.asarray(values, dtype=np.float64))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["literal"] = literal
    return environment


def _render(name: str, view: Mapping[str, Any]) -> str:
    return _environment().get_template(f"{name}.j2").render(view)
