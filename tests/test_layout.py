"""Channels last: the results of channels first, from other addresses and without transposes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import gradlet
from gradlet import zoo
from gradlet.api import training_graph
from gradlet.engines import host
from gradlet.errors import GradletError
from gradlet.frontends.capture import Captured
from gradlet.frontends.passes.layout import lay_out
from gradlet.frontends.passes.layout_order import Placing, through
from gradlet.ir.graph import Array, Graph
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import run_reference
from gradlet.planner.planner import plan
from gradlet.targets.target import load as load_target
from tests.capture.test_onnx_export import EXPORTERS, exported_model
from tests.layout_models import LAYOUT_MODELS, TRANSPOSES
from tests.models import MODELS
from tests.networks import drawn
from tests.test_end_to_end import assert_passes, break_file

ALL = {**MODELS, **LAYOUT_MODELS}
IMAGES = ("autoencoder", "decoder", "segmentation", "unet", "waves")  # their output is a map


def captured_model(name: str) -> Captured:
    module, inputs = ALL[name]()
    return gradlet.capture(module, inputs, name=name)


def both(captured: Captured, recipe: Recipe) -> tuple[Graph, Graph]:
    chw, hwc = (training_graph(captured, recipe, layout=layout) for layout in ("chw", "hwc"))
    return chw, hwc


def laid(graph: Graph, name: str, value: Array) -> Array:
    """An array of the model as the graph stores it; what an optimizer remembers lies likewise."""
    _, _, weight = name.partition("_")
    known = name if name in graph.stored else weight
    if known not in graph.stored:
        return value
    view, order = graph.stored[known]
    return value.reshape(view).transpose(order).reshape(graph.tensors[name].shape)


def changing(graph: Graph) -> set[str]:
    """What training may change. Constants get names of their own where they are laid out anew."""
    return {name for name in graph.data if graph.tensors[name].role != "const"}


def assert_same_training(chw: Graph, hwc: Graph, steps: int = 3) -> None:
    """In float64 nothing but the order of sums differs: losses, outputs, weights and states."""
    for one, other in zip(run_reference(chw, steps), run_reference(hwc, steps), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-9, abs=1e-12)
        assert changing(chw) == changing(hwc)
        for name in changing(chw):
            value = one.state[name]
            np.testing.assert_allclose(
                other.state[name], laid(hwc, name, value), rtol=1e-7, atol=1e-10, err_msg=name
            )
        for mine, theirs in zip(chw.outputs, hwc.outputs, strict=True):
            wanted = laid(hwc, theirs, one.values[mine])
            np.testing.assert_allclose(other.values[theirs], wanted, rtol=1e-7, atol=1e-10)


def transposes(graph: Graph) -> int:
    return sum(node.op == "transpose" for node in graph.nodes)


def loss_of(name: str) -> str:
    return "mse" if name in ("tied", "single_neuron") else "cross_entropy"


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", sorted(ALL))
def test_model_in_hwc(name: str, tmp_path: Path) -> None:
    recipe = Recipe(lr=0.05, weight_decay=0.01, loss=loss_of(name))
    chw, hwc = both(captured_model(name), recipe)
    assert_same_training(chw, hwc)
    project = gradlet.emit(plan(hwc, load_target("host", cores=3)), tmp_path / "p")
    assert_passes(project, steps=3)


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", sorted(ALL))
def test_model_in_pairs(name: str, tmp_path: Path) -> None:
    recipe = Recipe(lr=0.05, weight_decay=0.01, loss=loss_of(name))
    captured = captured_model(name)
    plain, pairs = (training_graph(captured, recipe, layout=x) for x in ("chw", "chw2"))
    assert_same_training(plain, pairs)
    project = gradlet.emit(plan(pairs, load_target("host", cores=3)), tmp_path / "p")
    assert_passes(project, steps=3)


@pytest.mark.parametrize("name", ["resnet8", "ds-cnn"])
def test_maps_stay_in_pairs(name: str) -> None:
    """Copies into another order are for the inputs and weights of an odd first layer alone."""
    graph = lay_out(gradlet.capture(f"zoo:{name}").graph, "chw2")
    assert transposes(graph) == 2
    convolutions = [node for node in graph.nodes if node.op == "conv2d"]
    assert {node.attrs["layout"] for node in convolutions} == {"chw2"}


@pytest.mark.parametrize("name", IMAGES)
def test_images_as_targets(name: str, tmp_path: Path) -> None:
    """The user's targets are as the model has them, and are turned with the output."""
    chw, hwc = both(captured_model(name), Recipe(loss="mse", lr=0.05))
    assert "target" in hwc.stored
    assert_same_training(chw, hwc)
    project = gradlet.emit(plan(hwc, load_target("host", cores=2)), tmp_path / "p")
    assert_passes(project, steps=2)


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.1, "ignore_index": 2},
        {"class_weights": (0.5, 2.0, 1.0), "reduction": "sum"},
        {"loss": "nll", "class_weights": (0.5, 2.0, 1.0), "ignore_index": 1},
        {"loss": "berhu"},
        {"optimizer": "adam"},
        {"accumulate": 2, "momentum": 0.9, "clip_norm": 0.1},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_recipes_in_hwc(options: dict[str, Any]) -> None:
    assert_same_training(*both(captured_model("unet"), Recipe(lr=0.02, **options)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(zoo.models()))
def test_zoo_in_hwc(name: str, tmp_path: Path) -> None:
    captured = gradlet.capture(f"zoo:{name}", batch=1)
    recipe = Recipe(loss=captured.defaults["loss"])
    chw, hwc = both(captured, recipe)
    assert_same_training(chw, hwc, steps=1)
    project = gradlet.emit(plan(hwc, load_target("host")), tmp_path / "p")
    verdict = assert_passes(project, steps=2)
    assert all(row.oracle == "torch" for row in verdict.tensors if row.role != "partial")
    assert transposes(hwc) == (20 if name == "cct-tiny" else 0) <= transposes(chw)
    assert project.plan.used <= 1.10 * project.plan.lower_bound


@pytest.mark.parametrize("name", sorted(LAYOUT_MODELS))
def test_no_needless_transposes(name: str) -> None:
    graph = lay_out(captured_model(name).graph, "hwc")
    assert transposes(graph) == TRANSPOSES[name], str(graph)


@pytest.mark.parametrize(
    "name", ["lenet", "residual", "asymmetric", "pyramid", "norms", "frozen_norms", "temporal"]
)
def test_plain_networks_have_no_transposes(name: str) -> None:
    chw, hwc = both(captured_model(name), Recipe())
    assert transposes(chw) == transposes(hwc) == 0
    more = Counter(node.op for node in hwc.nodes) - Counter(node.op for node in chw.nodes)
    assert set(more) <= {"reshape"}  # which moves nothing


@pytest.mark.parametrize("name", ["tied", "tokens", "functions", "arithmetic", "recurrent"])
def test_models_without_maps_stay_as_they_are(name: str) -> None:
    graph = captured_model(name).graph
    same = lay_out(graph, "hwc")
    assert (same.nodes, same.tensors, same.stored) == (graph.nodes, graph.tensors, {})
    assert all(np.array_equal(same.data[key], graph.data[key]) for key in graph.data)


def test_channels_first_is_untouched() -> None:
    graph = captured_model("lenet").graph
    assert lay_out(graph, "chw") == graph


def test_updates_are_fused_in_hwc_as_well(tmp_path: Path) -> None:
    project = build("residual", tmp_path / "p")
    fused = sum(n["op"].count("+sgd") for n in project.manifest["nodes"])
    assert fused == len(project.plan.graph.trained)


def build(name: str, folder: Path, **options: Any) -> Any:
    module, inputs = ALL[name]()
    return gradlet.build(module, folder, inputs=inputs, name=name, layout="hwc", **options)


def test_weights_are_those_of_the_users_own_training(tmp_path: Path) -> None:
    """By the manifest alone, against the module itself, trained by PyTorch."""
    module, inputs = ALL["decoder"]()
    target = torch.randn(3, 2, 5, 4)
    recipe = Recipe(loss="mse", lr=0.1)
    project = gradlet.build(
        module, tmp_path / "p", inputs=inputs, targets=target, layout="hwc", recipe=recipe
    )
    stored = json.loads((tmp_path / "p" / "manifest.json").read_text())["stored"]
    assert set(stored) >= {"x", "target", "down.weight", "code.weight", "grow.weight", "grow.bias"}
    run = host.run(project, steps=2, states=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(*inputs), target).backward()
        optimizer.step()
    for name, parameter in module.named_parameters():
        value = parameter.detach().numpy()
        if name in stored:
            value = value.reshape(stored[name]["view"]).transpose(stored[name]["order"])
        np.testing.assert_allclose(run.states[-1][name].reshape(-1), value.reshape(-1), atol=2e-6)


def test_the_project_says_what_lies_how(tmp_path: Path) -> None:
    project = build("lenet", tmp_path / "p")
    manifest = project.manifest
    assert manifest["layout"] == "hwc"
    assert manifest["stored"]["input"] == {"view": [3, 1, 16, 16], "order": [0, 2, 3, 1]}
    assert manifest["stored"]["7.weight"] == {"view": [10, 6, 3, 3], "order": [0, 2, 3, 1]}
    assert "9.weight" not in manifest["stored"]
    header, readme = ((tmp_path / "p" / name).read_text() for name in ("net.h", "README.md"))
    assert "net_input(): [3, 1, 16, 16], order 0, 2, 3, 1" in header
    assert "| `7.weight` | 10, 6, 3, 3 | 0, 2, 3, 1 |" in readme
    again = gradlet.load(tmp_path / "p").plan.graph
    assert (again.layout, again.stored) == ("hwc", project.plan.graph.stored)


def test_golden_data_are_turned(tmp_path: Path) -> None:
    _, inputs = ALL["unet"]()
    graph = build("unet", tmp_path / "p").plan.graph
    expected = inputs[0].numpy().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(graph.samples["x"][0], expected)


def test_the_number_of_cores_changes_no_bit(tmp_path: Path) -> None:
    reference = None
    for cores in (1, 2, 5, 16):
        project = build("unet", tmp_path / str(cores), cores=cores)
        run = host.run(project, steps=3, states=True)
        reference = reference or run
        assert run.loss == reference.loss
        for name, value in reference.states[-1].items():
            assert np.array_equal(value, run.states[-1][name])


def test_unknown_layout() -> None:
    with pytest.raises(GradletError, match="no layout 'nhwc'; there are chw, hwc, chw2"):
        gradlet.build("zoo:tutorial-cnn", "unused", layout="nhwc")


@pytest.mark.drawn(3)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["lenet", "residual", "unet", "temporal", "frozen_norms"])
def test_onnx_in_hwc(name: str, exporter: str, tmp_path: Path) -> None:
    module, (x,) = ALL[name]()
    captured = gradlet.capture(exported_model(module.eval(), x, tmp_path / "m.onnx", exporter))
    chw, hwc = both(captured, Recipe(lr=0.05))
    assert transposes(hwc) == 0
    assert_same_training(chw, hwc)
    assert_passes(gradlet.emit(plan(hwc, load_target("host")), tmp_path / "p"), steps=2)


