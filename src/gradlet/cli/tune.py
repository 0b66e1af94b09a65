"""The command `gradlet tune`: what it asks, and how results are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gradlet.cli.bench import numbers
from gradlet.cli.failures import stderr
from gradlet.cli.options import settings
from gradlet.errors import GradletError
from gradlet.support.terminal import console, plain
from gradlet.targets import target as targets

if TYPE_CHECKING:
    from gradlet.tuner.layer import LayerTuning
    from gradlet.tuner.project import Tuning
    from gradlet.tuner.tune import Settings

SHOWN = 20
KEEP = 12
"""As the Settings of the tuner have it; to ask that would load all of it for a line of help."""
LAYERS = {"conv2d": ("in", "out-channels", "kernel", "step"), "linear": ("in", "out", "step")}
"""With what each of them needs."""

ProjectFolder = Annotated[
    Path | None, typer.Argument(help="A project, made by build; or none, with --layer.")
]
Keep = Annotated[int, typer.Option("--keep", help="Candidates measured per call at first (K_T).")]
Exhaustive = Annotated[bool, typer.Option("--exhaustive", help="Measure every candidate.")]
Jobs = Annotated[int, typer.Option(help="Processes on this machine; 0: one per processor.")]
Dask = Annotated[str, typer.Option(help="A Dask scheduler, tcp://HOST:PORT, instead.")]
Exact = Annotated[bool, typer.Option("--exact", help="Only kernels that round as plain sums do.")]
Layer = Annotated[str, typer.Option(help="Tune one layer instead of a project: conv2d or linear.")]


def settings_of(keep: int, exhaustive: bool) -> Settings:
    """Where few are kept, few rounds follow."""
    from gradlet.tuner.tune import Settings

    rounds = min(Settings.rounds, Settings.rounds * keep // Settings.keep)
    return Settings(keep=keep, rounds=rounds, exhaustive=exhaustive)


def tune_command(
    folder: Path | None,
    layer: str,
    layer_options: dict[str, Any],
    device: dict[str, Any],
    chosen: Settings,
    jobs: int,
    dask: str,
    force: bool = False,
) -> Tuning | LayerTuning:
    """A project, or a layer: exactly one of them."""
    from gradlet.tuner.layer import tune_layer
    from gradlet.tuner.project import tune_project

    if bool(layer) == (folder is not None):
        raise GradletError("name a project or a layer: gradlet tune DIR, or --layer conv2d")
    if folder is not None and str(folder).startswith("zoo:"):
        raise GradletError(
            f"{folder} is a model: `gradlet build {folder} -o DIR` makes a project of it, and "
            f"`gradlet tune DIR` tunes that"
        )
    if chosen.keep < 1:
        raise GradletError(f"--keep {chosen.keep}: at least one candidate has to be measured")
    with _bar() as progress:
        if folder is not None:
            own = {"force": force, "exact": device["exact"]}
            return tune_project(folder, chosen, jobs=jobs, dask=dask, progress=progress, **own)
        shape, attributes = _layer(layer, layer_options)
        sizes = {**({"L1": device["l1"]} if device["l1"] else {}), **settings(device["set"] or [])}
        target = targets.load(device["target"], cores=device["cores"], sizes=sizes)
        target = target.exact() if device["exact"] else target
        step = layer_options["step"]
        return tune_layer(
            layer, attributes, shape, step, target, chosen, jobs=jobs, dask=dask, progress=progress
        )


def _layer(layer: str, options: dict[str, Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of its input, and what a TOML file says of it."""
    if layer not in LAYERS:
        raise GradletError(f"--layer {layer}: there is {', '.join(LAYERS)}")
    missing = [name for name in LAYERS[layer] if not options[name]]
    if missing:
        raise GradletError(f"--layer {layer} needs {', '.join('--' + name for name in missing)}")
    for name in ("out", "out-channels", "groups"):
        if options[name] < 0 or (name == "groups" and not options[name]):
            raise GradletError(f"--{name} {options[name]}: it must be 1 or more")
    if layer == "linear":
        return numbers("--in", options["in"], (1,), 1, "N, such as 128"), {"out": options["out"]}
    attributes = {
        "out": options["out-channels"],
        "kernel": list(numbers("--kernel", options["kernel"], (1, 2), 1, "K or HxW, such as 3")),
        "stride": list(numbers("--stride", options["stride"], (1, 2), 1, "S or HxW, such as 2")),
        "padding": list(numbers("--pad", options["pad"], (1, 2, 4), 0, "P or HxW, such as 1")),
        "groups": options["groups"],
    }
    return numbers("--in", options["in"], (3,), 1, "CxHxW, such as 16x32x32"), attributes


@contextmanager
def _bar() -> Iterator[Any]:
    """What is done, of how much, and how long it will take."""
    columns = (
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int, text: str) -> None:
            if total:
                bar.update(task, completed=done, total=total, description=text)
            else:  # no part of the candidates
                bar.update(task, description=text)

        yield progress


def show(value: dict[str, Any]) -> None:
    if "nodes" in value:
        _show_project(value)
    else:
        _show_layer(value)
    print(
        f"{value['evaluations']} candidates measured, {value['cache_hits']} known from before, "
        f"{value['seconds']:.1f} s"
    )
    if value["model_error"] is not None:
        print(f"the planner's cost model is {100 * value['model_error']:.0f} % off (median)")


def _show_project(value: dict[str, Any]) -> None:
    table = Table(box=None)
    for column in ("node", "kernel", "tiles", "before", "after", "gain"):
        table.add_column(column, justify="left" if column in ("node", "kernel") else "right")
    for node in value["nodes"]:
        tiles = str(node["tile"]["tiles"]) if node["tile"] else ""
        gain = f"{node['before'] / node['after']:.2f} x" if node["after"] else ""
        cycles = (f"{node['before']:,}", f"{node['after']:,}")
        names = plain(node["name"], node["kernel"].removeprefix("gl_"))
        table.add_row(*names, tiles, *cycles, gain)
    console().print(table)
    rate = f", {value['mac_per_cycle']:.2f} MAC per cycle" if value["mac_per_cycle"] else ""
    print(
        f"a training step: {value['before_cycles']:,} -> {value['after_cycles']:,} cycles "
        f"({value['gain']:.2f} x{rate})"
    )


def _show_layer(value: dict[str, Any]) -> None:
    table = Table(box=None)
    for column in ("tiles", "buffers", "kernel", "cycles", "MAC/cycle"):
        table.add_column(column, justify="right" if column in ("cycles", "MAC/cycle") else "left")
    for row in value["all"][:SHOWN]:
        split = ", ".join(f"{name} by {size}" for name, size in row["split"]) or "whole"
        buffers = "double" if row["double_buffered"] else "single"
        rate = f"{row['mac_per_cycle']:.2f}"
        table.add_row(split, buffers, row["variant"], f"{row['cycles']:,}", rate)
    console().print(table)
