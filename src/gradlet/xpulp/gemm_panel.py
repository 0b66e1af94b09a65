"""One panel of a matrix product: all lines of a core for some held ones, block by block."""

from __future__ import annotations

from gradlet.xpulp.asm import Asm
from gradlet.xpulp.gemm_block import COUNT, POINTER, Block, Product, at, signature

BIAS, COLUMNS, HEIGHT, DISTANCE = "s5", "s6", "s7", "s4"
"""What a panel is given: its bias or 0, held ones still to come, lines, held ones to the next."""


class Panel:
    """Full blocks of lines, then what is left of them. Only the usual one has others behind."""

    def __init__(self, asm: Asm, product: Product, held: int, sizes: tuple[int, ...]) -> None:
        self.asm, self.product, self.held, self.sizes = asm, product, held, sizes
        self.exact = sizes == tuple(range(sizes[0], 0, -1))
        matrix = signature(product.epilogue)
        self.held_at, self.c_at = matrix[product.hold], matrix["c"]
        self.with_bias, self.few, self.rest = (asm.fresh() for _ in range(3))
        self.following = self.after = ""

    def word(self, op: str, register: str, name: str) -> None:
        self.asm(op, register, f"{at(name)}(sp)")

    def block(self, lines: int, *, biased: bool = True) -> Block:
        return Block(self.asm, self.product, lines, self.held, biased=biased)

    def often(self, after: str, *, near: bool, more: bool = False) -> None:
        """Without a bias, and the largest leftover; whatever else is far away. Then on to `after`,
        if it is near by a branch; more: other panels may follow."""
        asm, (whole, *smaller) = self.asm, self.sizes
        self.after = after
        self._next(self.block(whole, biased=False), more=more)
        asm.branch("bnez", BIAS, to=self.with_bias)
        asm.branch("beqz", COUNT, to=self.few)
        asm.compressed(False)
        self._blocks(self.block(whole, biased=False))
        asm.label(self.few)
        self.word("lw", "t0", "rest")
        if near:
            asm.branch("beqz", "t0", to=after)
        else:
            some = asm.fresh()
            asm.branch("bnez", "t0", to=some)
            asm.branch("j", to=after)
            asm.label(some)
        if not self.product.bias_by_line:
            for i in range(self.held):
                self.word("sw", "zero", f"init{i}")
        asm.label(self.rest)
        self.following = self._leftover(smaller[0])

    def seldom(self) -> None:
        asm, (whole, *smaller) = self.asm, self.sizes
        asm.compressed(False)
        for lines in smaller[1:]:
            asm.label(self.following)
            self.following = self._leftover(lines)
        asm.label(self.following)
        asm.branch("j", to=self.after)
        asm.label(self.with_bias)
        none = asm.fresh()
        if not self.product.bias_by_line:
            for i in range(self.held):
                asm.lw("t0", BIAS, 4 * i)
                self.word("sw", "t0", f"init{i}")
            asm("slli", "t0", DISTANCE, 2)
            asm("add", "t0", "t0", BIAS)
            self.word("sw", "t0", "bias_next")
        asm.branch("beqz", COUNT, to=none)
        self._blocks(self.block(whole))
        asm.label(none)
        self.word("lw", "t0", "rest")
        asm.branch("bnez", "t0", to=self.rest)
        asm.branch("j", to=self.after)
        asm.compressed(True)

    def _leftover(self, lines: int) -> str:
        """One block if there are so many lines; the label that follows it."""
        asm, following, block = self.asm, self.asm.fresh(), self.block(lines)
        if not self.exact:
            self.word("lw", "t0", "rest")
        asm("addi", "t1", "zero", lines)
        asm.branch("blt", "t0", "t1", to=following)
        if not self.exact:
            asm("sub", "t0", "t0", "t1")
            self.word("sw", "t0", "rest")
        block.enter()
        block.write()
        if self.exact:
            asm.branch("j", to=self.after)
        else:
            block.leave()
            asm.branch("j", to=following)
        return following

    def _blocks(self, block: Block) -> None:
        block.enter()
        with self.asm.loop(1, COUNT):
            block.write()
        block.leave()

    def _next(self, block: Block, *, more: bool) -> None:
        """What the panel begins with, and where the next one will."""
        asm = self.asm
        for name, register in (("h", self.held_at), ("c", self.c_at)):
            self.word("sw", register, name)
        if self.product.bias_by_line:
            self.word("sw", BIAS, "bias")
        if not block.stream.inside:
            self.word("sw", POINTER, "s")
        asm.li("t1", -(-(1 << 32) // block.lines))
        asm("mulhu", COUNT, HEIGHT, "t1")
        asm("addi", "t0", "zero", block.lines)
        asm("mul", "t0", "t0", COUNT)
        asm("sub", "t0", HEIGHT, "t0")
        self.word("sw", "t0", "rest")
        if more:
            self._move_on()

    def _move_on(self) -> None:
        """To the next panel, as many held ones away as the cut says."""
        asm = self.asm
        inside = self.product.operand("h", 1).inside
        asm("addi", COLUMNS, COLUMNS, -self.held)
        asm("slli", "t1", DISTANCE, 2)
        for pointer, step in (
            (self.held_at, "k4" if inside else ""),
            (self.c_at, "" if self.product.by_columns else "n4"),
        ):
            if step:
                self.word("lw", "t2", step)
                asm.mac(pointer, DISTANCE, "t2")
            else:
                asm("add", pointer, pointer, "t1")
        for name, register in (
            ("columns", COLUMNS),
            ("h_next", self.held_at),
            ("c_next", self.c_at),
            ("bias_next", BIAS),
            ("s_first", POINTER),
            ("height", HEIGHT),
            ("apart", DISTANCE),
        ):
            self.word("sw", register, name)
