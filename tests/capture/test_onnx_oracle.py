"""The ONNX file itself as an oracle: its own operators, and that mistakes of capture show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from torch import nn

import gradlet
from gradlet.api import Captured, aims_of, training_graph
from gradlet.frontends.onnx.model import captured_onnx
from gradlet.frontends.onnx.oracle import module as oracle_module
from gradlet.frontends.onnx.oracle.base import TABLE
from gradlet.frontends.onnx.oracle.module import OnnxModule, Program
from gradlet.frontends.onnx.recording import record_onnx
from gradlet.frontends.onnx.sizes import Sizes
from gradlet.frontends.recording_modes import Refused
from gradlet.ir.graph import Array, Graph
from gradlet.ir.recipe import Recipe
from gradlet.ops import OPS
from gradlet.ops.importer import ONNX
from gradlet.oracle.interpreter import run_reference
from gradlet.oracle.recording import Recording, digest
from tests.capture.onnx_models import build_model, make, random
from tests.capture.test_onnx_export import EXPORTERS, exported_model
from tests.capture.test_onnx_nodes import cases
from tests.models import MODELS


def saved(model: Any, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def recorded(
    path: Path, recipe: Recipe | None = None, layout: str = "chw", batch: int | None = 2
) -> tuple[Recording, Graph]:
    recipe = recipe or Recipe(loss="mse")
    captured: Captured = captured_onnx(path, Sizes(batch))
    graph = training_graph(captured, recipe, layout=layout)
    aims = aims_of(captured, recipe)
    samples = [captured.graph.samples[name] for name in captured.graph.inputs]
    recording = record_onnx(captured.source, graph, recipe, samples, aims)
    return Recording.loads(recording.dumps()), graph


def assert_same(recording: Recording, graph: Graph) -> None:
    """The graph's reference does what the file does; its constants are decimals, not float32."""
    assert recording.absent == ""
    assert set(recording.tensors.values()) >= set(graph.trained)
    steps, grads = list(run_reference(graph, len(recording.losses))), dict(graph.grads)
    pairs = [
        (name, value, steps[0].values[grads[recording.tensors[name]]])
        for name, value in recording.gradients.items()
    ]
    assert pairs
    for step, after in zip(steps, recording.after, strict=True):
        pairs += [(n, v, step.state[recording.tensors[n]]) for n, v in after.items()]
    for step, loss in zip(steps, recording.losses, strict=True):
        pairs.append(("loss", np.asarray([loss]), np.asarray([step.loss])))
    for name, wanted, value in pairs:
        scale = max(float(np.abs(wanted).max()), 1e-3)
        assert np.abs(digest(value) - wanted).max() <= 1e-6 * scale, name


def two_layers(bias: float = 0.1) -> Any:
    stored = {
        "first.w": random(4, 5),
        "first.b": np.full(5, bias, np.float32),
        "second.w": random(3, 5),
        "second.b": np.full(3, bias, np.float32),
    }
    nodes = [
        make("MatMul", ["x", "first.w"], ["p"]),
        make("Add", ["p", "first.b"], ["q"]),
        make("Tanh", ["q"], ["h"]),
        make("Gemm", ["h", "second.w", "second.b"], ["y"], transB=1),
    ]
    return build_model(nodes, {"x": [None, 4]}, stored)


RECIPES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "loss": "cross_entropy", "accumulate": 2},
    "clipped": {"optimizer": "adamw", "clip_norm": 0.1},
    "rows": {"update": "second.w[1:3]"},
    "part": {"update": "first.w,second.b"},
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_file_is_recorded_as_the_recipe_says(recipe: str, tmp_path: Path) -> None:
    path = saved(two_layers(), tmp_path)
    recording, graph = recorded(path, Recipe(**{"loss": "mse", **RECIPES[recipe]}))
    assert_same(recording, graph)
    expected = {"rows": {"second.w[1:3]"}, "part": {"first.w", "second.b"}}
    stored = {"first.w", "first.b", "second.w", "second.b"}
    assert set(recording.tensors) == expected.get(recipe, stored)


