"""Gradients of a captured graph against the user's own module: autograd's, in float64.

The oracle of `verify` is written from the graph. Here it is the module as it stands, so that what
the capture loses (an edge, a stop of the gradient, an overwritten value) shows as well.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradlet
from gradlet.errors import GradletError
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import run_reference
from gradlet.training.autodiff import train


def assert_module_gradients(
    module: nn.Module, inputs: tuple[Tensor, ...], close: float = 1e-9
) -> None:
    graph = gradlet.capture(module, inputs).graph
    shape = graph.tensors[graph.outputs[0]].shape
    target = np.random.default_rng(1).standard_normal((1, *shape)).astype(np.float32)
    step = next(iter(run_reference(train(graph, Recipe(loss="mse"), target), 1)))
    wide = copy.deepcopy(module).double()
    output = wide(*(value.double() for value in inputs))
    loss = F.mse_loss(output, torch.from_numpy(target[0]).double())
    names = [name for name, p in wide.named_parameters() if p.requires_grad]
    parameters = [dict(wide.named_parameters())[name] for name in names]
    expected = torch.autograd.grad(loss, parameters, allow_unused=True)
    gradients = dict(train(graph, Recipe(loss="mse"), target).grads)
    assert abs(step.loss - loss.item()) <= close * max(1.0, abs(loss.item()))
    for name, gradient in zip(names, expected, strict=True):
        ours = step.values[gradients[name]] if name in gradients else 0.0
        wanted = np.zeros(()) if gradient is None else gradient.numpy()
        error = float(np.abs(ours - wanted).max())
        assert error <= close * max(1.0, float(np.abs(wanted).max())), name


class Calls(nn.Module):
    """A linear layer, and a function of its result and of the module's own extra weights."""

    def __init__(
        self, function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.function, self.shape = function, shape
        self.inner = nn.Linear(6, int(np.prod(shape)))
        self.extra = nn.Parameter(torch.rand(shape[-1]) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x).reshape(-1, *self.shape), self.extra)


