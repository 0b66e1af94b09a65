"""The user's own module as an oracle: what it does in training, and that shared mistakes show."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradlet
from gradlet.api import Captured, aims_of, training_graph
from gradlet.codegen.project import Project
from gradlet.frontends.recording import record
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.ops import OPS
from gradlet.ops.importer import TORCH
from gradlet.oracle import recording as module_recorded
from gradlet.oracle.interpreter import run_reference
from gradlet.oracle.recording import FILE, Recording
from tests.models import MODELS


class Net(nn.Module):
    """A convolution, statistics of the batch, a product and dropout."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(drop), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.drop(self.norm(self.conv(x)).relu().flatten(1)))
        return y


def inputs() -> tuple[Tensor, ...]:
    return (torch.randn(4, 2, 6, 6),)


def recorded(
    module: nn.Module, given: Any, recipe: Recipe, layout: str = "chw"
) -> tuple[Recording, Graph]:
    return recorded_from(gradlet.capture(module, given, batch=2), recipe, layout)


def recorded_from(
    captured: Captured, recipe: Recipe, layout: str = "chw"
) -> tuple[Recording, Graph]:
    graph = training_graph(captured, recipe, layout=layout)
    aims = aims_of(captured, recipe)
    samples = [captured.graph.samples[name] for name in captured.graph.inputs]
    recording = record(captured.module, graph, recipe, samples, aims, captured.calling)
    return Recording.loads(recording.dumps()), graph


def assert_same(recording: Recording, graph: Graph) -> None:
    """The graph's own reference, in float64, does what the module does."""
    from gradlet.oracle.recording import digest

    assert not recording.absent
    assert set(recording.tensors.values()) >= set(graph.trained)
    steps = list(run_reference(graph, len(recording.losses)))
    grads = dict(graph.grads)
    for step, loss in zip(steps, recording.losses, strict=True):
        assert step.loss == pytest.approx(loss, rel=1e-9)
    pairs = [
        (name, value, steps[0].values[grads[recording.tensors[name]]])
        for name, value in recording.gradients.items()
    ]
    for step, after in zip(steps, recording.after, strict=True):
        pairs += [(n, v, step.state[recording.tensors[n]]) for n, v in after.items()]
    for name, wanted, value in pairs:
        scale = max(float(np.abs(wanted).max()), 1e-3)
        assert np.abs(digest(value) - wanted).max() <= 1e-9 * scale, name


RECIPES = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "accumulate": 2},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "clip_value": 0.01},
    "clipped": {"clip_norm": 0.1, "accumulate": 2},
    "smoothed": {"label_smoothing": 0.1, "class_weights": (0.5, 1.0, 2.0), "reduction": "sum"},
    "mse": {"loss": "mse"},
    "l1": {"loss": "l1"},
    "huber": {"loss": "huber", "delta": 0.3},
    "smooth_l1": {"loss": "smooth_l1", "delta": 0.3},
    "berhu": {"loss": "berhu"},
    "bce": {"loss": "bce_with_logits", "pos_weight": (2.0, 1.0, 0.5)},
    "rows": {"update": "conv.weight[1:3],head[1:]", "clip_norm": 0.1},
    "part": {"update": "norm,head.bias"},
}


@pytest.mark.drawn(10)
@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_module_is_recorded_as_the_recipe_says(recipe: str, layout: str) -> None:
    torch.manual_seed(0)
    assert_same(*recorded(Net(), inputs(), Recipe(**RECIPES[recipe]), layout))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        *("tied", "two_inputs", "frozen_norms", "language_model", "dropout_net"),
        *("dropout_transformer", "hand_made_attention", "gru_in_reverse"),
    ],
)
def test_other_modules(name: str) -> None:
    """Tied and frozen weights, several inputs, labels of words, dropout by our masks."""
    module, given = MODELS[name]()
    assert_same(*recorded(module, given, Recipe()))


class Odd(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(4, 3), act

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.layer(x))
        return y


