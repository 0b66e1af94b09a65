"""A network meets digits that are turned, and learns them in C: `make demo`.

A CNN is pretrained in PyTorch on upright digits. Gradlet makes C of it that trains; the C then
learns turned digits, one sample at a time, as a device would. PyTorch does the same beside it. The
thousands of steps run on the host, with the device's 8 cores one after the other; some run on the
simulated device itself, where cycles are counted and every bit must be the same.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from model import ANGLE, Digits, Worlds, pretrain, worlds
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import gradlet
from gradlet.codegen.project import Project
from gradlet.engines import host, sim
from gradlet.engines.model import Run

EPOCHS = 5
RATE = 0.02
GOLDEN = 8
DEVICE_STEPS = 20
DEFAULT_FOLDER = "demo-digits"

console = Console()


@dataclass(frozen=True)
class Learned:
    """How one side did: logits of the test digits before and after, and the loss of each step."""

    before: Tensor
    after: Tensor
    losses: list[float]


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    with stage("pretraining on upright digits in PyTorch"):
        data = worlds()
        module = pretrain(data.upright)
    with stage("capturing, deriving the backward pass, planning, writing C"):
        project = build(module, data, folder)
    order = sample_order(data)
    with stage(f"training the C on digits turned by {ANGLE:g} degrees"):
        ours = learn_in_c(project, data, order)
    with stage("training the same in PyTorch"):
        theirs = learn_in_torch(module, data, order)
    with stage(f"the same C on 8 simulated cores of pulp-open, {DEVICE_STEPS} steps"):
        device = learn_on_device(project, data, order)
    with stage("verifying on the simulated cores: every tensor against PyTorch, every access"):
        verdict = gradlet.verify(project)
    show(data, ours, theirs, project)
    same = device.loss == tuple(ours.losses[:DEVICE_STEPS])
    console.print(
        f"on pulp-open: {device.cycles[-1]:,} cycles per step; losses of {DEVICE_STEPS} steps "
        + ("are the host's, bit for bit" if same else "[bold red]differ from the host's[/]")
    )
    tensors = len(verdict.tensors)
    outcome = "[bold green]PASS[/]" if verdict.passed else "[bold red]FAIL[/]"
    console.print(f"verification: {outcome} ({tensors} tensors, {verdict.steps} steps)")
    console.print(f"the project lies in [bold]{folder}[/]; its README.md says how to use it")
    command = os.path.relpath(Path(sys.executable).with_name("gradlet"))
    console.print(f"next: {command} verify {folder}", soft_wrap=True)
    console.print(
        f"      {command} run {folder} --steps 20     (cycles of each node)", soft_wrap=True
    )
    console.print(f"      make -C {folder} golden      (with a C compiler)", soft_wrap=True)
    return 0 if verdict.passed and same else 1


def build(module: nn.Module, data: Worlds, folder: Path) -> Project:
    golden = data.turned_train.part(torch.arange(GOLDEN))
    return gradlet.build(
        module,
        folder,
        inputs=(golden.images,),
        targets=golden.labels,
        batch=1,
        name="digits",
        recipe=gradlet.Recipe(loss="cross_entropy", lr=RATE),
    )


def sample_order(data: Worlds) -> Tensor:
    """Indices of the training digits, shuffled anew for every epoch."""
    generator = torch.Generator().manual_seed(1)
    count = len(data.turned_train.labels)
    return torch.cat([torch.randperm(count, generator=generator) for _ in range(EPOCHS)])


def learn_in_c(project: Project, data: Worlds, order: Tensor) -> Learned:
    """The engine feeds the samples in order; the test digits behind them are only predicted."""
    name = project.plan.graph.outputs[0]
    train, test = (
        samples(project, data.turned_train.part(order)),
        samples(project, data.turned_test),
    )
    both = {key: np.concatenate([train[key], test[key]]) for key in train}
    untrained = host.run(project, steps=0, samples=test, predict=True)
    trained = host.run(project, steps=len(order), samples=both, predict=True)
    before, after = (
        run.outputs[0][name][-len(data.turned_test.labels) :] for run in (untrained, trained)
    )
    return Learned(
        torch.from_numpy(before).flatten(1), torch.from_numpy(after).flatten(1), list(trained.loss)
    )


def learn_on_device(project: Project, data: Worlds, order: Tensor) -> Run:
    first = samples(project, data.turned_train.part(order[:DEVICE_STEPS]))
    return sim.run(project, steps=DEVICE_STEPS, samples=first)


def samples(project: Project, digits: Digits) -> dict[str, np.ndarray]:
    """Batches of one, by the names of the graph."""
    labels = digits.labels.numpy().astype(np.int32)
    return {project.plan.graph.inputs[0]: digits.images.numpy()[:, None], "target": labels[:, None]}


def learn_in_torch(module: nn.Module, data: Worlds, order: Tensor) -> Learned:
    """The same samples in the same order: eager, float32, batch 1, plain SGD."""
    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    train, test = data.turned_train, data.turned_test
    with torch.no_grad():
        before = module(test.images)
    losses = []
    for index in order.tolist():
        optimizer.zero_grad()
        logits = module(train.images[index : index + 1])
        loss = nn.functional.cross_entropy(logits, train.labels[index : index + 1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return Learned(before, module(test.images), losses)


def show(data: Worlds, ours: Learned, theirs: Learned, project: Project) -> None:
    test, count = data.turned_test, len(data.turned_train.labels)
    console.print(
        f"\n{count} turned digits learned one by one, {EPOCHS} times over; "
        f"{len(test.labels)} others for the test"
    )
    table = Table(box=None)
    for column in ("", "generated C", "PyTorch"):
        table.add_column(column, justify="right" if column else "left")
    for epoch in range(EPOCHS):
        span = slice(epoch * count, (epoch + 1) * count)
        means = (f"{np.mean(side.losses[span]):.4f}" for side in (ours, theirs))
        table.add_row(f"training loss, epoch {epoch + 1}", *means)
    for when in ("before", "after"):
        scores = [score(getattr(side, when), test) for side in (ours, theirs)]
        table.add_row(f"test loss {when}", *(f"{loss:.4f}" for loss, _ in scores))
        table.add_row(f"test accuracy {when}", *(f"{100 * share:.1f} %" for _, share in scores))
    console.print(table)
    plan = project.plan
    console.print(
        f"memory to train: {plan.used:,} bytes of {plan.level.name}, weights included; lower bound "
        f"{plan.lower_bound:,} ({plan.used / plan.lower_bound:.3f} x)"
    )


def score(logits: Tensor, test: Digits) -> tuple[float, float]:
    """Mean loss and share of right answers."""
    loss = nn.functional.cross_entropy(logits, test.labels).item()
    return loss, (logits.argmax(1) == test.labels).float().mean().item()


@contextmanager
def stage(text: str) -> Iterator[None]:
    begin = time.perf_counter()
    with console.status(text):
        yield
    console.print(f"[green]done[/] {text} ({time.perf_counter() - begin:.1f} s)")


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_FOLDER)))
    except gradlet.GradletError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
