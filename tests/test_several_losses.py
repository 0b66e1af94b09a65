"""A weighted sum of losses over several results of a model, each with its own target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradlet
from gradlet import GradletError, Loss, Recipe
from gradlet.api import Request, training_graph
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import outputs_of, parse_losses
from gradlet.oracle.interpreter import run_reference


class Heads(nn.Module):
    """A classifier with an auxiliary one, a decoder, and a number for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Linear(64, 3)
        self.aux = nn.Linear(64, 3)
        self.decoder = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        h = torch.relu(self.conv(x))
        flat = h.flatten(1)
        scores = self.head(flat)
        return {
            "logits": scores,
            "aux": [self.aux(flat), scores.sum(1)],
            "recon": self.decoder(h),
            "again": scores,
        }


LOSSES = (
    Loss("cross_entropy", output="logits", target="y", label_smoothing=0.1),
    Loss("cross_entropy", output="aux.0", target="y", weight=0.4),
    Loss("mse", output="recon", weight=0.1, reduction="sum"),
    Loss("l1", output="recon", weight=0.25),
    Loss("huber", output="aux.1", weight=-0.5, delta=0.5),
)


def expected_loss(module: nn.Module, x: Tensor, y: Tensor, number: Tensor) -> Tensor:
    out = module(x)
    loss = functional.cross_entropy(out["logits"], y, label_smoothing=0.1)
    loss = loss + 0.4 * functional.cross_entropy(out["aux"][0], y)
    loss = loss + 0.1 * functional.mse_loss(out["recon"], x, reduction="sum")
    loss = loss + 0.25 * functional.l1_loss(out["recon"], x)
    return loss - 0.5 * functional.huber_loss(out["aux"][1], number, delta=0.5)