class Placed(nn.Module):
    """With a batch of 1, autograd gives the token and its place one storage for both gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = (
            nn.Parameter(torch.randn(1, 1, 5)),
            nn.Parameter(torch.randn(1, 4, 5)),
        )
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head((torch.cat([self.token, x], 1) + self.place).tanh().flatten(1))
        return y


@pytest.mark.parametrize("recipe", [{"clip_norm": 0.1}, {"clip_value": 0.01}])
def test_gradients_that_share_a_storage_are_clipped_once(recipe: dict[str, float]) -> None:
    captured = gradlet.capture(Placed(), (torch.randn(2, 3, 5),), batch=1)
    assert_same(*recorded_from(captured, Recipe(**recipe)))  # type: ignore[arg-type]


def test_what_a_forward_pass_makes_is_in_double_precision() -> None:
    assert_same(*recorded(Odd(lambda y: y + torch.ones(3) / 3), (torch.randn(4, 4),), Recipe()))


def test_a_module_that_insists_on_float32_is_recorded_in_float32() -> None:
    module = Odd(lambda y: y.float() * torch.linspace(0, 1, 3, dtype=torch.float32))
    recording, _ = recorded(module, (torch.randn(4, 4),), Recipe())
    assert (recording.single, recording.absent) == (True, "")


class _Sequence(nn.Module):
    """What a recurrent layer makes of a sequence, and its state after it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y, state = self.layer(x)
        last = state[0] if isinstance(state, tuple) else state
        return y.mean((0, 1)) + last.sum()


def test_where_there_is_none_the_reason_is_told(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    project = gradlet.build(module, tmp_path / "p", inputs=(torch.randn(4, 4),), target="host")
    again = gradlet.emit(project.plan, tmp_path / "q")
    verdict = gradlet.verify(again, steps=1)
    assert verdict.passed
    told = verdict.to_json()["module_oracle"]
    assert told == {"tensors": 0, "absent": "the project was made from a plan, without its module"}
    captured = gradlet.capture(Odd(lambda y: y), (torch.randn(4, 4),), batch=2)
    noisy = replace(captured, module=Odd(lambda y: y + torch.randn(3)))
    assert "draws random numbers" in recorded_from(noisy, Recipe())[0].absent


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("both", [False, True])
def test_dropout_between_recurrent_layers_is_recorded(kind: Any, both: bool) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, 3, dropout=0.4, bidirectional=both, batch_first=both)
    recording, graph = recorded(_Sequence(layer), (torch.randn(5, 2, 3),), Recipe(loss="mse"))
    assert_same(recording, graph)


