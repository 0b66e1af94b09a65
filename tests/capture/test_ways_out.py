"""What a refusal says to write instead, and that what it says is taken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradlet
from gradlet.errors import GradletError
from tests.capture.test_torch_gradients import Calls, assert_module_gradients

Function = Callable[[Tensor, Tensor], Tensor]


def sampled(x: Tensor, w: Tensor, padding: str = "zeros", mode: str = "bilinear") -> Tensor:
    """An image at places that depend on weights; of a size that has exact coordinates."""
    image = (x * w).reshape(1, 1, *x.shape[-2:])
    turn = torch.stack([w[0], w[1] * 0.3, w[2] * 0.1, -w[1] * 0.3, w[0], w[2] * 0.2])
    grid = F.affine_grid(turn.reshape(1, 2, 3), list(image.shape), align_corners=False)
    return F.grid_sample(image, grid, mode, padding, align_corners=False)


def products(x: Tensor, w: Tensor) -> Tensor:
    """Where a factor is 0 as well."""
    return torch.cumprod(x * w, -1) + torch.cumprod(torch.relu(x) + w, 1)


REFUSED: dict[str, tuple[Function, str, Function]] = {
    "item": (
        lambda x, w: x * w.max().item(),
        r"aten\.item.*leave \.item\(\), float\(\) or int\(\) out",
        lambda x, w: x * w.max(),
    ),
    "asinh": (
        lambda x, w: torch.asinh(x * w),
        r"torch\.log\(x \+ torch\.sqrt\(x \* x \+ 1\)\) is there",
        lambda x, w: torch.log(x * w + torch.sqrt((x * w) ** 2 + 1)),
    ),
    "copysign": (
        lambda x, w: torch.copysign(w, x),
        r"x\.abs\(\) \* torch\.where\(other < 0, -1\.0, 1\.0\) is there",
        lambda x, w: w.abs() * torch.where(x < 0, -1.0, 1.0) + x,
    ),
    "grid_sample": (
        lambda x, w: sampled(x, w, "reflection"),
        r"mode 'bilinear' or 'nearest' and padding_mode 'zeros' or 'border'",
        sampled,
    ),
    "inverse": (
        lambda x, w: torch.linalg.inv(x[:, :, :2] @ x[:, :, :2].mT),
        "matrices are multiplied, but neither inverted nor factored",
        lambda x, w: x @ x.mT * w[0],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_way_out_is_taken(name: str) -> None:
    torch.manual_seed(1)
    refused, way, taken = REFUSED[name]
    x = torch.randn(1, 6)
    with pytest.raises(GradletError, match=way):
        gradlet.capture(Calls(refused, (2, 4)), (x,))
    assert_module_gradients(Calls(taken, (2, 4)), (x,))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_images_are_sampled(mode: str, padding: str) -> None:
    torch.manual_seed(2)
    module = Calls(lambda x, w: sampled(x, w, padding, mode), (2, 4))
    assert_module_gradients(module, (torch.randn(1, 6),))


def test_products_of_all_before() -> None:
    torch.manual_seed(3)
    assert_module_gradients(Calls(products, (3, 5)), (torch.randn(2, 6),))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.inner(x.masked_fill(mask > 0, 0.0))
        return out


def test_a_mask_comes_as_numbers() -> None:
    x, mask = torch.randn(2, 6), torch.rand(2, 6) > 0.5
    with pytest.raises(GradletError, match=r"a mask comes as int64 or float32 instead"):
        gradlet.capture(Masked(), (x, mask))
    for kind in (torch.int64, torch.float32):
        assert_module_gradients(Masked(), (x, mask.to(kind)))


def test_an_operation_of_several_results_has_its_own_name() -> None:
    module = Calls(lambda x, w: torch.unique(x).sum() * w, (4,))
    with pytest.raises(GradletError, match=r"aten\._unique2.*depends on the data") as caught:
        gradlet.capture(module, (torch.randn(1, 6),))
    assert "getitem" not in str(caught.value)


def test_the_exporter_writes_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """What it would say there is in the message; afterwards others' logs are as before."""
    module = Calls(lambda x, w: x if x.sum() > 0 else x * w, (4,))
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(GradletError, match="must not depend on the data"),
    ):
        gradlet.capture(module, (torch.randn(1, 6),))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    logging.getLogger("someone").warning("heard")
    assert "heard" in caplog.text


def test_gradlet_verify_takes_a_folder(tmp_path: Path) -> None:
    gradlet.build(nn.Linear(3, 2), tmp_path / "p", inputs=torch.randn(1, 3))
    assert gradlet.verify(str(tmp_path / "p"), steps=1).passed
    with pytest.raises(GradletError, match="is not a Gradlet project"):
        gradlet.verify(tmp_path)


class Sent(nn.Module):
    """It sends a part of itself to where the data are, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner.to(x.device)(x)
        return out


def test_a_module_that_is_sent_where_it_is() -> None:
    assert_module_gradients(Sent(), (torch.randn(2, 6),))


def test_a_complex_number_is_refused_in_one_message() -> None:
    module = Calls(lambda x, w: torch.view_as_real(torch.exp((x * w) * 1j)).sum(-1), (4,))
    with pytest.raises(GradletError, match=r"1j|complex"):
        gradlet.capture(module, (torch.randn(1, 6),))


class Particular(nn.Module):
    """It takes every `to` for one to a device, as a package of learned activations does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Particular:
        assert "Module.to." not in str(fn)
        super()._apply(fn, recurse)
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def test_a_module_that_knows_only_devices(tmp_path: Path) -> None:
    gradlet.build(Particular(), tmp_path / "p", inputs=torch.randn(2, 6))
    assert gradlet.verify(tmp_path / "p", steps=1).no_module == ""
