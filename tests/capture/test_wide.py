"""Operations beyond the tables: PyTorch's own parts of them, twins of what works in place, spectra,
masks that are written through. Every gradient is PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradlet.errors import GradletError
from gradlet.frontends.torch.program import capture_module
from tests.capture.test_torch_gradients import assert_module_gradients

Way = Callable[["Wide", Tensor], Tensor]


class Wide(nn.Module):
    """A weight before and one behind what is tried."""

    def __init__(self, way: Way, shape: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.w = nn.Parameter(0.5 * torch.randn(shape[1:]) + 0.7)
        made = self.way(self, torch.randn(shape) * self.w)
        self.head = nn.Linear(made[0].numel(), 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.way(self, x * self.w + 0.1).flatten(1))
        return result


def in_place(m: Wide, x: Tensor) -> Tensor:
    y = x.new_zeros(x.shape)
    y.index_add_(0, torch.arange(x.shape[0]), x)
    y.scatter_add_(1, torch.zeros_like(x, dtype=torch.long), x)
    y.lerp_(x, 0.3).addcmul_(x, m.w, value=0.5)
    return y.transpose_(0, -1).transpose_(0, -1)


def by_mask(m: Wide, x: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0.5] = 0.25
    y[x.sum(-1) > 0] = m.w[-1] if x.dim() > 2 else 0.5
    return y


WAYS: dict[str, Way] = {
    "sine": lambda m, x: torch.sin(3 * x) + x.cos(),
    "angles": lambda m, x: torch.tan(0.3 * x) + torch.atan(x) + torch.asin(torch.tanh(x) * 0.8),
    "hyperbola": lambda m, x: x.sinh() + x.cosh() + torch.atanh(x.tanh() * 0.8),
    "acos": lambda m, x: torch.acos(x.tanh() * 0.8) + torch.acosh(x.abs() + 1.5),
    "remainder": lambda m, x: (
        torch.remainder(x, 0.7) + torch.fmod(x, m.w) + torch.div(x, 0.3, rounding_mode="floor")
    ),
    "logs": lambda m, x: (x.abs() + 1).log2() + (x.abs() + 1).log10() + torch.erfc(x),
    "parts": lambda m, x: torch.logaddexp(x, m.w) + x.clip(-0.5, 0.5) + torch.sinc(x),
    "renorm": lambda m, x: torch.renorm(x, 2, -1, 0.8) + torch.renorm(x, 1, 0, 5.0),
    "moments": lambda m, x: sum(torch.var_mean(x, -1, correction=0, keepdim=True)) * x,
    "ends": lambda m, x: x * torch.aminmax(x, dim=-1, keepdim=True).max,
    "in place": in_place,
    "by mask": by_mask,
    "spectrum": lambda m, x: torch.fft.rfft(x, norm="ortho").abs(),
    "there and back": lambda m, x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[-1]),
    "filter": lambda m, x: torch.fft.irfft(
        torch.fft.rfft(x) * torch.fft.rfft(m.w), n=x.shape[-1], norm="forward"
    ),
    "all dimensions": lambda m, x: torch.fft.fftn(x, dim=(0, -1)).real,
    "two real parts": lambda m, x: torch.view_as_real(torch.fft.fft(x, dim=1)).flatten(-2),
    "conjugate": lambda m, x: (torch.fft.rfft(x).conj() * torch.fft.rfft(x)).real,
}


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 1, 7), (2, 1)], ids=str)
@pytest.mark.parametrize("name", WAYS)
def test_gradients(name: str, shape: tuple[int, ...]) -> None:
    """Constants, such as the matrices of a spectrum, are float32."""
    assert_module_gradients(Wide(WAYS[name], shape), (torch.randn(shape),), 1e-5)


@pytest.mark.parametrize("window", [None, torch.hann_window(8)], ids=["flat", "window"])
def test_frames_of_a_signal(window: Tensor | None) -> None:
    def way(m: Wide, x: Tensor) -> Tensor:
        return torch.stft(x, 8, 4, window=window, return_complex=True).abs()

    assert_module_gradients(Wide(way, (2, 32)), (torch.randn(2, 32),), 1e-5)


def test_what_is_missing_is_named_and_not_its_parts() -> None:
    model = Wide(lambda m, x: torch.xlogy(x, m.w.abs() + 1), (2, 3))
    with pytest.raises(GradletError, match=r"aten\.xlogy\.Tensor on .* no such operation"):
        capture_module(model, torch.randn(2, 3), name="m")
    model = Wide(lambda m, x: torch.fft.rfft(x).exp().real, (2, 3))
    with pytest.raises(GradletError, match=r"complex numbers; take their \.real and \.imag"):
        capture_module(model, torch.randn(2, 3), name="m")


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] / (1 + ctx.saved_tensors[0].abs()) ** 2


library = torch.library.Library("gradlet_tests", "DEF")
library.define("spike(Tensor x) -> Tensor")
library.impl("spike", Spike.apply, "Autograd")
library.impl("spike", lambda x: (x > 0).float(), "CompositeExplicitAutograd")


def test_an_operation_of_the_users_own_is_named_and_not_its_parts() -> None:
    """Its gradient is none of theirs."""
    model = Wide(lambda m, x: torch.ops.gradlet_tests.spike(x * m.w), (2, 3))
    with pytest.raises(GradletError, match=r"gradlet_tests\.spike\.default on \[2, 3\]"):
        capture_module(model, torch.randn(2, 3), name="m")


def test_a_mask_with_a_value_for_each_place_says_the_way_out() -> None:
    def way(m: Wide, x: Tensor) -> Tensor:
        y = x.clone()
        y[x > 0] = x[x > 0] * 2
        return y

    with pytest.raises(GradletError, match="depends on the data"):
        capture_module(Wide(way, (2, 3)), torch.randn(2, 3), name="m")
    other = Wide(lambda m, x: torch.where(x > 0, x * 2, x), (2, 3))
    assert capture_module(other, torch.randn(2, 3), name="m").nodes
