"""Random PyTorch modules: a seed makes a network, samples, and a way to build and train it.

Where `networks.py` draws graphs from all ops, this draws models as people write them, and gives
their weights every form: views, slices, sums and products of parameters, weight norm, tied weights.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradlet.recipe import Loss, Recipe
from tests.module_inputs import USES, whole_numbers
from tests.module_weights import Running, Weight, Weights

Step = Callable[[list[Tensor]], Tensor]
Function = Callable[[Tensor], Tensor]
TANH: Function = torch.tanh
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


class RandomModule(nn.Module):
    """Runs its steps one after the other; each reads the values that were made before."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.aside = random.Random(f"{seed} aside")  # leaves what else is drawn as it is
        self.drawn = Weights(self.chance)
        self.steps: list[Step] = []
        self.shapes: list[tuple[int, ...]] = []
        self.parts = nn.ModuleList()
        self.results: dict[str, int] = {}  # where several results are among the values

    def weight(self, *shape: int) -> Weight:
        return self.drawn.draw(shape)

    def finish(self) -> None:
        """Make parameters and buffers known by their names."""
        for name, value in self.drawn.params.items():
            self.register_parameter(name, value)
        for name, buffer in self.drawn.buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, *inputs: Tensor) -> Any:
        Running.values = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        Running.parts = [*self.parts]
        values = list(inputs)
        for step in self.steps:
            values.append(step(values))
        if self.results:
            return {name: values[place] for name, place in self.results.items()}
        return values[-1]

    def add(self, step: Step, examples: list[Tensor]) -> None:
        """Grow by a step, which is tried at once; too large results are not kept."""
        Running.values = {**self.drawn.params, **self.drawn.buffers}
        Running.parts = [*self.parts]
        with torch.no_grad():
            made = step(examples)
        if made.numel() <= MOST and made.abs().max() < LARGEST:
            self.steps.append(step)
            examples.append(made)


MOST, LARGEST = 3000, 50.0
Layer = Callable[[RandomModule, tuple[int, ...]], Function]
MAPS: list[Layer] = []
ROWS: list[Layer] = []
ANY: list[Layer] = []


def kind(*lists: list[Layer]) -> Callable[[Layer], Layer]:
    def note(layer: Layer) -> Layer:
        for kinds in lists:
            kinds.append(layer)
        return layer

    return note


