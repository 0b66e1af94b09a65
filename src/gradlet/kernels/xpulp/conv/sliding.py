"""Convolutions of any window over operands where they lie: four inputs are held, lines of the other
operand are streamed past them, in three loops with a stride of each operand for each.

For outputs and gradients of inputs the four are pixels, and the loops go over rows of the window,
its taps, and channels; for gradients of weights they are channels, and the loops go over images,
rows, and pixels. Nothing is laid out but the taps that only some of four pixels meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradlet.kernels.xpulp.conv.im2col import (
    HELD,
    SIDE_BY_SIDE,
    TYPES,
    Convolution,
    Lines,
    OnePanel,
    SumsInMemory,
)
from gradlet.kernels.xpulp.gemm.block import COUNT
from gradlet.kernels.xpulp.gemm.product import WORK, Operand, at
from gradlet.kernels.xpulp.isa.asm import Asm, Registers
from gradlet.targets.cost import Cost

BLOCKS = (4, 3, 2, 1)
ALIAS = {
    **{"h4": "moment", "taps": "rate", "rows": "decay", "blocks": "c_next", "left": "bias_next"},
    **{"s_tap": "momentum", "h_tap": "nesterov", "s_row": "s_first", "h_row": "h_next"},
}
"""Words for what a product of matrices does not have."""


@dataclass(frozen=True)
class Lanes(Operand):
    """The held operand: n4 bytes from lane to lane, h4 from k to k."""

    def prepare(self, asm: Asm, regs: Registers) -> None:
        back = regs["back_h"]
        asm.lw(back, "sp", at(ALIAS["h4"]))
        asm("addi", regs["flow0"], "zero", 1 - self.lines)
        asm.mac(back, regs["flow0"], regs["n4"])


@dataclass(frozen=True)
class Strides(Convolution):
    def operand(self, name: str, lines: int) -> Operand:
        if name == "h":
            return Lanes(name, lines, True, "n4")
        if self.mode in SIDE_BY_SIDE:
            return Operand(name, lines, False, "m4")
        return Lines(name, lines, True, "k4")


class StridedBlock(SumsInMemory):
    def word(self, op: str, register: str, name: str) -> None:
        super().word(op, register, ALIAS.get(name, name))

    def write(self) -> None:
        """The hardware loops are k and the loop around it; the outermost has a branch."""
        asm, (first, second, third, _) = self.asm, self.values
        pointers = self.regs["p_s"], self.regs["p_h"]
        self.word("lw", pointers[0], "s")
        self.word("lw", third, "rows")
        self._next_block(first, second)
        self.word("lw", first, "c")
        self.word("lw", pointers[1], "h")
        self.word("sw", third, "left")
        self._move("lw", first)
        again = asm.label()
        self.word("lw", first, "taps")
        with asm.loop(1, first):
            asm.iterations(0, self.kept[1])
            asm.label(self.start)
            start = asm.count
            self._one_k(first=False)
            asm.close(self.end, start)
            self._hop("tap", pointers, (first, second))
        self._hop("row", pointers, (first, second))
        self.count_down("left", first)
        asm.branch("bnez", first, to=again)
        self.word("lw", first, "c")
        asm("addi", second, first, 4 * HELD * self.lines)
        self._move("sw", first)
        self.word("sw", second, "c")

    def _hop(self, loop: str, pointers: tuple[str, str], free: tuple[str, str]) -> None:
        for name, register in zip("sh", free, strict=True):
            self.word("lw", register, f"{name}_{loop}")
        for pointer, register in zip(pointers, free, strict=True):
            self.asm("add", pointer, pointer, register)

    def count_down(self, name: str, register: str) -> None:
        self.word("lw", register, name)
        self.asm("addi", register, register, -1)
        self.word("sw", register, name)


class StridedPanel(OnePanel):
    def __init__(self, asm: Asm, product: Strides) -> None:
        super().__init__(asm, product)
        self.sizes = BLOCKS

    def block(self, lines: int, *, biased: bool = True) -> StridedBlock:
        return StridedBlock(self.asm, self.convolution, lines)

    def _blocks(self, lines: int, *, biased: bool = True) -> None:
        """Both hardware loops are inside of a block."""
        block = self.block(lines)
        block.enter()
        block.word("sw", COUNT, "blocks")
        again, count = self.asm.label(), block.values[0]
        block.write()
        block.count_down("blocks", count)
        self.asm.branch("bnez", count, to=again)


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    product = Strides(mode, "", "b", biased=False)
    names = {word: name for name, word in ALIAS.items()}
    fields = [names.get(word, word) for word in WORK]
    lines = [f"    {TYPES.get(name, 'int ')}{name};" for name in fields]
    return {
        "step": mode.removesuffix("_hwc"),
        "last": mode.endswith("_hwc"),
        "side_by_side": mode in SIDE_BY_SIDE,
        "struct": "\n".join([*lines, "    int caller[2];"]),
        "panel_function": StridedPanel(Asm("panel"), product).function(),
    }


def cost(
    mode: str, sizes: Mapping[str, Any], cores: int, params: Mapping[str, Any], constants: Cost
) -> float:
    """Cycles of the busiest core. For each k a block takes 4 instructions and 5 more per line; a
    step is six of them."""
    groups, taps = sizes["groups"], sizes["kernel_h"] * sizes["kernel_w"]
    inputs, outputs = (sizes[name] // groups for name in ("in_channels", "out_channels"))
    if mode.startswith("weight_grad"):
        units, lines, phases = groups * -(-inputs // HELD) * taps, outputs, 1
        rows = sizes["batch"] * sizes["out_h"]
        line = rows * (constants.sliding_step * sizes["out_w"] + constants.sliding_row)
        line, edge = line + constants.sliding_line, 0.0
    else:
        back = mode.startswith("input_grad")
        given, lines = (outputs, inputs) if back else (inputs, outputs)
        height, width = (sizes[f"{'in' if back else 'out'}_{d}"] for d in "hw")
        step = sizes["stride_w"] if back else 1
        across = -(-width // (HELD * step))
        units, phases = sizes["batch"] * groups * height * across * step, step
        phases *= sizes["stride_h"] if back else 1
        line = taps * (constants.sliding_step * given + constants.sliding_tap)
        line += constants.sliding_line * phases
        # taps that only some of four pixels meet are laid out, and multiplied one by one
        some = min(sizes["kernel_w"], 2 * _padding(sizes)) / across
        met = constants.sliding_pack * sizes["kernel_h"] * given
        edge = some * (met + constants.sliding_edge_line * lines + constants.sliding_edge)
    whole, left = divmod(units, cores)
    last = 1 / max(1, cores // left) if left else 0.0  # of the lines of a unit, at least
    busy = (5 * lines + 4 * -(-lines // BLOCKS[0])) / 6
    besides = (whole + (left > 0)) * (edge + constants.sliding_unit)
    products = (whole + last) * busy * line / phases
    return float(constants.sliding_start + products + besides)


def _padding(sizes: Mapping[str, Any]) -> float:
    """Taps of a row that are outside of the map at an end, as a mean of both ends."""
    reach = (sizes["kernel_w"] - 1) * sizes["dilation_w"]
    beyond = (sizes["out_w"] - 1) * sizes["stride_w"] + reach + 1 - sizes["in_w"]
    return float(max(0, beyond) / (2 * sizes["dilation_w"]))
