"""The tuner against an exhaustive search, over layers of the zoo, and its speed.

The space of a call: every combination of tile sizes along its axes (each axis in 1, 2, 3, ... even
parts, in steps of a quarter from 5 parts on) that makes at most 64 tiles and fits into L1, with and
without copying ahead, with every kernel of the catalogue. Loops are in the order that copies least.
The exhaustive search runs all of it on the simulator; what has taken 1.2 times the cycles of the
best that is known is stopped there, or earlier where it is hopeless: that cannot change the best.

reached: cycles of the best of all, over those of the tuner's choice, both from the exhaustive run.
The tuner has its usual settings, and a memory of its own. set: the layers that the search was
shaped on; others that it met then, and was repaired by where it fell short; and those that it has
met only after that (held_out).

times_quicker: seconds to compile a program for one candidate and to simulate that, over the seconds
per candidate; all with empty caches, those of the compiler too. Of a group of calls, of the
exhaustive search and of the usual one; of a network, of its usual search and of `gradlet tune` as a
whole, with the training steps that are measured at its end, and the same in processor seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from alone import Seconds, alone, nothing_compiled, own_choices
from common import finish, parser, stderr
from rich.table import Table

import gradlet
from gradlet.planner.planner import Plan, plan
from gradlet.targets import target
from gradlet.tuner.cache import Cache
from gradlet.tuner.project import tune_project
from gradlet.tuner.tune import Settings, Tuned, tune

FARTHEST = {"mobilenet-v1-025": {"L3": "8M"}}
NETWORKS = (("ds-cnn", "64k"), ("resnet8", "64k"))


@dataclass(frozen=True)
class Group:
    """Calls of a network."""

    set: str
    model: str
    l1: str
    calls: tuple[str, ...]


GROUPS = (
    Group(
        "shaped_on",
        "ds-cnn",
        "64k",
        ("relu_1", "2.0.weight.next", "d_conv2d_0", "relu_2", "3.0.weight.next", "d_conv2d_1"),
    ),
    Group("shaped_on", "deep-ae", "64k", ("matmul_9", "18.weight.next", "d_matmul_8")),
    Group("shaped_on", "resnet8", "64k", ("relu_3", "2.conv1.0.weight.next")),
    Group(
        "repaired",
        "mobilenet-v1-025",
        "64k",
        (
            *("relu_1", "d_conv2d_4", "8.0.weight.next", "d_conv2d_9"),
            *("relu_3", "3.0.weight.next", "d_conv2d_6", "26.0.weight.next"),
        ),
    ),
    Group(
        "repaired",
        "mobilenet-v1-025",
        "32k",
        ("relu_5", "d_conv2d_8", "10.0.weight.next", "relu_26"),
    ),
    Group("repaired", "cct-tiny", "128k", ("matmul_1", "matmul_0", "d_reshape_12", "max_pool2d_0")),
    Group("repaired", "tutorial-cnn", "32k", ("relu_0", "0.weight.next", "matmul_0")),
    Group("repaired", "rnn-har", "32k", ("matmul_0", "matmul_1", "layer.weight_ih_l1.next")),
    Group(
        "held_out",
        "mobilenet-v1-025",
        "128k",
        ("relu_7", "d_conv2d_2", "5.0.weight.next", "relu_12"),
    ),
    Group("held_out", "cct-tiny", "64k", ("d_reshape_18", "d_normalize_3", "max_pool2d_1")),
    Group("held_out", "ds-cnn", "128k", ("d_conv2d_8",)),
    Group("held_out", "tutorial-cnn", "64k", ("relu_0", "matmul_0")),
    Group("held_out", "rnn-har", "32k", ("d_rnn_0", "layer.weight_ih_l0.next")),
)


def planned(model: str, l1: str) -> Plan:
    graph = gradlet.training_graph(gradlet.capture(f"zoo:{model}"))
    memories = {"L1": l1, **FARTHEST.get(model, {})}
    return plan(graph, target.load("pulp-open", sizes=memories))


def searched(given: Plan, group: Group, settings: Settings) -> Tuned:
    """With empty caches."""
    with nothing_compiled(), stderr.status("") as status:

        def progress(done: int, total: int, text: str) -> None:
            status.update(f"{group.model}, {group.l1}: {done} of {total} candidates")

        return tune(
            given,
            settings,
            cache=Cache(),
            progress=progress,
            only=lambda call: call.name in group.calls,
        )


def measured(group: Group) -> Iterator[dict[str, Any]]:
    """A row for every call, then one for the group."""
    given = planned(group.model, group.l1)
    every = searched(given, group, Settings(exhaustive=True))
    few = searched(given, group, Settings())
    ops = {node.name: node.op for node in given.graph.nodes}
    for number, node in enumerate(every.nodes):
        call = next(call for call in given.calls if call.name == node.name)
        other = few.nodes[number]
        chosen, cycles = other.override, every.measured[number]
        assert other.name == node.name
        assert chosen is not None
        best = min(cycles.values())
        found = cycles.get(chosen) or few.measured[number][chosen]
        yield {
            "kind": "call",
            "set": group.set,
            "model": group.model,
            "l1": group.l1,
            "call": node.name,
            "op": "+".join(ops[name] for name in call.nodes),
            "planned_cycles": node.before,
            "exhaustive_cycles": best,
            "exhaustive_evaluations": node.candidates,
            "tuned_cycles": found,
            "tuned_evaluations": other.candidates,
            "evaluation_share": other.candidates / node.candidates,
            "reached": best / found,
        }
    one = alone(given, own_choices(given, list(group.calls[:3]))).clock
    yield {
        "kind": "group",
        "set": group.set,
        "model": group.model,
        "l1": group.l1,
        "seconds_alone": one,
        "exhaustive_seconds": every.seconds,
        "exhaustive_evaluations": every.evaluations,
        "exhaustive_times_quicker": one * every.evaluations / every.seconds,
        "tuned_seconds": few.seconds,
        "tuned_evaluations": few.evaluations,
        "tuned_times_quicker": one * few.evaluations / few.seconds,
        "model_error": every.model_error,
    }


def network(model: str, l1: str) -> dict[str, Any]:
    """The usual search of a whole network, and all that `gradlet tune` does."""
    given = planned(model, l1)
    names = [call.name for call in given.calls if call.tiling and call.macs]
    one = alone(given, own_choices(given, names[:: max(1, len(names) // 5)]))
    with tempfile.TemporaryDirectory() as folder, nothing_compiled():
        project = gradlet.emit(given, Path(folder) / "p")
        begin = Seconds.now()
        first = tune_project(project).to_json()
        spent = Seconds.now() - begin
        second = tune_project(project.folder).to_json()
    count = first["evaluations"]
    return {
        "kind": "network",
        "model": model,
        "l1": l1,
        "evaluations": count,
        "seconds_alone": one.clock,
        "search_seconds": first["search_seconds"],
        "search_times_quicker": one.clock * count / first["search_seconds"],
        "seconds": spent.clock,
        "times_quicker": one.clock * count / spent.clock,
        "processor_seconds_alone": one.processors,
        "processor_seconds": spent.processors,
        "processor_times_quicker": one.processors * count / spent.processors,
        "second_seconds": second["seconds"],
        "before_cycles": first["before_cycles"],
        "after_cycles": first["after_cycles"],
    }


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    heads = ("set", "model", "call", "candidates", "tried", "best", "tuned", "reached", "quicker")
    for column in heads:
        table.add_column(column, justify="left" if column in heads[:3] else "right")
    for row in rows:
        where = f"{row['model']}, {row['l1']}"
        if row["kind"] == "call":
            table.add_row(row["set"], where, row["call"], *_shares(row))
        elif row["kind"] == "group":
            quicker = (row["exhaustive_times_quicker"], row["tuned_times_quicker"])
            table.add_row("", where, "exhaustive and usual", *[""] * 5, _times(quicker))
        else:
            table.add_row("network", where, "search and whole", *[""] * 5, _network_times(row))
    for name in dict.fromkeys(row["set"] for row in rows if "set" in row):
        own = [row for row in rows if row["kind"] == "call" and row["set"] == name]
        worst = f"{100 * min(row['reached'] for row in own):.1f} %"
        share = f"{100 * mean(row['evaluation_share'] for row in own):.1f} %"
        reached = f"{100 * mean(row['reached'] for row in own):.1f} %"
        table.add_row(name, "mean", f"worst {worst}", "", share, "", "", reached, "")
    return table


def _shares(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(row["exhaustive_evaluations"]),
        f"{100 * row['evaluation_share']:.1f} %",
        f"{row['exhaustive_cycles']:,}",
        f"{row['tuned_cycles']:,}",
        f"{100 * row['reached']:.1f} %",
        "",
    )


def _network_times(row: dict[str, Any]) -> str:
    return _times((row["search_times_quicker"], row["times_quicker"]))


def _times(values: tuple[float, float]) -> str:
    return " and ".join(f"{value:.0f} x" for value in values)


def main() -> None:
    options = parser(__doc__ or "")
    options.set_defaults(models=tuple(dict.fromkeys(group.model for group in GROUPS)))
    options.add_argument("--sets", nargs="+", default=["shaped_on", "repaired", "held_out"])
    arguments = options.parse_args()
    rows: list[dict[str, Any]] = []
    for model, l1 in NETWORKS:
        if model in arguments.models:
            rows.append(network(model, l1))
            stderr.print(f"{model}, {l1}: {_network_times(rows[-1])} quicker", soft_wrap=True)
    for group in GROUPS:
        if group.model in arguments.models and group.set in arguments.sets:
            rows += measured(group)
            own = [row for row in rows if row["kind"] == "call"][-len(group.calls) :]
            worst = f"{100 * min(row['reached'] for row in own):.1f} %"
            text = f"{group.set}, {group.model}, {group.l1}: {worst} and more"
            stderr.print(f"{text}, {rows[-1]['exhaustive_seconds']:.0f} s", soft_wrap=True)
    finish("tuner", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
