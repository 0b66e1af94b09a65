"""Keyword arguments and dicts in, any container of tensors out; `output` chooses."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradlet
from gradlet.errors import GradletError
from gradlet.frontends.torch.program import capture_module
from gradlet.ir.recipe import Recipe
from tests.test_module_oracle import assert_same, recorded_from


@dataclass
class Result:
    logits: Tensor
    hidden: Tensor


Pair = namedtuple("Pair", ["logits", "hidden"])


class Returns(nn.Module):
    """Scores and what is hidden, in some container."""

    def __init__(self, made: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.made = nn.Linear(4, 6), nn.Linear(6, 3), made

    def forward(self, x: Tensor) -> Any:
        h = self.a(x).relu()
        return self.made(self.b(h), h)


LOGITS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dict": lambda y, h: {"hidden": h, "logits": y},
    "ordered": lambda y, h: OrderedDict(logits=y, hidden=h),
    "dataclass": Result,
    "namedtuple": Pair,
    "one in a list": lambda y, h: [y],
    "one in a dict": lambda y, h: {"scores": y},
    "beside integers": lambda y, h: (y, y.argmax(1)),
    "beside none": lambda y, h: (y, None, {"n": 3}),
    "twice the same": lambda y, h: [y, y],
    "nested": lambda y, h: {"out": [y]},
}


def both(captured: gradlet.api.Captured) -> tuple[int, ...]:
    """The shape of the only result; the module's own training agrees with the graph's."""
    assert_same(*recorded_from(captured, Recipe(loss="mse")))
    (name,) = captured.graph.outputs
    return captured.graph.tensors[name].shape


@pytest.mark.parametrize("case", LOGITS)
def test_scores_are_found(case: str) -> None:
    captured = gradlet.capture(Returns(LOGITS[case]), torch.randn(2, 4), batch=2)
    assert both(captured) == (2, 3)


@pytest.mark.parametrize(
    ("made", "output", "shape"),
    [
        (lambda y, h: (y, h), 1, (2, 6)),
        (lambda y, h: (y, h), "-2", (2, 3)),
        (lambda y, h: {"logits": y, "hidden": h}, "hidden", (2, 6)),
        (lambda y, h: {"logits": y, "hidden": h}, 1, (2, 6)),
        (lambda y, h: {"a": [y, h]}, "a.1", (2, 6)),
        (lambda y, h: {"a": [y], "b": {"c": h}}, "b", (2, 6)),
        (lambda y, h: y, 0, (2, 3)),
    ],
)
def test_output_chooses(
    made: Callable[[Tensor, Tensor], Any], output: str | int, shape: tuple[int, ...]
) -> None:
    captured = gradlet.capture(Returns(made), torch.randn(2, 4), batch=2, output=output)
    assert both(captured) == shape


def test_only_what_leads_to_the_output_is_looked_at() -> None:
    module = Returns(lambda y, h: (y, torch.special.i0(h)))
    capture_module(module, torch.randn(2, 4), name="m", output="0")
    with pytest.raises(GradletError, match="special_i0"):
        capture_module(module, torch.randn(2, 4), name="m", output="1")


@pytest.mark.parametrize(
    ("made", "output", "message"),
    [
        (lambda y, h: (y, h), "", r"returns 2 tensors \(0 \[2, 3\], 1 \[2, 6\]\).*--output 0"),
        (lambda y, h: {"a": y, "b": h}, "", r"choose it with --output a"),
        (lambda y, h: (y, h), "2", "none of them is '2'"),
        (lambda y, h: {"a": [y, h]}, "a", "'a' holds 2"),
        (lambda y, h: y, "logits", "returns a single tensor; leave out --output logits"),
        (lambda y, h: {"i": y.argmax(1), "y": y}, "i", "returns torch.int64 as 'i'.*--output y"),
        (lambda y, h: {"n": 3}, "", "returns a dict with n, in which there is no tensor"),
        (lambda y, h: "text", "", "returns a str, in which there is no tensor"),
    ],
)
def test_results_in_doubt(made: Callable[[Tensor, Tensor], Any], output: str, message: str) -> None:
    with pytest.raises(GradletError, match=message):
        capture_module(Returns(made), torch.randn(2, 4), name="m", output=output)


class Named(nn.Module):
    """Arguments by name, one of them no tensor, one of them left out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(
        self, ids: Tensor | None = None, weight: Tensor | None = None, scale: float = 1.0
    ) -> dict[str, Tensor]:
        h = self.table(ids) * scale
        return {"logits": self.head(h if weight is None else h * weight[..., None]).sum(1)}


class OneDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        y: Tensor = self.head(batch["image"] + batch["more"][0])
        return y


class Any_(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, *args: Tensor, **others: Tensor) -> Tensor:
        y: Tensor = self.head(args[0] * args[1] + others["in"])
        return y


def ids() -> Tensor:
    return torch.randint(0, 5, (2, 6))


def given() -> list[tuple[nn.Module, Any, list[str]]]:
    x = torch.randn(2, 4)
    return [
        (Named(), {"ids": ids()}, ["ids"]),
        (Named(), {"weight": torch.randn(2, 6), "ids": ids(), "scale": 2.0}, ["weight", "ids"]),
        (Named(), (ids(), None, 0.5), ["ids"]),
        (Named(), (ids(), {"weight": torch.randn(2, 6)}), ["ids", "weight"]),
        (OneDict(), {"image": x, "more": [x + 1]}, ["batch_image", "batch_more_0"]),
        (OneDict(), ({"image": x, "more": [x + 1]},), ["batch_image", "batch_more_0"]),
        (Any_(), (x, x + 1, {"in": x}), ["args_0", "args_1", "in_"]),
    ]


@pytest.mark.parametrize("index", range(7))
def test_inputs_of_every_kind(index: int) -> None:
    torch.manual_seed(0)
    module, inputs, names = given()[index]
    captured = gradlet.capture(module, inputs, batch=2)
    assert [captured.graph.own_name(name) for name in captured.graph.inputs] == names
    assert both(captured) == (2, 3)


def test_dicts_from_a_file_and_data_by_name(tmp_path: Path) -> None:
    import numpy as np

    text = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
    def forward(self, *, image, bias=None):
        return {"logits": self.head(image) + bias, "image": image}
def net():
    return Net(), {"image": torch.randn(2, 4), "bias": torch.randn(2, 1)}, torch.tensor([0, 2])
"""
    (tmp_path / "m.py").write_text(text)
    data = tmp_path / "d.npz"
    np.savez(data, image=np.ones((4, 4)), bias=np.zeros((4, 1)), targets=np.array([0, 1, 2, 0]))
    captured = gradlet.capture(f"{tmp_path}/m.py:net", batch=2, data=data)
    assert captured.graph.samples["image"].shape == (2, 2, 4)
    assert isinstance(captured.targets, np.ndarray)
    assert captured.targets.shape == (2, 2)


class Experts(nn.Module):
    """As Hugging Face writes them: which way they compute is a word in a shared configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(_experts_implementation="grouped_mm")
        self.gate, self.weights = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).argmax(-1)
        if self.config._experts_implementation == "batched_mm":
            return torch.bmm(x[:, None], self.weights[chosen])[:, 0]
        order = chosen.argsort()
        sizes = chosen.bincount(minlength=3).tolist()
        parts = x[order].split(sizes)
        made = torch.cat([part @ w for part, w in zip(parts, self.weights, strict=True)])
        return torch.zeros_like(made).index_copy(0, order, made)


def test_experts_are_traced_where_shapes_do_not_depend_on_the_data(tmp_path: Path) -> None:
    """And compared with the module as it is."""
    torch.manual_seed(0)
    module = Experts()
    project = gradlet.build(
        module, tmp_path / "p", inputs=(torch.randn(6, 4),), batch=3, target="host"
    )
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong
    assert not verdict.no_module
    assert module.config._experts_implementation == "grouped_mm"
