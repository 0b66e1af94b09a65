"""What PyTorch lets a forward pass do: regions without gradients, writes in place, dead code.

Each model is trained by PyTorch itself and by the captured graph, in float64, and they agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradlet.errors import GradletError
from gradlet.frontends.torch.program import capture_module
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import run_reference
from tests.test_module_oracle import assert_same, recorded


class Two(nn.Module):
    """Two layers, and between them whatever a test wants."""

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.way = nn.Linear(4, 6), nn.Linear(6, 3), forward
        self.register_buffer("steps", torch.linspace(0.1, 1, 6))

    def forward(self, x: Tensor) -> Any:
        return self.way(self, x)


def no_grad(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.a(x)
    out: Tensor = m.b(h * m.a(x))
    return out


def no_grad_and_grad_inside(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.a(x)
        with torch.enable_grad():
            g = m.a(x)
        k = h + g
    out: Tensor = m.b(h * g + k)
    return out


def part_of_several_results(m: Any, x: Tensor) -> Tensor:
    left, _ = m.a(x).chunk(2, 1)
    parts = m.a(x).split(3, 1)
    with torch.no_grad():
        quiet = parts[1] * 2
    out: Tensor = m.b(torch.cat([left * quiet, parts[1]], 1))
    return out


def autocast_off(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        h = m.a(x)
        with torch.no_grad():
            g = m.a(x).tanh()
    out: Tensor = m.b(h * g)
    return out


def straight_through(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    out: Tensor = m.b(h + (h.relu() - h).detach())
    return out


def slices(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).clone()
    h[:, 1] = x[:, 0]
    h[:, 2:4].mul_(2)
    h[:, 5:].zero_()
    h[0, 0] = 1.5
    h.view(-1)[3] = h[0, 1] * 2
    out: Tensor = m.b(h)
    return out


def into_a_constant(m: Any, x: Tensor) -> Tensor:
    base = torch.zeros(x.shape[0], 6)
    before = x.sum() + base
    base[:, 1:5] = x
    odd = base[:, ::2]
    odd += 1
    base[:, [0, 3]] = m.a(x)[:, :2]
    out: Tensor = m.b(base * m.a(x) + before + odd.sum())
    return out


def views_follow(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    flat, copied = h.reshape(-1), h.t().reshape(-1)
    first = h[:, :1]
    h[:, 0].add_(1)
    h.mul_(3)
    out: Tensor = m.b(h) + flat.sum() + copied.sum() * 5 + first.sum() * 7
    return out


def scatters(m: Any, x: Tensor) -> Tensor:
    h = torch.slice_scatter(m.a(x), x[:, :2], 1, 0, 4, 2)
    h = torch.select_scatter(h, x[:, 0], 1, 5)
    places = (torch.tensor([0, 1]), torch.tensor([1, 2]))
    out: Tensor = m.b(h.index_put(places, x[:, 1], accumulate=True))
    return out


def fills(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h = h * h.new_ones(6) + h.new_full((6,), 2.0) + torch.ones_like(h) * torch.empty(6).fill_(3.0)
    e = h.new_empty(x.shape[0], 6)
    e.copy_(h)
    e[:, :1].fill_(2.0)
    out: Tensor = m.b(e.to("cpu").to(h))
    return out


def constant_changes_later(m: Any, x: Tensor) -> Tensor:
    base = torch.zeros(6)
    h = m.a(x) + base
    base.fill_(1)
    base[2:] = 3
    out: Tensor = m.b(h * base)
    return out


def writes_to_its_input(m: Any, x: Tensor) -> Tensor:
    x[:, 0] = 0.5
    x.mul_(2)
    out: Tensor = m.b(m.a(x))
    return out


def dead(m: Any, x: Tensor) -> tuple[Tensor, None]:
    """What leads to no result need not be supported."""
    torch.special.i0(x).sort()
    scratch = torch.special.i1(m.a(x))
    scratch.erfinv_()
    return m.b(m.a(x)), None


def stochastic_depth(m: Any, x: Tensor) -> Tensor:
    """As timm and torchvision have it, between two of dropout: draws are numbered."""
    h = functional.dropout(m.a(x), 0.3)
    keep = h.new_empty((x.shape[0], 1)).bernoulli_(0.7)
    keep.div_(0.7)
    out: Tensor = m.b(functional.dropout(h * keep, 0.5))
    return out


def stochastic_depth_by_rounding(m: Any, x: Tensor) -> Tensor:
    """As Hugging Face has it; one draw leads nowhere, but counts."""
    unused = torch.rand(3)
    keep = 0.6 + torch.rand((x.shape[0], 1))
    keep.floor_()
    other = torch.rand_like(m.a(x)).add_(0.25).floor()
    unused.add_(1)
    out: Tensor = m.b(functional.dropout(m.a(x).div(0.6) * keep + other, 0.5))
    return out


WAYS = [
    *(no_grad, no_grad_and_grad_inside, part_of_several_results, autocast_off, straight_through),
    *(slices, into_a_constant, views_follow, scatters, fills, constant_changes_later),
    *(writes_to_its_input, dead, stochastic_depth, stochastic_depth_by_rounding),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_module_and_its_graph_agree(way: Callable[[Any, Tensor], Any]) -> None:
    torch.manual_seed(0)
    assert_same(*recorded(Two(way), (torch.randn(8, 4),), Recipe(loss="mse")))


def rotary(m: Any, x: Tensor) -> Tensor:
    """As in language models: angles are computed in every pass, under no_grad and autocast."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        angles = torch.arange(6)[None].float() * m.steps
        cos, mask = angles.cos(), torch.arange(6)[None] <= torch.arange(6)[:, None]
    h = m.a(x) * cos
    scores = h[:, :, None] * h[:, None, :]
    out: Tensor = m.b(scores.masked_fill(~mask, 0.0).sum(2))
    return out


