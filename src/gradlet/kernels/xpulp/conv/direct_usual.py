"""The usual gradient of convolution weights, from its call to its units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.kernels.xpulp.conv.direct_start import Start


class Usual(Start):
    """Writes the kernel itself; `fields` are those of the unit's struct, room its bytes with sums.

    facts: taps, lines, kernel, stride, edge, head, period, tails as the units have them.
    """

    def __init__(
        self, fields: tuple[str, ...], room: int, epilogue: str, facts: Mapping[str, Any]
    ) -> None:
        self.rated = epilogue == "sgd"
        super().__init__("usual", 4 if self.rated else 3, fields, room)  # dw, dy, x, hyper
        self.facts = facts
        self.by_channel = facts["kernel"] == 1

    def body(self) -> str:
        self.begin()
        self._check()
        self._inputs()
        self.share("a3")
        self._pointers()
        self._planes()
        self._lines()
        self._function()
        self.asm.mv("a0", "sp")
        self.asm.call_block("a1")
        self.end()
        self.rare("any")
        return self.asm.body()

    def _check(self) -> None:
        """Leaves pad_top in s6, pad_left in s7."""
        asm = self.asm
        self.size("a2", "stride_h")
        asm("andi", "a3", "a4", 1)
        asm.bne_imm("a2", self.facts["stride"], to="any")
        asm.branch("bnez", "a3", to="any")
        self.size("s6", "pad_top")
        self.size("s7", "pad_left")
        asm("or", "a2", "s6", "s7")
        asm.branch("bnez" if self.by_channel else "bltz", "a2", to="any")

    def _inputs(self) -> None:
        """Units of a pair, in a3."""
        self.size("a3", "in_channels")
        if self.by_channel:
            self.asm("srli", "a3", "a3", self.facts["lines"].bit_length() - 1)

    def _pointers(self) -> None:
        """Leaves the first input channel in a4, twice the first pair in a1."""
        asm = self.asm
        asm("mul", "a2", "a1", "a3")
        self.put("a3", "inputs")
        asm("sub", "a4", "a0", "a2")
        asm("add", "a0", "a0", "a2")
        asm("sub", "a2", "a3", "a4")
        asm.min("a2", "a2", "s1")
        self.put("a2", "count")
        asm("sub", "s1", "s1", "a2")
        self.put("s1", "more")
        asm.li("a2", 4 * self.facts["taps"])
        asm.mac("s2", "a0", "a2")
        self.put("s2", "w0")
        asm("mul", "a2", "a2", "a3")
        self.put("a2", "w_apart", "last")
        asm("slli", "a1", "a1", 1)
        asm("addi", "a0", "sp", 4 * len(self.words))
        self.put("a0", "slot")
        asm.li("a0", self.facts["kept"] - 1)
        self.put("a0", "kept")
        if self.rated:
            for place, field in enumerate(("rate", "decay")):
                asm.lw("a0", "s5", 4 * place)
                self.put("a0", field)

    def _planes(self) -> None:
        """Leaves bytes of a line in a0, in_h in a2, out_w in a5, out_h in a3."""
        asm = self.asm
        self.size("a5", "out_w")
        self.size("a3", "out_h")
        asm("mul", "a0", "a5", "a3")
        asm("slli", "a0", "a0", 2)
        self.put("a0", "d_apart")
        asm.mac("s3", "a0", "a1")
        self.put("s3", "d0")
        asm("slli", "a0", "a0", 1)
        self.put("a0", "d_next")
        self.size("a0", "in_w")
        self.size("a2", "in_h")
        self.put("s4", "x_first")
        asm("slli", "a0", "a0", 2)
        asm("mul", "s1", "a2", "a0")
        if self.by_channel:
            self.put("s1", "line")
            asm("slli", "s1", "s1", self.facts["lines"].bit_length() - 1)
        else:
            self.put("a0", "line")
        self.put("s1", "x_next")
        asm.mac("s4", "s1", "a4")
        self.put("s4", "x")

    def _lines(self) -> None:
        """Rows with all lines of the kernel, and those that lack some; in_h in a2 is lost."""
        asm, stride = self.asm, self.facts["stride"]
        if not self.by_channel:
            self.put("s6", "top")
            asm("add", "a2", "a2", "s6")
            asm("addi", "a2", "a2", 1 - self.facts["lines"])
        if stride == 2:
            asm("addi", "a2", "a2", 1)
            asm("srai", "a2", "a2", 1)
        asm.min("a2", "a2", "a3")  # up to here all lines
        if not self.by_channel:
            asm("sub", "a3", "a3", "a2")
            self.put("a3", "bottom")
            asm("sub", "a2", "a2", "s6")
        self.put("a2", "full")

    def _function(self) -> None:
        """a1: by what is left over of a line, and whether it sticks out; and from line to line."""
        asm, facts = self.asm, self.facts
        stride, (tail, short) = facts["stride"], facts["tails"]
        asm("addi", "a2", "a5", -facts["head"])
        if facts["period"] == 2:
            asm("andi", "a1", "a2", 1)
            asm("srli", "a2", "a2", 1)
        self.put("a2", "turns")
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
        self.put("a2", "back0")
        if self.by_channel:
            self.get("a0", "line")
        for _ in range(lines - 2):
            asm("sub", "a2", "a2", "a0")
        self.put("a2", "back1")
        asm("sub", "a2", "a2", "a0")
        self.put("a2", "back2")
