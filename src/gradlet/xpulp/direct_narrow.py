"""The usual forward convolution, from its call to its blocks: one image, no groups, lines of one part.

The compiler takes nearly twice the code for the same, and code that runs once is slow to fetch: so
numbers stay in those registers that short instructions know, and go to the block's struct at once.
"""

from __future__ import annotations

from gradlet.xpulp.asm import SAVED, Asm

SIZES = (
    *("batch", "in_channels", "in_h", "in_w", "out_channels", "out_h", "out_w"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_top", "pad_left"),
    *("dilation_h", "dilation_w", "groups"),
)
LOCALS = ("plane", "left", "function", "bias", "pair", "sizes")
"""Behind the struct: bytes from channel to channel, rows to come; bytes of a pair's weights."""
KEPT = ("ra", *SAVED)


class Narrow:
    """Writes the kernel itself; `fields` are those of the block's struct, which lies at sp."""

    def __init__(self, fields: tuple[str, ...], kernel: int, stride: int, widest: int) -> None:
        self.asm = Asm("narrow")
        self.kernel, self.stride, self.widest = kernel, stride, widest
        self.words = (*fields, "caller_sp", *LOCALS)

    def body(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.push(KEPT, 4 * len(self.words))
        asm.mv("s0", "a6")
        self._put("a6", "sizes")
        for kept, given in zip(("s2", "s3", "s4", "s5"), ("a2", "a3", "a4", "a5"), strict=True):
            asm.mv(kept, given)  # y, x, w, bias
        self._check()
        self._share()
        self._rows()
        self._weights()
        self._image()
        self._function()
        self._pairs()
        asm.label("out")
        asm.pop(KEPT, 4 * len(self.words))
        self._rare()
        return asm.body()

    def _size(self, register: str, name: str) -> None:
        self.asm.lw(register, "s0", 4 * SIZES.index(name))

    def _put(self, register: str, *fields: str) -> None:
        for field in fields:
            self.asm.sw(register, "sp", 4 * self.words.index(field))

    def _get(self, register: str, field: str) -> None:
        self.asm.lw(register, "sp", 4 * self.words.index(field))

    def _check(self) -> None:
        """Leaves out_w in a5, out_channels in a4."""
        asm = self.asm
        self._size("a2", "batch")
        self._size("a3", "groups")
        self._size("a4", "dilation_h")
        asm("or", "a2", "a2", "a3")
        asm("or", "a2", "a2", "a4")
        self._size("a5", "out_w")
        self._size("a4", "out_channels")
        asm.bne_imm("a2", 1, to="any")
        asm.li("a3", self.widest)
        asm.branch("blt", "a3", "a5", to="wide")
        asm("andi", "a3", "a4", 1)
        asm.branch("bnez", "a3", to="wide")

    def _share(self) -> None:
        """Rows of this core: s1 of them from a0 on; a1 is the first pair, a3 out_h."""
        asm = self.asm
        self._size("a3", "out_h")
        asm("srli", "a4", "a4", 1)
        asm("mul", "a4", "a4", "a3")
        asm("addi", "s1", "a4", 7)
        asm("srai", "s1", "s1", 3)
        asm.bne_imm("a1", 8, to="other_team")
        asm.label("shared")
        asm("mul", "a0", "a0", "s1")
        asm("add", "s1", "s1", "a0")
        asm.min("a0", "a0", "a4")
        asm.min("s1", "s1", "a4")
        asm("sub", "s1", "s1", "a0")
        asm.branch("blez", "s1", to="out")
        asm("divu", "a1", "a0", "a3")

    def _rows(self) -> None:
        asm = self.asm
        asm("mul", "a2", "a1", "a3")
        asm("sub", "a4", "a0", "a2")  # the first row
        asm("add", "a0", "a0", "a2")
        asm("slli", "s6", "a5", 2)
        self._put("s6", "y_row")
        asm.mac("s2", "a0", "s6")
        self._put("s2", "y0")
        asm("mul", "a2", "a3", "s6")
        self._put("a2", "plane")
        asm("add", "s2", "s2", "a2")
        self._put("s2", "y1")
        asm("sub", "a3", "a3", "a4")
        asm.min("a3", "a3", "s1")
        self._put("a3", "rows")
        asm("sub", "s1", "s1", "a3")
        self._put("s1", "left")
        self._size("a0", "stride_h")
        self._size("a2", "pad_top")
        asm("sub", "a0", "zero", "a0")
        self._put("a0", "first_row")
        asm.mac("a2", "a4", "a0")
        self._put("a2", "first")

    def _weights(self) -> None:
        """Leaves in_channels in a3, twice the first pair in a1."""
        asm = self.asm
        self._size("a0", "kernel_h")
        self._size("a3", "in_channels")
        self._put("a0", "lines")
        self._put("a3", "channels")
        asm.li("a2", 4 * self.kernel)
        self._put("a2", "w_line")
        asm("mul", "a0", "a0", "a2")
        self._put("a0", "w_inner")
        asm("slli", "a1", "a1", 1)
        asm("mul", "a0", "a0", "a3")
        asm("sub", "a2", "a2", "a0")
        self._put("a2", "w_outer")
        asm.mac("s4", "a1", "a0")
        self._put("s4", "w0")
        asm("add", "s4", "s4", "a0")
        self._put("s4", "w1")
        asm("slli", "a0", "a0", 1)
        self._put("a0", "pair")

    def _image(self) -> None:
        """Leaves in_w in a0, pad_left in a3."""
        asm = self.asm
        self._size("a0", "in_w")
        self._size("a2", "in_h")
        asm("slli", "a4", "a0", 2)
        self._put("a2", "height")
        asm("mul", "a2", "a2", "a4")
        self._put("a4", "x_line")
        self._put("a2", "x_inner")
        asm("mul", "a2", "a2", "a3")
        self._size("a3", "pad_left")
        asm("sub", "a4", "a4", "a2")
        self._put("a4", "x_outer")
        asm("slli", "a2", "a3", 2)
        asm("sub", "s3", "s3", "a2")
        self._put("s3", "x")

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
        self._put("a2", "function")

    def _pairs(self) -> None:
        asm = self.asm
        asm.branch("beqz", "s5", to="pair")
        asm("slli", "a1", "a1", 2)
        asm("add", "s5", "s5", "a1")
        asm.label("pair")
        self._put("zero", "b0", "b1")
        asm.branch("beqz", "s5", to="call")
        for place, field in enumerate(("b0", "b1")):
            asm.lw("a2", "s5", 4 * place)
            self._put("a2", field)
        asm("addi", "s5", "s5", 8)
        asm.label("call")
        self._put("s5", "bias")
        self._get("a1", "function")
        asm.mv("a0", "sp")
        asm("jalr", "a1")
        self._get("a0", "left")
        asm.branch("bnez", "a0", to="next")

    def _rare(self) -> None:
        """The next pair; another number of cores; what C does."""
        asm = self.asm
        asm.label("next")
        for field, step in (("y0", "plane"), ("y1", "plane"), ("w0", "pair"), ("w1", "pair")):
            self._get("a2", field)
            self._get("a3", step)
            asm("add", "a2", "a2", "a3")
            self._put("a2", field)
        self._get("s0", "sizes")
        self._get("s5", "bias")
        self._size("a2", "out_h")
        asm.min("a2", "a2", "a0")
        self._put("a2", "rows")
        asm("sub", "a0", "a0", "a2")
        self._put("a0", "left")
        self._size("a2", "pad_top")
        self._put("a2", "first")
        asm.branch("j", to="pair")
        asm.label("other_team")
        asm("add", "s1", "a4", "a1")
        asm("addi", "s1", "s1", -1)
        asm("divu", "s1", "s1", "a1")
        asm.branch("j", to="shared")
        for name in ("any", "wide"):
            asm.label(name)
            asm("lui", "t0", f"%hi({name})")
            asm("addi", "t0", "t0", f"%lo({name})")
            if name == "any":
                asm.branch("j", to="elsewhere")
        asm.label("elsewhere")
        for kept, given in zip(("s2", "s3", "s4", "s5"), ("a2", "a3", "a4", "a5"), strict=True):
            asm.mv(given, kept)
        asm.pop(KEPT, 4 * len(self.words), to="t0")