def overwrite_twice(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    z = y.add_(1.0)
    z += x
    z.mul_(2.0)
    return y * torch.relu_(y + 0.5)


def overwrite_a_view(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y.view(-1).mul_(2.0)
    return y + x


def detached(x: Tensor, w: Tensor) -> Tensor:
    return x * (x * w).detach() + x.mean(-1, keepdim=True).detach() * w


def made_in_forward(x: Tensor, w: Tensor) -> Tensor:
    steps = torch.arange(x.shape[-1]).float() / x.shape[-1]
    y = x * steps + torch.zeros_like(x).fill_(0.5) + torch.linspace(0, 1, x.shape[-1])
    return y * w + torch.arange(x.shape[-1]) + x.new_ones(x.shape[-1])


def rolled(x: Tensor, w: Tensor) -> Tensor:
    y = x.roll(1, -1) * w + x.roll((1, -1), (0, 1)).flip(-1)
    return y.roll(3) + torch.flip(x, [0, 1])[..., ::2].repeat(1, 1, 2)[..., : x.shape[-1]]


def moved(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).movedim(-1, 0).swapaxes(0, 2).unflatten(2, (-1, 2)).flatten(2).mT
    return y.narrow(0, 1, 2).repeat_interleave(2, dim=0) + y.tile(1, 1).ravel().sum()


def stacked(x: Tensor, w: Tensor) -> Tensor:
    a, b, c = torch.tensor_split(x * w, 3, dim=-1)
    rows = torch.cat([torch.hstack([c, c[:, :0]]), a, b], -1)
    pieces = torch.vstack([rows, x[:, :, 0:0].new_zeros(1, *x.shape[1:]) + w])
    return torch.cat([pieces, pieces[:, :, 3:3]], dim=-1)


def folded(x: Tensor, w: Tensor) -> Tensor:
    y = torch.logsumexp(x * w, dim=(0, 2), keepdim=True) + x.prod(dim=-1, keepdim=True)
    z = (
        x.norm(dim=-1, keepdim=True)
        + x.norm(p=1)
        + torch.linalg.vector_norm(x, float("inf"), -1, True)
    )
    z = z + x.diff(dim=1, prepend=x[:, :1] * w, append=x).sum(1, keepdim=True)
    return y + z + x.cumsum(1).diff(dim=-1).sum(-1, keepdim=True) + x.std(dim=(0, 1)) * w


def gated(x: Tensor, w: Tensor) -> Tensor:
    y = F.glu(x * w, dim=-1)
    z = F.softshrink(y, 0.1) + F.hardshrink(y, 0.2) + F.threshold(y, 0.1, -0.3) + F.rrelu(y)
    return torch.lerp(y, z, 0.3) + torch.addcmul(y, y, z, value=0.5) + F.normalize(z, dim=-1)


def powers(x: Tensor, w: Tensor) -> Tensor:
    y = x.abs() + 0.1
    return y**w + torch.pow(y, y) + 2.0**x + (x.clamp(min=0) ** (w * 0 + 2)) + torch.exp2(x)


def padded(x: Tensor, w: Tensor) -> Tensor:
    y = F.pad(x * w, (1, 2), value=0.7)
    y = F.pad(y, (2, 1), mode="reflect") + F.pad(y, (1, 2), mode="circular")
    y = F.pad(y, (0, 3), mode="replicate") * 0.5 + F.pad(y, (4, -1))
    planes = F.conv2d(F.pad(x[:, None], (1, 2, 1, 0), value=0.5), w.mean() * x[:1, None, :2, :2])
    zeros = F.conv2d(F.pad(x[:, None], (0, 1)), x[:1, None, :1, :2] * w.mean())
    y = y + planes.mean() + zeros.sum()
    return F.pad(y[None], (1, 1, 2, 2), mode="replicate")[0]


def similar(x: Tensor, w: Tensor) -> Tensor:
    a, b = x.unbind(1)[:2]
    rows = torch.stack([F.pairwise_distance(a, b), F.cosine_similarity(a * w, b)], 1)
    short = F.cosine_similarity(a * w, b, eps=2.0)  # some norms are below, some above
    return rows + x.amax((1, 2), keepdim=True)[:, 0] + short[:, None]


def shortened(x: Tensor, w: Tensor) -> Tensor:
    """Rows that are too long become as long as allowed; the others, and zeros, are kept."""
    rows = torch.renorm(x * w, 2, 0, 1.7) + torch.renorm(x, 1, -1, 0.9)
    return rows + torch.renorm(torch.relu(x - 1e3) * w, 2, 1, 1.3)


def in_logarithms(x: Tensor, w: Tensor) -> Tensor:
    """Of numbers whose exponentials are far apart."""
    y = torch.logcumsumexp(30 * x * w, dim=1) + torch.logcumsumexp(x, dim=-1)
    return y + torch.logaddexp(x * 50, w - 50 * x)


def windows_added_up(x: Tensor, w: Tensor) -> Tensor:
    y = F.unfold((x * w)[None], (2, 3), padding=1, stride=(2, 1))
    z = F.fold(y, x.shape[1:], (2, 3), padding=1, stride=(2, 1))
    return z + F.fold(y[0, :, :8] * 2, (3, 4), (2, 3), dilation=(1, 1), padding=(0, 1)).sum()


def zero_length(x: Tensor, w: Tensor) -> Tensor:
    """The length of a vector of zeros, and the deviation of equal numbers, pass no gradient."""
    y = torch.relu(x - 1e3) * w
    return y.norm(dim=-1) + y.std(dim=-1) + F.normalize(y, dim=-1).sum(-1) + (x * w).sum(-1)


SPELLINGS = (
    *(
        (f, (4, 6))
        for f in (
            overwrite_twice,
            overwrite_a_view,
            detached,
            made_in_forward,
            rolled,
            moved,
            stacked,
        )
    ),
    *((f, (4, 6)) for f in (folded, gated, powers, padded, similar, zero_length)),
    *((f, (4, 6)) for f in (shortened, in_logarithms, windows_added_up)),
)


@pytest.mark.parametrize(
    ("function", "shape"), SPELLINGS, ids=lambda value: getattr(value, "__name__", "")
)
def test_gradients_are_those_of_the_module(function: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert_module_gradients(Calls(function, shape).eval(), (torch.randn(3, 6),))


def numbers_written(x: Tensor, w: Tensor) -> Tensor:
    """0.3 is no float32; nothing follows that would round as well."""
    first = torch.zeros(x.shape[0], 1, 6, dtype=torch.int64)
    return (x * w).index_fill(1, torch.tensor([1, 3]), 0.3).scatter(1, first, 0.7)


def test_numbers_that_are_written_are_rounded() -> None:
    assert_module_gradients(Calls(numbers_written, (4, 6)), (torch.randn(3, 6),), 1e-7)


def test_frozen_weights_stay() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    module[0].requires_grad_(False)
    assert_module_gradients(module, (torch.randn(3, 4),))
    graph = gradlet.capture(module, (torch.randn(3, 4),)).graph
    assert [tensor.name for tensor in graph.of_role("param")] == ["2.weight", "2.bias"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, w: x[:, :, :0].sum() + x, "an operand without elements"),
        (lambda x, w: F.rrelu(x, training=True) * w, "random slopes"),
        (lambda x, w: x.norm(p=3) * w, "a norm of order 3"),
        (lambda x, w: x + torch.rand(6), "aten.rand.default"),
    ],
    ids=["empty", "rrelu", "norm", "random"],
)
def test_refusals(function: Any, message: str) -> None:
    with pytest.raises(GradletError, match=message):
        gradlet.capture(Calls(function, (4, 6)), (torch.randn(3, 6),))


@pytest.mark.parametrize(
    "wrap", [torch.nn.utils.weight_norm, torch.nn.utils.parametrizations.weight_norm]
)
@pytest.mark.filterwarnings("ignore")
def test_weight_norm(wrap: Any) -> None:
    torch.manual_seed(0)
    layer = wrap(nn.Conv1d(2, 3, 3, padding=1))
    module = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(15, 2))
    graph = gradlet.capture(module, (torch.randn(3, 2, 5),)).graph
    assert len(graph.of_role("param")) == 5
    if wrap is torch.nn.utils.parametrizations.weight_norm:
        assert_module_gradients(module, (torch.randn(3, 2, 5),))


