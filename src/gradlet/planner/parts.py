"""The parts of a training step that run as a whole, and which tiled calls follow one another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gradlet.ir.graph import Graph
from gradlet.planner.model import Call


def parts(graph: Graph, calls: Sequence[Call]) -> dict[str, list[int]]:
    """Predicting, comparing with the target, learning, and updating where that has a time of its
    own, in the order of a training step, each with its calls."""
    losses = (tensor.name for tensor in graph.of_role("loss"))
    after_predict = {*losses, *(new for _, new in graph.updates)}
    members: dict[str, list[int]] = {"predict": [], "compare": [], "learn": []}
    if graph.accumulate > 1:
        members["update"] = []
    for index, call in enumerate(calls):
        if call.phase == "forward":
            predicts = after_predict.isdisjoint(call.outputs)
            members["predict" if predicts else "compare"].append(index)
        elif call.phase == "update" and "update" in members:
            members["update"].append(index)
        else:
            members["learn"].append(index)
    return members


def followers(graph: Graph, calls: Sequence[Call]) -> dict[int, int]:
    """From a call to the one right behind it, if both belong to one part and are neighbours in the
    plan: then the latter may begin to fetch while the former still computes."""
    found = {}
    for members in parts(graph, calls).values():
        for index, following in pairwise(members):
            if following == index + 1:
                found[index] = following
    return found
