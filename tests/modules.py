"""Random PyTorch modules: a seed makes a network, samples, and a way to build and train it.

Where `networks.py` draws graphs from all ops, this draws models as people write them, and gives
their weights every form: views, slices, sums and products of parameters, weight norm, tied weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradlet.ir.recipe import Loss, Recipe
from tests import module_layers, module_more, module_usual
from tests.module_base import MAPS, ROWS, RandomModule
from tests.module_inputs import USES, whole_numbers

LAYERS = (module_usual, module_layers, module_more)
"""What fills the lists of layers."""
SIZES = ("16k", "20k", "32k", "64k")
LOSSES = ("cross_entropy", "mse", "huber", "bce_with_logits", "l1")
UPDATES: tuple[dict[str, Any], ...] = (
    {},
    {"momentum": 0.9},
    {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
    {"optimizer": "adam", "eps": 1e-3},
    {"optimizer": "adamw", "eps": 1e-3, "weight_decay": 0.02},
    {"clip_norm": 0.7},
    {"clip_value": 0.05, "momentum": 0.5},
)


@dataclass(frozen=True)
class Draw:
    """A module, and what to give to `gradlet.build` besides."""

    seed: int
    module: nn.Module
    inputs: tuple[Tensor, ...]
    recipe: Recipe
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        where = self.options.get("memories", {}).get("L1", "host")
        layout = self.options.get("layout", "chw")
        update = self.recipe.update
        losses = ", several losses" if self.recipe.losses else ""
        ids = ", indices" if any(not v.is_floating_point() for v in self.inputs) else ""
        text = f"seed {self.seed}: {where}, {layout}, update {update}, {self.recipe.optimizer}"
        return f"{text}{losses}{ids}"


def _grow(net: RandomModule, examples: list[Tensor]) -> None:
    numbers = [n for n, value in enumerate(examples) if value.is_floating_point()]
    source = net.chance.choice(numbers[-2:])
    shape = tuple(examples[source].shape)
    kinds = MAPS if len(shape) == 4 else ROWS
    layer = net.chance.choice(kinds)(net, shape)
    same = [n for n in numbers if examples[n].shape == examples[source].shape]
    other = net.chance.choice(same)
    joined = net.chance.choice(("", "", "", "add", "mul", "sub"))

    def step(values: list[Tensor]) -> Tensor:
        y = layer(values[source])
        if not joined or y.shape != values[other].shape:
            return y
        match joined:
            case "add":
                return values[other] + y
            case "sub":
                return values[other] - y
        return y * torch.tanh(values[other])

    net.add(step, examples)


def _head(net: RandomModule, examples: list[Tensor], classes: int) -> None:
    n, *rest = examples[-1].shape
    if len(rest) == 3 and net.chance.random() < 0.5:
        weight, bias = net.weight(classes, rest[0]), net.weight(classes)
        net.steps.append(lambda v: F.linear(v[-1].mean((2, 3)), weight(), bias()))
    else:
        weight, bias = net.weight(classes, prod(rest)), net.weight(classes)
        net.steps.append(lambda v: F.linear(v[-1].reshape(n, -1), weight(), bias()))


def _use_indices(net: RandomModule, examples: list[Tensor], rows: int) -> None:
    """The last input holds whole numbers; they go together with the first."""
    place = len(examples) - 1
    made = net.aside.choice(USES)(net, tuple(examples[0].shape), rows)
    net.add(lambda v: made(v[0], v[place]), examples)


def _further_losses(net: RandomModule, examples: list[Tensor], first: Loss) -> tuple[Loss, ...]:
    """Another head with a loss of its own, and perhaps a second loss of the first."""
    inputs = len(examples) - len(net.steps) + 1  # the head is no example
    place, width = net.aside.randrange(inputs, len(examples)) if len(examples) > inputs else 0, 3
    weight = net.weight(width, prod(examples[place].shape[1:]))
    net.steps.append(lambda v: F.linear(v[place].flatten(1), weight()))
    net.results = {"main": inputs + len(net.steps) - 2, "aux": inputs + len(net.steps) - 1}
    kind, share = net.aside.choice(LOSSES), net.aside.choice((0.3, 1.0, -0.5))
    losses = [replace(first, output="main"), Loss(kind, output="aux", weight=share)]
    if net.aside.random() < 0.5:
        losses.append(Loss("l1", output="main", weight=0.25, target="other"))
    return tuple(losses)


def draw(seed: int) -> Draw:
    torch.manual_seed(seed)
    net = RandomModule(seed)
    chance = net.chance
    batch, chunks = chance.choice((1, 1, 2, 3)), 2
    shape = chance.choice(
        (
            (batch, chance.choice((1, 3, 4)), chance.randint(1, 12), chance.randint(1, 12)),
            (batch, chance.choice((2, 4)), chance.randint(5, 11), chance.randint(5, 11)),
            (batch, chance.randint(1, 6), chance.randint(2, 8)),
            (batch, chance.randint(1, 24)),
        )
    )
    several = 2 if chance.random() < 0.25 else 1
    examples = [torch.randn(shape) for _ in range(several)]
    inputs = tuple(torch.randn(batch * chunks, *shape[1:]) for _ in range(several))
    if net.aside.random() < 0.35:
        ids, rows = whole_numbers(net.aside, batch, chunks)
        inputs = (*inputs, ids)
        examples.append(ids[:batch])
        _use_indices(net, examples, rows)
    if several == 2:  # or the first would have nothing to say
        net.add(lambda v: v[0] + torch.tanh(v[1]), examples)
    for _ in range(chance.randint(1, 6)):
        _grow(net, examples)
    loss, classes = chance.choice(LOSSES), chance.choice((1, 2, 3, 5))
    _head(net, examples, max(2, classes) if loss == "cross_entropy" else classes)
    losses: tuple[Loss, ...] = ()
    if net.aside.random() < 0.3:
        losses = _further_losses(net, examples, Loss(loss))
    net.finish()
    recipe = Recipe(
        loss="cross_entropy" if losses else loss,
        losses=losses,
        lr=chance.choice((0.01, 0.05)),
        accumulate=chance.choice((1, 1, 1, 2)),
        update=_update(net, [value[:batch] for value in inputs]),
        **chance.choice(UPDATES),
    )
    options: dict[str, Any] = {"batch": batch, "target": "host"}
    if chance.random() < 0.75:
        options = {"batch": batch, "memories": {"L1": chance.choice(SIZES)}}
        options["buffers"] = chance.choice(("auto", "auto", "double", "single"))
    if len(shape) == 4 and chance.random() < 0.4:
        options["layout"] = "hwc"
    return Draw(seed, net, inputs, recipe, options)


def _update(net: RandomModule, inputs: list[Tensor]) -> str:
    """All parameters, one, some, or rows of one; those of layers that were not kept have none."""
    results = net(*inputs)
    results = list(results.values()) if isinstance(results, dict) else [results]
    torch.stack([result.sum() for result in results]).sum().backward()
    own = {name: value for name, value in net.drawn.params.items() if value.grad is not None}
    net.zero_grad()
    wide = [name for name, value in own.items() if value.dim() and value.shape[0] > 1]
    match net.chance.choice(("all", "all", "all", "one", "some", "rows")):
        case "one":
            return net.chance.choice(sorted(own))
        case "some":
            names = sorted(own)
            return ",".join(net.chance.sample(names, max(1, len(names) // 2)))
        case "rows" if wide:
            name = net.chance.choice(wide)
            rows = own[name].shape[0]
            begin = net.chance.randrange(rows - 1)
            return f"{name}[{begin}:{net.chance.randint(begin + 1, rows)}]"
    return "all"
