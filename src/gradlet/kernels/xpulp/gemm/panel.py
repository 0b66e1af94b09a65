"""One panel of a matrix product: all lines of a core for some held ones, block by block."""

from __future__ import annotations

from gradlet.kernels.xpulp.gemm.block import COUNT, POINTER, Block
from gradlet.kernels.xpulp.gemm.product import Product, at, signature
from gradlet.kernels.xpulp.isa.asm import Asm
from gradlet.kernels.xpulp.isa.narrow import load_half

BIAS, COLUMNS, HEIGHT, DISTANCE = "s5", "s6", "s7", "s4"
"""What a panel is given: its bias or 0, held ones still to come, lines, held ones to the next."""
ONE_BLOCK = 256
"""While few lines are counted, those left over are in the low bits, whole blocks above them."""


class Panel:
    """sizes: lines of a block, of one that is a line smaller, then of leftovers."""

    def __init__(self, asm: Asm, product: Product, held: int, sizes: tuple[int, ...]) -> None:
        self.asm, self.product, self.held, self.sizes = asm, product, held, sizes
        matrix = signature(product.epilogue)
        self.held_at, self.c_at = matrix[product.hold], matrix["c"]
        self.with_bias, self.small = asm.fresh(), asm.fresh()
        self.near_bias, self.near_small = asm.fresh(), asm.fresh()
        self.lesser = asm.fresh()  # the blocks that are a line smaller, as many as `rest` says
        self.after = ""

    def word(self, op: str, register: str, name: str) -> None:
        self.asm(op, register, f"{at(name)}(sp)")

    def block(self, lines: int, *, biased: bool = True) -> Block:
        return Block(self.asm, self.product, lines, self.held, biased=biased)

    def often(self, after: str, *, near: bool, more: bool = False) -> None:
        """Without a bias, in blocks of two sizes; whatever else is far away. Then on to `after`, if
        it is near by a branch; more: other panels may follow."""
        asm, (whole, less, *_) = self.asm, self.sizes
        self.after = after
        self._begin(more=more)
        asm.branch("bltz", COUNT, to=self.near_small)
        few = asm.fresh() if self.product.biased else self.lesser
        if self.product.biased:
            asm.branch("bnez", BIAS, to=self.near_bias)
        asm.branch("beqz", COUNT, to=few)
        asm.compressed(False)
        self._blocks(whole, biased=False)
        asm.label(few)
        self.word("lw", COUNT, "rest")
        if near:
            asm.branch("beqz", COUNT, to=after)
        else:
            some = asm.fresh()
            asm.branch("bnez", COUNT, to=some)
            asm.branch("j", to=after)
            asm.label(some)
        self._blocks(less, biased=False)
        if not more:
            asm.branch("j", to=after)

    def hops(self) -> None:
        """From where branches reach to where they do not."""
        hops = [(self.near_small, self.small)]
        if self.product.biased:
            hops.append((self.near_bias, self.with_bias))
        for near, far in hops:
            self.asm.label(near)
            self.asm.branch("j", to=far)

    def seldom(self) -> None:
        """With a bias; and so few lines that other sizes are needed."""
        asm = self.asm
        asm.compressed(False)
        if self.product.biased:
            self._biased()
        asm.label(self.small)
        self._small()
        asm.branch("j", to=self.lesser)
        asm.compressed(True)

    def _biased(self) -> None:
        asm, (whole, less, *_) = self.asm, self.sizes
        last = asm.fresh()
        asm.label(self.with_bias)
        self._load_bias()
        asm.branch("beqz", COUNT, to=self.lesser)
        self._blocks(whole)
        asm.label(self.lesser)
        self.word("lw", COUNT, "rest")
        asm.branch("beqz", COUNT, to=last)
        self._blocks(less)
        asm.label(last)
        asm.branch("j", to=self.after)

    def _small(self) -> None:
        """What is left over by blocks that are a line smaller; these come after it."""
        asm, (_, less, *smaller) = self.asm, self.sizes
        zero, begun, fewer, counted = (asm.fresh() for _ in range(4))
        if self.product.biased and not self.product.bias_by_line:
            asm.branch("beqz", BIAS, to=zero)
            self._load_bias()
            asm.branch("j", to=begun)
            asm.label(zero)
            for i in range(self.held):
                self.word("sw", "zero", f"init{i}")
            asm.label(begun)
        asm("addi", "t1", "zero", less)
        asm.label(fewer)
        asm("andi", "t0", HEIGHT, ONE_BLOCK - 1)
        asm.branch("blt", "t0", "t1", to=counted)
        asm("addi", HEIGHT, HEIGHT, ONE_BLOCK - less)
        asm.branch("j", to=fewer)
        asm.label(counted)
        self.word("sw", HEIGHT, "rest")
        for lines in smaller:
            other, block = asm.fresh(), self.block(lines, biased=self.product.biased)
            self.word("lw", "t0", "rest")
            asm("addi", "t1", "zero", lines)
            asm("andi", "t2", "t0", ONE_BLOCK - 1)
            asm.branch("blt", "t2", "t1", to=other)
            asm("sub", "t0", "t0", "t1")
            self.word("sw", "t0", "rest")
            block.enter()
            if self.product.leftover:
                self._begun_by_one(block)
            else:
                block.write()
            block.leave()
            asm.label(other)
        self.word("lw", "t0", "rest")
        asm("srli", "t0", "t0", ONE_BLOCK.bit_length() - 1)
        self.word("sw", "t0", "rest")

    def _load_bias(self) -> None:
        if self.product.bias_by_line:
            return
        size, narrow = self.product.element.bytes, self.product.narrow
        for i in range(self.held):
            if narrow:
                load_half(self.asm, "t0", BIAS, size * i)
                narrow.widen(self.asm, "t0", "t0")
            else:
                self.asm.lw("t0", BIAS, size * i)
            self.word("sw", "t0", f"init{i}")
        self.asm("slli", "t0", DISTANCE, size.bit_length() - 1)
        self.asm("add", "t0", "t0", BIAS)
        self.word("sw", "t0", "bias_next")

    def _blocks(self, lines: int, *, biased: bool = True) -> None:
        block = self.block(lines, biased=biased)
        block.enter()
        if self.product.leftover:
            self._begun_by_one(block, COUNT)
        else:
            with self.asm.loop(1, COUNT):
                block.write()
        block.leave()

    def _begun_by_one(self, block: Block, count: str = "") -> None:
        """Blocks that begin with a single k, if there is an odd number of them: it comes first, and
        a loop over the blocks begins there."""
        asm = self.asm
        odd, even, go, end = (asm.fresh() for _ in range(4))
        if count:
            asm.bounds(1, even, end)
            asm.iterations(1, count)
        self.word("lw", block.flow[0], "odd")
        asm.branch("beqz", block.flow[0], to=even)
        if count:
            asm.bounds(1, odd, end)
        block.write_single(odd, go)
        asm.label(even)
        start = asm.count
        block.write_from(go)
        if count:
            asm.close(end, start)

    def _begin(self, *, more: bool) -> None:
        """What the panel begins with, and where the next one will."""
        for name, register in (("h", self.held_at), ("c", self.c_at)):
            self.word("sw", register, name)
        if self.product.bias_by_line:
            self.word("sw", BIAS, "bias")
        if not self.product.operand("s", 1).inside:
            self.word("sw", POINTER, "s")
        self._count()
        if more:
            self._move_on()

    def _count(self) -> None:
        """As few blocks as possible: so many that there is room for all lines, each with one line
        less until all are full. COUNT of them remain whole: less than 0 if there are too few."""
        asm, whole = self.asm, self.sizes[0]
        asm.li("t1", -(-(1 << 32) // whole))
        asm("addi", "t2", HEIGHT, whole - 1)
        asm("mulhu", COUNT, "t2", "t1")
        asm("addi", "t1", "zero", whole)
        asm("sub", "t0", "zero", HEIGHT)
        asm.mac("t0", COUNT, "t1")
        asm("sub", COUNT, COUNT, "t0")
        self.word("sw", "t0", "rest")

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
                if pointer == self.c_at and self.product.narrow:
                    asm("slli", "t1", DISTANCE, 1)
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
