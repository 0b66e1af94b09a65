"""What the commands show of their results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gradlet.support.terminal import console, plain

if TYPE_CHECKING:
    from gradlet.planner.planner import Plan
    from gradlet.verifier.verify import Verdict

SAME_BITS = {"host": "the same with every compiler", "sim": "the same as on the host"}


EACH = "all"
"""As a type of numbers: every one of them, side by side."""


def type_row(dtype: str, plan: Plan) -> dict[str, Any]:
    """What a step takes with numbers of a type, in bytes of all memories together."""
    from gradlet.planner.model import FARTHEST, KINDS, L1

    regions = {k: sum(map(plan.region_bytes, (k, L1 + k, FARTHEST + k))) for k in KINDS}
    taken = {memory.name: plan.taken(memory) for memory in plan.target.memories}
    fits = all(map(plan.fits, plan.target.memories))
    return {"dtype": dtype, **regions, "used": sum(taken.values()), "levels": taken, "fits": fits}


def types_table(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(box=None)
    heads = ("numbers", "weights, state", "arena", "constants", *rows[0]["levels"], "all", "of f32")
    for head in heads:
        table.add_column(head, justify="left" if head == heads[0] else "right")
    for row in rows:
        kinds = (row["weights"], row["arena"], row["constants"], *row["levels"].values())
        numbers = (f"{value:,}" for value in (*kinds, row["used"]))
        share = f"{row['used'] / rows[0]['used']:.2f}"
        table.add_row(row["dtype"], *numbers, share, "" if row["fits"] else "does not fit")
    console().print(table)


def numbers_text(dtypes: Mapping[str, Sequence[str]]) -> str:
    """Such as `weights f32, activations f16 and f32`; alike ones once."""
    if len({tuple(kinds) for kinds in dtypes.values() if kinds}) == 1:
        return " and ".join(next(kinds for kinds in dtypes.values() if kinds))
    return ", ".join(f"{what} {' and '.join(kinds)}" for what, kinds in dtypes.items() if kinds)


def build_json(folder: Path, plan: Plan) -> dict[str, Any]:
    from gradlet.codegen.view import parameter_count

    return {
        "project": str(folder),
        "model": plan.graph.name,
        "target": plan.target.name,
        "cores": plan.target.cores,
        "layout": plan.graph.layout,
        "dtypes": plan.graph.dtypes,
        "params": parameter_count(plan),
        "trained": list(plan.graph.trained),
        "macs": plan.macs(),
        "memory": plan.memory(),
        "calls": len(plan.calls),
        "kernels": sorted({call.kernel.name for call in plan.calls}),
    }


def build_table(folder: Path, plan: Plan) -> None:
    from gradlet.codegen.view import parameter_count

    macs = plan.macs()
    table = Table(box=None, show_header=False)
    model = f"{plan.graph.name}: {parameter_count(plan):,} parameters"
    table.add_row("model", *plain(model))
    table.add_row("target", *plain(f"{plan.target.name}, {plan.target.cores} core(s)"))
    table.add_row("numbers", *plain(numbers_text(plan.graph.dtypes)))
    table.add_row(
        "multiply-adds",
        f"{macs['forward']:,} forward, {macs['weight_grad']:,} weight gradient, "
        f"{macs['input_grad']:,} input gradient",
    )
    ratio = plan.used / plan.lower_bound
    used = [
        f"{plan.taken(memory):,} of {memory.size:,} bytes of {memory.name}"
        for memory in plan.target.memories
        if plan.taken(memory)
    ]
    bound = f"lower bound {plan.lower_bound:,} ({ratio:.3f} x)"
    table.add_row("memory", f"{' and '.join(used)}; {bound}")
    tiled = sum(tiling.count > 1 for tiling in plan.tilings)
    if plan.tilings:
        count = sum(tiling.count for tiling in plan.tilings)
        table.add_row("tiles", f"{count:,} in {tiled} of {len(plan.calls)} calls")
    elif plan.level != plan.target.memories[0]:
        table.add_row(
            "tiles",
            f"none: all is computed where it lies, in {plan.level.name}, which is slow. Without "
            "room for tiles, a smaller --update or --batch makes some",
        )
    following = f"gradlet verify {shlex.quote(str(folder))}"
    table.add_row("project", *plain(f"{folder}   (next: {following})"))
    console().print(table)


def verdict_table(verdict: Verdict) -> None:
    from gradlet.codegen.folder import listing

    table = Table(box=None)
    for column in ("tensor", "role", "module", "max error", "relative", "of tolerance"):
        table.add_column(column)
    for row in verdict.tensors:
        share = f"{100 * row.share:.1f} %"
        mark = share if row.passed else f"[bold red]{share} WRONG[/]"
        table.add_row(
            *plain(row.name, row.role, row.module, f"{row.max_abs:.2e}", f"{row.max_rel:.2e}"),
            Text.from_markup(mark),
        )
    out = console()
    out.print(table)
    for step, (computed, expected, tol) in enumerate(verdict.losses, start=1):
        wrong = "" if abs(computed - expected) <= tol else "  [bold red]WRONG[/]"
        out.print(f"step {step}: loss {computed:.7g}, PyTorch {expected:.7g}{wrong}")
    if verdict.diverged is not None:
        out.print(_divergence(verdict))
    if verdict.chaotic is not None:
        out.print(_chaos(verdict, *verdict.chaotic))
    own = sum(row.oracle == "module" for row in verdict.tensors)
    if verdict.no_module:
        out.print(f"not compared with the module itself: {verdict.no_module}", markup=False)
    elif own:
        out.print(f"compared with the module itself: {own} losses, gradients and weights")
    wrong_row = verdict.first_wrong
    if wrong_row is not None:
        out.print(
            Text(
                f"first wrong node: {wrong_row.node} (module '{wrong_row.module}'); its inputs and "
                f"outputs are in {verdict.saved}"
            )
        )
    for engine, same in verdict.bit_identical.items():
        out.print(f"bits on {engine}: {SAME_BITS[engine] if same else '[bold red]differ[/]'}")
    for program in verdict.shipped.golden:
        said = "[bold red]FAIL[/]" if program.problem else "passes, with the bits of this run"
        out.print(f"golden program, {program.build}: {said}")
    for difference in verdict.shipped.differences:
        out.print(f"[bold red]{escape(difference)}[/]")
    if verdict.changes:
        text = f"not as it was built: {listing(verdict.changes)}; --edited lets it pass as it is"
        out.print(text, markup=False, highlight=False, soft_wrap=True)
    outcome = "[bold green]PASS[/]" if verdict.passed else "[bold red]FAIL[/]"
    out.print(f"{len(verdict.tensors)} tensors, {verdict.steps} steps: {outcome}")


def _divergence(verdict: Verdict) -> str:
    return (
        f"[bold yellow]training diverges in step {verdict.diverged}[/]: in PyTorch as well, values "
        f"become infinite, no number, or more than float32 holds. That is no fault of the code; a "
        f"smaller --lr helps. {_judged(verdict, 'what comes before that is judged')}"
    )


def _chaos(verdict: Verdict, step: int, change: float) -> str:
    rest = "each node is judged on what was computed before it"
    return (
        f"[bold yellow]from step {step} on training is chaotic[/]: rounding alone may change the "
        f"loss by {change:.2g}, in PyTorch as well. That is no fault of the code; a smaller --lr "
        f"or a larger --batch helps. {_judged(verdict, rest)}"
    )


def _judged(verdict: Verdict, of_the_first: str) -> str:
    return (
        f"steps 1 to {verdict.steps} are judged" if verdict.steps else f"Of step 1, {of_the_first}"
    )
