"""The usual direct convolution, from its call to its blocks: lines have one part, or whole ones.

A piece is some rows of one part of the lines of two channels: what one block does, or two where an
input gradient has strides. Each core has some pieces, one behind the other: the parts of a pair of
channels, then the next pair. Where strides make them unequal, and the cores would not have as many
of them, each core has all parts of some rows instead.
"""

from __future__ import annotations

from gradlet.kernels.xpulp.conv.direct_start import Start

LOCALS = (
    *("plane", "left", "row", "own", "part", "last_part", "all_parts", "todo", "y_pair", "w_pair"),
    *("x_first", "of_made", "function", "at_left", "at_right", "bias", "sizes"),
)
"""Behind the struct. plane, of_made: bytes from channel to channel of the results, of the weights;
left: rows to come; own: those of the piece; part: bytes of a line before it; todo: rows of the
other phase; function: where the address of the block is without borders, and how far from there it
is with one."""
WHOLE = 8
"""Pixels of a part, where there are several."""


class Pieces(Start):
    """Writes the kernel itself; `fields` are those of the block's struct. Where an input gradient
    has strides, its first pixel meets the first input, and no part sticks out on the left."""

    def __init__(
        self,
        fields: tuple[str, ...],
        kernel: int,
        stride: int,
        span: int,
        widest: int,
        *,
        back: bool,
    ) -> None:
        words = (*fields, *LOCALS)
        operands = 3 if back else 4  # result, what is given, weights, bias
        super().__init__("pieces", operands, words, 4 * len(words))
        self.kernel, self.stride, self.span, self.widest = kernel, stride, span, widest
        self.back, self.phases = back, back and stride > 1
        self.made, self.source = ("in", "out") if back else ("out", "in")

    def body(self) -> str:
        self.begin(f"{self.made}_channels")
        self.put("s0", "sizes")
        self._check()
        self._own()
        self._results()
        self._weights()
        self._image()
        self._function()
        self._piece()
        self._call()
        self.end()
        self._next()
        self.rare("any", "wide")
        return self.asm.body()

    def _check(self) -> None:
        """Leaves the width of a line in a5, the number of its parts in s6."""
        asm = self.asm
        if self.back:
            self.size("a2", "stride_h")
            asm.bne_imm("a2", self.stride, to="wide")
        self.size("a5", f"{self.made}_w")
        asm("andi", "a3", "a4", 1)
        asm.branch("bnez", "a3", to="wide")
        asm("addi", "s6", "zero", 1)
        asm("addi", "a2", "zero", self.widest)
        asm.branch("bge", "a2", "a5", to="narrow")
        if self.widest != WHOLE:
            asm.branch("j", to="wide")
        else:
            asm("andi", "a3", "a5", WHOLE - 1)
            asm.branch("bnez", "a3", to="wide")
            asm("srli", "s6", "a5", WHOLE.bit_length() - 1)
        asm.label("narrow")

    def _own(self) -> None:
        """The first piece of the core. Leaves its pair in a1."""
        asm = self.asm
        self.size("a2", f"{self.made}_h")
        asm.mv("s7", "a2")
        asm("mul", "a3", "a2", "s6")
        if self.phases:
            asm("srli", "a2", "a4", 1)
            asm("mul", "a2", "a2", "s6")
            asm("andi", "a2", "a2", 7)
            self.put("a2", "all_parts")
            asm.branch("beqz", "a2", to="by_parts")
            asm.mv("a3", "s7")
            asm.label("by_parts")
        self.share("a3")
        self.put("s1", "left")
        asm("mul", "a2", "a1", "a3")
        asm("sub", "a0", "a0", "a2")
        self.put("zero", "part")
        if self.widest != WHOLE:
            self.put("zero", "last_part")
        else:
            asm("addi", "s6", "s6", -1)
            asm("slli", "s6", "s6", WHOLE.bit_length() + 1)
            self.put("s6", "last_part")
            asm.branch("beqz", "s6", to="one_part")
            asm("divu", "a2", "a0", "s7")  # 0 where the core has all parts
            asm("mul", "a3", "a2", "s7")
            asm("sub", "a0", "a0", "a3")
            asm("slli", "a2", "a2", WHOLE.bit_length() + 1)
            self.put("a2", "part")
            asm.label("one_part")
        self.put("a0", "row")

    def _results(self) -> None:
        """Leaves twice the pair in a1, bytes of a line in s1."""
        asm = self.asm
        asm("slli", "s1", "a5", 2)
        if not self.phases:
            self.put("s1", "y_row")
        else:
            asm("slli", "a2", "a5", 3)
            self.put("a2", "y_row")
        asm("mul", "a3", "s7", "s1")
        self.put("a3", "plane")
        asm("slli", "a1", "a1", 1)
        asm.mac("s2", "a1", "a3")
        self.put("s2", "y_pair")
        if not self.back:
            self.size("a2", "stride_h")
            asm("sub", "a2", "zero", "a2")
        else:
            asm("addi", "a2", "zero", 1)
        self.put("a2", "first_row")

    def _weights(self) -> None:
        """Leaves the number of given channels in a3."""
        asm = self.asm
        self.size("a0", "kernel_h")
        self.size("a3", f"{self.source}_channels")
        self.put("a3", "channels")
        asm("addi", "a2", "zero", 4 * self.kernel)
        asm("mul", "a4", "a0", "a2")  # of all taps
        if not self.phases:
            self.put("a0", "lines")
        else:
            asm("slli", "a2", "a2", 1)
        self.put("a2", "w_line")
        if self.back:  # those of a result's channel are side by side
            self.put("a4", "of_made")
            asm.mac("s4", "a1", "a4")
            self.size("a0", "in_channels")
            asm("mul", "a0", "a0", "a4")
            self.put("a0", "w_inner")
            asm("mul", "a0", "a0", "a3")
        else:
            self.put("a4", "w_inner")
            asm("mul", "a0", "a4", "a3")
            self.put("a0", "of_made")
            asm.mac("s4", "a1", "a0")
        self.put("s4", "w_pair")
        asm("sub", "a2", "a2", "a0")
        self.put("a2", "w_outer")

    def _image(self) -> None:
        """Leaves the width of what is given in a0, what the first pixel meets of it first in a4."""
        asm = self.asm
        self.size("a0", f"{self.source}_w")
        self.size("a2", f"{self.source}_h")
        self.put("a2", "height")
        asm("slli", "s6", "a0", 2)
        if self.back:  # from the last line up
            asm("addi", "a4", "a2", -1)
            asm.mac("s3", "a4", "s6")
        asm("mul", "a2", "a2", "s6")
        self.put("a2", "x_inner")
        asm("mul", "a2", "a2", "a3")
        if self.back:
            asm("sub", "s6", "zero", "s6")
        self.put("s6", "x_line")
        asm("sub", "s6", "s6", "a2")
        self.put("s6", "x_outer")
        if self.phases:
            asm.mv("a4", "zero")
        else:
            self.size("a4", "pad_left")
            if self.back:
                asm("addi", "a4", "a4", -self.span)
            else:
                asm("sub", "a4", "zero", "a4")
            asm("slli", "a2", "a4", 2)
            asm("add", "s3", "s3", "a2")
        self.put("s3", "x_first")

    def _function(self) -> None:
        """By width, and whether a line sticks out at its ends. The last input that it meets is at
        the last pixel, or half as far, or twice."""
        asm = self.asm
        if self.phases:
            asm("srli", "a3", "a5", 1)
            asm("addi", "a3", "a3", 1)
        elif self.stride == 2:
            asm("slli", "a3", "a5", 1)
            asm("addi", "a3", "a3", self.span - 1)
        else:
            asm("addi", "a3", "a5", self.span)
        asm("add", "a3", "a3", "a4")
        asm("slt", "a3", "a0", "a3")  # whether it sticks out on the right
        asm("slli", "a3", "a3", 2)
        self.put("a3", "at_right")
        asm("srli", "a4", "a4", 31)
        asm("slli", "a4", "a4", 3)
        self.put("a4", "at_left")
        asm("addi", "a3", "zero", WHOLE)
        asm.min("a3", "a3", "a5")
        asm("slli", "a3", "a3", 4)
        asm("lui", "a2", "%hi(blocks - 16)")
        asm("addi", "a2", "a2", "%lo(blocks - 16)")
        asm("add", "a2", "a2", "a3")
        self.put("a2", "function")
        if not self.back:
            asm.branch("beqz", "s5", to="unbiased")
            asm("slli", "a1", "a1", 2)
            asm("add", "s5", "s5", "a1")
            asm.label("unbiased")
            self.put("s5", "bias")

    def _piece(self) -> None:
        """Rows of one part: its number in a3, the first row in a0."""
        asm = self.asm
        asm.label("piece")
        self.get("a0", "row")
        self.get("a1", "left")
        self.size("a2", f"{self.made}_h")
        asm("sub", "a2", "a2", "a0")
        asm.min("a2", "a2", "a1")
        self.put("a2", "own")
        if self.phases:
            asm("srli", "a1", "a2", 1)
            self.put("a1", "todo")
            asm("sub", "a2", "a2", "a1")
            asm.label("phase")
        self.put("a2", "rows")
        self.get("a3", "part")
        self.get("a4", "y_pair")
        self.size("a5", f"{self.made}_w")
        asm("add", "a4", "a4", "a3")
        asm("slli", "a5", "a5", 2)
        asm.mac("a4", "a0", "a5")
        self.put("a4", "y0")
        self.get("a5", "plane")
        asm("add", "a4", "a4", "a5")
        self.put("a4", "y1")
        self.get("a4", "x_first")
        if self.stride == 2:
            asm("srli" if self.back else "slli", "a5", "a3", 1)
        asm("add", "a4", "a4", "a5" if self.stride == 2 else "a3")
        self.put("a4", "x")
        self._lines()

    def _lines(self) -> None:
        """Of the kernel, and of the weights; the row is in a0."""
        asm = self.asm
        self.get("a4", "w_pair")
        self.size("a2", "pad_top")
        if not self.back:
            self.size("a1", "stride_h")
            asm("mul", "a1", "a1", "a0")
            asm("sub", "a2", "a2", "a1")
        else:
            asm("add", "a2", "a2", "a0")
            if self.phases:
                self.size("a0", "kernel_h")
                asm("andi", "a1", "a2", 1)
                asm("srli", "a2", "a2", 1)
                asm("sub", "a0", "a0", "a1")
                asm("addi", "a0", "a0", 1)
                asm("srli", "a0", "a0", 1)
                self.put("a0", "lines")
                asm("addi", "a0", "zero", 4 * self.kernel)
                asm.mac("a4", "a0", "a1")
            self.size("a1", "out_h")
            asm("sub", "a2", "a2", "a1")
            asm("addi", "a2", "a2", 1)
        self.put("a2", "first")
        self.put("a4", "w0")
        self.get("a5", "of_made")
        asm("add", "a4", "a4", "a5")
        self.put("a4", "w1")

    def _call(self) -> None:
        asm = self.asm
        self.put("zero", "b0", "b1")
        if not self.back:
            self.get("a4", "bias")
            asm.branch("beqz", "a4", to="call")
            for place, field in enumerate(("b0", "b1")):
                asm.lw("a5", "a4", 4 * place)
                self.put("a5", field)
            asm.label("call")
        self.get("a1", "function")
        for at, end, border in (("zero", "inner", "at_left"), ("a2", "inside", "at_right")):
            if border == "at_right":
                self.get("a2", "last_part")
            asm.branch("bne", "a3", at, to=end)
            self.get("a4", border)
            asm("add", "a1", "a1", "a4")
            asm.label(end)
        asm.lw("a1", "a1")
        asm.mv("a0", "sp")
        asm.call_block("a1")
        self.get("s0", "sizes")
        if self.phases:
            self.get("a2", "todo")
            asm.branch("bnez", "a2", to="other_phase")
            self.get("a2", "all_parts")
            asm.branch("bnez", "a2", to="next_part")
            asm.label("rows_done")
        self.get("a0", "left")
        self.get("a2", "own")
        asm("sub", "a0", "a0", "a2")
        self.put("a0", "left")
        asm.branch("bnez", "a0", to="next")

    def _next(self) -> None:
        """The other phase, the next part, or the next pair."""
        asm = self.asm
        if self.phases:
            asm.label("other_phase")
            self.put("zero", "todo")
            self.get("a0", "row")
            asm("addi", "a0", "a0", 1)
            asm.branch("j", to="phase")
            asm.label("next_part")  # of the same rows
            self.get("a3", "part")
            self.get("a2", "last_part")
            asm.branch("beq", "a3", "a2", to="rows_done")
            asm.branch("j", to="part")
        asm.label("next")
        self.put("zero", "row")
        self.get("a3", "part")
        self.get("a2", "last_part")
        asm.branch("beq", "a3", "a2", to="pair")
        asm.label("part")
        asm("addi", "a3", "a3", 4 * WHOLE)
        self.put("a3", "part")
        asm.branch("j", to="piece")
        asm.label("pair")
        self.put("zero", "part")
        for field, step in (("y_pair", "plane"), ("w_pair", "of_made")):
            self.get("a2", field)
            self.get("a3", step)
            asm("slli", "a3", "a3", 1)
            asm("add", "a2", "a2", "a3")
            self.put("a2", field)
        if not self.back:
            self.get("a2", "bias")
            asm.branch("beqz", "a2", to="piece")
            asm("addi", "a2", "a2", 8)
            self.put("a2", "bias")
        asm.branch("j", to="piece")
