"""One model built and verified with one copy of the source, in a process of its own.

The parent has imported PyTorch but never Gradlet, so that a forked child imports the copy.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch

from tests.mutants.models import SUBJECTS
from tests.mutants.sites import Site

STEPS = 3
PATIENCE = 300  # seconds; a fault may make a loop endless
NOTICEABLE = 1e-4
"""A change of a loss or weight by this share of the largest is no rounding: it must be caught."""
Values = Mapping[str, np.ndarray[Any, Any]]
JUDGED_APART = ("golden", "main.c", "oracle")  # expectations, not what is computed


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. `program` tells programs apart; values are losses and weights, of the
    source as it is only those that rounding does not move."""

    error: str = ""
    program: str = ""
    passed: bool = False
    reason: str = ""
    values: Values = field(default_factory=dict)
    reached: frozenset[str] = frozenset()


def overlay(package: Path, site: Site | None, place: Path) -> Path:
    """A copy of the package with one fault in it."""
    copy = place / package.name
    shutil.copytree(package, copy)
    if site:
        path = copy / site.file
        path.write_text(site.applied_to(path.read_text()))
    return place


def forked(work: Callable[[], Outcome]) -> Outcome:
    """Run in a forked child; a child that dies or takes too long is an error of its own."""
    receiving, sending = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _child(work, sending)
    sending.close()
    outcome = Outcome(error=f"no answer in {PATIENCE} s")
    try:
        if receiving.poll(PATIENCE):
            outcome = receiving.recv()
    except EOFError:
        outcome = Outcome(error="the process died")
    with suppress(ProcessLookupError):  # the child leads a group of its own, compilers included
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return outcome


def _child(work: Callable[[], Outcome], sending: Connection) -> None:
    os.setpgid(0, 0)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        outcome = work()
    except BaseException as error:  # whatever a fault leads to is what we want to know
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome = Outcome(error=f"{type(error).__name__} at {last.name}: {error}"[:400])
    sending.send(outcome)
    os._exit(0)


def attempt(
    source: Path, subject: str, *, known: str = "", trace: bool = False
) -> Callable[[], Outcome]:
    """Build and verify; nothing more is done with a program that is `known`."""

    def work() -> Outcome:
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = str(source)
        with tempfile.TemporaryDirectory() as folder:
            gradlet = importlib.import_module("gradlet")
            with _reached(source, trace) as reached:
                project = _build(gradlet, subject, f"{folder}/project")
            program = _program(project.folder)
            if program == known:
                return Outcome(program=program)
            verdict = gradlet.verify(project, steps=STEPS)
            if not known:  # the source as it is
                twin = _build(gradlet, subject, f"{folder}/twin", disturbed=True)
                values = steady(_values(gradlet, project), _values(gradlet, twin))
                found = frozenset(reached)
                return Outcome("", program, verdict.passed, _reason(verdict), values, found)
            values = _values(gradlet, project) if verdict.passed else {}
            return Outcome("", program, verdict.passed, _reason(verdict), values)

    return work


def _build(gradlet: Any, subject: str, folder: str, *, disturbed: bool = False) -> Any:
    """disturbed: all weights are moved by about a unit in the last place."""
    module, options = SUBJECTS[subject].arguments()
    if disturbed:
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1 + 1e-7 * torch.randn_like(parameter))
    recipe = gradlet.Recipe(**SUBJECTS[subject].recipe)
    return gradlet.build(module, folder, recipe=recipe, **options)


def steady(values: Values, twin: Values) -> Values:
    """Those that hardly move when all weights are rounded otherwise. The others tell nothing: what
    is 0 in exact arithmetic, as the gradient of the bias of keys, Adam makes a whole step of."""
    kept = {name: change_of({name: v}, {name: twin[name]}) for name, v in values.items()}
    return {name: values[name] for name, change in kept.items() if change <= NOTICEABLE / 10}


def change_of(before: Values, after: Values) -> float:
    """The largest change of any value, as a share of the largest beside it."""
    worst, largest = 0.0, max(float(np.abs(value).max(initial=0.0)) for value in before.values())
    for name, value in before.items():
        if name not in after or value.shape != after[name].shape:
            return float("inf")
        scale = max(float(np.abs(value).max(initial=0.0)), 1e-5 * largest, 1e-30)
        moved = np.abs(np.asarray(after[name], np.float64) - value).max(initial=0.0)
        worst = max(worst, float(moved / scale) if np.isfinite(moved) else float("inf"))
    return worst


def _program(folder: Path) -> str:
    """A digest of everything that a compiler sees of the network."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        named = path.relative_to(folder).as_posix()
        if path.suffix in (".c", ".h", ".S", ".ld") and not named.startswith(JUDGED_APART):
            digest.update(named.encode() + path.read_bytes())
    return digest.hexdigest()


def _values(gradlet: Any, project: Any) -> Values:
    """Losses, and what the last step leaves, in the model's own order: how it is stored is another
    thing."""
    run = gradlet.run(project, steps=STEPS, states=True)
    values = {"loss": np.array(run.loss)}
    for name, value in run.states[-1].items():
        view, order = project.plan.graph.stored.get(name, ((value.size,), (0,)))
        turned = np.reshape(value, [view[dim] for dim in order])
        values[name] = turned.transpose(np.argsort(order)).reshape(-1)
    return values


def _reason(verdict: Any) -> str:
    wrong = verdict.first_wrong
    return f"{wrong.name} at {wrong.share:.3g} of its tolerance" if wrong else ""


@contextmanager
def _reached(source: Path, trace: bool) -> Iterator[set[str]]:
    """Names of the functions that run, and of the templates and headers that are read."""
    reached: set[str] = set()
    package = str(source / "gradlet") + "/"

    def called(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if name.startswith(package):
            reached.add(f"{name[len(package) :]}:{frame.f_code.co_name}")

    def noted(path: Any) -> None:
        if str(path).startswith(package):
            reached.add(str(path)[len(package) :])

    if not trace:
        yield reached
        return
    read, loaded = pathlib.Path.read_text, jinja2.FileSystemLoader.get_source

    def read_text(self: Path, *args: Any, **kwargs: Any) -> str:
        noted(self)
        return read(self, *args, **kwargs)

    def get_source(self: Any, environment: Any, template: str) -> Any:
        found = loaded(self, environment, template)
        noted(found[1])
        return found

    pathlib.Path.read_text = read_text  # type: ignore[method-assign]
    jinja2.FileSystemLoader.get_source = get_source  # type: ignore[method-assign]
    sys.settrace(called)
    yield reached
    sys.settrace(None)
