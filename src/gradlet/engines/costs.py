"""A run with the plan beside it: what each node cost, as JSON and as a table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from gradlet.codegen.project import Project
from gradlet.engines.model import Run
from gradlet.engines.roofline import Bound, bound
from gradlet.support.terminal import console, plain


def run_json(project: Project, run: Run) -> dict[str, Any]:
    """Nodes and multiply-adds per cycle are those of the last step: its caches are warm."""
    plan = project.plan
    times = {call.name: plan.graph.accumulate for call in plan.calls}
    times.update({call.name: 1 for call in plan.calls if call.phase == "update"})
    nodes, total_bound = [], Bound(0.0, 0.0)
    for index, node in enumerate(project.manifest["nodes"]):
        cost = run.nodes[index].to_json() if run.nodes else {"cycles": None}
        macs = node["macs"] * times[node["name"]]
        least = None
        if run.nodes:
            own = bound(plan, plan.calls[index]) * times[node["name"]]
            least, total_bound = _bound_json(own, run.nodes[index].cycles), total_bound + own
        reached = {"mac_per_cycle": rate(macs, cost["cycles"]), "bound": least}
        nodes.append({**node, **cost, **reached})
    total = sum(call.macs * times[call.name] for call in plan.calls)
    last = run.cycles[-1] if run.cycles else None
    return {
        **run.to_json(),
        "dtypes": plan.graph.dtypes,
        "mac_per_cycle": rate(total, last),
        "bound": _bound_json(total_bound, run.cycles[-1]) if run.nodes else None,
        "transfers": _transfers(run),
        "nodes": nodes,
    }


def _transfers(run: Run) -> dict[str, Any] | None:
    """Copying between memories in the last step: its cycles, and how many of them were seen."""
    cycles = sum(node.transfers for node in run.nodes)
    visible = sum(node.waiting for node in run.nodes)
    return (
        {"cycles": cycles, "visible": visible, "hidden": 1 - visible / cycles} if cycles else None
    )


def _bound_json(least: Bound, cycles: int) -> dict[str, float]:
    """What is possible at best, and the share of it that is reached."""
    return {
        "issue": least.issue,
        "transfers": least.copying,
        "cycles": least.cycles,
        "reached": least.cycles / cycles,
    }


def rate(macs: int, cycles: int | None) -> float | None:
    return macs / cycles if cycles else None


def show_run(value: dict[str, Any]) -> None:
    cycles, seconds = value["cycles"], value["seconds"]
    for step, loss in enumerate(value["loss"]):
        spent = f"{cycles[step]:>12,} cycles" if cycles else f"{seconds[step] * 1e6:8.1f} us"
        print(f"step {step:4}: loss {loss:<10.6g} {spent}")
    if value["cores"]:
        _show_nodes(value)
        _show_cores(value)
    copying = value["transfers"]
    if copying:
        print(
            f"transfers between memories: {copying['cycles']:,} cycles, of which the cores wait "
            f"{copying['visible']:,} ({100 * copying['hidden']:.1f} % hidden)"
        )
    if value["mac_per_cycle"]:
        print(f"last step: {value['mac_per_cycle']:.3f} multiply-adds per cycle")
    if value["bound"]:
        print(_bound_text(value["bound"]))


def _bound_text(least: dict[str, float]) -> str:
    return (
        f"bound of a step: {least['cycles']:,.0f} cycles ({least['issue']:,.0f} to issue its "
        f"instructions, {least['transfers']:,.0f} for transfers); "
        f"{100 * least['reached']:.1f} % of it reached"
    )


def _show_nodes(value: dict[str, Any]) -> None:
    table = Table(box=None)
    table.add_column("node")
    table.add_column("kernel")
    for column in (
        "cycles",
        "share",
        "instructions",
        "MAC/cycle",
        "tiles",
        "waiting",
        "bound",
        "reached",
    ):
        table.add_column(column, justify="right")
    for node in value["nodes"]:
        reached = f"{node['mac_per_cycle']:.3f}" if node["macs"] else ""
        share = f"{100 * node['cycles'] / value['cycles'][-1]:.1f} %"
        tiles = str(node["tile"]["tiles"]) if node["tile"] else ""
        waiting = f"{node.get('waiting', 0):,}" if node["tile"] else ""
        row = (f"{node['cycles']:,}", share, f"{node['instructions']:,}", reached, tiles, waiting)
        least = node["bound"]
        by = "transfers" if least["transfers"] > least["issue"] else "issue"
        possible = (f"{least['cycles']:,.0f} {by}", f"{100 * least['reached']:.1f} %")
        kernel = node["kernel"].removeprefix("gl_")
        table.add_row(*plain(node["name"], kernel, *row, *possible))
    console().print(table)


def _show_cores(value: dict[str, Any]) -> None:
    """Where the cycles of the last step went, on the average of the cores."""
    cores, step = value["cores"], value["cycles"][-1]
    sums = Counter({"instructions": sum(core["instructions"] for core in cores)})
    for core in cores:
        sums.update(core["stalls"])
    spent = [
        f"{name.replace('_', ' ')} {100 * count / len(cores) / step:.1f} %"
        for name, count in sums.most_common()
        if count >= len(cores) * step / 1000
    ]
    print(f"cycles of a core: {', '.join(spent)}")
