"""The commands of `gradlet bench`: what they ask, and how results are shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from gradlet.cli.failures import json_output, stderr
from gradlet.cli.options import settings, with_options
from gradlet.errors import GradletError
from gradlet.targets import target as targets

if TYPE_CHECKING:
    from gradlet.kernels.lab import Case, Report

ALIGNMENTS = 8
"""As gradlet.bench has it; to ask that would load all of it for a line of help."""
Step = Annotated[str, typer.Option(help="forward, weight_grad or input_grad.")]
Batch = Annotated[int, typer.Option(help="Samples.")]


@dataclass(frozen=True)
class BenchOptions:
    update: Annotated[
        str, typer.Option(help="Fused into the store, such as sgd, momentum or sum.")
    ] = ""
    dtype: Annotated[str, typer.Option(help="f32, f16 or bf16.")] = "f32"
    sums: Annotated[str, typer.Option(help="f32, or chunked: of 16 bits over a few terms.")] = "f32"
    target: Annotated[str, typer.Option(help="A device: a name or a .toml file.")] = targets.DEFAULT
    cores: Annotated[int | None, typer.Option(help="Cores of the cluster.")] = None
    l1: Annotated[str | None, typer.Option(help="Size of L1, such as 128k.")] = None
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the target: fpus=4.")
    ] = None
    alignments: Annotated[int, typer.Option(help="Places of the code to take the median over.")] = (
        ALIGNMENTS
    )
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False

    def device(self) -> targets.Target:
        sizes: dict[str, str | int] = {"L1": self.l1} if self.l1 else {}
        sizes |= settings(self.set_ or [])
        return targets.load(self.target, cores=self.cores, sizes=sizes).summed(self.sums)


@with_options(BenchOptions)
def gemm(
    options: BenchOptions,
    m: Annotated[int, typer.Option(help="Rows of the result.")],
    n: Annotated[int, typer.Option(help="Columns of the result.")],
    k: Annotated[int, typer.Option(help="Length of the sums.")],
    layout: Annotated[str, typer.Option(help="nn, nt (b is [n, k]) or tn (a is [k, m]).")] = "nn",
) -> int:
    """Measure a matrix product with every kernel that computes it."""
    from gradlet.kernels import lab

    return _show(options, lambda: lab.gemm(m, n, k, layout, options.update, options.dtype))


@with_options(BenchOptions)
def conv2d(
    options: BenchOptions,
    shape: Annotated[str, typer.Option("--in", help="Of the input: CxHxW.")],
    out_channels: Annotated[int, typer.Option(help="Channels of the output.")],
    kernel: Annotated[str, typer.Option(help="K or HxW.")],
    step: Step,
    stride: Annotated[str, typer.Option(help="S or HxW.")] = "1",
    pad: Annotated[str, typer.Option(help="P, HxW, or TOPxLEFTxBOTTOMxRIGHT.")] = "0",
    dilation: Annotated[str, typer.Option(help="D or HxW.")] = "1",
    groups: Annotated[int, typer.Option(help="The number of channels: depthwise.")] = 1,
    layout: Annotated[str, typer.Option(help="Of the maps: chw, hwc or chw2.")] = "chw",
    batch: Batch = 1,
) -> int:
    """Measure one step of a convolution with every kernel that computes it."""
    from gradlet.kernels import lab

    def case() -> Case:
        image = numbers("--in", shape, (3,), 1, "CxHxW, such as 16x32x32")
        size = numbers("--kernel", kernel, (1, 2), 1, "K or HxW, such as 3 or 10x4")
        steps = numbers("--stride", stride, (1, 2), 1, "S or HxW, such as 2")
        sides = numbers("--pad", pad, (1, 2, 4), 0, "P, HxW or TOPxLEFTxBOTTOMxRIGHT, such as 1")
        spread = numbers("--dilation", dilation, (1, 2), 1, "D or HxW, such as 2")
        top, left = (sides * 2)[:2]
        bottom, right = sides[2:] if len(sides) == 4 else (top, left)
        return lab.conv2d(
            image,
            out_channels,
            (size[0], size[-1]),
            (steps[0], steps[-1]),
            (top, left, bottom, right),
            groups,
            batch,
            step,
            options.update,
            (spread[0], spread[-1]),
            layout,
            options.dtype,
        )

    return _show(options, case)


@with_options(BenchOptions)
def linear(
    options: BenchOptions,
    in_features: Annotated[int, typer.Option("--in", help="Features of the input.")],
    out_features: Annotated[int, typer.Option("--out", help="Features of the output.")],
    step: Step,
    batch: Batch = 1,
) -> int:
    """Measure one step of a fully connected layer with every kernel that computes it."""
    from gradlet.kernels import lab

    return _show(
        options,
        lambda: lab.linear(in_features, out_features, batch, step, options.update, options.dtype),
    )


def numbers(
    option: str, text: str, counts: tuple[int, ...], least: int, form: str
) -> tuple[int, ...]:
    parts = text.lower().split("x")
    right = all(re.fullmatch(r"[0-9]{1,9}", part) and int(part) >= least for part in parts)
    if not right or len(parts) not in counts:
        raise GradletError(f"{option} {text}: write it as {form}")
    return tuple(int(part) for part in parts)


def _show(options: BenchOptions, wanted: Callable[[], Case]) -> int:
    from gradlet.kernels import lab

    device, case, alignments = options.device(), wanted(), options.alignments
    if alignments < 1:
        raise GradletError(f"--alignments {alignments}: it must be 1 or more")
    with stderr.status(Text(case.label)) as status:
        report = lab.measure(case, device, alignments=alignments, progress=status.update)
    if options.json_:
        json_output.write(report.to_json())
    else:
        _tables(report)
    return 0 if report.passed else 1


def _tables(report: Report) -> None:
    """One line per kernel, however long: it is there to be compared and copied."""
    case = report.case
    print(f"{case.label}: {case.macs:,} multiply-adds on {report.target.cores} cores")
    wide = max(len(row.kernel) for row in report.rows)
    heads = ("cycles", "range", "MAC/cycle", "instr./MAC", "of issue limit")
    print(
        f"{'kernel':<{wide}}{heads[0]:>12}{heads[1]:>24}{heads[2]:>11}{heads[3]:>12}{heads[4]:>16}"
    )
    for row in report.rows:
        stalls = sorted(row.stalls.items(), key=lambda item: -item[1])
        causes = ", ".join(f"{name} {100 * part:.1f} %" for name, part in stalls if part >= 0.005)
        limit = f"{100 * row.busiest / row.cycles:.1f} %"
        print(
            f"{row.kernel:<{wide}}{row.cycles:>12,}{f'{row.least:,} - {row.most:,}':>24}"
            f"{row.mac_per_cycle:>11.2f}{row.instructions / row.macs:>12.2f}{limit:>16}  {causes}"
        )
    l1 = report.target.memories[0].name
    for name, needed in report.too_large:
        print(f"{name:<{wide}}  left out: with its scratch it takes {needed:,} bytes of {l1}")
    for row in report.rows:
        if not row.same_bits:
            stderr.print(f"[bold red]{row.kernel}: other bits than its C on this machine[/]")
        if not row.right:
            stderr.print(f"[bold red]{row.kernel}: farther from float64 than rounding explains[/]")
