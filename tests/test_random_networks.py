"""A thousand random networks: every gradient in float64 against PyTorch, and some of them in C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import gradlet
from gradlet.ir.elements import ELEMENTS
from gradlet.ir.graph import Graph
from gradlet.ops import OPS
from gradlet.ops.cast import name_of
from gradlet.oracle.interpreter import run_reference
from gradlet.planner.planner import plan
from gradlet.targets.target import load as load_target
from gradlet.verifier.torch_oracle import run_oracle
from tests.networks import network

COUNT, BATCH = 1000, 100
# indices, sequences and random draws have networks of their own among the models
OF_SEQUENCES = ("gather", "rnn", "lstm", "gru", "gru_reset", "recurrent_weight", "delay")
BESIDE_THE_GRADIENTS = ("blend", "variance", "dropout", "dropout_step", "reset", "set_rows")

OF_SCALES = (
    *("scale_seed", "overflow", "scale_gate", "scale_neutral", "scale_next"),
    *("unscale", "unscale_wide"),
)


def assert_gradients(graph: Graph, seed: int) -> None:
    """Every activation, gradient, update and loss equals PyTorch's but for the order of sums."""
    step = next(iter(run_reference(graph, 1)))
    oracle = run_oracle(graph, 1)
    compared = set()
    for name, expected in oracle.values.items():
        if graph.tensors[name].role in ("activation", "loss", "gradient", "updated"):
            scale = max(float(np.abs(expected).max()), 1.0)
            error = float(np.abs(step.values[name] - expected).max())
            assert error <= 1e-10 * scale, f"network({seed}): {name} is off by {error}"
            compared.add(name)
    assert {grad for _, grad in graph.grads} <= compared | {"d_loss"}, f"network({seed})"
    losses = abs(step.loss - oracle.losses[0])
    assert losses <= 1e-10 * max(1.0, abs(step.loss)), f"network({seed})"


@pytest.mark.parametrize("start", range(0, COUNT, BATCH))
def test_gradients_of_random_networks(start: int) -> None:
    torch.set_num_threads(1)
    for seed in range(start, start + BATCH):
        assert_gradients(network(seed), seed)


def test_plans_of_random_networks() -> None:
    """The plan passes the independent checker, and its memory is near the lower bound."""
    for seed in range(0, COUNT, 10):
        graph = network(seed)
        assert Graph.loads(graph.dumps()) == graph
        result = plan(graph, load_target("host", cores=3))
        assert result.used <= 1.10 * result.lower_bound + 12 * len(result.buffers), seed


def test_random_networks_draw_nearly_every_op() -> None:
    drawn = {node.op for seed in range(COUNT) for node in network(seed).nodes}
    never = {name.removesuffix("_grad") for name in set(OPS) - drawn}
    casts = {name_of(element.name) for element in ELEMENTS.values() if element.is_float}
    assert never <= {*OF_SEQUENCES, *BESIDE_THE_GRADIENTS, *OF_SCALES, *casts}, never


@pytest.mark.parametrize("seed", range(0, 80, 10))
def test_random_networks_in_c(seed: int, tmp_path: Path) -> None:
    project = gradlet.emit(plan(network(seed), load_target("host", cores=3)), tmp_path / "p")
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed, verdict.first_wrong


def test_the_comparison_can_fail() -> None:
    """One wrong slope, of an op that some network uses, is found."""
    seed = next(s for s in range(COUNT) if any(n.op == "gelu_grad" for n in network(s).nodes))
    graph = network(seed)
    op = OPS["gelu_grad"]
    right = op.reference
    op.reference = lambda attrs, *ins: (1.0001 * right(attrs, *ins)[0],)  # type: ignore[method-assign]
    try:
        with pytest.raises(AssertionError, match=rf"network\({seed}\): d_"):
            assert_gradients(graph, seed)
    finally:
        del op.reference