EXPORTED = [
    *(
        (name, how)
        for name in ("arithmetic", "frozen_norms", "gru_in_reverse")
        for how in EXPORTERS
    ),
    *(("densenet", "legacy"), ("attention_heads", "legacy"), ("functions", "legacy")),
    *(("norms", "dynamo"), ("recurrent", "dynamo"), ("windows", "dynamo")),
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("name", "exporter"), EXPORTED)
def test_exported_models(name: str, exporter: str, tmp_path: Path) -> None:
    """Norms, functions, recurrent layers whose weights lie otherwise in the program."""
    module, (x, *_) = MODELS[name]()
    path = exported_model(module.eval(), x, tmp_path / "m.onnx", exporter)
    assert_same(*recorded(path, batch=None))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_maps_in_both_layouts(layout: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    module.append(nn.Linear(4 * 9, 3))
    path = exported_model(module.eval(), torch.randn(2, 2, 6, 6), tmp_path / "m.onnx", "legacy")
    assert_same(*recorded(path, layout=layout))


def test_statistics_of_a_norm_in_training_mode(tmp_path: Path) -> None:
    names = ("s", "b", "m", "v")
    stored = {name: np.abs(random(3)) + index for index, name in enumerate(names)}
    nodes = [
        make("BatchNormalization", ["x", *names], ["n", "m2", "v2"], training_mode=1),
        make("Flatten", ["n"], ["y"]),
    ]
    recording, graph = recorded(saved(build_model(nodes, {"x": [None, 3, 2]}, stored), tmp_path))
    assert_same(recording, graph)
    assert {"s", "b", "m", "v"} <= set(recording.after[0])


def test_a_weight_that_is_stored_twice_is_one(tmp_path: Path) -> None:
    table = random(4, 4)
    stored = {"w": table, "onnx::MatMul_9": table.T.copy()}
    nodes = [
        make("MatMul", ["x", "w"], ["h"]),
        make("Tanh", ["h"], ["t"]),
        make("MatMul", ["t", "onnx::MatMul_9"], ["y"]),
    ]
    model = build_model(nodes, {"x": [None, 4]}, stored)
    model.producer_name = "pytorch"
    recording, graph = recorded(saved(model, tmp_path))
    assert len(graph.trained) == 1
    assert_same(recording, graph)


def test_weights_in_constant_nodes(tmp_path: Path) -> None:
    value = onnx.numpy_helper.from_array(random(4, 3))
    nodes = [make("Constant", [], ["w"], value=value), make("MatMul", ["x", "w"], ["y"])]
    assert_same(*recorded(saved(build_model(nodes, {"x": [None, 4]}), tmp_path)))


def wrong_names(path: Path, folder: Path, **options: Any) -> set[str]:
    recipe = Recipe(loss="mse", lr=0.1, **options)
    project = gradlet.build(path, folder, target="host", batch=2, recipe=recipe)
    assert project.recording.absent == ""
    verdict = gradlet.verify(project, steps=2)
    assert {row.oracle for row in verdict.tensors if not row.passed} <= {"module"}
    return {row.name.removeprefix("module: ") for row in verdict.tensors if not row.passed}


def test_verify_compares_with_the_file(tmp_path: Path) -> None:
    project = gradlet.build(saved(two_layers(), tmp_path), tmp_path / "p", target="host")
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed
    assert verdict.to_json()["module_oracle"] == {"tensors": 3 + 4 + 3 * 4, "absent": None}


def test_a_bias_that_capture_forgets_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bias of 0 makes no difference to any output: the graph agrees with the file at first."""
    gemm, add = ONNX["Gemm"], ONNX["Add"]
    monkeypatch.setitem(ONNX, "Gemm", lambda imp, call: gemm(imp, _cut(call)))
    path = saved(two_layers(bias=0.0), tmp_path)
    assert wrong_names(path, tmp_path / "gemm") >= {"second.b after step 1", "loss of step 2"}
    monkeypatch.setitem(ONNX, "Gemm", gemm)
    monkeypatch.setitem(ONNX, "Add", lambda imp, call: imp.tensor(call.args[0]))
    assert "first.b after step 1" in wrong_names(path, tmp_path / "add")
    monkeypatch.setitem(ONNX, "Add", add)
    assert wrong_names(path, tmp_path / "right") == set()


def _cut(call: Any) -> Any:
    call.args[2] = None
    return call


def test_swapped_operands_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal weights: no output tells them apart, their gradients do."""
    stored = {"a": np.full((3, 3), 0.5, np.float32), "b": np.full((3, 3), 0.5, np.float32)}
    nodes = [
        make("MatMul", ["x", "a"], ["p"]),
        make("Tanh", ["p"], ["t"]),
        make("MatMul", ["t", "b"], ["y"]),
    ]
    path = saved(build_model(nodes, {"x": [None, 3]}, stored), tmp_path)
    assert wrong_names(path, tmp_path / "right") == set()
    right, other = ONNX["MatMul"], {"a": "b", "b": "a"}

    def swapped(imp: Any, call: Any) -> Any:
        call.args[1] = other[call.args[1]]
        return right(imp, call)

    monkeypatch.setitem(ONNX, "MatMul", swapped)
    assert wrong_names(path, tmp_path / "p") >= {"gradient of a", "gradient of b"}


def test_a_gradient_rule_that_all_of_ours_share_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tanh = type(OPS["tanh"])
    path = saved(two_layers(), tmp_path)
    monkeypatch.setattr(tanh, "vjp", lambda self, emit, site, grads, wanted: {"x": grads[0]})
    through = "({0}.tanh().detach() + {0} - {0}.detach())"
    monkeypatch.setattr(tanh, "torch", lambda self, attrs, x: through.format(x))
    assert "gradient of first.w" in wrong_names(path, tmp_path / "p")


def test_the_oracle_is_itself_held_against_onnx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong values, a bias of 0 that it forgets, and a gradient that it loses."""
    path = saved(two_layers(bias=0.0), tmp_path)
    tanh, gemm = TABLE["Tanh"], TABLE["Gemm"]
    monkeypatch.setitem(TABLE, "Tanh", lambda op, args: tanh(op, args) * 1.000001)
    assert "is not that of ONNX's own evaluator" in recorded(path)[0].absent
    monkeypatch.setitem(TABLE, "Tanh", tanh)
    monkeypatch.setitem(TABLE, "Gemm", lambda op, args: gemm(op, args[:2]))
    assert "is not that of ONNX's own evaluator" in recorded(path)[0].absent
    monkeypatch.setitem(TABLE, "Gemm", gemm)
    monkeypatch.setitem(TABLE, "Tanh", lambda op, args: tanh(op, args).detach())
    assert "'first.w' by PyTorch is not that by differences" in recorded(path)[0].absent
    monkeypatch.setitem(TABLE, "Tanh", tanh)
    assert recorded(path)[0].absent == ""


def test_an_operator_that_the_table_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By differences of ONNX's evaluator; where that takes too long, there is no recording."""
    path = saved(two_layers(), tmp_path)
    monkeypatch.delitem(TABLE, "Tanh")
    assert_same(*recorded(path))
    monkeypatch.setattr(oracle_module, "BY_DIFFERENCES", 9)
    assert "(Tanh): the oracle has no derivative" in recorded(path)[0].absent


def module_of(model: Any, inputs: list[Array]) -> Array:
    wide = [np.asarray(v, np.float64) if v.dtype.kind == "f" else v for v in inputs]
    with torch.no_grad():
        result: Array = OnnxModule(model, [], [])(*map(torch.from_numpy, wide))[0].numpy()
    return result


def is_plain(case: Any) -> bool:
    """Arrays of numbers with elements, one result of float32, operators of the table."""
    inputs, outputs = case.data_sets[0]
    arrays = all(isinstance(value, np.ndarray) and value.size for value in (*inputs, *outputs))
    kinds = {node.op_type for node in case.model.graph.node}
    return arrays and len(outputs) == 1 and outputs[0].dtype == np.float32 and kinds <= {*TABLE}


def test_the_table_computes_what_the_node_tests_expect() -> None:
    """Those of the onnx package; forms that the table lacks say so themselves."""
    tried = 0
    for case in filter(is_plain, cases()):
        inputs, outputs = case.data_sets[0]
        if case.name in ("test_reduce_max_empty_set", "test_reduce_min_empty_set"):
            continue  # of nothing
        result = module_of(case.model, inputs)
        # the package's own figures are float32, or rounded to a few digits in its source
        slack = {"rtol": max(case.rtol, 1e-4), "atol": max(case.atol, 1e-5)}
        assert np.allclose(result, outputs[0], equal_nan=True, **slack), case.name
        tried += 1
    assert tried > 450


def test_random_numbers_are_not_recorded(tmp_path: Path) -> None:
    nodes = [make("RandomNormalLike", ["x"], ["r"]), make("Add", ["x", "r"], ["y"])]
    with pytest.raises(Refused, match="draws random numbers"):
        Program(build_model(nodes, {"x": [2, 3]}), [])


def test_types_in_between_are_all_wide() -> None:
    """Constants of every form, casts, and a file in double precision, which is rounded once."""
    tenth = onnx.numpy_helper.from_array(np.asarray([0.1], np.float32))
    nodes = [
        make("Constant", [], ["a"], value_float=0.1),
        make("ConstantOfShape", ["s"], ["b"], value=tenth),
        make("Cast", ["x"], ["c"], to=TensorProto.FLOAT),
        make("Sum", ["a", "b", "c"], ["y"]),
    ]
    model = build_model(nodes, {"x": [3]}, {"s": np.asarray([3])})
    expected = 2 * float(np.float32(0.1)) + np.arange(3.0)
    assert np.array_equal(module_of(model, [np.arange(3, dtype=np.float32)]), expected)
