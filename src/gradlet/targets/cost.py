"""The constants of the cost model, by which the planner compares tilings: `[cost]` in a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gradlet.errors import GradletError


@dataclass(frozen=True)
class Cost:
    """Cycles, all of them. What a target does not say is as here, which is good for a cluster of
    eight cores with a DMA; with one core and one memory nothing is compared, and all is the same.
    """

    # of a call, and of every tile of one
    call: float = 1000.0
    tile: float = 400.0  # barriers, the next views
    add: float = 14.0  # of a core, per element and further tile of a sum
    room: float = 1 / 32  # of a byte of L1 that a whole tensor could have
    # of copies
    backing_byte: float = 1 / 8  # to or from the memory behind L1
    backing_line: float = 3.0  # of consecutive bytes, besides these
    farthest_byte: float = 1 / 2  # to or from the memory behind that
    farthest_line: float = 100.0
    farthest_turn: float = 0.5  # of a byte in one direction while the other is as busy
    both: float = 0.2  # of a cycle in one direction while the other is as busy
    command: float = 25.0  # of a core, for a plane of a region: each is a command of its own
    visible: float = 2.0  # of a cycle of copying that only the call before could hide
    # of kernels that have no model of their own: cycles of a core
    mac: float = 1.82
    mac_start: float = 755.0  # of a tile, where something is multiplied: code is cold
    run: float = 100.0  # likewise, where lines of the result begin that are not neighbours
    word: float = 1.2  # of an operand, where nothing is multiplied
    word_of_macs: float = 0.8  # of an operand, else
    # of products of matrices (kernels/xpulp/gemm/gemm.py)
    gemm_instruction: float = 0.58 / 0.55
    gemm_block: float = 45 * 0.58 / 0.55  # besides the loop over k
    gemm_even: float = 1000.0  # of a core, to begin with
    gemm_uneven: float = 2000.0  # likewise, where the cut is looked for
    # of products with a vector, and of two (gemm/gemv.py, gemm/outer.py)
    vector_start: float = 500.0
    vector_mac: float = 1.0
    outer_mac: float = 2.0
    # of convolutions with one tap and strides (conv/strided.py)
    strided_instruction: float = 0.58 / 0.55
    strided_block: float = 60 * 0.58 / 0.55
    strided_start: float = 1000.0
    # of convolutions as products of matrices (conv/im2col.py), per group of four pixels or taps
    im2col_start: float = 1000.0  # of a core, to begin with
    im2col_step: float = 4 / 0.55  # of a line for each k
    im2col_turn: float = 0.4 * 4 / 0.55  # of a line for each tap
    im2col_line: float = 2 * 4 / 0.55  # of a line for the pixels of an image
    im2col_pack: float = 1.4 * 4 / 0.55  # for each input of a tap that is laid out
    im2col_tap: float = 13 * 4 / 0.55  # for each tap that is laid out
    im2col_pixel: float = 2 * 4 / 0.55  # for each pixel whose taps are laid out
    im2col_group: float = 300 * 4 / 0.55  # of taps, to begin with
    # of convolutions that slide along rows (conv/sliding.py), per group of four
    sliding_step: float = 4 / 0.55
    sliding_row: float = 0.3 * 4 / 0.55
    sliding_line: float = 3 * 4 / 0.55
    sliding_tap: float = 0.5 * 4 / 0.55
    sliding_pack: float = 1.4 * 4 / 0.55  # at the ends of a row, for each input
    sliding_edge_line: float = 3 * 4 / 0.55
    sliding_edge: float = 25 * 4 / 0.55
    sliding_unit: float = 70 * 4 / 0.55
    sliding_start: float = 1000.0  # of a core, to begin with
    # of convolutions by Winograd's algorithm (conv/winograd.py)
    winograd_instruction: float = 1.35
    winograd_start: float = 3500.0  # of a core, to begin with
    # of depthwise convolutions (depthwise/cost.py): a strip is a few pixels wide
    depthwise_instruction: float = 1.0
    depthwise_row: float = 4.0  # of a strip
    depthwise_strip: float = 60.0
    depthwise_sum: float = 900.0  # of every strip but the first, for the gradient of weights
    depthwise_even: float = 500.0  # of a call with one strip of as many channels for each core
    depthwise_uneven: float = 2000.0  # of any other, where several functions are fetched
    # of depthwise convolutions with channels last (families/conv2d/conv2d.toml)
    channels_pixel: float = 60.0
    channels_block: float = 30.0
    channels_tap: float = 24.0
    channels_start: float = 100.0

    @staticmethod
    def of(given: Mapping[str, Any], source: object) -> Cost:
        """As a file has them."""
        known = [field.name for field in fields(Cost)]
        for name, value in given.items():
            if name not in known:
                raise GradletError(
                    f"{source}: [cost] has no constant '{name}'; there are {', '.join(known)}"
                )
            if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
                raise GradletError(f"{source}: [cost] {name} = {value}: cycles are a number from 0")
        return Cost(**{name: float(value) for name, value in given.items()})
