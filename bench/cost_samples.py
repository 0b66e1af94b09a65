"""What the cost model is fitted to: schedules of many calls, with their cycles on the simulator.

Calls are those of the zoo and of random layers, at several sizes of L1 and with operands in L3. Of
each, the planner's own schedule is measured, the best by its judgement, and random others that it
does not think far worse. What was measured is kept where the tuner keeps it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from common import stderr

import gradlet
from gradlet.errors import GradletError
from gradlet.ir.graph import Graph
from gradlet.planner.planner import Options, tiling_requests
from gradlet.planner.tile.schedule import ScheduleOverride
from gradlet.planner.tile.search import Candidate, Problem, along_one_axis, explored
from gradlet.targets import target as targets
from gradlet.targets.cost import Cost
from gradlet.tuner.cache import Cache
from gradlet.tuner.layer import layer_plan
from gradlet.tuner.measure import UNLIMITED
from gradlet.tuner.pool import Pool
from gradlet.tuner.search import Search, Settings
from gradlet.tuner.tune import Measuring

DEVICE = "pulp-open"
JOBS = 1
ZOO = (
    *((name, {"L1": "64k"}) for name in ("tutorial-cnn", "ds-cnn", "resnet8", "deep-ae")),
    *((name, {"L1": "64k"}) for name in ("rnn-har", "cct-tiny", "gru-kws")),
    *(("mobilenet-v1-025", {"L1": l1, "L3": "8M"}) for l1 in ("64k", "128k")),
    ("mobilenet-v1-025", {"L1": "64k", "L2": "512k", "L3": "8M"}),
    ("resnet8", {"L1": "32k"}),
    ("resnet8", {"L1": "64k", "L2": "256k", "L3": "8M"}),
    ("cct-tiny", {"L1": "32k", "L2": "384k", "L3": "8M"}),
    ("ds-cnn", {"L1": "32k"}),
    ("deep-ae", {"L1": "32k", "L2": "512k", "L3": "8M"}),
)
QUICK = tuple(case for case in ZOO if case[0] in ("tutorial-cnn", "ds-cnn"))
LAYERS = 36
BEST, OTHERS = 6, 8
"""Of each call: so many of the best estimated, and of others."""
WORST = 4.0
"""Times the cycles of the best estimated: what is thought to be slower is not measured."""


class Sampled(Search):
    """Everything is measured to its end."""

    limit = UNLIMITED


@dataclass(eq=False)
class Sample:
    """A call: what there is to choose, and cycles of some of it."""

    network: str
    call: str
    target: targets.Target
    search: Sampled
    problem: Problem
    room: int
    cycles: dict[Candidate, int] = field(default_factory=dict)

    def chosen(self, constants: Cost) -> Candidate:
        """By the planner, with these constants."""
        return explored(replace(self.problem, constants=constants), self.room)[0]

    def override(self, candidate: Candidate) -> ScheduleOverride | None:
        """With the best kernel that can."""
        axes, search = self.problem.axes, self.search
        split = tuple((axes[n].name, candidate.tile[n]) for n in candidate.order)
        variants = reversed(search.tiler.variants_of(search.call))
        ways = (ScheduleOverride(split, True, variant) for variant in variants)
        return next((way for way in ways if search.job(way)), None)


def networks(*, quick: bool) -> Iterator[tuple[str, Graph, Mapping[str, str]]]:
    for name, sizes in QUICK if quick else ZOO:
        graph = gradlet.training_graph(gradlet.capture(f"zoo:{name}"))
        yield name, graph, sizes
    draw = random.Random(7)
    for number in range(LAYERS // 6 if quick else LAYERS):
        op, layer, shape = _layer(draw)
        sizes = {"L1": draw.choice(("32k", "64k"))}
        if draw.random() < 0.4:
            sizes |= {"L2": draw.choice(("192k", "256k")), "L3": "8M"}
        try:
            graph = layer_plan(op, layer, shape, targets.load(DEVICE)).graph
        except GradletError:
            continue  # its window is larger than its map
        yield f"layer {number}: {op} {layer} of {shape}", graph, sizes


def _layer(draw: random.Random) -> tuple[str, dict[str, Any], list[int]]:
    if draw.random() < 0.2:
        shape = [draw.choice((64, 96, 200, 256, 640))]
        return "linear", {"out": draw.choice((10, 64, 128, 300))}, shape
    side, channels = draw.choice((8, 12, 16, 25, 32, 48)), draw.choice((3, 8, 16, 24, 32, 64, 128))
    kernel, groups = draw.choice((1, 3, 3, 3, 5)), 1
    out = draw.choice((8, 16, 32, 64, 128))
    if kernel == 3 and draw.random() < 0.4:
        groups = out = channels
    options = {"out": out, "kernel": kernel, "stride": draw.choice((1, 1, 2)), "groups": groups}
    return "conv2d", {**options, "padding": kernel // 2}, [channels, side, side]


def samples(*, quick: bool) -> list[Sample]:
    """Of all networks; calls that are alike are there once."""
    found: dict[object, Sample] = {}
    for name, graph, sizes in networks(quick=quick):
        target = targets.load(DEVICE, sizes=sizes)
        # a program of all candidates takes more than one network has
        roomy = targets.load(DEVICE, sizes={k: v for k, v in sizes.items() if k != "L2"})
        where = ", ".join(f"{key} {size}" for key, size in sizes.items())
        try:
            asked = tiling_requests(graph, target, Options())
        except GradletError:
            continue  # too large
        if asked is None:
            continue  # all data are near
        tiler, requests = asked
        for call, request in requests.items():
            likeness = tiler.cache_key(request)
            problem = tiler.problem(request, True)
            if likeness not in found and explored(problem, request.room):
                search = Sampled(request.call, tiler, request, Settings(), graph)
                network = f"{name}, {where}"
                found[likeness] = Sample(network, call, roomy, search, problem, request.room)
    return list(found.values())


def some(sample: Sample, seed: int) -> list[Candidate]:
    """The best estimated, and random others."""
    estimated = explored(sample.problem, sample.room)
    others = [*estimated[BEST:], *along_one_axis(sample.problem, sample.room)]
    others = [c for c in dict.fromkeys(others) if c.cost < WORST * estimated[0].cost]
    picked = random.Random(seed).sample(others, min(OTHERS, len(others)))
    return list(dict.fromkeys([*estimated[:BEST], *picked]))


def measure(wanted: Iterable[tuple[Sample, Candidate]]) -> None:
    """What is not known yet, network by network: each has a program."""
    able: dict[str, list[tuple[Sample, Candidate, ScheduleOverride]]] = {}
    for sample, candidate in wanted:
        override = None if candidate in sample.cycles else sample.override(candidate)
        if override is not None:
            able.setdefault(sample.network, []).append((sample, candidate, override))
    for number, (network, given) in enumerate(able.items()):
        searches = list({id(sample): sample.search for sample, _, _ in given}.values())
        with stderr.status(""):
            text = f"{number + 1} of {len(able)}: {len(given)} schedules of {network}"
            stderr.print(text, soft_wrap=True)
            quiet = Measuring(searches, given[0][0].target, Pool(JOBS), Cache(), lambda *_: None)
            quiet.measure([(sample.search, override) for sample, _, override in given])
        for sample, candidate, override in given:
            cycles = sample.search.cycles.get(override)
            if cycles:
                sample.cycles[candidate] = cycles
