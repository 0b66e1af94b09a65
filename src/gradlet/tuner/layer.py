"""One step of one layer by itself, in a network that has little else: what is quickest there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradlet.errors import GradletError
from gradlet.frontends.capture import capture
from gradlet.planner.planner import Call, Options, Plan, plan
from gradlet.support.cache import scratch_folder
from gradlet.targets.target import Target
from gradlet.training.prepare import training_graph
from gradlet.tuner import tune as tuner
from gradlet.tuner.pool import Pool
from gradlet.tuner.project import Progress, quiet
from gradlet.tuner.tune import ScheduleOverride, Settings, Tuned

WEIGHT, UPDATED = "layer.weight", "layer.weight.next"
STEPS: dict[str, Callable[[Call], bool]] = {
    "forward": lambda call: WEIGHT in call.inputs and call.phase == "forward",
    "input_grad": lambda call: WEIGHT in call.inputs and call.phase != "forward",
    "weight_grad": lambda call: UPDATED in call.outputs,
}


@dataclass(frozen=True)
class LayerTuning:
    """The candidates that were measured to their end, the quickest first."""

    label: str
    tuned: Tuned
    ranked: tuple[tuple[ScheduleOverride, int], ...]
    macs: int

    def to_json(self) -> dict[str, Any]:
        node = self.tuned.nodes[0]
        rows = [
            {**asdict(override), "cycles": cycles, "mac_per_cycle": self.macs / cycles}
            for override, cycles in self.ranked
        ]
        return {
            "layer": self.label,
            "candidates": node.candidates,
            "before_cycles": node.before,
            "after_cycles": node.after,
            "evaluations": self.tuned.evaluations,
            "cache_hits": self.tuned.cache_hits,
            "seconds": self.tuned.seconds,
            "model_error": self.tuned.model_error,
            "best": rows[0] if rows else None,
            "all": rows,
        }


def tune_layer(
    op: str,
    layer: Mapping[str, Any],
    shape: Sequence[int],
    step: str,
    target: Target,
    settings: Settings | None = None,
    *,
    jobs: int = 0,
    dask: str = "",
    progress: Progress = quiet,
) -> LayerTuning:
    """op and layer: as a TOML file has them. shape: of one input."""
    if step not in STEPS:
        raise GradletError(f"--step {step}: one of {', '.join(STEPS)}")
    given = layer_plan(op, layer, shape, target)
    pool = Pool(jobs, dask)
    try:
        tuned = tuner.tune(
            given,
            settings,
            pool=pool,
            progress=progress,
            options=Options(buffers="double"),
            only=STEPS[step],
        )
    finally:
        pool.close()
    call = next(c for c in given.calls if c.name == tuned.nodes[0].name)
    ranked = sorted(tuned.measured[0].items(), key=lambda item: (item[1], str(item[0])))
    return LayerTuning(f"{op} {step}", tuned, tuple(ranked), call.macs)


def layer_plan(op: str, layer: Mapping[str, Any], shape: Sequence[int], target: Target) -> Plan:
    """A network around the layer: one before it that is trained, so that all steps are there."""
    lines = [f"input = {list(shape)}", 'name = "layer"', "[training]", 'loss = "mse"']
    before = {"out": shape[0], **({"kernel": 1} if op == "conv2d" else {})}
    for name, options in (("before", before), ("layer", layer)):
        lines += ["[[layer]]", f'op = "{op}"', f'name = "{name}"']
        lines += [f"{key} = {value}" for key, value in options.items()]
    with scratch_folder() as folder:
        path = folder / "layer.toml"
        path.write_text("\n".join(lines) + "\n")
        try:
            captured = capture(str(path))
        except GradletError as error:
            raise GradletError(str(error).removeprefix(f"{path}: ")) from None
    return plan(training_graph(captured), target, options=Options(buffers="double"))