def test_a_cast_to_single_precision_is_nothing() -> None:
    module = Calls(lambda x, w: (x.float() * w).to(torch.float32).type_as(x), (4, 6))
    graph = gradlet.capture(module, (torch.randn(3, 6),)).graph
    assert [node.op for node in graph.nodes] == ["matmul", "reshape", "mul"]


class Scaled(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = nn.Conv2d(1, 2, 2)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.inner(x), **self.options)


@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 1.3, "mode": "bilinear"},
        {"scale_factor": (1.7, 0.6), "mode": "bilinear", "align_corners": True},
        {"scale_factor": 1.5, "mode": "nearest"},
        {"size": (7, 3), "mode": "nearest-exact"},
        {"scale_factor": 2.3, "mode": "bicubic"},
        {"size": (3, 9), "mode": "bicubic", "align_corners": True},
        {"size": (3, 2), "mode": "bicubic", "antialias": True},
        {"size": (3, 9), "mode": "bicubic", "antialias": True},
        {"size": (2, 3), "mode": "bilinear", "antialias": True},
        {"scale_factor": 0.6, "mode": "bilinear", "antialias": True},
        {"scale_factor": 0.5, "mode": "area"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_interpolation(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    # the weights of the neighbours are constants, rounded to single precision
    assert_module_gradients(Scaled(**options), (torch.randn(2, 1, 6, 7),), close=1e-6)


class Ties(nn.Module):
    """A function of whole numbers, many of them equal; every place has a gradient of its own."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.numbers = nn.Parameter(torch.randint(-1, 3, (2, 3, 7, 6)).float())

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.numbers)
        return y.reshape(1, -1) * x[:, : y.numel()]


TIES: dict[str, Callable[[Tensor], Tensor]] = {
    "maximum": lambda p: torch.maximum(p[0], p[1]),
    "minimum": lambda p: torch.minimum(p[:, 0], p[:, 1]),
    "amax": lambda p: p.amax((0, 2)),
    "amin": lambda p: p.amin(3),
    "max": lambda p: p.max(),
    "max of a dimension": lambda p: p.max(dim=2)[0],
    "min of a dimension": lambda p: torch.min(p, dim=3).values,
    "max pool": lambda p: F.max_pool2d(p, 3, 2, 1),
    "clamp": lambda p: p.clamp(0.0, 1.0) + p.clamp(min=0) + p.clamp_max(1),
    "ends": lambda p: F.hardtanh(p, 0.0, 2.0) + F.relu6(p) + F.relu(p) + p.abs(),
    "edges": lambda p: F.hardshrink(p, 1.0) + F.softshrink(p, 1.0) + F.threshold(p, 1.0, 0.3),
    "slopes": lambda p: F.leaky_relu(p) + F.elu(p) + F.hardswish(p * 3) + F.hardsigmoid(p * 3),
    "powers": lambda p: p**2 + torch.pow(p.abs(), p.abs()) + torch.pow(p, 0),
    **{
        f"adaptive {size}": lambda p, size=size: F.adaptive_max_pool2d(p, size)  # type: ignore[misc]
        for size in ((3, 2), (1, 4), (5, 6), (2, None), (7, 3))
    },
}


@pytest.mark.parametrize("name", TIES)
def test_ties_and_edges(name: str) -> None:
    torch.manual_seed(0)
    assert_module_gradients(Ties(TIES[name]), (torch.randn(3, 252),))


class Shelved(nn.Module):
    """Reads its parameters from a dict, where torch.export takes them for constants."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf: dict[str, Tensor] = {}
        for name in ("scale", "shift"):
            parameter = nn.Parameter(torch.randn(6))
            self.register_parameter(name, parameter)
            self.shelf[name] = parameter

    def forward(self, x: Tensor) -> Tensor:
        return x * self.shelf["scale"] + self.shelf["shift"].abs()


def test_parameters_in_a_dict_are_trained() -> None:
    torch.manual_seed(0)
    assert_module_gradients(Shelved(), (torch.randn(3, 6),))
