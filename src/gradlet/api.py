"""The verbs, as functions: capture, train, plan, emit, run, verify, and build for all but the last
two. Each takes the value that the one before returns. memory tells what a plan costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gradlet.codegen.install import refuse_foreign
from gradlet.codegen.project import Project, emit, load
from gradlet.engines import gvsoc, host, sim
from gradlet.engines.model import Run
from gradlet.engines.room import fitted
from gradlet.errors import DoesNotFit, GradletError
from gradlet.frontends.capture import Captured, Note
from gradlet.frontends.capture import capture as capture_model
from gradlet.frontends.onnx.recording import record_onnx
from gradlet.frontends.passes.layout import check_layout
from gradlet.frontends.recording import Aim, record
from gradlet.ir.graph import Array, Graph
from gradlet.ir.recipe import Loss, Recipe, dtype_text, outputs_of
from gradlet.oracle.recording import Recording
from gradlet.planner.planner import Options, Plan
from gradlet.planner.planner import plan as plan_data
from gradlet.reports import MemoryReport, memory_report
from gradlet.reports.fit import explain
from gradlet.sim import SimError
from gradlet.support.keywords import told
from gradlet.targets import target as targets
from gradlet.training.autodiff import train
from gradlet.training.loss import output_of
from gradlet.training.prepare import targets_of, training_graph, wished
from gradlet.verifier.blame import edits_blamed
from gradlet.verifier.verify import verify as verify_project

__all__ = [
    "Captured",
    "Loss",
    "Note",
    "Recipe",
    "build",
    "capture",
    "emit",
    "load",
    "memory",
    "plan",
    "run",
    "train",
    "training_graph",
    "verify",
]

capture = told(recipe=Recipe.__dataclass_fields__)(capture_model)
verify = told()(verify_project)
ENGINES: dict[str, Callable[..., Run]] = {"sim": sim.run, "gvsoc": gvsoc.run, "host": host.run}


Wish = Callable[[Mapping[str, Any]], Recipe] | Recipe | None
"""How to train; without one as the model itself says."""


@dataclass(frozen=True)
class Request:
    """All that leads from a model to a plan. A recipe of None is the model's own."""

    model: Any
    target: str = targets.DEFAULT
    cores: int | None = None
    memories: Mapping[str, str | int] = field(default_factory=dict)
    layout: str = "chw"
    prefix: str = "net"
    recipe: Wish = None
    capture_options: Mapping[str, Any] = field(default_factory=dict)
    planning: Options = field(default_factory=Options)
    code: int = 0
    """Bytes of the program, if they are known to be more than the target sets aside."""
    stack: int = 0
    """Bytes of the stack of a core, if they are known to be others than the target sets aside."""

    def device(self, **memories: str | int) -> targets.Target:
        sizes = {**self.memories, **memories}
        device = targets.load(self.target, cores=self.cores, sizes=sizes)
        stack = self.stack or device.stack
        return replace(device, code=max(device.code, self.code), stack=stack)

    def captured(self) -> Captured:
        return capture(self.model, **self._options())

    def _options(self) -> dict[str, Any]:
        """Batch norms are changed when a model is captured, on whoever's wish, and the outputs are
        those that the losses see."""
        recipe = self.recipe if isinstance(self.recipe, Recipe) else Recipe()
        return {
            **self.capture_options,
            "bn": self.capture_options.get("bn") or recipe.bn,
            "output": outputs_of(recipe.losses, self.capture_options.get("output")),
        }

    def plan(self, captured: Captured | None = None, *, fit: bool = True) -> Plan:
        """Raises DoesNotFit with what would, unless the fit does not matter."""
        captured = captured or self.captured()
        return fitted(partial(self._planned, captured, fit=fit), self.device())

    def _planned(self, captured: Captured, device: targets.Target, *, fit: bool) -> Plan:
        """For this very device."""
        recipe = self.recipe_for(captured)
        graph = training_graph(captured, recipe, layout=self.layout)
        found = plan_data(graph, device, prefix=self.prefix, options=self.planning, fit=False)
        if not fit or all(map(found.fits, device.memories)):
            return found
        text = explain(
            found,
            partial(replace(self, code=device.code, stack=device.stack)._again, captured, recipe),
            update=recipe.update,
            input_shape=self.capture_options.get("input_shape"),
            accumulate=recipe.accumulate if _is_mean(recipe) else 0,
        )
        raise DoesNotFit(text)

    def recorded(self, captured: Captured, found: Plan) -> Recording:
        """What the user's own module does in training, or the ONNX file as one."""
        if captured.module is None and captured.source is None:
            return Recording(absent="the model came neither as a PyTorch module nor as ONNX")
        recipe = self.recipe_for(captured)
        inputs = [as_stored(found.graph, n, captured.graph.samples[n]) for n in found.graph.inputs]
        aims = aims_of(captured, recipe)
        if captured.source is not None:
            return record_onnx(captured.source, found.graph, recipe, inputs, aims)
        graph, calling = found.graph, captured.calling
        return record(captured.module, graph, recipe, inputs, aims, calling)

    def recipe_for(self, captured: Captured) -> Recipe:
        if isinstance(self.recipe, Recipe):
            return self.recipe
        return (self.recipe or wished)(captured.defaults)

    def _again(self, captured: Captured, recipe: Recipe, **changes: Any) -> Plan:
        """The plan with some of the wishes otherwise, if it fits."""
        wished = {key: changes[key] for key in ("update", "accumulate") if key in changes}
        recipe = replace(recipe, **wished)
        anew = {key: value for key, value in changes.items() if key in ("batch", "input_shape")}
        if anew:
            captured = capture(self.model, **{**self._options(), **anew})
        device = self.device(**changes.get("memories", {}))
        graph = training_graph(captured, recipe, layout=self.layout)
        planning = replace(self.planning, buffers=changes.get("buffers", self.planning.buffers))
        return plan_data(graph, device, options=planning)


