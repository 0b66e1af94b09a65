"""Direct convolution with channels last: the blocks of direct.py, whose pixels and taps are far
apart. So each load moves the pointer on to what the next one wants, and the last of a channel goes
back to the first of the next channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.kernels.xpulp.conv.direct import AROUND, Block, Reach, blocks
from gradlet.kernels.xpulp.isa.asm import AssemblyError


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    back = mode == "input_grad_hwc"
    reach = Reach(params["kernel"], params["stride"], params.get("pad", 0), back)
    return {**blocks(LastBlock, reach, params["edge"], epilogue), "last": True}


class LastBlock(Block):
    """For outputs, taps are as far apart as pixels are, and each of the two channels has weights of
    its own. For gradients of inputs, the weights of both lie side by side, taps go down."""

    def __init__(self, reach: Reach, width: int, left: int, right: int, epilogue: str) -> None:
        super().__init__(reach, width, left, right, epilogue)
        self.inner, self.pixel = self.inputs[0], AROUND[7]
        self.tap = self.pixel
        if reach.back:
            *self.w, self.tap = self.w
        places = [place for place, _ in self._order()]
        taps = self._weight_order()
        for found in (places, taps):
            if found and found != list(range(found[0], found[-1] + 1)):
                raise AssemblyError(f"{found} are not neighbours")

    def _steps(self) -> None:
        """From the last input and the last tap of a channel to the first of the next."""
        asm, inputs, taps = self.asm, len(self._order()), len(self._weight_order())
        self._get(self.pixel, "pixel")
        asm("addi", self.x_step, "zero", 1 - inputs)
        asm("mul", self.x_step, self.x_step, self.pixel)
        asm("addi", self.x_step, self.x_step, 4)
        if self.reach.back:
            self._get(self.w_step, "w_inner")
            self._get(self.tap, "tap")
            asm("sub", self.tap, "zero", self.tap)
        else:
            asm("addi", self.w_step, "zero", 4)
        for _ in range(taps - 1):
            asm("sub", self.w_step, self.w_step, self.tap)

    def _loops(self, outer: str, spare: str) -> None:
        asm, order = self.asm, self._order()
        for _ in range(order[0][0]):
            asm("add", self.x, self.x, self.pixel)
        for pointer in self.w:
            for _ in range(self.reach.weight(self._weight_order()[0])):
                asm("sub" if self.reach.back else "add", pointer, pointer, self.tap)
        with asm.loop(1, outer):
            self._get(self.inner, "channels")
            asm("nop")
            with asm.loop(0, self.inner):
                self._body(order)
            self._next_line(outer, spare)

    def _weight_order(self) -> list[int]:
        return sorted({tap for _, tap, _ in self.meets})

    def _fresh(self, taps: set[int], here: list[int]) -> list[int]:
        """None is left out on the way to the last one."""
        return [t for t in self._weight_order() if t <= max(taps) and t not in here]

    def _rare(self) -> None:
        self._below()

    def _load_input(self, order: list[tuple[int, list[tuple[int, int]]]], index: int) -> None:
        step = self.x_step if index == len(order) - 1 else self.pixel
        self.asm.lw_post(self.inputs[index % 2], self.x, step)

    def _load_weights(self, tap: int, order: list[int]) -> None:
        step = self.w_step if tap == order[-1] else self.tap
        first, second = (registers[tap] for registers in self.weights)
        if self.reach.back:
            self.asm.lw(second, self.w[0], 4)
            self.asm.lw_post(first, self.w[0], step)
            return
        for register, pointer in zip((first, second), self.w, strict=True):
            self.asm.lw_post(register, pointer, step)

    def _store(self) -> None:
        """Weights are dead here."""
        asm, registers = self.asm, [r for channel in self.weights for r in channel]
        first, second, step, row = registers[:4]
        self._get(step, "y_pixel")
        for channel, (sums, pointer) in enumerate(zip(self.sums, (first, second), strict=True)):
            if self.epilogue == "sum":  # to both, before any is stored: they may be the same
                self._get(pointer, f"y{channel}")
                asm("nop")
                self._add_far(sums, pointer, step)
            elif self.epilogue == "relu":
                for register in sums:
                    asm.max(register, register, "zero")  # the FPU makes no negative NaN
        self._get(row, "y_row")
        for channel, (sums, pointer) in enumerate(zip(self.sums, (first, second), strict=True)):
            self._get(pointer, f"y{channel}")
            asm("nop")
            asm("add", self.inputs[0], pointer, row)
            for register in sums:
                asm.sw_post(register, pointer, step)
            self._put(self.inputs[0], f"y{channel}")

    def _add_far(self, sums: list[str], pointer: str, step: str) -> None:
        """What is there already, two at a time so that no load is waited for."""
        for at in range(0, len(sums), 2):
            pair = list(zip(sums[at : at + 2], self.inputs, strict=False))
            for _, there in pair:
                self.asm.lw_post(there, pointer, step)
            if len(pair) == 1:
                self.asm("nop")
            for register, there in pair:
                self.asm("fadd.s", register, there, register)
