"""Names tell tensors apart and decide nothing: a model may use any of ours, of C's or of Python's.

Our own words are not listed here but taken from plans and generated files, so that a new one is
tried as soon as it exists. Losses are compared with the model itself, trained by torch.optim.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import gradlet
from gradlet.codegen.names import comment, identifiers, string
from gradlet.codegen.project import Project
from gradlet.ir.recipe import Recipe

ADAM = Recipe(loss="mse", optimizer="adam", clip_norm=0.5, accumulate=2, lr=0.01)
SGD = Recipe(loss="mse", lr=0.05)
WORDS = (
    *("target", "targets", "loss", "d_loss", "hyper", "clip", "correction", "dropout_state"),
    *("class_weights", "pos_weight", "scratch", "tile", "arena", "weights", "constants", "input"),
    *("output", "missing_0", "const_0", "net", "main", "golden", "int", "NULL", "errno", "I"),
    *("restrict", "lambda", "None", "self", "parameters", "all", "biases", "last:1", "T_x", "x~2"),
)
STRANGE: tuple[str, ...] = (
    "a b",
    "é",
    "数",
    "a'b",
    'a"b',
    "??/",
    "\\",
    "/*",
    "*/",
    "a\nb",
    "%s",
    "@scratch.loss",
)
STRANGE += ("a" * 300, "$(x)", "a" * 299 + "b", "A_b", "a_B", "[bold]", "{x}", "\u202e", "1", "-")


class Words(nn.Module):
    """tanh(mean of the inputs + mean of products of neighbours), a parameter for each name."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name in names:
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if not hasattr(owner, part):
                    owner.add_module(part, nn.Module())
                owner = getattr(owner, part)
                if not isinstance(owner, nn.Module):  # a parameter of that name has no parts
                    break
            if isinstance(owner, nn.Module) and not hasattr(owner, last):
                value = torch.rand(3, generator=generator) + 0.5
                owner.register_parameter(last, nn.Parameter(value))

    def body(self, *inputs: Any) -> Any:
        values = list(self.parameters())
        y = sum(inputs)
        for one, other in pairwise([*values, values[0]]):
            y = y + one * other / len(values)
        return y.tanh()


def with_inputs(names: Sequence[str]) -> type[Words]:
    space: dict[str, Any] = {}
    listed = ", ".join(names)
    exec(f"def forward(self, {listed}):\n    return self.body({listed})", space)
    return type("WithInputs", (Words,), {"forward": space["forward"]})


def samples(count: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(4, 3, generator=generator) for _ in range(count))


def own_losses(module: Any, inputs: Any, targets: Any, recipe: Recipe, steps: int) -> list[float]:
    """Of the module itself, one sample per micro-batch."""
    module = copy.deepcopy(module).double()
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[recipe.optimizer]
    optimizer = kind(module.parameters(), lr=recipe.lr)
    losses, fed = [], 0
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(recipe.accumulate):
            at = slice(fed % len(targets), fed % len(targets) + 1)
            y = module(*(value[at].double() for value in inputs))
            loss = nn.functional.mse_loss(y, targets[at].double()) / recipe.accumulate
            loss.backward()
            total, fed = total + loss.item(), fed + 1
        if recipe.clip_norm:
            nn.utils.clip_grad_norm_(module.parameters(), recipe.clip_norm)
        optimizer.step()
        losses.append(total)
    return losses


def check(module: Any, inputs: Any, folder: Path, recipe: Recipe, target: str = "host") -> Project:
    targets = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))
    project = gradlet.build(
        module, folder, inputs=inputs, targets=targets, batch=1, target=target, recipe=recipe
    )
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed, (verdict.first_wrong, verdict.losses)
    expected = own_losses(module, inputs, targets, recipe, 3)
    np.testing.assert_allclose([computed for computed, _, _ in verdict.losses], expected, rtol=1e-4)
    return project


