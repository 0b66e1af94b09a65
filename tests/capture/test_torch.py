"""PyTorch front end: what is taken over, and how a refusal reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradlet
from gradlet.errors import GradletError
from gradlet.frontends.torch.program import capture_module
from tests.models import MODELS


@pytest.mark.drawn(10)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_capture_is_repeatable(name: str) -> None:
    first, second = (gradlet.capture(*MODELS[name](), name=name).graph for _ in range(2))
    assert first == second
    assert first.dumps() == second.dumps()


def test_tied_weights_are_one_parameter() -> None:
    graph = gradlet.capture(*MODELS["tied"](), name="tied").graph
    assert [t.name for t in graph.of_role("param")] == ["inner.weight", "inner.bias", "offset"]
    assert [t.name for t in graph.of_role("const")] == ["shift"]


def test_depthwise_and_pointwise_are_cases_of_conv2d() -> None:
    graph = gradlet.capture("zoo:ds-cnn").graph
    groups = [node.attrs["groups"] for node in graph.nodes if node.op == "conv2d"]
    assert groups == [1, 64, 1, 64, 1, 64, 1, 64, 1]
    assert not any(node.op == "pad" for node in graph.nodes), "padding belongs to the convolution"


def test_train_and_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    graph = capture_module(model.eval(), torch.randn(2, 3), name="m")
    assert [node.op for node in graph.nodes] == ["matmul", "matmul"]
    graph = capture_module(model.train(), torch.randn(2, 3), name="m")
    assert [node.op for node in graph.nodes] == ["matmul", "dropout", "matmul"]
    model[1].p = 0.0
    graph = capture_module(model, torch.randn(2, 3), name="m")
    assert [node.op for node in graph.nodes] == ["matmul", "matmul"]


def test_the_users_module_is_left_as_it_was() -> None:
    model = nn.Linear(3, 2).double()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    capture_module(model, torch.randn(1, 3, dtype=torch.float64), name="m")
    assert model.weight.dtype == torch.float64
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_batch_takes_as_many_samples_as_there_are() -> None:
    module, (x,) = MODELS["lenet"]()
    graph = gradlet.capture(module, (x,), batch=1).graph
    assert graph.samples[graph.inputs[0]].shape == (3, 1, 1, 16, 16)
    graph = gradlet.capture(module, (x,), batch=7).graph
    assert graph.samples[graph.inputs[0]].shape == (1, 7, 1, 16, 16)


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(2, 3, 1), nn.RReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = torch.lgamma(self.block(x))
        return torch.erfinv(x)


def test_all_missing_ops_in_one_message() -> None:
    with pytest.raises(GradletError) as caught:
        capture_module(Unsupported(), torch.randn(1, 2, 4, 4), name="odd")
    text = str(caught.value)
    assert "model 'odd'" in text
    assert "module 'block.1': aten.rrelu.default on [1, 3, 4, 4]" in text
    for name in ("lgamma", "erfinv"):
        assert name in text
    assert "there is" not in text  # a name that looks alike is no hint


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Odd() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.sort(x)[0]


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.lgamma(self.inner(x).abs() + 1)


def test_equal_ops_are_listed_once_with_the_line_that_has_them() -> None:
    with pytest.raises(GradletError) as caught:
        capture_module(Repeated(), torch.randn(2, 3), name="odd")
    (_, line) = str(caught.value).splitlines()
    assert line.startswith(
        "  module 'layers.0': aten.lgamma.default on [2, 3] (test_torch.py, line"
    )
    assert "`return torch.lgamma(self.inner(x).abs() + 1)`" in line
    assert line.endswith("(3 times, also in 'layers.1', 'layers.2')")


class Dynamic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0]


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def with_nan() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.weight.data[1, 2] = float("nan")
    return nn.Sequential(layer)


class Decaying(nn.Module):
    """Writes to its own buffer: the next step computes with another one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("share", torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.share[0].mul_(0.9)
        y: Tensor = self.layer(x * self.share)
        return y


REFUSALS: dict[str, tuple[Any, Any, str]] = {
    "dynamic shape": (Dynamic, torch.randn(3, 4), "depends on the data"),
    "control flow": (Branch, torch.randn(3, 4), "torch.export cannot trace"),
    "wrong shape": (lambda: nn.Linear(3, 2), torch.randn(2, 4), "fails in PyTorch itself"),
    "NaN in a weight": (with_nan, torch.randn(2, 3), "parameter '0.weight'.*NaN.*1 of 6"),
    "NaN in an input": (lambda: nn.Linear(3, 2), torch.full((2, 3), np.nan), "example input"),
    "booleans": (
        lambda: nn.Linear(3, 2),
        torch.zeros(2, 3, dtype=torch.bool),
        "floats, or indices",
    ),
    "integers as scores": (
        lambda: nn.ReLU(),
        torch.zeros(2, 3, dtype=torch.long),
        "returns torch.int64; a loss needs scores in floating point",
    ),
    "a buffer that changes": (Decaying, torch.randn(2, 3), "changes 'share' of the model"),
    "no tensor": (lambda: nn.Linear(3, 2), "x", "tensors are needed"),
    "no sample": (lambda: nn.Linear(3, 2), torch.randn(0, 3), "no samples"),
    "no module": (lambda: 3, torch.randn(2, 3), "not an nn.Module"),
    "lazy": (lambda: nn.LazyLinear(3), torch.randn(2, 3), "has no shape yet"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal(case: str) -> None:
    build, example, message = REFUSALS[case]
    with pytest.raises(GradletError, match=message):
        capture_module(build(), example, name="m")


FILES = {
    "a function": ("def net():\n    return nn.Linear(3, 2), torch.randn(2, 3)\n", "net"),
    "with targets": (
        "def net():\n    return nn.Linear(3, 2), torch.randn(2, 3), torch.tensor([0, 1])\n",
        "net",
    ),
    "a module": ("net = nn.Linear(3, 2)\nexample_inputs = torch.randn(2, 3)\n", "net"),
    "a class": (
        "class Net(nn.Sequential):\n    example_inputs = torch.randn(2, 3)\n"
        "    def __init__(self):\n        super().__init__(nn.Linear(3, 2))\n",
        "Net",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_python_files(case: str, tmp_path: Path) -> None:
    text, name = FILES[case]
    path = tmp_path / "model.py"
    path.write_text("import torch\nfrom torch import nn\n" + text)
    captured = gradlet.capture(f"{path}:{name}")
    assert captured.graph.name == name
    assert [node.op for node in captured.graph.nodes] == ["matmul"]
    assert (captured.targets is not None) == (case == "with targets")


BAD_FILES = {
    "syntax": ("def net(:\n", "net", "cannot be imported: SyntaxError"),
    "raises": ("raise RuntimeError('boom')\n", "net", "RuntimeError: boom .line 3"),
    "missing name": ("other = 1\n", "net", "defines no 'net'; it has .*other"),
    "not a model": ("net = 3\n", "net", "is a int, not an nn.Module"),
    "fails": ("def net():\n    return 1 / 0\n", "net", "fails when called: ZeroDivisionError"),
    "no inputs": ("net = nn.Linear(3, 2)\n", "net", "without inputs"),
    "too many": ("def net():\n    return nn.ReLU(), 1, 2, 3\n", "net", "returns 4 values"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_python_files(case: str, tmp_path: Path) -> None:
    text, name, message = BAD_FILES[case]
    path = tmp_path / "model.py"
    path.write_text("import torch\nfrom torch import nn\n" + text)
    with pytest.raises(GradletError, match=message):
        gradlet.capture(f"{path}:{name}")


def test_data_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    inputs = np.random.default_rng(0).standard_normal((7, 1, 16, 16))
    np.savez(path, inputs=inputs, targets=np.arange(7) % 5)
    module, (x,) = MODELS["lenet"]()
    captured = gradlet.capture(module, (x,), batch=2, data=path)
    graph = captured.graph
    assert graph.samples[graph.inputs[0]].shape == (3, 2, 1, 16, 16)
    np.testing.assert_array_equal(captured.targets, [[0, 1], [2, 3], [4, 0]])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x1": np.zeros((2, 1, 16, 16))}, "has no array 'inputs'"),
        ({"inputs": np.zeros((2, 1, 16, 15))}, "has shape"),
        ({"inputs": np.full((2, 1, 16, 16), np.inf)}, "finite"),
        ({"inputs": np.zeros((0, 1, 16, 16))}, "no samples"),
    ],
)
def test_bad_data(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    module, (x,) = MODELS["lenet"]()
    with pytest.raises(GradletError, match=message):
        gradlet.capture(module, (x,), batch=1, data=path)
    path.write_text("no zip")
    with pytest.raises(GradletError, match="cannot read"):
        gradlet.capture(module, (x,), batch=1, data=path)


def test_weights_left_to_chance_are_the_same_every_time(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n")
    path.write_text(path.read_text() + "        super().__init__(3, 2)\n")
    before = torch.random.get_rng_state()
    one, other = (gradlet.capture(f"{path}:Net", input_shape=[3]).graph for _ in range(2))
    assert all((one.data[name] == other.data[name]).all() for name in one.data)
    assert (torch.random.get_rng_state() == before).all()


class Scaled(nn.Module):
    """A parameter times a buffer of one number, which is no short decimal."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.tensor([0.1]) * 1.3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.weight * self.scale
        return y


def test_a_stored_number_is_the_one_that_the_module_has() -> None:
    """float32 has 0.13 as 0.12999999523: the module computes with that, in float64 as well."""
    graph = gradlet.capture(Scaled(), (torch.randn(2, 3),)).graph
    slopes = [node.attrs["slope"] for node in graph.nodes if node.op == "affine"]
    assert slopes == [float(np.float32(0.1) * np.float32(1.3))]


class _Counts(nn.Linear):
    """Its result depends on how often it was called; or not, if it only counts."""

    def __init__(self, *, matters: bool) -> None:
        super().__init__(3, 2)
        self.calls, self.matters = 0, matters

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = super().forward(x)
        return y * self.calls if self.matters else y


def test_a_module_that_remembers_passes_is_refused_if_that_changes_its_result() -> None:
    capture_module(_Counts(matters=False), torch.randn(2, 3), name="m")
    with pytest.raises(GradletError, match=r"second pass.*\(such as calls\)"):
        capture_module(_Counts(matters=True), torch.randn(2, 3), name="m")


class _KeepsLast(nn.Linear):
    """A buffer for the last result, which it makes anew in each pass, as spiking neurons do."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("last", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.zeros(len(x), 2)
        self.last = super().forward(x)
        return self.last


def test_a_buffer_may_be_of_another_batch_from_an_earlier_pass() -> None:
    module = _KeepsLast()
    with torch.no_grad():
        module(torch.randn(5, 3))
    graph = capture_module(module, torch.randn(5, 3), name="m", batch=1)
    assert [node.op for node in graph.nodes] == ["matmul"]


def test_hooks_on_gradients_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    handle = model[1].weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(GradletError, match=r"parameter '1.weight' of 'm' has a hook"):
        capture_module(model, torch.randn(2, 3), name="m")
    handle.remove()
    handle = model[0].register_full_backward_hook(lambda *_: None)
    with pytest.raises(GradletError, match=r"module '0' of 'm' has a hook"):
        capture_module(model, torch.randn(2, 3), name="m")
    handle.remove()
    capture_module(model, torch.randn(2, 3), name="m")
