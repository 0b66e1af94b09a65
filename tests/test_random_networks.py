"""Random small DAGs: every gradient in float64 against PyTorch, and some of them in C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import HealthCheck, given, settings

import gradlet
from gradlet.builder import GraphBuilder
from gradlet.graph import Graph
from gradlet.plan import plan
from gradlet.recipe import Recipe
from gradlet.target import load as load_target
from gradlet.train import train
from gradlet.verify import _run_oracle


class Growing:
    """A network that hypothesis grows node by node from feature maps [N, C, H, W]."""

    kinds: tuple[str, ...] = ("conv", "relu", "add", "max", "avg", "scale", "cut")

    def __init__(self, draw: Any, seed: int) -> None:
        self.draw = draw
        self.generator = np.random.default_rng(seed)
        self.builder = GraphBuilder("random")
        shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *draw(_size), *draw(_size))
        self.maps = [self.builder.external("x", shape, "input")]

    def param(self, *shape: int) -> str:
        value = self.generator.standard_normal(shape) / np.sqrt(float(np.prod(shape[1:])))
        return self.builder.value(self.builder.fresh("w"), value.astype(np.float32), "param")

    def shape(self, name: str) -> tuple[int, ...]:
        return self.builder.tensors[name].shape

    def grow(self) -> None:
        x = self.draw(st.sampled_from(self.maps))
        getattr(self, self.draw(st.sampled_from(self.kinds)))(x)

    def conv(self, x: str) -> None:
        _, c, h, w = self.shape(x)
        groups = self.draw(st.sampled_from([g for g in (1, c) if c % g == 0]))
        out = groups * self.draw(st.integers(1, 2))
        kernel = (self.draw(st.integers(1, min(3, h))), self.draw(st.integers(1, min(3, w))))
        attrs = {
            "stride": (self.draw(st.integers(1, 2)), self.draw(st.integers(1, 2))),
            "padding": tuple(self.draw(st.integers(0, 1)) for _ in range(4)),
            "dilation": (1, 1),
            "groups": groups,
        }
        operands = [x, self.param(out, c // groups, *kernel)]
        if self.draw(st.booleans()):
            operands.append(self.param(out))
        self.maps.append(self.builder.add("conv2d", operands, attrs))

    def relu(self, x: str) -> None:
        self.maps.append(self.builder.add("relu", [x]))

    def add(self, x: str) -> None:
        same = [name for name in self.maps if self.shape(name) == self.shape(x)]
        self.maps.append(self.builder.add("add", [x, self.draw(st.sampled_from(same))]))

    def scale(self, x: str) -> None:
        self.maps.append(self.builder.add("add", [x, self.param(self.shape(x)[1], 1, 1)]))

    def max(self, x: str) -> None:
        self._pool("max_pool2d", x, {})

    def avg(self, x: str) -> None:
        self._pool("avg_pool2d", x, {"count_include_pad": self.draw(st.booleans())})

    def _pool(self, op: str, x: str, extra: dict[str, bool]) -> None:
        h, w = self.shape(x)[2:]
        kernel = (min(2, h), min(2, w))
        pad = self.draw(st.integers(0, 1)) if kernel == (2, 2) else 0
        attrs: dict[str, Any] = {
            "kernel": kernel,
            "stride": (self.draw(st.integers(1, 2)),) * 2,
            "padding": (pad,) * 4,
            "dilation": (1, 1),
            **extra,
        }
        self.maps.append(self.builder.add(op, [x], attrs))

    def cut(self, x: str) -> None:
        n, c, h, w = self.shape(x)
        attrs = {
            "start": (0, 0, h // 2, 0),
            "step": (1, 1, 1, 2),
            "size": (n, c, h - h // 2, (w + 1) // 2),
        }
        self.maps.append(self.builder.add("slice", [x], attrs))

    def finish(self) -> Graph:
        x = self.maps[-1]
        n, rest = self.shape(x)[0], int(np.prod(self.shape(x)[1:]))
        flat = self.builder.add("reshape", [x], {"shape": (n, rest)})
        logits = self.builder.add(
            "matmul", [flat, self.param(3, rest), self.param(3)], {"layout": "nt"}
        )
        wanted, nodes = {logits}, []
        for node in reversed(self.builder.nodes):
            if wanted.intersection(node.outputs):
                nodes.append(node)
                wanted.update(node.inputs)
        wanted.add("x")
        tensors = {k: t for k, t in self.builder.tensors.items() if k in wanted}
        data = {k: v for k, v in self.builder.data.items() if k in wanted}
        samples = {"x": self.generator.standard_normal((2, *self.shape("x"))).astype(np.float32)}
        return Graph("random", tensors, tuple(nodes[::-1]), ("x",), (logits,), data, samples)


_size = st.tuples(st.integers(1, 6))


@st.composite
def networks(draw: Any) -> Graph:
    growing = Growing(draw, draw(st.integers(0, 2**16)))
    for _ in range(draw(st.integers(1, 9))):
        growing.grow()
    graph = growing.finish()
    batch = graph.tensors["x"].shape[0]
    targets = np.random.default_rng(0).integers(0, 3, (2, batch))
    accumulate = draw(st.sampled_from((1, 1, 2)))
    return train(graph, Recipe(lr=0.1, weight_decay=0.01, accumulate=accumulate), targets)


options = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@given(networks())
@settings(max_examples=150, **options)  # type: ignore[arg-type]
def test_gradients_and_plans_of_random_networks(graph: Graph) -> None:
    """Every gradient equals PyTorch's in float64, and the plan passes the independent checker."""
    from gradlet.reference import run_reference

    torch.set_num_threads(1)
    step = next(iter(run_reference(graph, 1)))
    oracle = _run_oracle(graph, 1)
    for name, expected in oracle.values.items():
        if graph.tensors[name].role in ("activation", "loss", "gradient", "updated"):
            scale = max(float(np.abs(expected).max()), 1.0)
            assert np.abs(step.values[name] - expected).max() <= 1e-11 * scale, name
    assert abs(step.loss - oracle.losses[0]) <= 1e-11 * max(1.0, abs(step.loss))
    assert Graph.loads(graph.dumps()) == graph
    result = plan(graph, load_target("host", cores=3))
    assert result.used <= 1.10 * result.lower_bound + 12 * len(result.buffers)


@given(networks())
@settings(max_examples=8, **options)  # type: ignore[arg-type]
def test_random_networks_in_c(graph: Graph) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        project = gradlet.emit(plan(graph, load_target("host", cores=3)), Path(folder) / "p")
        verdict = gradlet.verify(project, steps=3)
        assert verdict.passed, verdict.first_wrong
