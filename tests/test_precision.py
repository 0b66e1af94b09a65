"""Element types by name, from a recipe, the command line, Python and TOML: which numbers are stored
how, where they are cast, and that what comes out trains and verifies."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import Request
from gradlet.cli.commands import app
from gradlet.cli.failures import invoke
from gradlet.errors import GradletError
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe, types_of
from gradlet.training.casts import CASTS
from tests.capture.test_onnx_export import exported_model
from tests.modules import draw

NARROW = ("f16", "bf16", "mixed")
COMPUTED = {"f16": "f16", "bf16": "bf16", "mixed": "f16"}


class Network(nn.Module):
    """Odd sizes, a batch norm with running statistics, a skip connection, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 7, 3, padding=1)
        self.norm = nn.BatchNorm2d(7)
        self.second = nn.Conv2d(7, 7, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(7 * 9, 5)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(self.norm(self.first(x)))
        return self.last(self.pool(y + self.second(y)).flatten(1))


def module(kind: type[nn.Module] = Network) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def images() -> torch.Tensor:
    return torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(1))


def graph_of(dtype: Any, **settings: Any) -> Graph:
    recipe = Recipe(dtype=dtype, **settings)
    captured = gradlet.capture(module(), images(), batch=2)
    return gradlet.training_graph(captured, recipe)