@kind(MAPS)
def convolution(net: RandomModule, shape: tuple[int, ...]) -> Function:
    _, c, h, w = shape
    groups = net.chance.choice((1, 1, c))
    out = groups * net.chance.choice((1, 2)) if groups > 1 else net.chance.choice((2, 4, 5, 8))
    size = (min(h, net.chance.choice((1, 3, 3, 5))), min(w, net.chance.choice((1, 3, 3))))
    stride, padding = net.chance.choice((1, 1, 2)), net.chance.choice((0, 1))
    weight = net.weight(out, c // groups, *size)
    bias = net.weight(out) if net.chance.random() < 0.6 else None
    return lambda x: F.conv2d(x, weight(), bias and bias(), stride, padding, 1, groups)


@kind(MAPS)
def depthwise_block(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """As in a ConvNeXt: depthwise, norm over channels, two products, layer scale, residual."""
    c, wide = shape[1], 2 * shape[1]
    spatial, inner, outer = net.weight(c, 1, 3, 3), net.weight(wide, c), net.weight(c, wide)
    norm, scale, bias = net.weight(c), net.weight(c), net.weight(wide)

    def block(x: Tensor) -> Tensor:
        y = F.conv2d(x, spatial(), None, 1, 1, 1, c).permute(0, 2, 3, 1)
        y = F.linear(F.layer_norm(y, (c,), norm()), inner(), bias())
        y = F.linear(F.gelu(y), outer()) * scale()
        return x + y.permute(0, 3, 1, 2)

    return block


@kind(MAPS)
def pooling(net: RandomModule, shape: tuple[int, ...]) -> Function:
    if min(shape[2:]) < 2:
        return TANH
    pool = net.chance.choice((F.max_pool2d, F.avg_pool2d))
    return lambda x: pool(x, 2)


@kind(MAPS)
def norm_of_maps(net: RandomModule, shape: tuple[int, ...]) -> Function:
    c = shape[1]
    if shape[0] * shape[2] * shape[3] < 2:
        return TANH
    layer: nn.Module = net.chance.choice(
        (nn.BatchNorm2d(c), nn.BatchNorm2d(c).eval(), nn.GroupNorm(1, c), nn.BatchNorm2d(c))
    )
    net.parts.append(layer)
    place = len(net.parts) - 1
    return lambda x: Running.parts[place](x)


@kind(MAPS)
def channel_gate(net: RandomModule, shape: tuple[int, ...]) -> Function:
    c = shape[1]
    weight, scale = net.weight(c, c), net.weight(c, 1, 1)

    def gate(x: Tensor) -> Tensor:
        y = torch.sigmoid(x.mean((2, 3)) @ weight())
        return x * y.reshape(-1, c, 1, 1) * scale()

    return gate


@kind(MAPS)
def to_rows(net: RandomModule, shape: tuple[int, ...]) -> Function:
    return lambda x: x.flatten(2).transpose(1, 2)


@kind(ROWS)
def product(net: RandomModule, shape: tuple[int, ...]) -> Function:
    out = net.chance.choice((3, 4, 6, 8, 12))
    weight = net.weight(out, shape[-1])
    bias = net.weight(out) if net.chance.random() < 0.6 else None
    return lambda x: F.linear(x, weight(), bias and bias())


@kind(ROWS)
def attention(net: RandomModule, shape: tuple[int, ...]) -> Function:
    if len(shape) != 3:
        return TANH
    d = shape[-1]
    packed = net.weight(3 * d, d)

    def attend(x: Tensor) -> Tensor:
        q, k, v = F.linear(x, packed()).chunk(3, -1)
        return x + torch.softmax(q @ k.transpose(1, 2) / d**0.5, -1) @ v

    return attend


@kind(ROWS)
def class_token(net: RandomModule, shape: tuple[int, ...]) -> Function:
    if len(shape) != 3:
        return TANH
    n, t, d = shape
    token, position = net.weight(1, 1, d), net.weight(1, t + 1, d)
    return lambda x: torch.cat([token().expand(n, 1, d), x], 1) + position()


@kind(ROWS)
def norm_of_rows(net: RandomModule, shape: tuple[int, ...]) -> Function:
    d = shape[-1]
    if d < 2:
        return TANH
    scale, bias = net.weight(d), net.weight(d)
    return lambda x: F.layer_norm(x, (d,), scale(), bias(), 1e-2)


@kind(ROWS)
def recurrent(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """A cell by hand, unrolled, whose weights are used at every time."""
    if len(shape) != 3 or shape[1] > 5:
        return TANH
    t, d = shape[1:]
    inner, outer, bias = net.weight(d, d), net.weight(d, d), net.weight(d)

    def unrolled(x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        for time in range(t):
            h = torch.tanh(F.linear(x[:, time], inner(), bias()) + h @ outer())
        return h

    return unrolled


@kind(MAPS, ROWS, ANY)
def activation(net: RandomModule, shape: tuple[int, ...]) -> Function:
    found: Function = net.chance.choice(
        (torch.relu, torch.tanh, F.gelu, F.silu, torch.sigmoid, F.leaky_relu)
    )
    return found


@kind(MAPS, ROWS, ANY)
def by_masks(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """What data and weights say is chosen, replaced, counted."""
    edge = net.weight(*shape[net.chance.randrange(1, len(shape)) :])
    chosen: Function = net.chance.choice(
        (
            lambda x: torch.where(x > edge(), x, 0.2 * x),
            lambda x: torch.where(x < edge(), edge(), x),
            lambda x: x.masked_fill((x > 0.1) & ~(x > edge()), 0.3),
            lambda x: x * ((x >= edge()) | (x < -0.5)),
            lambda x: x + 0.1 * (x > edge()).cumsum(-1),
            lambda x: torch.clamp(x, min=edge()) * (x > 0).any(-1, keepdim=True),
            lambda x: x - (2 * x).round().detach() / 2 + (x.floor() - x).detach(),
        )
    )
    return chosen


@kind(MAPS, ROWS, ANY)
def by_places(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """What sorting, looking up and writing in place do with places that the data decide."""
    axis = net.chance.randrange(1, len(shape))
    scale = net.weight(*shape[axis:])
    count = net.chance.randint(1, shape[axis])

    def written(x: Tensor) -> Tensor:
        y = torch.tanh(x).clone()
        y.narrow(axis, 0, count).mul_(0.5)
        y[x > 1] = 0.25
        return y * scale()

    chosen: Function = net.chance.choice(
        (
            lambda x: x.sort(axis, descending=True).values * scale(),
            lambda x: x.topk(count, axis).values,
            lambda x: (x * scale()).gather(axis, x.argsort(dim=axis, stable=True)),
            lambda x: x.index_select(axis, torch.arange(count)) * 0.7,
            lambda x: torch.zeros_like(x).scatter(
                axis, x.argsort(dim=axis, stable=True), torch.tanh(x * scale())
            ),
            lambda x: (x * scale()).cumsum(axis) / 2,
            lambda x: x + F.one_hot(x.argmax(axis), shape[axis]).movedim(-1, axis) * scale(),
            written,
        )
    )
    return chosen


@kind(MAPS, ROWS, ANY)
def by_angles(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """Waves, remainders, spectra, norms with a limit, and a rounding that has a slope."""
    own = net.weight(*shape[1:])
    chosen: Function = net.chance.choice(
        (
            lambda x: torch.sin(3 * x) * own(),
            lambda x: torch.cos(x + own()) + torch.atan(x),
            lambda x: torch.remainder(x, 0.7) * own(),
            lambda x: torch.fft.rfft(x * own(), norm="ortho").abs(),
            lambda x: torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=shape[-1]) + own(),
            lambda x: torch.renorm(x + own(), 2, 1, 0.8),
            lambda x: x + ((2 * x).round() / 2 - x).detach() * torch.sigmoid(own()),
        )
    )
    return chosen


@kind(MAPS)
def volume(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """The channels as depth: convolved and pooled in three dimensions."""
    _, c, h, w = shape
    size = (min(2, c), min(3, h), min(2, w))
    weight, bias = net.weight(2, 1, *size), net.weight(2)
    pool = (1, min(2, h), 1)

    def convolved(x: Tensor) -> Tensor:
        y = F.conv3d(x.unsqueeze(1), weight(), bias(), padding=(0, 1, 0))
        return F.max_pool3d(y, pool).flatten(1, 2)

    return convolved


@kind(MAPS, ROWS)
def contraction(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """An einsum of two operands along the last dimensions."""
    if len(shape) == 4:
        mixing = net.weight(shape[1], 3)
        return lambda x: torch.einsum("ncij,cd->ndij", x, mixing())
    inner = net.weight(shape[-1], 4)
    return lambda x: torch.einsum("n...d,de->n...e", x, inner())


@kind(MAPS, ROWS, ANY)
def by_broadcasting(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """A parameter that repeats along some dimensions, added or multiplied."""
    own = tuple(n if net.chance.random() < 0.6 else 1 for n in (1, *shape[1:]))
    weight = net.weight(*own[net.chance.randrange(2) :])
    if net.chance.random() < 0.5:
        return lambda x: x * weight()
    return lambda x: weight() + x


@kind(MAPS, ROWS, ANY)
def slices(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """One half gates the other, or both are swapped."""
    axis = net.chance.randrange(1, len(shape))
    half = shape[axis] // 2
    if half == 0:
        return TANH
    if net.chance.random() < 0.5:
        return lambda x: x.narrow(axis, 0, half) * torch.sigmoid(x.narrow(axis, half, half))
    return lambda x: torch.cat([x.narrow(axis, half, half), x.narrow(axis, 0, half)], axis)


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


# more layers, which need what stands above
import tests.module_layers  # noqa: E402, F401
