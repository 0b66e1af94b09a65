"""The usual gradient of convolution weights, from its call to its units: one image, no groups, pairs
of output channels. In assembler for the reason that direct_narrow.py gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.xpulp.asm import SAVED, Asm

SIZES = (
    *("batch", "in_channels", "in_h", "in_w", "out_channels", "out_h", "out_w"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_top", "pad_left"),
    *("dilation_h", "dilation_w", "groups"),
)
KEPT = ("ra", *SAVED)


class Usual:
    """Writes the kernel itself; `fields` are those of the unit's struct, which lies at sp.

    facts: taps, lines, kernel, stride, edge, head, period, tails as the units have them; words:
    those of the struct, with its sums.
    """

    def __init__(
        self, fields: tuple[str, ...], words: int, epilogue: str, facts: Mapping[str, Any]
    ) -> None:
        self.asm = Asm("usual")
        self.fields, self.facts = fields, facts
        self.room = -(-4 * words // 16) * 16
        self.rated = epilogue == "sgd"
        self.by_channel = facts["kernel"] == 1
        self.moved = ("a2", "a3", "a4", "a5") if self.rated else ("a2", "a3", "a4")

    def body(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.push(KEPT)
        asm("addi", "sp", "sp", -self.room)
        asm.mv("s0", "a6" if self.rated else "a5")
        for index, given in enumerate(self.moved):
            asm.mv(f"s{2 + index}", given)  # dw, dy, x, hyper
        self._check()
        self._share()
        self._pointers()
        self._planes()
        self._lines()
        self._function()
        asm.mv("a0", "sp")
        asm("jalr", "a1")
        asm.label("out")
        asm("addi", "sp", "sp", self.room)
        asm.pop(KEPT)
        self._rare()
        return asm.body()

    def _size(self, register: str, name: str) -> None:
        self.asm.lw(register, "s0", 4 * SIZES.index(name))

    def _put(self, register: str, *fields: str) -> None:
        for field in fields:
            self.asm.sw(register, "sp", 4 * self.fields.index(field))

    def _check(self) -> None:
        """Leaves out_channels in a4, pad_top in s6, pad_left in s7."""
        asm = self.asm
        self._size("a2", "batch")
        self._size("a3", "groups")
        self._size("a4", "dilation_h")
        asm("or", "a2", "a2", "a3")
        asm("or", "a2", "a2", "a4")
        asm.bne_imm("a2", 1, to="any")
        self._size("a2", "stride_h")
        self._size("a4", "out_channels")
        asm.bne_imm("a2", self.facts["stride"], to="any")
        asm("andi", "a2", "a4", 1)
        asm.branch("bnez", "a2", to="any")
        self._size("s6", "pad_top")
        self._size("s7", "pad_left")
        asm("or", "a2", "s6", "s7")
        if self.by_channel:
            asm.branch("bnez", "a2", to="any")
        else:
            asm.branch("bltz", "a2", to="any")

    def _share(self) -> None:
        """Units of this core: s1 of them from a0 on; a3 for each pair, a1 is the first pair."""
        asm = self.asm
        self._size("a3", "in_channels")
        asm("srli", "a4", "a4", 1)
        if self.by_channel:
            asm("srli", "a3", "a3", self.facts["lines"].bit_length() - 1)
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

    def _pointers(self) -> None:
        """Leaves the first input channel in a4, twice the first pair in a1."""
        asm = self.asm
        asm("mul", "a2", "a1", "a3")
        self._put("a3", "inputs")
        asm("sub", "a4", "a0", "a2")
        asm("add", "a0", "a0", "a2")
        asm("sub", "a2", "a3", "a4")
        asm.min("a2", "a2", "s1")
        self._put("a2", "count")
        asm("sub", "s1", "s1", "a2")
        self._put("s1", "more")
        asm.li("a2", 4 * self.facts["taps"])
        asm.mac("s2", "a0", "a2")
        self._put("s2", "w0")
        asm("mul", "a2", "a2", "a3")
        self._put("a2", "w_apart", "last")
        asm("slli", "a1", "a1", 1)
        asm("addi", "a0", "sp", 4 * len(self.fields))
        self._put("a0", "slot")
        if self.rated:
            for place, field in enumerate(("rate", "decay")):
                asm.lw("a0", "s5", 4 * place)
                self._put("a0", field)

    def _planes(self) -> None:
        """Leaves bytes of a line in a0, in_h in a2, out_w in a5, out_h in a3."""
        asm = self.asm
        self._size("a5", "out_w")
        self._size("a3", "out_h")
        asm("mul", "a0", "a5", "a3")
        asm("slli", "a0", "a0", 2)
        self._put("a0", "d_apart")
        asm.mac("s3", "a0", "a1")
        self._put("s3", "d0")
        asm("slli", "a0", "a0", 1)
        self._put("a0", "d_next")
        self._size("a0", "in_w")
        self._size("a2", "in_h")
        self._put("s4", "x_first")
        asm("slli", "a0", "a0", 2)
        asm("mul", "s1", "a2", "a0")
        if self.by_channel:
            self._put("s1", "line")
            asm("slli", "s1", "s1", self.facts["lines"].bit_length() - 1)
        else:
            self._put("a0", "line")
        self._put("s1", "x_next")
        asm.mac("s4", "s1", "a4")
        self._put("s4", "x")

    def _lines(self) -> None:
        """Rows with all lines of the kernel, and those that lack some; in_h in a2 is lost."""
        asm, stride = self.asm, self.facts["stride"]
        if not self.by_channel:
            self._put("s6", "top")
            asm("add", "a2", "a2", "s6")
            asm("addi", "a2", "a2", 1 - self.facts["lines"])
        if stride == 2:
            asm("addi", "a2", "a2", 1)
            asm("srai", "a2", "a2", 1)
        asm.min("a2", "a2", "a3")  # up to here all lines
        if not self.by_channel:
            asm("sub", "a3", "a3", "a2")
            self._put("a3", "bottom")
            asm("sub", "a2", "a2", "s6")
        self._put("a2", "full")

    def _function(self) -> None:
        """a1: by what is left over of a line, and whether it sticks out; and from line to line."""
        asm, facts = self.asm, self.facts
        stride, (tail, short) = facts["stride"], facts["tails"]
        asm("addi", "a2", "a5", -facts["head"])
        if facts["period"] == 2:
            asm("andi", "a1", "a2", 1)
            asm("srli", "a2", "a2", 1)
        self._put("a2", "turns")
        if stride == 2:
            asm("slli", "a5", "a5", 1)
        asm("addi", "a2", "a5", facts["kernel"] - stride)
        asm("sub", "a2", "a2", "s7")
        asm("slli", "a2", "a2", 2)
        asm("slt", "a2", "a0", "a2")  # whether it sticks out on the right
        if facts["period"] == 2:
            asm("slli", "a1", "a1", 1)
            asm("add", "a1", "a1", "s7")
        else:
            asm.mv("a1", "s7")
        asm("slli", "a1", "a1", 1)
        asm("add", "a1", "a1", "a2")
        self._backs(tail, short)
        asm("slli", "a1", "a1", 2)
        asm("lui", "a3", "%hi(units)")
        asm("add", "a3", "a3", "a1")
        asm("lw", "a1", "%lo(units)(a3)")

    def _backs(self, tail: int, short: int) -> None:
        """From the end of a row, which is stride * (out_w + tail) - left columns further."""
        asm, stride, lines = self.asm, self.facts["stride"], self.facts["lines"]
        asm("sub", "a5", "a5", "s7")
        if tail != short:
            for _ in range(stride * (tail - short)):
                asm("sub", "a5", "a5", "a2")
        asm("addi", "a5", "a5", stride * tail)
        asm("slli", "a5", "a5", 2)
        asm("sub", "a2", "a0", "a5")
        if stride == 2:
            asm("add", "a2", "a2", "a0")
        self._put("a2", "back0")
        if self.by_channel:
            asm.lw("a0", "sp", 4 * self.fields.index("line"))
        for _ in range(lines - 2):
            asm("sub", "a2", "a2", "a0")
        self._put("a2", "back1")
        asm("sub", "a2", "a2", "a0")
        self._put("a2", "back2")

    def _rare(self) -> None:
        """Another number of cores; what C does."""
        asm = self.asm
        asm.label("other_team")
        asm("add", "s1", "a4", "a1")
        asm("addi", "s1", "s1", -1)
        asm("divu", "s1", "s1", "a1")
        asm.branch("j", to="shared")
        asm.label("any")
        asm("lui", "t0", "%hi(any)")
        asm("addi", "t0", "t0", "%lo(any)")
        for index, given in enumerate(self.moved):
            asm.mv(given, f"s{2 + index}")
        asm("addi", "sp", "sp", self.room)
        asm.pop(KEPT, to="t0")