def plan(
    graph: Graph,
    target: targets.Target,
    *,
    prefix: str = "net",
    options: Options | None = None,
    fit: bool = True,
) -> Plan:
    """A plan for the data and, on a device, for the program: its code and its stacks find room."""

    def planned(device: targets.Target) -> Plan:
        return plan_data(graph, device, prefix=prefix, options=options, fit=fit)

    return fitted(planned, target)


def _is_mean(recipe: Recipe) -> bool:
    """Whether the loss of a batch is the mean of those of its parts."""
    losses = recipe.all_losses()
    return all(loss.reduction == "mean" and not loss.class_weights for loss in losses)


@told(capture, recipe=Recipe.__dataclass_fields__)
def build(
    model: Any,
    folder: str | Path,
    *,
    target: str = targets.DEFAULT,
    cores: int | None = None,
    memories: Mapping[str, str | int] | None = None,
    batch: int | None = None,
    prefix: str = "net",
    recipe: Recipe | None = None,
    layout: str = "chw",
    buffers: str = "auto",
    exact: bool = False,
    sums: str = "f32",
    dtype: str | Mapping[str, str] | None = None,
    force: bool = False,
    **capture_options: Any,
) -> Project:
    """Capture, train, plan and emit in one call. exact: without kernels whose errors are larger
    than those of plain sums. sums: chunked lets sums of numbers of 16 bits be as narrow over at
    most 32 terms. force: files of an earlier project in the folder are overwritten even if they
    were edited. dtype is that of the recipe."""
    folder = Path(folder)
    refuse_foreign(folder, force=force)
    check_layout(layout)
    options = {"batch": batch, **capture_options}
    planning = Options(buffers=buffers, exact=exact, sums=sums)
    request = Request(
        model,
        target,
        cores,
        memories or {},
        layout,
        prefix,
        _with_dtype(recipe, dtype),
        options,
        planning,
    )
    captured = request.captured()
    found = request.plan(captured)
    return emit(found, folder, request.recorded(captured, found), force=force)


@told(capture, recipe=Recipe.__dataclass_fields__)
def memory(
    model: Any,
    *,
    target: str = targets.DEFAULT,
    cores: int | None = None,
    memories: Mapping[str, str | int] | None = None,
    batch: int | None = None,
    recipe: Recipe | None = None,
    layout: str = "chw",
    buffers: str = "auto",
    dtype: str | Mapping[str, str] | None = None,
    **capture_options: Any,
) -> MemoryReport:
    """What takes the memory of a training step, also if it is more than the target has.

    A Plan or a Project is looked at as it is.
    """
    if isinstance(model, Plan | Project):
        return memory_report(model if isinstance(model, Plan) else model.plan)
    check_layout(layout)
    options, planning = {"batch": batch, **capture_options}, Options(buffers=buffers)
    request = Request(
        model,
        target,
        cores,
        memories or {},
        layout,
        "net",
        _with_dtype(recipe, dtype),
        options,
        planning,
    )
    return memory_report(request.plan(fit=False))


def _with_dtype(recipe: Recipe | None, dtype: str | Mapping[str, str] | None) -> Wish:
    """The recipe, or the model's own, with this type of numbers if one is given."""
    if dtype is None:
        return recipe
    kind = dtype_text(dtype)
    if recipe is not None:
        return replace(recipe, dtype=kind)
    return lambda defaults: replace(wished(defaults), dtype=kind)


def as_stored(graph: Graph, name: str, samples: Array) -> Array:
    """Numbers as a program holds them, which may be rounded."""
    element = graph.tensors[name].element
    return element.loaded(element.stored(samples)) if element.accumulate else samples


def aims_of(captured: Captured, recipe: Recipe) -> list[Aim]:
    """Losses with what they compare, as the model has it."""
    targets = targets_of(captured, recipe)
    return [
        Aim(
            loss,
            output_of(captured.graph, loss),
            targets[loss.target_name] if isinstance(targets, Mapping) else targets,
        )
        for loss in recipe.all_losses()
    ]


@told(sim.run, gvsoc.run, host.run)
def run(
    project: Project | str | Path, *, engine: str | None = None, steps: int = 1, **options: Any
) -> Run:
    """Train for some steps, from the initial weights, on the target's own engine or another."""
    project = project if isinstance(project, Project) else load(Path(project))
    name = engine or project.plan.target.engine
    if name not in ENGINES:
        raise GradletError(f"there is no engine '{name}'; there is {', '.join(ENGINES)}")
    if steps < 1:
        raise GradletError("at least one step is needed")
    with edits_blamed(project, SimError):
        return ENGINES[name](project, steps=steps, **options)