def test_recording_leaves_everything_as_it_was() -> None:
    torch.manual_seed(0)
    module = Net(drop=0.5)
    captured = gradlet.capture(module, inputs(), batch=2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    dropout, states = nn.functional.dropout, (torch.get_rng_state(), random.getstate())
    first = recorded_from(captured, Recipe())[0]
    assert torch.get_default_dtype() == torch.float32
    assert nn.functional.dropout is dropout
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert first.dumps() == recorded_from(captured, Recipe())[0].dumps()


def built(folder: Path, module: nn.Module, given: Any, **options: Any) -> Project:
    return gradlet.build(module, folder, inputs=given, target="host", batch=2, **options)


def test_verify_compares_with_the_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    project = built(tmp_path / "p", Net(0.3), inputs(), layout="hwc")
    assert FILE in project.manifest["files"]
    verdict = gradlet.verify(project, steps=4)
    assert verdict.passed, verdict.first_wrong
    names = {row.name for row in verdict.tensors if row.oracle == "module"}
    assert "module: gradient of conv.weight" in names
    assert "module: norm.running_var after step 3" in names
    assert "module: loss of step 2" in names


def test_a_bias_that_capture_forgets_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bias of 0 makes no difference to any output: the graph agrees with the module at first."""

    def without_bias(imp: Any, call: Any) -> Any:
        call.args[2] = None
        return right(imp, call)

    right = TORCH["aten.linear.default"]
    monkeypatch.setitem(TORCH, "aten.linear.default", without_bias)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    for layer in (module[0], module[2]):
        nn.init.zeros_(layer.bias)
    verdict = gradlet.verify(built(tmp_path / "p", module, (torch.randn(4, 4),)), steps=2)
    assert not verdict.passed
    wrong = [row.name for row in verdict.tensors if not row.passed]
    assert "module: 0.bias after step 1" in wrong
    assert all(name.startswith("module: ") for name in wrong)


def test_a_mistake_that_graph_and_oracle_share_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ReLU's slope at 0 taken for 1, in the backward pass and in what PyTorch is told alike."""
    relu = type(OPS["relu"])
    monkeypatch.setattr(relu, "vjp", lambda self, emit, site, grads, wanted: {"x": grads[0]})
    through = "({0}.clamp(min=0).detach() + {0} - {0}.detach())"
    monkeypatch.setattr(relu, "torch", lambda self, attrs, x: through.format(x))
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    verdict = gradlet.verify(built(tmp_path / "p", module, (torch.randn(4, 4),)), steps=1)
    assert not verdict.passed
    wrong = {row.name: row.oracle for row in verdict.tensors if not row.passed}
    assert set(wrong.values()) == {"module"}
    assert "module: gradient of 0.weight" in wrong


def test_merged_names_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of one shape that share a weight by mistake."""
    from gradlet.frontends.torch.program import _TorchImporter

    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module[2].load_state_dict(module[0].state_dict())
    stored = _TorchImporter._stored

    def merged(self: Any, target: str, kind: str) -> str:
        first = target.replace("2.", "0.")
        return first if first in self.builder.tensors else stored(self, target, kind)

    monkeypatch.setattr(_TorchImporter, "_stored", merged)
    project = built(tmp_path / "p", module, (torch.randn(4, 4),), recipe=Recipe(loss="mse"))
    verdict = gradlet.verify(project, steps=2)
    wrong = [row.name for row in verdict.tensors if not row.passed]
    assert "module: 2.weight after step 1" in wrong
    assert "module: gradient of 0.weight" in wrong


class Patches(nn.Module):
    """The gradient of the norm comes transposed, as that of an image cut into words does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 5, 2, 2), nn.BatchNorm2d(5), nn.Linear(5, 3)
        self.after = nn.LayerNorm(5)
        self.bias, self.cache = nn.Parameter(torch.randn(9, 1)), None

    def forward(self, x: Tensor) -> Tensor:
        if self.cache is None:  # as some do in eval mode: kept from pass to pass
            self.cache = self.bias * 2
        words = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        return (self.head(self.after(words)) + self.cache).tanh().mean(1)


@pytest.mark.parametrize("mode", [True, False])
def test_a_transposed_gradient_of_a_batch_of_1(mode: bool, tmp_path: Path) -> None:
    """PyTorch's batch norm gets it wrong (2.13 does, on a CPU); its oracles are not to."""
    torch.manual_seed(0)
    module = Patches().train(mode)
    project = gradlet.build(
        module, tmp_path / "p", inputs=(torch.randn(2, 2, 6, 6),), target="host", batch=1
    )
    assert not project.recording.absent
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong


def test_sums_see_every_element_and_a_recording_of_other_signs_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = np.random.default_rng(0).standard_normal(module_recorded.BLOCK + 300)
    sums = module_recorded.digest(value)[-module_recorded.SUMS :]
    for place in (0, module_recorded.BLOCK - 1, module_recorded.BLOCK, value.size - 1):
        moved = value.copy()
        moved[place] += 0.5
        change = module_recorded.digest(moved)[-module_recorded.SUMS :] - sums
        assert np.abs(change) == pytest.approx(0.5)
        assert 0 < (change > 0).sum() < module_recorded.SUMS
    monkeypatch.setattr(module_recorded, "SIGNS", module_recorded.SIGNS - 1)
    before = Recording().dumps()
    monkeypatch.undo()
    with pytest.raises(gradlet.GradletError, match="build the project again"):
        Recording.loads(before)
