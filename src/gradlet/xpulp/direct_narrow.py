"""The usual forward convolution, from its call to its blocks, where lines have one part."""

from __future__ import annotations

from gradlet.xpulp.direct_start import Start

LOCALS = ("plane", "left", "function", "bias", "pair", "sizes")
"""Behind the struct: bytes from channel to channel, rows to come; bytes of a pair's weights."""


class Narrow(Start):
    """Writes the kernel itself; `fields` are those of the block's struct."""

    def __init__(self, fields: tuple[str, ...], kernel: int, stride: int, widest: int) -> None:
        words = (*fields, *LOCALS)
        super().__init__("narrow", 4, words, 4 * len(words))  # y, x, w, bias
        self.kernel, self.stride, self.widest = kernel, stride, widest

    def body(self) -> str:
        self.begin()
        self.put("s0", "sizes")
        self._check()
        self.size("a3", "out_h")
        self.share("a3")
        self._rows()
        self._weights()
        self._image()
        self._function()
        self._pairs()
        self.end()
        self._next_pair()
        self.rare("any", "wide")
        return self.asm.body()

    def _check(self) -> None:
        """Leaves out_w in a5."""
        asm = self.asm
        self.size("a5", "out_w")
        asm.li("a3", self.widest)
        asm.branch("blt", "a3", "a5", to="wide")
        asm("andi", "a3", "a4", 1)
        asm.branch("bnez", "a3", to="wide")

    def _rows(self) -> None:
        asm = self.asm
        asm("mul", "a2", "a1", "a3")
        asm("sub", "a4", "a0", "a2")  # the first row
        asm("add", "a0", "a0", "a2")
        asm("slli", "s6", "a5", 2)
        self.put("s6", "y_row")
        asm.mac("s2", "a0", "s6")
        self.put("s2", "y0")
        asm("mul", "a2", "a3", "s6")
        self.put("a2", "plane")
        asm("add", "s2", "s2", "a2")
        self.put("s2", "y1")
        asm("sub", "a3", "a3", "a4")
        asm.min("a3", "a3", "s1")
        self.put("a3", "rows")
        asm("sub", "s1", "s1", "a3")
        self.put("s1", "left")
        self.size("a0", "stride_h")
        self.size("a2", "pad_top")
        asm("sub", "a0", "zero", "a0")
        self.put("a0", "first_row")
        asm.mac("a2", "a4", "a0")
        self.put("a2", "first")

    def _weights(self) -> None:
        """Leaves in_channels in a3, twice the first pair in a1."""
        asm = self.asm
        self.size("a0", "kernel_h")
        self.size("a3", "in_channels")
        self.put("a0", "lines")
        self.put("a3", "channels")
        asm.li("a2", 4 * self.kernel)
        self.put("a2", "w_line")
        asm("mul", "a0", "a0", "a2")
        self.put("a0", "w_inner")
        asm("slli", "a1", "a1", 1)
        asm("mul", "a0", "a0", "a3")
        asm("sub", "a2", "a2", "a0")
        self.put("a2", "w_outer")
        asm.mac("s4", "a1", "a0")
        self.put("s4", "w0")
        asm("add", "s4", "s4", "a0")
        self.put("s4", "w1")
        asm("slli", "a0", "a0", 1)
        self.put("a0", "pair")

    def _image(self) -> None:
        """Leaves in_w in a0, pad_left in a3."""
        asm = self.asm
        self.size("a0", "in_w")
        self.size("a2", "in_h")
        asm("slli", "a4", "a0", 2)
        self.put("a2", "height")
        asm("mul", "a2", "a2", "a4")
        self.put("a4", "x_line")
        self.put("a2", "x_inner")
        asm("mul", "a2", "a2", "a3")
        self.size("a3", "pad_left")
        asm("sub", "a4", "a4", "a2")
        self.put("a4", "x_outer")
        asm("slli", "a2", "a3", 2)
        asm("sub", "s3", "s3", "a2")
        self.put("s3", "x")

    def _function(self) -> None:
        """By width, and whether the line sticks out at its ends."""
        asm = self.asm
        asm("addi", "a2", "a5", -1)
        if self.stride == 2:
            asm("slli", "a2", "a2", 1)
        asm("addi", "a2", "a2", self.kernel - 1)
        asm("sub", "a2", "a2", "a3")
        asm("slt", "a2", "a2", "a0")  # 0 if it sticks out on the right
        asm("slt", "a3", "zero", "a3")
        asm("slli", "a3", "a3", 1)
        asm("slli", "a5", "a5", 2)
        asm("add", "a5", "a5", "a3")
        asm("sub", "a5", "a5", "a2")
        asm("slli", "a5", "a5", 2)
        asm("lui", "a2", "%hi(blocks - 12)")
        asm("add", "a2", "a2", "a5")
        asm("lw", "a2", "%lo(blocks - 12)(a2)")
        self.put("a2", "function")

    def _pairs(self) -> None:
        asm = self.asm
        asm.branch("beqz", "s5", to="pair")
        asm("slli", "a1", "a1", 2)
        asm("add", "s5", "s5", "a1")
        asm.label("pair")
        self.put("zero", "b0", "b1")
        asm.branch("beqz", "s5", to="call")
        for place, field in enumerate(("b0", "b1")):
            asm.lw("a2", "s5", 4 * place)
            self.put("a2", field)
        asm("addi", "s5", "s5", 8)
        asm.label("call")
        self.put("s5", "bias")
        self.get("a1", "function")
        asm.mv("a0", "sp")
        asm("jalr", "a1")
        self.get("a0", "left")
        asm.branch("bnez", "a0", to="next")

    def _next_pair(self) -> None:
        asm = self.asm
        asm.label("next")
        for field, step in (("y0", "plane"), ("y1", "plane"), ("w0", "pair"), ("w1", "pair")):
            self.get("a2", field)
            self.get("a3", step)
            asm("add", "a2", "a2", "a3")
            self.put("a2", field)
        self.get("s0", "sizes")
        self.get("s5", "bias")
        self.size("a2", "out_h")
        asm.min("a2", "a2", "a0")
        self.put("a2", "rows")
        asm("sub", "a0", "a0", "a2")
        self.put("a0", "left")
        self.size("a2", "pad_top")
        self.put("a2", "first")
        asm.branch("j", to="pair")
