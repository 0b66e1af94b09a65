"""Whether what a project ships is what was verified: every build of it makes the same bits.

A verified run tells of one build. The project ships others: its golden program for the device and
for the host, its library without probes, and what another compiler makes of them; prediction and
the setters of the optimizer as well. All of them are run here, and none may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gradlet.codegen.project import Project
from gradlet.engines import golden, host
from gradlet.engines.host import set_values
from gradlet.engines.model import Run
from gradlet.ir.graph import Array
from gradlet.ops.dropout import dropout_state
from gradlet.oracle.scatter import CAREFUL
from gradlet.oracle.tolerance import expect
from gradlet.support.compiler import Compiler, available, default
from gradlet.verifier.golden_data import GoldenData, spoiled


@dataclass(frozen=True)
class GoldenVerdict:
    """One golden program: whether it passes by its own judgement and makes the expected bits."""

    build: str
    compiler: str
    exit_code: int
    problem: str
    stdout: str

    def to_json(self) -> dict[str, Any]:
        return {
            "build": self.build,
            "compiler": self.compiler,
            "exit_code": self.exit_code,
            "pass": not self.problem,
            "problem": self.problem or None,
            "stdout": self.stdout,
        }


@dataclass(frozen=True)
class Shipped:
    """bit_identical: among the compilers of the host, and between the device and the host."""

    bit_identical: Mapping[str, bool]
    golden: tuple[GoldenVerdict, ...]
    differences: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {
            "golden": [program.to_json() for program in self.golden],
            "differences": list(self.differences),
        }


def check_shipped(project: Project, run: Run) -> Shipped:
    """Compare every build of the project with `run`, of a few steps, watched and with states."""
    train = partial(host.run, project, steps=run.steps)
    first, *others = available()
    watched = partial(train, watch=True, states=True)
    built = watched(compiler=first)
    on_host = run if run.engine == "host" else built
    differences = []
    for compiler in (first, *others):  # one at a time: of a large model each takes its memory
        build = built if compiler is first else watched(compiler=compiler)
        if found := first_difference(on_host, build):
            how = f"as {compiler.name} builds it and as {first.name} does"
            differences.append(f"{found} on the host, {how}")
    del built, build
    bit_identical = {"host": not differences}
    if run.engine != "host":
        found = first_difference(run, on_host)
        bit_identical[run.engine] = not found
        if found:
            how = f"as {first.name} builds it"
            differences.append(f"{found} on {run.engine} and on the host, {how}")
    if first_difference(on_host, train(between=True)):
        found = first_difference(on_host, train())
        found = f"{found} with and without probes" if found else "predict() changes the training"
        differences.append(found)
    differences += _other_functions(project, on_host)
    programs = tuple(_golden(project, default(), device=run.engine != "host"))
    differences += [f"the golden program ({p.build}): {p.problem}" for p in programs if p.problem]
    differences += _blind(project, default())
    return Shipped(bit_identical, programs, tuple(differences))


def _other_functions(project: Project, run: Run) -> Iterator[str]:
    """predict() before any training is the forward pass of the first step, but for dropout; each
    setter changes its own number and nothing else; the table of parameters shows what is there."""
    graph = project.plan.graph
    state = dropout_state(graph)
    later = {state: graph.data[state] + np.array([0, 5, 0], np.int32)} if state else {}
    untrained = host.run(project, steps=0, predict=True, setters=True, overrides=later)
    still = {state: graph.data[state] * np.array([1, 1, 0], np.int32)} if state else {}
    wanted = expect(project.plan.judged, 1, overrides=still, rule=CAREFUL)[0] if still else None
    for name in graph.outputs:
        outputs = untrained.outputs[0][name]
        value = outputs[(graph.accumulate - 1) % len(outputs)]
        if wanted is None:
            if not same_array(value, run.tensors[name]):
                yield f"'{name}' of predict() and of the first step differ"
        elif not (np.abs(value - wanted.values[name]) <= wanted.tolerances[name]).all():
            yield f"'{name}' of predict() is not what the model makes without dropout"
    for name, value in untrained.settings.items():
        if not same_array(value, set_values(project.plan, name)):
            yield f"the setters of '{name}' do not set what they should"
    if [name for name, _ in untrained.parameters] != list(map(_as_told, graph.trained)) or any(
        not same_array(value, np.ravel(graph.data[name]))
        for name, (_, value) in zip(graph.trained, untrained.parameters, strict=True)
    ):
        yield "the table of parameters does not show what is trained"


def _as_told(name: str) -> str:
    """As text of C, which ends with a zero."""
    return name.encode("utf-8", "replace").decode().partition("\0")[0]


def _golden(project: Project, compiler: Compiler, *, device: bool) -> Iterator[GoldenVerdict]:
    """The golden programs against the library, on the samples that they bring along."""
    samples = golden.fed_samples(project)
    library = host.run(
        project, steps=golden.steps(project), samples=samples, states=True, predict=True
    )
    wanted = golden.expected(project, library)
    printed = [("host", compiler.name, golden.run_on_host(project, compiler))]
    if device:
        printed.append(("device", "ziglang", golden.run_on_device(project)))
    data = GoldenData.read((project.folder / golden.DATA).read_text())
    for build, name, program in printed:
        problem = program.problem or program.result.unlike(wanted)
        if not problem and program.counts != data.counts:
            problem = "it compares {} values of {} tensors".format(*program.counts)
        yield GoldenVerdict(build, name, program.exit_code, problem, program.stdout)


def _blind(project: Project, compiler: Compiler) -> Iterator[str]:
    """A golden program that would not notice: it has to find what is wrong on purpose."""
    text, wrong = spoiled((project.folder / golden.DATA).read_text())
    found = golden.run_on_host(project, compiler, text).wrong
    if found != wrong:
        yield f"the golden program finds {found} of {wrong} values that are wrong on purpose"


def first_difference(one: Run, other: Run) -> str:
    """What two runs do not agree on to the last bit: the first tensor in program order, or a loss,
    or a state after a step. What only one of them has recorded is not compared."""
    for name, value in one.tensors.items():
        if name in other.tensors and not same_array(value, other.tensors[name]):
            return f"'{name}' of the first step differs"
    for step, (mine, theirs) in enumerate(zip(one.loss, other.loss, strict=True)):
        if not same_array(np.float64(mine), np.float64(theirs)):
            return f"the loss of step {step} differs"
    for step, (before, after) in enumerate(zip(one.states, other.states, strict=False)):
        for name, value in before.items():
            if name in after and not same_array(value, after[name]):
                return f"'{name}' after step {step} differs"
    return ""


def same_bits(one: Run, other: Run) -> bool:
    """Losses, every tensor of the first step that was recorded, and the states after each."""
    groups = [(one.tensors, other.tensors), *zip(one.states, other.states, strict=True)]
    recorded = all(mine.keys() == theirs.keys() for mine, theirs in groups)
    return recorded and not first_difference(one, other)


def same_array(one: Array | np.float64, other: Array | np.float64) -> bool:
    """Bit for bit, but that what is not a number is the same, whatever its sign and payload."""
    one, other = np.asarray(one), np.asarray(other)
    if one.tobytes() == other.tobytes():
        return one.shape == other.shape
    if one.dtype != other.dtype or one.shape != other.shape or one.dtype.kind != "f":
        return False
    known = ~np.isnan(one)
    return bool((known == ~np.isnan(other)).all()) and (
        one[known].tobytes() == other[known].tobytes()
    )
