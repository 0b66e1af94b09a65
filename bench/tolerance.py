"""How far correct float32 arithmetic stays below the tolerances of verify, and how small a fault
exceeds them: PyTorch in float32 trains many random deep and recurrent networks.

    python bench/tolerance.py --networks 200 --steps 3

`worst` is the largest share of the tolerance that any element used; `caught` the share of tensors
where a wrong factor of 1 + 1e-3, 1e-4 or 1e-5 exceeds it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import common
import numpy as np
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.codegen.oracle import oracle_source
from gradlet.ir.graph import Array, Graph
from gradlet.ir.recipe import Recipe
from gradlet.oracle.scatter import CAREFUL, GOLDEN, QUICK, Rule
from gradlet.oracle.tolerance import Expectation, expect

RULES = {"quick": QUICK, "careful": CAREFUL, "golden": GOLDEN}
FACTORS = (1e-3, 1e-4, 1e-5)


class Unrolled(nn.Module):  # type: ignore[misc]
    """A cell of small tensors with many nodes per time: divisions, products, sums over pairs."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.w, self.mu = (nn.Parameter(torch.rand(units, units)) for _ in range(2))
        self.sigma = nn.Parameter(3 + 5 * torch.rand(units, units))
        self.reversal = nn.Parameter(torch.randn(units, units).sign())
        self.leak = nn.Parameter(torch.rand(units) + 0.1)
        self.into = nn.Linear(inputs, units)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.shape[0], self.leak.shape[0])
        for time in range(x.shape[1]):
            force = self.into(x[:, time])
            for _ in range(3):
                open_ = self.w * torch.sigmoid(self.sigma * (state.unsqueeze(2) - self.mu))
                above = state + force + (open_ * self.reversal).sum(1)
                state = above / (1 + self.leak + open_.sum(1))
        return state


def deep(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width = chance.randint(3, 24)
    kinds = (nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU)
    layers: list[nn.Module] = []
    for _ in range(chance.randint(8, 30)):
        layers += [nn.Linear(width, width), chance.choice(kinds)()]
        layers += [nn.LayerNorm(width)] if chance.random() < 0.3 else []
    return nn.Sequential(*layers, nn.Linear(width, 4)), (3, width)


def recurrent(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    kind, width, time = (
        chance.choice((nn.LSTM, nn.GRU)),
        chance.randint(2, 10),
        chance.randint(4, 16),
    )

    class Last(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = kind(3, width, batch_first=True), nn.Linear(width, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.layer(x)[0][:, -1])
            return out

    return Last(), (2, time, 3)


def unrolled(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    return Unrolled(3, chance.randint(3, 8)), (1, chance.randint(2, 6), 3)


def convolutional(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    channels = chance.randint(3, 8)
    layers: list[nn.Module] = [nn.Conv2d(2, channels, 3, padding=1)]
    for _ in range(chance.randint(3, 10)):
        norm = nn.BatchNorm2d(channels) if chance.random() < 0.7 else nn.Identity()
        layers += [nn.Conv2d(channels, channels, 3, padding=1), norm]
        layers.append(chance.choice((nn.ReLU, nn.SiLU, nn.Hardswish))())
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4)]
    return nn.Sequential(*layers, *head), (2, 2, 8, 8)


FAMILIES = (deep, recurrent, unrolled, convolutional)
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {},
    {"momentum": 0.9},
    {"optimizer": "adam", "lr": 0.003},
    {"clip_norm": 1.0},
)


def networks(count: int) -> Iterator[tuple[str, Graph]]:
    for seed in range(count):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        family = FAMILIES[seed % len(FAMILIES)]
        module, shape = family(chance)
        options: dict[str, Any] = {"lr": 0.05, **chance.choice(OPTIMIZERS)}
        captured = gradlet.capture(module, (torch.randn(shape[0] * 2, *shape[1:]),), batch=shape[0])
        yield family.__name__, training_graph(captured, Recipe(loss="mse", **options))


def in_float32(graph: Graph, steps: int) -> list[dict[str, Array]]:
    """PyTorch in single precision: all values of the first step, the weights of the others."""
    space: dict[str, Any] = {}
    exec(compile(oracle_source(graph), "<oracle>", "exec"), space)
    data = {name: torch.from_numpy(value.copy()) for name, value in graph.data.items()}
    trained = {name: data.pop(name) for name in graph.trained}
    batches = {name: torch.from_numpy(value.copy()) for name, value in graph.samples.items()}
    results: list[dict[str, Array]] = []
    names = dict(graph.updates)
    run = space["steps"](trained, data, batches, steps, graph.accumulate)
    for before, gradients, after, _ in run:
        values = {names[old]: value.numpy() for old, value in after.items() if old in names}
        if not results:
            values |= {name: value.numpy() for name, value in before.items()}
            values |= {g: gradients[t].numpy() for t, g in graph.grads if t in gradients}
        results.append(values)
    return results


def shares(computed: dict[str, Array], expected: Expectation) -> Iterator[tuple[float, Array]]:
    """Of each tensor the share of the tolerance, and by how much wrong factors exceed it."""
    for name, value in computed.items():
        if name not in expected.tolerances or value.dtype.kind != "f":
            continue
        wanted, allowed = expected.values[name], expected.tolerances[name]
        error = np.abs(value.astype(np.float64) - wanted)
        with np.errstate(divide="ignore", invalid="ignore"):
            used = np.where(error == 0, 0.0, error / allowed)
            size = np.where(wanted == 0, 0.0, np.abs(wanted) / allowed)
        if wanted.size and np.abs(wanted).max() > 0 and allowed.max() > 0:
            yield float(used.max()), float(size.max()) * np.asarray(FACTORS)


def measure(rule: Rule, graph: Graph, computed: list[dict[str, Array]]) -> dict[str, Any]:
    expected = expect(graph, len(computed), rule=rule)
    found = [item for step in zip(computed, expected, strict=True) for item in shares(*step)]
    caught = np.mean([factors > 1 for _, factors in found], axis=0)
    return {
        "worst": max(used for used, _ in found),
        "caught": caught.tolist(),
        "tensors": len(found),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--networks", type=int, default=100)
    options.add_argument("--steps", type=int, default=3)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for number, (family, graph) in enumerate(networks(chosen.networks)):
        computed = in_float32(graph, chosen.steps)
        row: dict[str, Any] = {"network": number, "family": family}
        rows.append(row | {name: measure(rule, graph, computed) for name, rule in RULES.items()})
    summary = {
        name: {
            "worst": max(row[name]["worst"] for row in rows),
            "over": sum(row[name]["worst"] > 1 for row in rows),
            "caught": dict(
                zip(
                    map(str, FACTORS),
                    np.mean([row[name]["caught"] for row in rows], axis=0).tolist(),
                    strict=True,
                )
            ),
        }
        for name in RULES
    }
    tensors = sum(row["quick"]["tensors"] for row in rows)
    result = {"networks": len(rows), "tensors": tensors, "rules": summary, "rows": rows}
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "tolerance.json").write_text(json.dumps(result, indent=1))
    json.dump({key: result[key] for key in ("networks", "tensors", "rules")}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
