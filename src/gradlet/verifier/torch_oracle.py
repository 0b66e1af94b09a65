"""PyTorch beside a training graph: float64, its own autograd and optimizers, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradlet.codegen.oracle import oracle_source
from gradlet.ir.graph import Array, Graph
from gradlet.oracle.tolerance import overflowing
from gradlet.support.progress import counted


@dataclass(frozen=True)
class Oracle:
    """PyTorch's values of the first step by graph name, of the weights after the last, and losses.

    overflows names the tensors of each step, in program order, that hold what their type cannot.
    """

    values: Mapping[str, Array]
    weights: Mapping[str, Array]
    losses: tuple[float, ...]
    overflows: tuple[tuple[str, ...], ...]


def run_oracle(graph: Graph, steps: int) -> Oracle:
    from gradlet.support.extras import require_torch

    torch = require_torch()
    space: dict[str, Any] = {}
    exec(compile(oracle_source(graph), "<oracle>", "exec"), space)

    def tensor(value: Array) -> Any:
        wide = value.astype(np.float64) if value.dtype.kind == "f" else value
        return torch.from_numpy(np.array(wide))

    data = {name: tensor(value) for name, value in graph.data.items()}
    trained = {name: data.pop(name) for name in graph.trained}
    batches = {name: tensor(value) for name, value in graph.samples.items()}
    first: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    losses, overflows = [], []
    run = space["steps"](trained, data, batches, steps, graph.accumulate)
    for before, gradients, after, loss in counted(run, steps, "steps in PyTorch"):
        losses.append(float(loss))
        weights = {name: value.numpy() for name, value in after.items()}
        values = {name: value.detach().numpy() for name, value in before.items()}
        values |= {grad: gradients[t].numpy() for t, grad in graph.grads if t in gradients}
        values |= {new: weights[old] for old, new in graph.updates if old in weights}
        overflows.append(overflowing(graph, values))
        first = first or values
        del before, gradients, after, values  # before the next step makes its own
    return Oracle(first, weights, tuple(losses), tuple(overflows))
