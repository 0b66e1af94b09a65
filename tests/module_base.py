"""What random modules are made of: steps that read values made before, and lists of layers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.module_weights import Running, Weight, Weights

Step = Callable[[list[Tensor]], Tensor]
Function = Callable[[Tensor], Tensor]
TANH: Function = torch.tanh


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
