"""One tensor beside what is expected of it: how far off, and whether it may be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gradlet.ir.elements import F32, Element
from gradlet.ir.graph import Array, Graph


def finite(value: Any) -> Any:
    """JSON has no infinity, and nothing that is no number."""
    return None if isinstance(value, float) and not np.isfinite(value) else value


@dataclass(frozen=True)
class TensorVerdict:
    """One tensor against its oracle. `tol` is what the worst element was allowed."""

    name: str
    role: str
    node: str
    module: str
    oracle: str
    max_abs: float
    max_rel: float
    tol: float
    share: float  # of the tolerance that the worst element used
    passed: bool
    tensor: str = ""  # of the graph, if it has one; not in JSON, nor is the step
    step: int = 1

    def to_json(self) -> dict[str, Any]:
        hidden = ("tensor", "step")
        value = {k: finite(item) for k, item in asdict(self).items() if k not in hidden}
        value["pass"] = value.pop("passed")
        return value


def judge(
    graph: Graph,
    tensor: str,
    value: Array,
    wanted: Array,
    tolerance: Array,
    oracle: str,
    *,
    label: str = "",
    step: int = 1,
) -> TensorVerdict:
    """One tensor of the graph; '' is one that it should have."""
    element = graph.tensors[tensor].element if tensor else F32
    error = _errors(value, wanted, element).reshape(-1)
    allowed = np.broadcast_to(tolerance, np.shape(wanted)).reshape(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error == 0, 0.0, error / allowed)
        share = np.where(np.isfinite(allowed) | (error == 0), share, np.inf)  # no bound: no verdict
    worst = int(share.argmax())
    scale = float(np.abs(wanted).max())
    node = graph.producer().get(tensor)
    return TensorVerdict(
        label or tensor,
        graph.tensors[tensor].role if tensor else "updated",
        node.name if node else "",
        node.module if node else "",
        oracle,
        float(error.max()),
        float(error.max() / scale) if scale else float(error.max()),
        float(allowed[worst]),
        float(share[worst]),
        bool(share[worst] <= 1.0),
        tensor,
        step,
    )


def _errors(value: Array, wanted: Array, element: Element) -> Array:
    """How far apart they are; what the type cannot hold must be infinite, or no number, alike."""
    value = np.asarray(value, np.float64)
    held = element.rounded(wanted)
    with np.errstate(over="ignore", invalid="ignore"):
        alike = ~np.isfinite(held) & ((value == held) | (np.isnan(value) & np.isnan(held)))
        error = np.where(alike, 0.0, np.abs(value - wanted))
    return np.where(np.isfinite(error), error, np.inf)
