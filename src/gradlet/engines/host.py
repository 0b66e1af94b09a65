"""Host engine: the project's own C, built for this machine and run with N virtual cores."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.codegen.project import Project
from gradlet.codegen.view import settings
from gradlet.engines.model import Run
from gradlet.engines.worker import SEED
from gradlet.engines.workers import work
from gradlet.errors import InternalError
from gradlet.ir.graph import Array, Tensor
from gradlet.ops.dropout import STEP, dropout_state
from gradlet.planner.model import Plan
from gradlet.support.cache import scratch_folder
from gradlet.support.compiler import Compiler, build_library, default


def run(
    project: Project,
    *,
    steps: int = 1,
    watch: bool = False,
    states: bool = False,
    overrides: Mapping[str, Array] | None = None,
    samples: Mapping[str, Array] | None = None,
    predict: bool = False,
    between: bool = False,
    setters: bool = False,
    compiler: Compiler | None = None,
    sanitize: bool = False,
) -> Run:
    """Train from the initial weights, or from `overrides`.

    watch records every tensor of the first step, states the weights after each; both use the
    build with probes, so that they share it. predict runs the forward pass over all samples at
    the end, between also before each call that trains; setters calls each of them once, after all
    else, and looks at the table of parameters.
    """
    compiler = compiler or default()
    with scratch_folder() as scratch:
        library = _library(project, scratch, compiler, probes=watch or states, sanitize=sanitize)
        job = _job(project.plan, library, steps, watch=watch, states=states, predict=predict)
        job["setters"] = _setters(project.plan) if setters else []
        job["between"] = between
        fed = {**project.plan.graph.samples, **(samples or {})}
        initial = {**initial_values(project.plan), **(overrides or {})}
        number = {name: str(index) for index, name in enumerate(job["places"])}
        job["number"], job["initial"] = number, list(initial)
        tensors = project.plan.graph.tensors
        arrays = {f"initial/{number[n]}": tensors[n].element.stored(v) for n, v in initial.items()}
        arrays.update(
            {f"sample/{number[n]}": tensors[n].element.stored(fed[n]) for n in job["fed"]}
        )
        (scratch / "job.json").write_text(json.dumps(job))
        np.savez(scratch / "in.npz", **arrays)  # type: ignore[arg-type]
        _work(scratch, compiler.sanitizer_runtime if sanitize else "")
        with np.load(scratch / "out.npz") as result:
            kept = [tensors[name] for name in number]
            trained = [tensors[name] for name in project.plan.graph.trained]
            return _result(dict(result), steps, kept, trained)


@contextmanager
def libraries_kept() -> Iterator[None]:
    """Each build of a project is made once: for one who runs it many times, and knows that its
    files stay as they are."""
    with scratch_folder() as folder:
        before = _libraries.set(Libraries(folder))
        try:
            yield
        finally:
            _libraries.reset(before)


@dataclass(frozen=True)
class Libraries:
    folder: Path
    built: dict[tuple[Path, str, bool, bool], Path] = field(default_factory=dict)


_libraries: ContextVar[Libraries | None] = ContextVar("libraries", default=None)


def _library(
    project: Project, scratch: Path, compiler: Compiler, *, probes: bool, sanitize: bool
) -> Path:
    kept = _libraries.get()
    if kept is None:
        return _build(project, scratch, compiler, probes=probes, sanitize=sanitize)
    key = project.folder, compiler.name, probes, sanitize
    if key not in kept.built:
        place = kept.folder / str(len(kept.built))
        place.mkdir()
        kept.built[key] = _build(project, place, compiler, probes=probes, sanitize=sanitize)
    return kept.built[key]


def _build(
    project: Project, scratch: Path, compiler: Compiler, *, probes: bool, sanitize: bool
) -> Path:
    """A sanitizer knows the ends of arrays that are written in C, not of those of a file."""
    plan, folder = project.plan, project.folder
    network, weights = folder / f"{plan.prefix}.c", folder / "weights.c"
    sources = [network, weights, *sorted((folder / "kernels").glob("*.c"))]
    defines = {network: [f"GL_CORES={plan.target.cores}", *(["GL_PROBE"] if probes else [])]}
    if sanitize:
        write_weights(project, scratch)
        defines[weights] = ["GL_WEIGHTS_IN_C"]
    return build_library(
        sources,
        scratch / "net.so",
        include=[folder, scratch],
        defines=defines,
        compiler=compiler,
        sanitize=sanitize,
    )


def write_weights(project: Project, folder: Path) -> None:
    """The weights as C, as a compiler without .incbin needs them."""
    command = [sys.executable, "-B", str(project.folder / "weights.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"weights.py fails: {done.stderr.strip()[-2000:]}")


def initial_values(plan: Plan) -> dict[str, Array]:
    """What may differ from the built-in values; constants are read-only and stay."""
    places = plan.buffer_of()
    return {
        name: value
        for name, value in plan.graph.data.items()
        if name in places and places[name].kind == "weights"
    }


def _setters(plan: Plan) -> list[tuple[str, float, str, int]]:
    """Each setter, a number that it is called with, and where that has to go."""
    return [
        (f"set_{setting['name']}", 2.0 + number, setting["tensor"], setting["index"])
        for number, setting in enumerate(settings(plan))
    ]


def set_values(plan: Plan, name: str) -> Array:
    """What has to lie in a tensor of settings after all setters were called."""
    value = plan.graph.data[name].copy()
    if name == dropout_state(plan.graph):
        value[: STEP + 1] = SEED, 0
    for _, number, tensor, index in _setters(plan):
        if tensor == name:
            value.reshape(-1)[index] = number
    return value


def _job(
    plan: Plan, library: Path, steps: int, *, watch: bool, states: bool, predict: bool
) -> dict[str, Any]:
    graph, places, seen_by = plan.graph, plan.buffer_of(), views(plan)
    return {
        "library": str(library),
        "prefix": plan.prefix,
        "steps": steps,
        "accumulate": graph.accumulate,
        "watch": watch,
        "predict": predict,
        "places": {
            name: [
                places[name].region,
                places[name].offset,
                tensor.element.numpy,
                list(tensor.shape),
            ]
            for name, tensor in graph.tensors.items()
            if name in places
        },
        "fed": [name for name in graph.fed if name in places],
        "written_by": [shown(plan, call.outputs, seen_by) for call in plan.calls],
        "each_step": [*(old for old, _ in graph.updates if states), *graph.outputs],
        "outputs": list(graph.outputs),
        "seeded": dropout_state(graph),
        "parameters": [graph.tensors[name].element.numpy for name in graph.trained],
    }


def views(plan: Plan) -> dict[str, list[int]]:
    """By tensor, the nodes that show it as something else."""
    from gradlet.ops import OPS

    found: dict[str, list[int]] = {}
    for index, node in enumerate(plan.graph.nodes):
        if OPS[node.op].view:
            found.setdefault(node.inputs[0], []).append(index)
    return found


def shown(plan: Plan, outputs: tuple[str, ...], seen_by: Mapping[str, list[int]]) -> list[str]:
    """The results of a call, and the views of them, and of those."""
    own = list(filter(None, outputs))
    nodes: set[int] = set()
    waiting = list(own)
    while waiting:
        more = seen_by.get(waiting.pop(), [])
        nodes.update(more)
        waiting += [plan.graph.nodes[index].outputs[0] for index in more]
    return [*own, *(plan.graph.nodes[index].outputs[0] for index in sorted(nodes))]


def _work(scratch: Path, preload: str) -> None:
    status, said = work(scratch, preload)
    if status == 0:
        return
    reason = said.strip()[-3000:]
    if status < 0:
        reason = f"killed by {signal.Signals(-status).name}. {reason}"
    raise InternalError(f"the generated code failed on the host: {reason}")


def _result(
    arrays: dict[str, Array], steps: int, tensors: list[Tensor], trained: list[Tensor]
) -> Run:
    """Files know tensors by their numbers: names are free text, and some are too long for them."""

    def part(prefix: str) -> dict[str, Array]:
        start = len(prefix) + 1
        found = {
            tensors[int(k[start:])]: v for k, v in arrays.items() if k.startswith(prefix + "/")
        }
        return {tensor.name: tensor.element.loaded(v) for tensor, v in found.items()}

    return Run(
        "host",
        steps,
        tuple(float(value) for value in arrays["loss"]),
        seconds=tuple(float(value) for value in arrays["seconds"]),
        answers=tuple(float(value) for value in arrays["answers"]),
        tensors=part("tensor"),
        states=tuple(part(f"step{index}") for index in range(steps)),
        outputs=(part("predict"),),
        settings=part("set"),
        parameters=_table(arrays, trained),
    )


def _table(arrays: Mapping[str, Array], trained: list[Tensor]) -> tuple[tuple[str, Array], ...]:
    if "names" not in arrays:
        return ()
    names = arrays["names"].tobytes().decode("utf-8", "replace").split("\0")[:-1]
    return tuple(
        (name, tensor.element.loaded(arrays[f"parameter/{index}"]))
        for index, (name, tensor) in enumerate(zip(names, trained, strict=True))
    )
