"""Random networks on devices with little memory: a seed makes a plan that runs tile by tile."""

from __future__ import annotations

import random
from collections.abc import Callable

from gradlet.errors import DoesNotFit
from gradlet.frontends.passes.layout import lay_out
from gradlet.ir.graph import Graph
from gradlet.planner.planner import Options, Plan
from gradlet.planner.planner import plan as plan_data
from gradlet.targets.target import load as load_target
from gradlet.training.autodiff import train
from tests.networks import drawn

Planner = Callable[..., Plan]
LEAST = 2400  # below this there is hardly room for the tables of tiles
STEP = 256  # of the sizes of memories


def tight(seed: int, share: float | None = None, plan: Planner = plan_data) -> Plan:
    """share: between nothing (0) and all data in the nearest memory (1)."""
    chance = random.Random(seed)
    graph = _graph(seed, chance)
    cores, buffers = chance.choice((1, 2, 8)), chance.choice(("auto", "double", "single"))
    share = chance.random() ** 2 if share is None else share
    need = plan_data(graph, load_target("host", cores=cores)).used
    l1 = _stepped(_stacks(cores) + LEAST * (max(need, LEAST) / LEAST) ** share)
    if chance.random() < 0.25:
        return _with_l3(graph, cores, buffers, l1, need, chance.uniform(0.3, 0.9), plan)
    target = load_target("pulp-open", cores=cores, sizes={"L1": l1})
    return plan(graph, target, options=Options(buffers=buffers))


def _graph(seed: int, chance: random.Random) -> Graph:
    forward, recipe, targets = drawn(seed, large=True)
    if chance.random() < 0.3:
        forward = lay_out(forward, "hwc")
    return train(forward, recipe, targets)


def _stepped(size: float) -> int:
    return -(-int(size) // STEP) * STEP


def _stacks(cores: int) -> int:
    target = load_target("pulp-open", cores=cores)
    return target.memories[0].size - target.room(target.memories[0])


def _with_l3(
    graph: Graph, cores: int, buffers: str, l1: int, need: int, share: float, plan: Planner
) -> Plan:
    """With an L2 for a share of the data and for the tables."""
    l2 = load_target("pulp-open").code + 4096 + int(need * share)
    while True:
        sizes: dict[str, str | int] = {"L1": l1, "L2": _stepped(l2), "L3": "8M"}
        try:
            target = load_target("pulp-open", cores=cores, sizes=sizes)
            return plan(graph, target, options=Options(buffers=buffers))
        except DoesNotFit:
            l2 += need // 2 + 4096