def words_of(project: Project) -> set[str]:
    """Every name of a project: tensors, nodes, buffers, C identifiers, files."""
    plan = project.plan
    found = {*plan.graph.tensors, *(b.name for b in plan.buffers), *(c.name for c in plan.calls)}
    for path in project.folder.rglob("*"):
        if path.suffix in (".c", ".h", ".py"):
            found.update([path.stem, path.name])
        if path.parent == project.folder and path.suffix in (".c", ".h"):
            words = sorted(set(re.findall(r"\b(?:T|net|golden|gl)_\w+", path.read_text())))
            found.update(words[:: max(1, len(words) // 2)])  # a sample of those of C
    return {name for name in found if "" not in name.split(".")}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Our own names beside a parameter `p` and an input `x`, with and without Adam's state."""
    found: set[str] = set()
    for index, recipe in enumerate((SGD, ADAM)):
        folder = tmp_path_factory.mktemp("plain") / str(index)
        module = with_inputs(["x"])(["p"])
        found |= words_of(
            gradlet.build(module, folder, inputs=samples(1), target="host", batch=1, recipe=recipe)
        )
    assert {"target", "hyper", "m_p", "d_p", "p.next", "acc_p.sum", "main.c"} <= found
    return sorted(found)


@pytest.mark.thorough
def test_parameters_may_have_our_names(ours: list[str], tmp_path: Path) -> None:
    """All at once, in the model from which the names were taken: `p` and `x` are there again."""
    module = with_inputs(["x"])(["p", *ours])
    project = check(module, samples(1), tmp_path / "p", ADAM)
    trained = {project.plan.graph.own_name(name) for name in project.plan.graph.trained}
    assert trained == {name for name, _ in module.named_parameters()}
    assert len(trained) > len(ours) / 2  # no parameter can be both `p` and `p.next`


def test_parameters_may_have_any_name(tmp_path: Path) -> None:
    module = with_inputs(["x"])([*(w for w in (*WORDS, *STRANGE) if w != "parameters"), "x"])
    project = check(module, samples(1), tmp_path / "p", ADAM)
    assert len(project.plan.graph.trained) > 50


def test_inputs_may_have_any_name(ours: list[str], tmp_path: Path) -> None:
    """As parameters have at the same time."""
    names = [w for w in (*WORDS, *ours) if w.isidentifier() and w not in ("lambda", "None", "self")]
    names = list(dict.fromkeys([*names, "x", "X", "d_x", "p", "input_x", "a__b", "a_b", "A_B"]))
    module = with_inputs(names)(["p", "x", "target", "loss", "a.b", "a_b"])
    project = check(module, samples(len(names)), tmp_path / "p", SGD)
    header = (project.folder / "net.h").read_text()
    assert "float *net_input_target(void);" in header
    assert "float *net_target(void);" in header
    assert len(set(re.findall(r"net_input_\w+\(", header))) == len(names)


def test_on_the_device(ours: list[str], tmp_path: Path) -> None:
    names = ["target", "loss", "hyper", "x", "scratch.loss", "@scratch.loss"]
    module = with_inputs(["x", "target"])([*names, *(n for n in ours if n.startswith("d_"))])
    check(module, samples(2), tmp_path / "p", SGD, target="pulp-open")


class Counted(nn.Module):
    """A buffer of whole numbers, a state of dropout and layers with the names of others."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.arange(3))
        self.dropout_state = nn.Linear(3, 3)
        self.register_buffer("target", torch.full((3,), 0.5))
        self.relu_0 = nn.Parameter(torch.ones(3))
        self.drop = nn.Dropout(0.5)

    def forward(self, target: Any) -> Any:
        return self.drop(self.dropout_state(target * self.relu_0).relu() + self.target)


@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_buffers_and_states(layout: str, tmp_path: Path) -> None:
    project = gradlet.build(
        Counted(), tmp_path / "p", inputs=samples(1), target="host", recipe=SGD, layout=layout
    )
    graph = project.plan.graph
    assert sorted(graph.trained) == ["dropout_state.bias", "dropout_state.weight", "relu_0"]
    assert graph.own_name(graph.inputs[0]) == "target"
    assert gradlet.verify(project, steps=2).passed


def onnx_file(path: Path, names: Sequence[str]) -> Path:
    """Every value of the file has one of the names: input, weights, results in between."""
    rng = np.random.default_rng(0)
    count = (len(names) - 2) // 2
    source, result, weights = names[0], names[1], names[2 : 2 + count]
    between = [*names[2 + count : 1 + 2 * count], result]
    nodes, stored, last = [], [], source
    for index, (weight, made) in enumerate(zip(weights, between, strict=True)):
        value = rng.uniform(-0.1, 0.1, 3).astype(np.float32)
        stored.append(numpy_helper.from_array(value, weight))
        nodes.append(helper.make_node(("Add", "Sub")[index % 2], [last, weight], [made]))
        last = made
    shape = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3]) for n in (source, result)]
    graph = helper.make_graph(nodes, "names", shape[:1], shape[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def test_onnx_files_may_have_any_names(ours: list[str], tmp_path: Path) -> None:
    names = list(dict.fromkeys(["target", *STRANGE, "loss", *ours, *WORDS]))
    file = onnx_file(tmp_path / "m.onnx", names)
    project = gradlet.build(file, tmp_path / "p", target="host", recipe=Recipe(loss="mse", lr=1e-3))
    assert len(project.plan.graph.trained) == (len(names) - 2) // 2
    assert gradlet.verify(project, steps=2).passed


def test_layers_of_a_toml_may_have_any_name(ours: list[str], tmp_path: Path) -> None:
    names = [n for n in (*WORDS, *ours) if n != "input" and '"' not in n]
    layers = [f'[[layer]]\nop = "linear"\nout = 3\nname = "{name}"\n' for name in names[:40]]
    file = tmp_path / "m.toml"
    file.write_text("input = [3]\n" + "".join(dict.fromkeys(layers)))
    project = gradlet.build(file, tmp_path / "p", target="host", recipe=SGD)
    assert gradlet.verify(project, steps=2).passed


def test_identifiers_differ_in_capitals_too() -> None:
    names = ["a.b", "a_b", "A.B", "é", "ü", "", "x" * 500, "x" * 500 + "y", "a_b_2"]
    found = identifiers(names)
    assert len({value.upper() for value in found.values()}) == len(names)
    assert all(re.fullmatch(r"\w{1,60}", value, re.ASCII) for value in found.values())


@pytest.mark.parametrize("text", [*STRANGE, "/*/", "*/*/", "????/", "a\\\n", "\ud800", "//\\"])
def test_comments_and_strings_hold_any_text(text: str) -> None:
    inside = comment(text)
    assert not re.search(r"\*/|/\*|//|\?\?|\\|\n|\u202e", inside)
    inside.encode()
    assert re.fullmatch(r'"([ !#-\[\]-~]|\\[0-7]{3})*"', string(text))
    inner = string(text)[1:-1]
    raw = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), inner.encode())
    assert raw == text.encode("utf-8", "replace")