def test_what_depends_on_constants_alone_is_folded() -> None:
    torch.manual_seed(0)
    recording, graph = recorded(Two(rotary), (torch.randn(4, 4),), Recipe(loss="mse"))
    assert recording.single, "a cosine is rounded when the graph is made"
    steps = run_reference(graph, len(recording.losses))
    for step, loss in zip(steps, recording.losses, strict=True):
        assert step.loss == pytest.approx(loss, rel=1e-5)
    assert not {node.op for node in graph.nodes} & {"cos", "gt", "not", "detach"}


def doubly(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h[[0, 0], [1, 1]] = x[0, :2]
    out: Tensor = m.b(h)
    return out


def quietly(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    with torch.no_grad():
        h.mul_(2)
    out: Tensor = m.b(h)
    return out


def lasting(m: Any, x: Tensor) -> Tensor:
    m.steps[1:] += x.mean()
    out: Tensor = m.b(m.a(x) * m.steps)
    return out


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (doubly, "an element is written twice"),
        (quietly, "overwrites, under no_grad, what has a gradient"),
        (lambda m, x: m.b(m.a(x) + torch.rand(6)), "random numbers, here of aten.rand.default"),
        (lasting, "it changes 'steps' of the model at every step"),
    ],
)
def test_writes_that_are_refused(way: Callable[[Any, Tensor], Any], message: str) -> None:
    with pytest.raises(GradletError, match=message):
        capture_module(Two(way), torch.randn(2, 4), name="m")


def blocks_of_a_volume(m: Any, x: Tensor) -> Tensor:
    """As a transformer over volumes cuts them: eight dimensions, of which none go together."""
    parts = m.a(x).tile(1, 32)[:, :128].reshape(-1, 2, 2, 2, 2, 2, 2, 2)
    out: Tensor = m.b(parts.permute(0, 2, 4, 6, 5, 7, 3, 1).flatten(1)[:, :6])
    return out


def test_permutations_of_many_dimensions_go_by_steps() -> None:
    recording, graph = recorded(Two(blocks_of_a_volume), torch.randn(4, 4), Recipe(loss="mse"))
    assert_same(recording, graph)
    moves = [node for node in graph.nodes if node.op == "transpose" and node.phase == "forward"]
    assert len(moves) == 3


def turned(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    functional.silu(h.T, inplace=True)
    out: Tensor = m.b(h)
    return out


def a_turned_part(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.reshape(-1, 2, 3).permute(2, 0, 1)[1:, :, :1].mul_(2.0)
    out: Tensor = m.b(h)
    return out


def every_other(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.T[::2].copy_(torch.tanh(h.T[::2]))
    out: Tensor = m.b(h)
    return out


@pytest.mark.parametrize("way", [turned, a_turned_part, every_other])
def test_writes_through_a_permutation(way: Callable[[Any, Tensor], Any]) -> None:
    recording, graph = recorded(Two(way), torch.randn(4, 4), Recipe(loss="mse"))
    assert_same(recording, graph)
    assert any(node.op == "gather" for node in graph.nodes) == (way is every_other)


def many_dimensions(m: Any, x: Tensor) -> Tensor:
    a = m.a.weight.reshape(2, 1, 3, 1, 2, 1, 2)
    out: Tensor = x.tile(1, 2).reshape(-1, 1, 2, 1, 2, 1, 2, 1) + a
    return out


def test_too_many_dimensions_are_told_where_they_are() -> None:
    with pytest.raises(GradletError, match=r"aten\.add\.Tensor on .*cannot be walked as one"):
        capture_module(Two(many_dimensions), torch.randn(2, 4), name="m")