def heads() -> tuple[nn.Module, Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(8, 2, 4, 4)
    labels = torch.randint(0, 3, (8,))
    return Heads(), x, {"y": labels, "recon": x, "aux.1": torch.randn(8)}


def graph_of(recipe: Recipe, layout: str = "chw") -> tuple[Graph, nn.Module, Tensor, Any]:
    module, x, targets = heads()
    outputs = outputs_of(recipe.losses, "")
    captured = gradlet.capture(module, x, targets, batch=2, output=outputs)
    return training_graph(captured, recipe, layout=layout), module, x, targets


@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_are_those_of_pytorch(layout: str, accumulate: int) -> None:
    recipe = Recipe(losses=LOSSES, accumulate=accumulate)
    graph, module, x, targets = graph_of(recipe, layout)
    module, x = module.double(), x.double()
    total = torch.zeros(())
    for begin in range(0, 2 * accumulate, 2):
        part = slice(begin, begin + 2)
        number = targets["aux.1"][part].double()
        total = total + expected_loss(module, x[part], targets["y"][part], number)
    (total / accumulate).backward()
    step = next(iter(run_reference(graph, 1)))
    assert step.loss == pytest.approx(total.item() / accumulate, rel=1e-7)
    updated = dict(graph.updates)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        wanted = (parameter - 0.01 * parameter.grad).detach().numpy()
        if name in graph.stored:
            view, order = graph.stored[name]
            wanted = wanted.reshape(view).transpose(order)
        found = step.values[updated[name]].reshape(wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-8)


def test_the_same_target_is_one_buffer() -> None:
    graph, *_ = graph_of(Recipe(losses=LOSSES))
    assert graph.results == ("logits", "aux.0", "recon", "aux.1")
    assert [graph.own_name(name) for name in graph.targets] == ["y", "recon", "aux.1"]
    assert [graph.tensors[name].dtype for name in graph.targets] == ["i32", "f32", "f32"]


@pytest.mark.parametrize("target", ["host", "pulp-open"])
def test_a_project_verifies(tmp_path: Path, target: str) -> None:
    module, x, targets = heads()
    recipe = Recipe(losses=LOSSES, optimizer="adam", accumulate=2)
    options: dict[str, Any] = {"inputs": x, "targets": targets, "batch": 2, "target": target}
    project = gradlet.build(module, tmp_path / "out", recipe=recipe, **options)
    assert project.recording.absent == ""
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed
    header = (tmp_path / "out" / "net.h").read_text()
    for line in (
        "int32_t *net_target_y(void);",
        "float *net_target_aux_1(void);",
        "const float *net_output_aux_0(void);",
        "const float *net_output_recon(void);",
    ):
        assert line in header
    run = gradlet.run(project, engine="host", steps=1, predict=True)
    assert {value.shape for value in run.outputs[0].values()} == {
        (4, 2, 3),
        (4, 2, 2, 4, 4),
        (4, 2),
    }
    assert "(loss)" in str(gradlet.memory(project))


def test_one_result_under_two_names(tmp_path: Path) -> None:
    module, x, _ = heads()
    losses = [Loss("cross_entropy", output="logits"), Loss("mse", output="again", weight=0.5)]
    project = gradlet.build(
        module, tmp_path / "out", inputs=x, batch=2, target="host", recipe=Recipe(losses=losses)
    )
    assert project.recording.absent == ""
    assert gradlet.verify(project, steps=2).passed


def test_two_losses_of_the_only_result(tmp_path: Path) -> None:
    """They share the target, unless they say otherwise."""
    recipe = Recipe(losses=[Loss("mse"), Loss("l1", weight=0.5)])
    captured = gradlet.capture(nn.Linear(3, 2), torch.randn(4, 3), torch.randn(4, 2), batch=2)
    graph = training_graph(captured, recipe)
    assert graph.targets == ("target",)
    losses = [Loss("cross_entropy"), Loss("mse", target="scores", weight=0.5)]
    graph = training_graph(
        gradlet.capture(nn.Linear(3, 2), torch.randn(4, 3), batch=2), Recipe(losses=losses)
    )
    assert [graph.own_name(name) for name in graph.targets] == ["target", "scores"]


def test_an_onnx_file(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper

    chance = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(chance.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("a.weight", (4, 3)), ("b.weight", (4, 5)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "a.weight"], ["scores"]),
        helper.make_node("MatMul", ["x", "b.weight"], ["features"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size])
        for name, size in (("x", 4), ("scores", 3), ("features", 5))
    ]
    graph = helper.make_graph(nodes, "two", infos[:1], infos[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "two.onnx"
    path.write_bytes(model.SerializeToString())
    losses = [Loss(output="scores"), Loss("mse", output="features", weight=0.3)]
    targets = {"scores": np.array([0, 2]), "features": np.zeros((2, 5), np.float32)}
    x = chance.standard_normal((2, 4)).astype(np.float32)
    project = gradlet.build(
        path,
        tmp_path / "out",
        inputs=x,
        targets=targets,
        target="host",
        recipe=Recipe(losses=losses),
    )
    assert project.recording.absent == ""
    assert gradlet.verify(project, steps=2).passed


TOML = """
input = [6]
[training]
lr = 0.1
[[training.losses]]
loss = "cross_entropy"
[[training.losses]]
loss = "mse"
output = "code"
weight = 0.5
[[layer]]
op = "linear"
name = "code"
out = 4
[[layer]]
op = "linear"
name = "head"
out = 3
"""


def test_a_toml_file_names_layers(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text(TOML)
    captured = gradlet.capture(path, batch=2)
    graph = training_graph(captured)
    assert graph.results == ("logits", "code")
    assert [graph.own_name(name) for name in graph.targets] == ["target", "code"]
    one = Request(path, recipe=Recipe(loss="mse"), capture_options={"output": "code"}).captured()
    assert one.graph.tensors[one.graph.outputs[0]].shape == (1, 4)
    path.write_text(TOML.replace('output = "code"', 'output = "cod"'))
    with pytest.raises(GradletError, match=r"output 'cod' is no layer; there are code, head"):
        gradlet.capture(path)


def test_by_text() -> None:
    assert parse_losses(["mse:output=a,weight=0.5", "l1:target=b"]) == {
        "losses": (Loss("mse", output="a", weight=0.5), Loss("l1", target="b"))
    }
    assert outputs_of((Loss(output="a"), Loss(), Loss(output="a")), "b") == ["a", "b"]
    assert outputs_of((), None) == ""


def test_targets_from_a_file(tmp_path: Path) -> None:
    module, x, targets = heads()
    data = tmp_path / "d.npz"
    arrays = {f"target.{name}": value.numpy() for name, value in targets.items()}
    np.savez(data, inputs=x.numpy(), **arrays)
    recipe = Recipe(losses=LOSSES)
    options = {"inputs": x[:1], "batch": 2, "data": data}
    request = Request(module, "host", recipe=recipe, capture_options=options)
    graph = request.plan().graph
    assert [len(graph.samples[name]) for name in graph.fed] == [4, 4, 4, 4]


def build(recipe: Recipe, **options: Any) -> Any:
    module, x, targets = heads()
    given = {"inputs": x, "targets": targets, "batch": 2, **options}
    return Request(module, "host", recipe=recipe, capture_options=given).plan()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no such output": (
        lambda: build(Recipe(losses=[Loss(output="logit")])),
        r"model 'heads' returns logits \[2, 3\], .* none of them is 'logit'",
    ),
    "two kinds of target": (
        lambda: build(Recipe(losses=[Loss(output="logits"), Loss("mse", output="logits")])),
        r"target 'logits' would be i32\[2\] for cross_entropy of output 'logits' and f32\[2, 3\] "
        r"for mse of output 'logits'; .*target='another'",
    ),
    "targets by no name": (
        lambda: build(Recipe(losses=LOSSES), targets=torch.zeros(8)),
        r"the targets are 'y' \(cross_entropy of output 'logits'\), 'recon' .* given are 'targets'."
        r" Name them so: targets=\{'y': ..., 'recon': ..., 'aux.1': ...\}",
    ),
    "a target is missing": (
        lambda: build(Recipe(losses=LOSSES), targets={"y": torch.zeros(8)}),
        r"given are 'y'\. Name them so.* target.y, target.recon, target.aux.1 in an .npz",
    ),
    "a target of another shape": (
        lambda: build(
            Recipe(losses=[Loss("mse", output="recon")]), targets={"recon": torch.zeros(8, 3)}
        ),
        r"targets 'recon' have shape \(2, 3\) per batch, but mse on an output 'recon'",
    ),
    "both": (
        lambda: build(Recipe(loss="mse", losses=LOSSES)),
        r"the recipe has losses and loss='mse'; .*gradlet.Loss\(\.\.\., loss=\.\.\.\)",
    ),
    "no loss": (
        lambda: Recipe(losses=["mse"]),  # type: ignore[list-item]
        r"losses='mse': write each as gradlet.Loss\('mse'",
    ),
    "wrong keyword": (
        lambda: Loss("mse", wieght=1.0),  # type: ignore[call-arg]
        r"gradlet.Loss has no 'wieght' \(did you mean 'weight'\?\)",
    ),
    "weight": (
        lambda: build(Recipe(losses=[Loss(output="logits", weight=float("nan"))])),
        r"cross_entropy of output 'logits': a weight of nan makes no sense",
    ),
    "not captured": (
        lambda: training_graph(
            gradlet.capture(*heads()[:2], output="logits"),
            Recipe(losses=[Loss("mse", output="recon")]),
        ),
        r"mse of output 'recon': that output was not captured, 'logits' was; capture all",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    attempt, message = REFUSED[name]
    with pytest.raises(GradletError, match=message):
        attempt()
