"""One command per verb; no logic. Results on stdout, progress and messages on stderr.

Exit status: 0 done, 1 a check failed, 2 bad use or a model that does not fit, 3 a fault of ours.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import gradlet
from gradlet.cli import bench as cli_bench
from gradlet.cli import tune as cli_tune
from gradlet.cli.failures import fail, guarded, json_output, run_app, stderr
from gradlet.cli.options import ModelOptions, settings, with_model_options
from gradlet.cli.progress import progress
from gradlet.cli.show import (
    EACH,
    build_json,
    build_table,
    type_row,
    types_table,
    verdict_table,
)
from gradlet.errors import GradletError
from gradlet.sim import DEFAULT_MAX_CYCLES, SimConfig, SimError, simulate
from gradlet.support import interrupt
from gradlet.support.terminal import console, plain
from gradlet.targets import target as targets

if TYPE_CHECKING:  # a command imports what it needs, so that `gradlet --help` answers at once
    from gradlet.api import Captured, Request
    from gradlet.planner.planner import Plan

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"gradlet {gradlet.__version__}")
        raise typer.Exit(0)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """From a PyTorch or ONNX model to C that trains on a microcontroller, and proof of it."""


Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that were edited.")]
Folder = Annotated[Path, typer.Argument(help="A project made by `gradlet build`.")]


def command(function: Callable[..., int | None], group: typer.Typer = app) -> Callable[..., None]:
    """Register a verb; what it raises becomes a message and an exit status (`cli/failures.py`)."""
    run = guarded(function)
    group.command(name=function.__name__.rstrip("_"))(run)
    return run


@command
@with_model_options
def build(
    options: ModelOptions,
    folder: Annotated[Path, typer.Option("-o", "--folder", help="Of the project.")],
    force: Force = False,
    json_: Json = False,
) -> None:
    """Turn a model into a C project that trains it."""
    from gradlet.codegen.install import refuse_foreign

    refuse_foreign(folder, force=force)
    request, captured = _captured(options)
    plan = _planned(request, captured)
    with progress("recording what the model itself does in training"):
        recording = request.recorded(captured, plan)
    with progress("writing the project and its golden data"):
        project = gradlet.emit(plan, folder, recording, force=force)
    value = {**build_json(project.folder, plan), "notes": list(captured.notes)}
    _show(json_, value, lambda: build_table(project.folder, plan))


@command
@with_model_options
def memory(
    options: ModelOptions,
    csv: Annotated[Path | None, typer.Option(help="Write the layers to this file.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the memory over the step.")] = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Show what takes the memory: by layer and step, at the peak, over time.

    Also for a model that does not fit. With --dtype all the types of numbers stand side by side.
    """
    from gradlet.reports import memory_report
    from gradlet.reports.svg import is_svg
    from gradlet.reports.table import is_csv
    from gradlet.support.files import write_output

    if options.dtype == EACH:
        rows = _by_type(options, csv or svg)
        return _show(json_, {"dtypes": rows}, lambda: types_table(rows))
    report = memory_report(_planned(*_captured(options), fit=False))
    for path, text, ours in ((csv, report.csv, is_csv), (svg, report.svg, is_svg)):
        if path is not None:
            write_output(path, text().encode(), ours, force=force)
    _show(json_, report.to_json(), lambda: print(report))


def _by_type(options: ModelOptions, file: Path | None) -> list[dict[str, Any]]:
    """The memory of a step in every type of numbers."""
    from gradlet.ir.recipe import DTYPES

    if file is not None:
        raise GradletError(f"--dtype {EACH} is a table of totals; {file} takes a single type")
    request, captured = _captured(replace(options, dtype=None))
    rows = []
    for kind in DTYPES:
        chosen = replace(request, recipe=replace(options, dtype=kind).recipe)
        rows.append(type_row(kind, _planned(chosen, captured, fit=False)))
    return rows


def _captured(options: ModelOptions) -> tuple[Request, Captured]:
    from gradlet.api import Request
    from gradlet.frontends.passes.layout import check_layout
    from gradlet.planner.planner import Options

    check_layout(options.layout)
    request = Request(
        options.model,
        options.target,
        options.cores,
        options.sizes(),
        options.layout,
        options.prefix,
        options.recipe,
        options.capture_options(),
        Options(buffers=options.buffers, exact=options.exact, sums=options.sums),
    )
    request.device()  # a wrong one is told at once
    with progress(f"capturing {options.model}"), warnings.catch_warnings():
        warnings.simplefilter("ignore", gradlet.Note)
        captured = request.captured()
    for note in captured.notes:
        stderr.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    return request, captured


def _planned(request: Request, captured: Captured, *, fit: bool = True) -> Plan:
    with progress("deriving the backward pass and planning the memory"):
        return request.plan(captured, fit=fit)


