"""Models written as TOML: what they mean, and every mistake one can make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradlet.errors import GradletError
from gradlet.frontends.importer import Captured
from gradlet.frontends.toml import capture_toml
from gradlet.frontends.torch.program import capture_module
from gradlet.ir.graph import Array
from gradlet.ir.recipe import Recipe
from gradlet.ops import TOML
from gradlet.training.autodiff import train

FULL = """
name = "net"
input = [2, 8, 8]
seed = 3
[training]
loss = "mse"
lr = 1
update = "last:1"
batch = 4
accumulate = 2
[[layer]]
op = "conv2d"
name = "conv1"
out = 4
kernel = 3
padding = 1
[[layer]]
op = "relu"
[[layer]]
op = "conv2d"
name = "conv2"
out = 4
kernel = [1, 3]
padding = [0, 1]
groups = 2
bias = false
[[layer]]
op = "add"
name = "sum"
input = ["conv1", "conv2"]
[[layer]]
op = "max_pool2d"
kernel = 2
[[layer]]
op = "avg_pool2d"
kernel = 2
stride = 1
[[layer]]
op = "global_avg_pool2d"
[[layer]]
op = "flatten"
[[layer]]
op = "linear"
out = 3
"""


class Twin(nn.Module):
    """FULL, in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, (1, 3), padding=(0, 1), groups=2, bias=False)
        self.tail = nn.Sequential(
            nn.MaxPool2d(2), nn.AvgPool2d(2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.add_module("8", nn.Linear(4, 3))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y = self.conv1(input)
        y = y + self.conv2(torch.relu(y))
        result: torch.Tensor = self.get_submodule("8")(self.tail(y))
        return result


def _capture(text: str, folder: Path, batch: int | None = None) -> Captured:
    path = folder / "net.toml"
    path.write_text(text, "utf-8")
    return capture_toml(path, batch=batch)


def _layer(text: str, top: str = "input = [4, 8, 8]\n") -> str:
    return f"{top}[[layer]]\n{text}\n"


def test_same_graph_as_pytorch(tmp_path: Path) -> None:
    graph = _capture(FULL, tmp_path).graph
    expected = capture_module(Twin().eval(), (torch.zeros(4, 2, 8, 8),), name="net")
    assert graph == expected
    assert [node.module for node in graph.nodes][:3] == ["conv1", "1", "conv2"]


def test_training_defaults(tmp_path: Path) -> None:
    captured = _capture(FULL, tmp_path)
    assert captured.defaults == {
        "loss": "mse",
        "lr": 1.0,
        "update": "last:1",
        "batch": 4,
        "accumulate": 2,
    }
    recipe = Recipe(**{k: v for k, v in captured.defaults.items() if k != "batch"})
    assert train(captured.graph, recipe).trained == ("8.weight", "8.bias")


def test_batch_is_asked_for_or_the_default_or_one(tmp_path: Path) -> None:
    assert _capture(FULL, tmp_path, batch=7).graph.tensors["input"].shape == (7, 2, 8, 8)
    assert _capture(FULL, tmp_path).graph.tensors["input"].shape == (4, 2, 8, 8)
    single = _layer('op = "relu"', "input = [3]\n")
    assert _capture(single, tmp_path).graph.tensors["input"].shape == (1, 3)


def test_name_is_that_of_the_file_by_default(tmp_path: Path) -> None:
    assert _capture(_layer('op = "relu"'), tmp_path).graph.name == "net"


def test_weights_are_drawn_as_pytorch_draws_them(tmp_path: Path) -> None:
    graph = _capture(_layer('op = "linear"\nout = 400', "input = [100]\n"), tmp_path).graph
    for value in graph.data.values():
        assert value.dtype == np.float32
        assert float(np.abs(value).max()) <= 0.1
        assert abs(float(value.std()) - 0.1 / np.sqrt(3)) < 0.005
    layer = nn.Linear(100, 400)
    bound = float(layer.weight.detach().abs().max())
    assert 0.0999 < bound <= 0.1, "PyTorch still draws from the same range"


def test_seed(tmp_path: Path) -> None:
    def weight(seed: str) -> Array:
        text = _layer('op = "linear"\nout = 2', f"input = [3]\n{seed}\n")
        return _capture(text, tmp_path).graph.data["0.weight"]

    np.testing.assert_array_equal(weight(""), weight("seed = 0"))
    assert not np.array_equal(weight("seed = 0"), weight("seed = 1"))


def test_samples(tmp_path: Path) -> None:
    graph = _capture(_layer('op = "relu"'), tmp_path).graph
    drawn = np.random.default_rng(0).standard_normal((1, 1, 4, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(graph.samples["input"], drawn)


def test_weights_from_a_file(tmp_path: Path) -> None:
    weights = {"fc.weight": np.arange(6.0).reshape(2, 3), "fc.bias": np.ones(2, np.float16)}
    (tmp_path / "sub").mkdir()
    np.savez(tmp_path / "sub" / "w.npz", **weights)  # type: ignore[arg-type]
    top = 'input = [3]\nweights = "sub/w.npz"\n'
    graph = _capture(_layer('op = "linear"\nname = "fc"\nout = 2', top), tmp_path).graph
    assert list(graph.data) == ["fc.weight", "fc.bias"]
    for name, value in weights.items():
        np.testing.assert_array_equal(graph.data[name], value)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ('op = "reshape"\nshape = [2, -1]', (1, 2, 128)),
        ('op = "transpose"\naxes = [0, 2, 3, 1]', (1, 8, 8, 4)),
        ('op = "matmul"\nlayout = "nt"\ninput = ["input", "input"]', (1, 4, 8, 8)),
        ('op = "conv2d"\nout = 2\nkernel = 3\npadding = [0, 1, 2, 3]\nstride = 2', (1, 2, 4, 5)),
        ('op = "add"\ninput = ["input", "input"]', (1, 4, 8, 8)),
        ('op = "linear"\nout = 5', (1, 4, 8, 5)),
    ],
)
def test_shapes(text: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    graph = _capture(_layer(text), tmp_path).graph
    assert graph.tensors[graph.outputs[0]].shape == shape


CONV = 'op = "conv2d"\nname = "c"\nout = 2\nkernel = 3'
MISTAKES: dict[str, tuple[str, str]] = {
    "unknown top key": (_layer('op = "relu"', "inputs = [3]\n"), "unknown key 'inputs' (do you "),
    "no input": ('name = "x"\n' + _layer('op = "relu"', ""), "'input' is missing"),
    "bad input": (_layer('op = "relu"', "input = 3\n"), "'input' must be a list of sizes"),
    "empty input": (_layer('op = "relu"', "input = []\n"), "'input' must be a list of sizes"),
    "zero input": (_layer('op = "relu"', "input = [0, 2]\n"), "not [0, 2]"),
    "bad name": (_layer('op = "relu"', "name = 3\ninput = [3]\n"), "'name' must be a string"),
    "bad seed": (_layer('op = "relu"', "seed = true\ninput = [3]\n"), "'seed' must be a whole"),
    "no layers": ("input = [3]\n", "the model has no layers; write each one as a [[layer]]"),
    "layer as value": ("input = [3]\nlayer = 3\n", "the model has no layers"),
    "no op": (
        _layer("out = 3"),
        f"layer '0': 'op' is missing; there are {', '.join(sorted(TOML))}",
    ),
    "unknown op": (
        _layer('op = "conv3d"'),
        "layer '0': unknown op 'conv3d' (do you mean 'conv2d'?",
    ),
    "name is a number": (_layer('op = "relu"\nname = 1'), "layer 0: 'name' must be a string"),
    "name taken": (_layer('op = "relu"\nname = "input"'), "layer 0: the name 'input' is taken"),
    "missing key": (_layer('op = "conv2d"\nout = 2'), "layer '0': conv2d: 'kernel' is missing"),
    "misspelt needed key": (
        _layer('op = "conv2d"\nout = 2\nkernal = 3'),
        "layer '0': conv2d: 'kernel' is missing; there is 'kernal' (do you mean 'kernel'?)",
    ),
    "misspelt optional key": (
        _layer(CONV + "\npading = 1"),
        "layer 'c': conv2d has no 'pading' (do you mean 'padding'?); there are bias, dilation,",
    ),
    "key of another op": (_layer('op = "relu"\nout = 1'), "relu has no 'out'; there are none"),
    "text for a number": (
        _layer('op = "conv2d"\nout = "2"\nkernel = 3'),
        "'out' must be a whole number or a list of them, not '2'",
    ),
    "truth for a number": (_layer('op = "linear"\nout = true'), "'out' must be a whole number"),
    "number for truth": (_layer(CONV + "\nbias = 1"), "'bias' must be true or false, not 1"),
    "fraction": (_layer(CONV + "\nstride = 1.5"), "'stride' must be a whole number or a list"),
    "list for a number": (
        _layer('op = "linear"\nout = [2]'),
        "layer '0': linear on [1, 4, 8, 8]: ",
    ),
    "three sizes": (
        _layer('op = "conv2d"\nout = 2\nkernel = [3, 3, 3]'),
        "layer '0': [3, 3, 3] should be one number, or height and width",
    ),
    "zero outputs": (_layer('op = "linear"\nout = 0'), "would have the shape [0, 8]; sizes start"),
    "zero kernel": (_layer('op = "max_pool2d"\nkernel = 0'), "kernel, stride and dilation must be"),
    "groups": (_layer(CONV + "\ngroups = 3"), "layer 'c': conv2d: 4 channels in 3 groups"),
    "too large": (
        _layer('op = "conv2d"\nname = "c"\nout = 2\nkernel = 9'),
        "layer 'c': conv2d(input: f32[1,4,8,8], c.weight: f32[2,4,9,9], c.bias: f32[2]): a 9x9",
    ),
    "layout": (
        _layer('op = "matmul"\ninput = ["input", "input"]\nlayout = "tt"'),
        "matmul: layout 'tt'; there are nn, nt and tn",
    ),
    "bad reshape": (_layer('op = "reshape"\nshape = [7, -1]'), "cannot be viewed as"),
    "two open extents": (_layer('op = "reshape"\nshape = [-1, -1]'), "at most one extent may be"),
    "not a permutation": (_layer('op = "transpose"\naxes = [0, 1]'), "is not a permutation"),
    "pooling of rows": (
        _layer('op = "global_avg_pool2d"', "input = [4, 8]\n"),
        "global_avg_pool2d: pooling over other than two spatial dimensions",
    ),
    "unknown source": (
        _layer('op = "relu"\ninput = ["c1"]'),
        "layer '0': input 'c1' is no earlier layer; there are input",
    ),
    "source is a number": (_layer('op = "relu"\ninput = [0]'), "'input' must name earlier layers"),
    "no sources": (_layer('op = "relu"\ninput = []'), "'input' must name earlier layers, not []"),
    "one operand": (_layer('op = "add"'), "add takes 2 inputs, not 1; name them: input = [...]"),
    "three operands": (
        _layer('op = "add"\ninput = ["input", "input", "input"]'),
        "add takes 2 inputs, not 3",
    ),
    "two for a conv": (
        _layer('op = "relu"\nname = "r"') + _layer(CONV + '\ninput = ["input", "r"]', ""),
        "layer 'c': conv2d takes one input, not 2",
    ),
    "leads nowhere": (
        _layer('op = "relu"\nname = "r"') + _layer('op = "relu"\ninput = "input"', ""),
        "layer 'r' is read by no other; the last one is the output",
    ),
    "training is a value": (_layer('op = "relu"', "input = [3]\ntraining = 1\n"), "[training]"),
    "unknown training key": (
        _layer('op = "relu"', "input = [3]\n[training]\nLr = 1\n"),
        "training: unknown key 'Lr' (do you mean 'lr'?); there are loss, optimizer, lr",
    ),
    "bad rate": (
        _layer('op = "relu"', 'input = [3]\n[training]\nlr = "fast"\n'),
        "training: 'lr' must be a number, not 'fast'",
    ),
    "bad batch": (
        _layer('op = "relu"', "input = [3]\n[training]\nbatch = 1.5\n"),
        "training: 'batch' must be a whole number, not 1.5",
    ),
    "batch 0": (
        _layer('op = "relu"', "input = [3]\n[training]\nbatch = 0\n"),
        "a batch of 0 makes no sense",
    ),
    "weights as a list": (
        _layer('op = "relu"', "input = [3]\nweights = [1]\n"),
        "'weights' must be the name of an .npz file, not [1]",
    ),
    "no weights file": (
        _layer('op = "relu"', 'input = [3]\nweights = "w.npz"\n'),
        "there is no file of weights",
    ),
    "syntax": ("input = [3\n", "is not valid TOML: "),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case: str, tmp_path: Path) -> None:
    text, message = MISTAKES[case]
    with pytest.raises(GradletError) as caught:
        _capture(text, tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "net.toml"))
    assert message in str(caught.value)
    assert "module '" not in str(caught.value), "a TOML file has layers, not modules"


GOOD = {"0.weight": np.zeros((2, 3)), "0.bias": np.zeros(2)}
WRONG_WEIGHTS: dict[str, tuple[dict[str, Array], str]] = {
    "missing": ({"0.weights": np.zeros((2, 3))}, "lacks '0.weight' (do you mean '0.weights'?)"),
    "extra": ({**GOOD, "1.bias": np.zeros(1)}, "w.npz holds ['1.bias'], which no layer has"),
    "shape": ({**GOOD, "0.weight": np.zeros((3, 2))}, "has shape [3, 2], the layer needs [2, 3]"),
    "integers": ({**GOOD, "0.bias": np.zeros(2, int)}, "'0.bias' holds int64, not floats"),
    "NaN": ({**GOOD, "0.bias": np.full(2, np.nan)}, "parameter '0.bias' of model 'net' contains"),
    "objects": ({"0.weight": np.array([{}])}, "are no .npz of arrays: Object arrays cannot be"),
}


@pytest.mark.parametrize("case", WRONG_WEIGHTS)
def test_wrong_weights(case: str, tmp_path: Path) -> None:
    arrays, message = WRONG_WEIGHTS[case]
    np.savez(tmp_path / "w.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(GradletError) as caught:
        _capture(_layer('op = "linear"\nout = 2', 'input = [3]\nweights = "w.npz"\n'), tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize("array_file", [True, False])
def test_weights_file_of_another_kind(array_file: bool, tmp_path: Path) -> None:
    with (tmp_path / "w.npz").open("wb") as stream:
        if array_file:
            np.save(stream, np.zeros(3))
        else:
            stream.write(b"PK\x03\x04 nothing")
    with pytest.raises(GradletError, match=r"w\.npz are no \.npz of arrays"):
        _capture(_layer('op = "relu"', 'input = [3]\nweights = "w.npz"\n'), tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GradletError, match=r"there is no file .*net\.toml"):
        capture_toml(tmp_path / "net.toml")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(GradletError, match="cannot be read: Is a directory"):
        capture_toml(tmp_path)


def test_not_text(tmp_path: Path) -> None:
    (tmp_path / "net.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GradletError, match="is not valid TOML"):
        capture_toml(tmp_path / "net.toml")