def casts(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes if node.op in CASTS)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("target", ["host", "pulp-open"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_trains_and_verifies(tmp_path: Path, optimizer: str, target: str, dtype: str) -> None:
    """Beside PyTorch's float64 and the module's own training, from the numbers as they are stored,
    with the same bits on the host and the simulator."""
    momentum = 0.9 if optimizer == "momentum" else 0.0
    name = "adam" if optimizer == "adam" else "sgd"
    recipe = Recipe(optimizer=name, momentum=momentum, lr=1e-3)
    memories = {"L1": "16k"} if target == "pulp-open" else {}
    built = gradlet.build(
        module(),
        tmp_path / "p",
        inputs=images(),
        batch=2,
        target=target,
        recipe=recipe,
        memories=memories,
        dtype=dtype,
    )
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, verdict.to_json()
    assert all(verdict.bit_identical.values()), verdict.bit_identical
    assert any(row.oracle == "module" for row in verdict.tensors), verdict.no_module


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_everything_is_narrow_but_what_must_not_be(dtype: str) -> None:
    graph = graph_of(dtype)
    assert casts(graph)[f"to_{dtype}"] == 1, "the gradient of the result"
    kinds = {name: graph.tensors[name].dtype for name in graph.trained}
    assert set(kinds.values()) == {dtype}
    assert graph.tensors[graph.inputs[0]].dtype == dtype
    assert graph.tensors[graph.outputs[0]].dtype == "f32"
    running = [old for old, _ in graph.updates if "running" in graph.own_name(old)]
    assert running
    assert {graph.tensors[name].dtype for name in running} == {"f32"}
    # the result, and the two statistics of a batch
    assert casts(graph)["to_f32"] == 3
    assert graph.dtypes["weights"] == [dtype]


def test_mixed_keeps_the_weights_and_what_the_optimizer_knows() -> None:
    graph = graph_of("mixed", momentum=0.9)
    assert graph.dtypes["weights"] == ["f32"]
    states = [t for t in graph.of_role("state") if t.element.is_float]
    assert {tensor.dtype for tensor in states} == {"f32"}
    made = {node.op: node for node in graph.nodes}
    assert graph.tensors[made["conv2d"].outputs[0]].dtype == "f16"
    weights = graph.of_role("param")
    forward = [n for n in graph.nodes if n.op == "to_f16" and n.phase == "forward"]
    assert len(forward) == len(weights)


def test_frozen_weights_need_no_master() -> None:
    graph = graph_of("mixed", update="last:1")
    kinds = {graph.own_name(t.name): t.dtype for t in graph.of_role("param")}
    assert (kinds["first.weight"], kinds["last.weight"]) == ("f16", "f32")


def test_adam_keeps_its_means_in_single_precision() -> None:
    graph = graph_of("f16", optimizer="adam")
    update = next(node for node in graph.nodes if node.op == "adam")
    kinds = [graph.tensors[name].dtype for name in update.inputs]
    assert kinds == ["f16", "f16", "f32", "f32", "f32", "f32"], "no casts are needed"
    assert {graph.tensors[name].dtype for name in graph.trained} == {"f16"}


def test_types_by_layer() -> None:
    """The first pattern that fits; a cast where the type changes, and back for the gradient."""
    graph = graph_of({"first": "f32", "norm": "f32", "*": "f16"})
    kinds = {graph.own_name(t.name): t.dtype for t in graph.of_role("param")}
    assert kinds["first.weight"] == kinds["norm.bias"] == "f32"
    assert kinds["second.weight"] == kinds["last.bias"] == "f16"
    assert graph.tensors[graph.inputs[0]].dtype == "f32"
    assert Recipe(dtype={"a*": "f32", "*": "f16"}).dtype == "a*=f32,*=f16"  # type: ignore[arg-type]


def test_an_op_without_a_kernel_is_computed_in_single_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By casts around it, which are there no more than needed."""
    from gradlet.training import casts as written

    right = written.operand_types

    def lacking(op: str, attrs: Any, ins: Any, dtype: str) -> list[str] | None:
        return None if op.startswith("max_pool") else right(op, attrs, ins, dtype)

    before = casts(graph_of("f16"))
    monkeypatch.setattr(written, "operand_types", lacking)
    graph = graph_of("f16")
    assert (casts(graph) - before).total() == 4, "map and pooled map, and their gradients"
    built = gradlet.build(module(), tmp_path / "p", inputs=images(), target="host", dtype="f16")
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, verdict.to_json()


@pytest.mark.parametrize("dtype", ["f16", "mixed"])
def test_rows_of_a_weight(tmp_path: Path, dtype: str) -> None:
    recipe = Recipe(update="second[1:4],last", dtype=dtype)
    built = gradlet.build(module(), tmp_path / "p", inputs=images(), target="host", recipe=recipe)
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, verdict.to_json()


@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_accumulation_clipping_and_layouts(tmp_path: Path, layout: str) -> None:
    recipe = Recipe(dtype="f16", accumulate=2, clip_norm=0.5, momentum=0.5)
    built = gradlet.build(
        module(), tmp_path / "p", inputs=images(), batch=1, recipe=recipe, layout=layout
    )
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, verdict.to_json()


@pytest.mark.parametrize("dtype", ["f16", "mixed"])
def test_an_onnx_file(tmp_path: Path, dtype: str) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(100, 5)).eval()
    path = exported_model(network, images()[:1], tmp_path / "net.onnx", "dynamo")
    built = gradlet.build(path, tmp_path / "p", target="host", dtype=dtype)
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, verdict.to_json()
    assert not verdict.no_module, verdict.no_module


TOML = """
input = [1, 9, 9]
[training]
dtype = DTYPE
[[layer]]
op = "conv2d"
name = "conv1"
out = 3
kernel = 3
[[layer]]
op = "flatten"
[[layer]]
op = "linear"
name = "fc"
out = 4
"""


@pytest.mark.parametrize(
    ("text", "conv", "fc"),
    [('"bf16"', "bf16", "bf16"), ('{ "conv1*" = "f32", "*" = "f16" }', "f32", "f16")],
)
def test_toml_names_types(tmp_path: Path, text: str, conv: str, fc: str) -> None:
    path = tmp_path / "net.toml"
    path.write_text(TOML.replace("DTYPE", text))
    graph = Request(str(path), "host").plan().graph
    assert graph.tensors["conv1.weight"].dtype == conv
    assert graph.tensors["fc.weight"].dtype == fc


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f8", "'f8' is no type; there are f32, f16, bf16, mixed"),
        ("=f16", "'f16' is no type"),
        ("conv=", "'' is no type"),
        ("", "names no type"),
    ],
)
def test_wrong_types_are_told(text: str, message: str) -> None:
    with pytest.raises(GradletError, match=message):
        types_of(text)
    with pytest.raises(GradletError, match=message):
        Recipe(dtype=text)


def test_a_pattern_without_layers_is_told() -> None:
    with pytest.raises(GradletError, match="no layer is called 'conv9'; there are first, last"):
        graph_of("conv9=f16")


def test_the_program_rounds_the_users_floats(tmp_path: Path) -> None:
    built = gradlet.build(module(), tmp_path / "p", inputs=images(), target="host", dtype="f16")
    header = (built.folder / "net.h").read_text()
    assert "gl_f16 *net_input(void);" in header
    assert "void net_fill_input(const float *values);" in header
    assert "const float *net_output(void);" in header


def test_types_side_by_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`gradlet memory --dtype all`: each type has what it takes alone."""
    path = tmp_path / "net.toml"
    path.write_text(TOML.replace("dtype = DTYPE", ""))
    asked = ["memory", str(path), "--dtype", "all"]
    assert invoke(app, [*asked, "--json"], True) == 0
    rows = {row["dtype"]: row for row in json.loads(capsys.readouterr().out)["dtypes"]}
    assert list(rows) == ["f32", "f16", "bf16", "mixed"]
    for kind, row in rows.items():
        recipe = Recipe(dtype=kind)
        plan = Request(str(path), recipe=recipe).plan(fit=False)
        assert row["used"] == sum(map(plan.taken, plan.target.memories)), kind
    assert rows["f16"]["weights"] == rows["bf16"]["weights"] < 0.6 * rows["f32"]["weights"]
    assert invoke(app, [*asked, "--csv", str(tmp_path / "x.csv")], False) == 2


@pytest.mark.parametrize("rounded", [True, False])
def test_the_module_begins_with_the_stored_numbers(
    monkeypatch: pytest.MonkeyPatch, rounded: bool
) -> None:
    """Its first loss in float64 is then that of the graph; a recording in float32 is what is left
    where it is not."""
    from gradlet.frontends import recording

    if not rounded:
        monkeypatch.setattr(recording, "round_as_stored", lambda *_: None)
    request = Request(
        module(), "host", recipe=Recipe(dtype="bf16"), capture_options={"inputs": images()}
    )
    captured = request.captured()
    assert request.recorded(captured, request.plan(captured)).single != rounded


@pytest.mark.drawn(1)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("seed", [2, 4, 7, 9, 11, 15, 18, 22])
def test_random_modules(tmp_path: Path, seed: int, dtype: str) -> None:
    """On their device, tiled or not, in their layout and with their optimizer."""
    drawn = draw(seed)
    recipe = replace(drawn.recipe, dtype=dtype)
    built = gradlet.build(
        drawn.module, tmp_path / "p", inputs=drawn.inputs, recipe=recipe, **drawn.options
    )
    assert COMPUTED[dtype] in {t.dtype for t in built.plan.graph.tensors.values()}
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, f"{drawn.label}: {verdict.first_wrong}"
    assert all(verdict.bit_identical.values()), drawn.label