@command
def run(
    project: Folder,
    engine: Annotated[
        str | None, typer.Option(help="sim, gvsoc or host.  [default: the target's own]")
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 5,
    gvsoc: Annotated[Path | None, typer.Option(help="GVSoC's command or folder.")] = None,
    json_: Json = False,
) -> None:
    """Train for some steps on the project's own samples."""
    from gradlet.engines.costs import run_json, show_run

    loaded = gradlet.load(project)
    engine = engine or loaded.plan.target.engine
    options = {"gvsoc": gvsoc} if engine == "gvsoc" else {}
    with progress(f"training {steps} steps on the {engine} engine"):
        result = gradlet.run(loaded, engine=engine, steps=steps, **options)
    changes = loaded.changes
    value = {**run_json(loaded, result), "changes": list(changes)}
    _note_changes(changes)
    _show(json_, value, lambda: show_run(value))


@command
def verify(
    project: Folder,
    steps: Annotated[int, typer.Option(help="Training steps to compare.")] = 5,
    engine: Annotated[
        str | None, typer.Option(help="sim or host.  [default: the target's own]")
    ] = None,
    edited: Annotated[
        bool, typer.Option("--edited", help="Files that were edited after the build may pass.")
    ] = False,
    json_: Json = False,
) -> int:
    """Compare every activation, gradient and weight with PyTorch in float64."""
    loaded = gradlet.load(project)
    try:
        with progress(f"training {steps} steps in C and in PyTorch"):
            verdict = gradlet.verify(loaded, steps=steps, engine=engine, edited=edited)
    except SimError as error:  # to find that is what verify is for
        return fail(error, json_, {"program": project})
    _show(json_, verdict.to_json(), lambda: verdict_table(verdict))
    return 0 if verdict.passed else 1


@command
def tune(
    project: cli_tune.ProjectFolder = None,
    layer: cli_tune.Layer = "",
    in_: Annotated[str, typer.Option("--in", help="Of a layer: input CxHxW, or features.")] = "",
    out: Annotated[int, typer.Option(help="Of a linear layer: features.")] = 0,
    out_channels: Annotated[int, typer.Option(help="Of a conv2d.")] = 0,
    kernel: Annotated[str, typer.Option(help="Of a conv2d: K or HxW.")] = "",
    stride: Annotated[str, typer.Option(help="Of a conv2d.")] = "1",
    pad: Annotated[str, typer.Option(help="Of a conv2d.")] = "0",
    groups: Annotated[int, typer.Option(help="Of a conv2d; its channels: depthwise.")] = 1,
    step: Annotated[str, typer.Option(help="forward, input_grad or weight_grad of it.")] = "",
    target: Annotated[str, typer.Option(help="For a layer: a device.")] = targets.DEFAULT,
    cores: Annotated[int | None, typer.Option(help="For a layer.")] = None,
    l1: Annotated[str | None, typer.Option(help="For a layer: size of L1.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="For a layer: KEY=VALUE.")] = None,
    keep: cli_tune.Keep = cli_tune.KEEP,
    exhaustive: cli_tune.Exhaustive = False,
    jobs: cli_tune.Jobs = 0,
    dask: cli_tune.Dask = "",
    exact: cli_tune.Exact = False,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Measure tiles and kernels on the simulator, and take the quickest of each node."""
    options = {"in": in_, "out-channels": out_channels, "kernel": kernel, "stride": stride}
    options |= {"out": out, "pad": pad, "groups": groups, "step": step}
    device = {"target": target, "cores": cores, "l1": l1, "set": set_, "exact": exact}
    chosen = cli_tune.settings_of(keep, exhaustive)
    result = cli_tune.tune_command(project, layer, options, device, chosen, jobs, dask, force)
    value = result.to_json()
    _show(json_, value, lambda: cli_tune.show(value))


@command
def sim(
    program: Annotated[Path, typer.Argument(help="A bare-metal ELF of the target.")],
    target: Annotated[
        str, typer.Option(help="A device: a name or a .toml file.")
    ] = targets.DEFAULT,
    cores: Annotated[int | None, typer.Option(help="Cores of the cluster.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the target, such as fpus=4.")
    ] = None,
    max_cycles: Annotated[int, typer.Option(help="Give up after so many.")] = DEFAULT_MAX_CYCLES,
    trace: Annotated[bool, typer.Option("--trace", help="Every instruction, on stderr.")] = False,
    json_: Json = False,
) -> int:
    """Run any bare-metal program on the simulated cluster and count its cycles."""
    chosen: dict[str, object] = dict(settings(set_ or []))
    if cores is not None:
        chosen["cores"] = cores
    config = SimConfig.load(target, chosen)
    show_line = (lambda line: print(line, file=sys.stderr)) if trace else None
    result = simulate(program, config, max_cycles=max_cycles, trace=show_line)

    def show() -> None:
        print(result.stdout, end="")
        print(result.summary(), file=sys.stderr)

    _show(json_, result.as_json(), show)
    return 0 if result.exit_code == 0 else 1


@command
def doctor(json_: Json = False) -> int:
    """Say what this machine has, and what is missing for which verb."""
    from gradlet.cli import doctor

    findings = doctor.examine()

    def show() -> None:
        table = Table(box=None)
        for column in ("", "part", "found", "needed for"):
            table.add_column(column)
        for finding in findings:
            mark = "[green]ok[/]" if finding.present else "[yellow]--[/]"
            table.add_row(
                Text.from_markup(mark), *plain(finding.name, finding.detail, finding.purpose)
            )
        console().print(table)

    _show(json_, {"findings": [finding.to_json() for finding in findings]}, show)
    return 0 if all(finding.present for finding in findings if finding.required) else 1


bench = typer.Typer(no_args_is_help=True, help="Measure kernels on the simulated cluster.")
bench_layer = typer.Typer(no_args_is_help=True, help="Measure one step of one layer.")
app.add_typer(bench, name="bench")
bench.add_typer(bench_layer, name="layer")
command(cli_bench.gemm, bench)
command(cli_bench.conv2d, bench_layer)
command(cli_bench.linear, bench_layer)


def _show(as_json: bool, value: dict[str, Any], show: Callable[[], None]) -> None:
    if as_json:
        json_output.write(value)
    else:
        show()


def _note_changes(changes: Sequence[str]) -> None:
    from gradlet.codegen.folder import listing

    if changes:
        stderr.print(
            f"note: this is not the project that was built: {listing(changes)}. It runs as it is",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def main() -> None:
    interrupt.end()
    run_app(app, sys.argv[1:])


if __name__ == "__main__":
    main()