TOML = """
name = "net"
input = [2, 6, 5]
[training]
loss = "cross_entropy"
"""


def test_toml_in_hwc(tmp_path: Path) -> None:
    layers: list[dict[str, Any]] = [{"op": "conv2d", "out": 3, "kernel": 3, "padding": 1}]
    layers += [{"op": "relu"}, {"op": "max_pool2d", "kernel": 2}, {"op": "flatten"}]
    layers += [{"op": "linear", "out": 4}]
    texts = ["\n".join(f"{k} = {json.dumps(v)}" for k, v in layer.items()) for layer in layers]
    path = tmp_path / "net.toml"
    path.write_text(TOML + "".join(f"[[layer]]\n{text}\n" for text in texts))
    chw, hwc = both(gradlet.capture(path), Recipe())
    assert transposes(hwc) == 0
    assert_same_training(chw, hwc)


def test_the_first_of_equal_maxima_wins_as_in_torch(tmp_path: Path) -> None:
    """All pixels of a channel are equal: whose input counts is told by the weight's gradient."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        conv, inputs = torch.nn.Conv2d(2, 3, 1), torch.randn(2, 2, 7, 6)
    torch.nn.init.zeros_(conv.weight)
    module = torch.nn.Sequential(conv, torch.nn.MaxPool2d(3, 2, 1))
    target = torch.zeros(2, 3, 4, 3)
    recipe = Recipe(loss="mse", lr=0.5)
    project = gradlet.build(
        module, tmp_path / "p", inputs=(inputs,), targets=target, layout="hwc", recipe=recipe
    )
    after = host.run(project, steps=1, states=True).states[0]["0.weight"]
    torch.nn.functional.mse_loss(module(inputs), target).backward()
    assert conv.weight.grad is not None
    wanted = -0.5 * conv.weight.grad.numpy()
    np.testing.assert_allclose(after.reshape(3, 2), wanted.reshape(3, 2), rtol=1e-5)


def test_a_wrong_weight_order_is_caught() -> None:
    """The comparison above can fail."""
    chw, hwc = both(captured_model("lenet"), Recipe())
    wrong = dict(hwc.data)
    wrong["7.weight"] = chw.data["7.weight"]
    with pytest.raises(AssertionError):
        assert_same_training(chw, Graph(**{**vars_of(hwc), "data": wrong}), steps=1)


def vars_of(graph: Graph) -> dict[str, Any]:
    return {name: getattr(graph, name) for name in graph.__dataclass_fields__}


def test_a_wrong_kernel_is_caught(tmp_path: Path) -> None:
    project = build("residual", tmp_path / "p", target="host")
    break_file(
        project, "kernels/*conv2d_forward_hwc__pixels_4x16.c", "q < count ?", "q + 1 < count ?"
    )
    assert not gradlet.verify(project, steps=1).passed


shapes = st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=5).map(tuple)


@given(st.data())
@settings(max_examples=400, deadline=None, derandomize=True)
def test_views_of_permuted_tensors(data: Any) -> None:
    """Where a view is offered, it holds the right elements in the right places."""
    shape = data.draw(shapes)
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    value = np.arange(int(np.prod(shape))).reshape(shape)
    other = data.draw(st.sampled_from(_factorings(value.size)))
    placing = Placing(shape, order)
    result = through(placing, other)
    if placing.is_identity:
        assert result == Placing.plain(other)
    if result is not None:
        lies = placing.apply(value).reshape(-1)
        np.testing.assert_array_equal(result.apply(value.reshape(other)).reshape(-1), lies)
        back = through(result, shape)
        assert back is not None
        np.testing.assert_array_equal(back.apply(value).reshape(-1), lies)


def _factorings(count: int) -> list[tuple[int, ...]]:
    pairs = [(n, count // n) for n in range(1, count + 1) if count % n == 0]
    triples = [(a, b // c, c) for a, b in pairs for c in (1, 2, 3) if b % c == 0]
    return [(count,), *pairs, *triples, *((a, 1, *rest) for a, *rest in triples)]


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_random_networks_in_hwc(start: int) -> None:
    for seed in range(start, start + 50):
        graph, recipe, targets = drawn(seed)
        chw, hwc = both(Captured(graph, targets), recipe)
        assert_same_training(chw, hwc, steps=2)
