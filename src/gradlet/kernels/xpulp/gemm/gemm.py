"""Matrix products on register blocks: `hold = "b"` holds columns of b and streams rows of a,
`hold = "a"` the other way round, for few rows.

A core has a rectangle of c and does it panel by panel: all of its lines for some held ones. Every
element is fma over k in ascending order, begun with the bias or 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.kernels.xpulp.gemm.block import POINTER
from gradlet.kernels.xpulp.gemm.panel import BIAS, COLUMNS, DISTANCE, HEIGHT, Panel
from gradlet.kernels.xpulp.gemm.product import (
    ON_STACK,
    SIZES,
    Product,
    at,
    frame,
    save_settings,
    signature,
)
from gradlet.kernels.xpulp.gemm.row_pairs import interleave
from gradlet.kernels.xpulp.isa.asm import SAVED, Asm
from gradlet.targets.cost import Cost

KEPT = (*SAVED, "ra")
ID, CORES = "a0", "a1"
BATCH, K, M, N, MORE = "t0", "t1", "t2", "t3", "t4"
ROW, ROWS, COLUMN, WIDTH = "s0", "s1", "s2", "s3"
LONG = 32
"""From so many lines on it pays to look for the best cut."""
LAYING = 3
"""Instructions for a word that is laid out."""
FEW = 12
"""Fewer lines are cut in halves at most, where held ones are few as well."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    blocks = {int(held): tuple(lines) for held, lines in params["blocks"].items()}
    kinds = params.get("bias_of_rows", False), params.get("biased", True)
    product = Product(mode, epilogue, params["hold"], *kinds, params["element"])
    kernel = _Kernel(product, blocks)
    made = {"body": kernel.text()}
    return {**made, "interleave": interleave()} if product.laid_out else made


def cost(
    mode: str, sizes: Mapping[str, Any], cores: int, params: Mapping[str, Any], constants: Cost
) -> float:
    """Cycles of the busiest core."""
    lines, held = (sizes["m"], sizes["n"]) if params["hold"] == "b" else (sizes["n"], sizes["m"])
    width, full = params["width"], params["full"]
    busiest = []
    across = 0.0  # words that are laid out, a core's share
    if params.get("lanes", 1) > 1 and mode != "nt":
        across = LAYING * (sizes["n"] + (sizes["m"] if mode == "tn" else 0)) / cores
    parts = 1
    while parts <= cores:
        own, wide = -(-lines // parts), -(-held * parts // cores)
        panels, blocks = max(1, -(-(wide - 1) // width)), -(-own // full)
        loads = own * panels + wide * blocks
        steps = -(-sizes["k"] // params.get("lanes", 1))
        instructions = constants.gemm_instruction * steps * (own * wide + loads + across)
        busiest.append(instructions + constants.gemm_block * panels * blocks)
        parts *= 2
    quick = cores == 8 and (lines < LONG or held < 2 * width or held % (8 * width) == 0)
    start = constants.gemm_even if quick else constants.gemm_uneven
    return float(sizes["batch"] * (min(busiest) + start))


class _Kernel:
    def __init__(self, product: Product, blocks: dict[int, tuple[int, ...]]) -> None:
        self.asm, self.product, self.blocks = Asm("gemm"), product, blocks
        self.width = next(iter(blocks))
        self.argument = signature(product.epilogue)
        self.frame = frame(product.epilogue, product.spill)
        self.lines, self.held = (M, N) if product.by_columns else (N, M)

    def text(self) -> str:
        asm = self.asm
        self.out, self.slow, self.joined = asm.fresh(), asm.fresh(), asm.fresh()
        self.plain, self.batches, self.nothing = asm.fresh(), asm.fresh(), asm.fresh()
        self.long, self.other, self.halves = asm.fresh(), asm.fresh(), asm.fresh()
        self.again, self.done, self.single = asm.fresh(), asm.fresh(), asm.fresh()
        self.biased, self.placed = asm.fresh(), asm.fresh()
        asm.compressed(True)
        self._begin()
        self._quick_cut()
        asm.label(self.joined)
        self._place()
        self._panels()
        return "\n".join(f'        "{line}\\n"' for line in asm.text())

    def word(self, op: str, register: str, name: str) -> None:
        self.asm(op, register, f"{at(name)}(sp)")

    def _begin(self) -> None:
        """Sizes into registers. Several batches and a single k are left to C."""
        asm, sizes = self.asm, self.argument["sizes"]
        self._first_instruction()
        if sizes == ON_STACK:
            asm.lw(K, sizes, 4 * SIZES.index("k"))
        for register, name in ((BATCH, "batch"), (M, "m"), (N, "n")):
            asm.lw(register, sizes, 4 * SIZES.index(name))
        asm("addi", MORE, K, -1)
        if not self.product.laid_out:
            asm.branch("beqz", MORE, to=self.plain)
        self._pairs()
        asm.bne_imm(BATCH, 1, to=self.batches)
        asm.label(self.single)
        asm.push(KEPT, self.frame)
        asm("csrw", "mepc", "sp")
        save_settings(asm, self.product.epilogue, self.argument)

    def _pairs(self) -> None:
        """The steps of the loop are pairs of k, where these are narrow; of a single one as well, if
        it was laid out with a partner."""
        if self.product.narrow:
            if not self.product.leftover:
                self.asm("addi", MORE, K, 1)
            self.asm("srli", MORE, MORE if not self.product.leftover else K, 1)

    def _first_instruction(self) -> None:
        sizes = self.argument["sizes"]
        if sizes == ON_STACK:
            self.asm.lw(sizes, "sp")
        else:
            self.asm.lw(K, sizes, 4 * SIZES.index("k"))

    def _rare(self) -> None:
        """Whatever is seldom comes here, where branches reach it."""
        asm = self.asm
        far = ((self.plain, "plain"), (self.batches, "batches"))
        for label, function in far[1:] if self.product.laid_out else far:
            asm.label(label)
            asm("j", function)
        asm.entry("one_batch")  # not at the beginning, where a call of the network is looked for
        self._first_instruction()
        sizes = self.argument["sizes"]
        for register, name in ((K, "k"), (M, "m"), (N, "n")):
            if name != "k" or sizes == ON_STACK:
                asm.lw(register, sizes, 4 * SIZES.index(name))
        asm("addi", MORE, K, -1)
        self._pairs()
        asm.branch("j", to=self.single)  # it cannot come back to batches(): the stack has a bound
        asm.label(self.nothing)
        asm.branch("j", to=self.out)
        if self.product.biased:
            self._place_bias()
        self._other_cuts()
        asm.label(self.slow)
        self._slow_cut()

    def _place_bias(self) -> None:
        asm = self.asm
        asm.label(self.biased)
        if self.product.bias_of_rows:
            size = self.product.element.bytes.bit_length() - 1
            asm("slli", "t0", ROW if self.product.by_columns else COLUMN, size)
        asm("add", BIAS, BIAS, "t0")
        asm.branch("j", to=self.placed)

    def _quick_cut(self) -> None:
        """Eight cores, few lines, and held ones for a single panel of each quarter."""
        asm, t = self.asm, "gp"
        asm.bne_imm(CORES, 8, to=self.slow)
        asm("xori", ID, ID, 7)  # the last cores take the large parts: banks serve them first
        asm("srli", t, self.lines, LONG.bit_length() - 1)
        asm.branch("bnez", t, to=self.long)
        asm("addi", t, self.held, -4 * self.width)
        asm("sltiu", t, t, self.width + 1)
        asm.branch("beqz", t, to=self.other)
        asm.label(self.halves)
        self._parts(1)

    def _other_cuts(self) -> None:
        """Many lines with panels that go round among the cores, if that leaves none over; else as
        many parts of the held ones as are wide enough."""
        asm, t, quarters, eighths, whole = (self.asm, "gp", *(self.asm.fresh() for _ in range(3)))
        parts = 8 * self.width
        asm.label(self.long)
        asm("sltiu", t, self.held, 2 * self.width)
        asm.branch("bnez", t, to=eighths)
        asm("andi", t, self.held, parts - 1)
        asm.branch("bnez", t, to=self.slow)
        asm.mv(ROW, "zero")
        asm.mv(ROWS, self.lines)
        asm("srli", WIDTH, self.held, 3)
        asm("slli", COLUMN, ID, self.width.bit_length() - 1)
        asm("addi", DISTANCE, "zero", parts)
        asm.branch("j", to=self.joined)
        asm.label(self.other)
        for below, label in ((2, eighths), (4, quarters)):
            asm("sltiu", t, self.held, below * self.width)
            asm.branch("bnez", t, to=label)
        asm("sltiu", t, self.held, parts)
        asm.branch("beqz", t, to=whole)
        self._narrow_panels(quarters)
        for label, down in ((quarters, 2), (eighths, 3), (whole, 0)):
            asm.label(label)
            self._parts(down)
            asm.branch("j", to=self.joined)

    def _narrow_panels(self, quarters: str) -> None:
        """Where a quarter of the held ones is a panel and a narrow one, halves are cheaper, unless
        there are so few lines that the blocks would become narrow."""
        asm, t = self.asm, "gp"
        asm("sltiu", t, self.held, 7 * self.width)
        asm.branch("beqz", t, to=self.halves)
        asm("sltiu", t, self.lines, FEW)
        asm.branch("beqz", t, to=quarters)
        asm.branch("j", to=self.halves)

    def _parts(self, down: int) -> None:
        """2 ** down parts of the lines, for each the other cores side by side."""
        asm, along = self.asm, 3 - down
        if down:
            asm("sltiu", "gp", self.lines, 1 << down)
            asm.branch("bnez", "gp", to=self.slow)
        for size, whole, bits in ((ROWS, self.lines, down), (WIDTH, self.held, along)):
            asm("addi", size, whole, (1 << bits) - 1)
            if bits:
                asm("srli", size, size, bits)
        asm("srli", ROW, ID, along)
        asm("mul", ROW, ROW, ROWS)
        asm("andi", COLUMN, ID, (1 << along) - 1)
        asm("mul", COLUMN, COLUMN, WIDTH)
        asm("addi", DISTANCE, "zero", self.width)

    def _place(self) -> None:
        """Where the rectangle begins in each operand, and how far its panels are apart."""
        asm, c, bias = self.asm, self.argument["c"], self.argument["bias"]
        asm("sub", HEIGHT, self.lines, ROW)
        asm("sub", COLUMNS, self.held, COLUMN)
        asm.min(HEIGHT, HEIGHT, ROWS)
        asm.min(COLUMNS, COLUMNS, WIDTH)
        asm.branch("blez", HEIGHT, to=self.nothing)
        asm.branch("blez", COLUMNS, to=self.nothing)
        size = self.product.element.bytes.bit_length() - 1
        if self.product.leftover:
            asm("andi", "t0", K, 1)
            self.word("sw", "t0", "odd")
        if self.product.laid_out:
            asm("ori", "t0", N, 1)
            asm("slli", "t0", "t0", 2)
            self.word("sw", "t0", "b4")
        asm("slli", K, K, size)
        asm("slli", N, N, size)
        if self.product.mode == "tn":
            if self.product.laid_out:
                asm("ori", M, M, 1)
            asm("slli", M, M, 2)
            self.word("sw", M, "m4")
        for name, register in (("more", MORE), ("k4", K), ("n4", N)):
            self.word("sw", register, name)
        streamed, held = ("a", "b") if self.product.by_columns else ("b", "a")
        for name, matrix, index in (("s", streamed, ROW), ("h", held, COLUMN)):
            register = self.argument[matrix]
            if self.product.operand(name, 1).inside:
                asm.mac(register, index, K)
            else:
                asm("slli", "t0", index, 2)
                asm("add", register, register, "t0")
        row, column = (ROW, COLUMN) if self.product.by_columns else (COLUMN, ROW)
        asm.mac(c, row, N)
        asm("slli", "t0", column, size)
        asm("add", c, c, "t0")
        asm.mv(POINTER, self.argument[streamed])
        asm.mv(BIAS, bias)
        if self.product.biased:
            asm.branch("bnez", bias, to=self.biased)
        asm.label(self.placed)
        self.held_at, self.c_at = self.argument[held], c

    def _panels(self) -> None:
        """As many held ones as a panel has, or one more if that leaves none."""
        asm, few, one, more = self.asm, self.asm.fresh(), self.asm.fresh(), self.asm.fresh()
        usual, wider, *fewer = (
            Panel(asm, self.product, held, sizes) for held, sizes in self.blocks.items()
        )
        near_few = asm.fresh()
        asm.label(one)
        asm("addi", "t0", "zero", usual.held)
        asm.beq_imm(COLUMNS, wider.held, to=more)
        asm.branch("blt", COLUMNS, "t0", to=near_few)
        usual.often(self.done, near=True, more=True)
        self._end()
        self._again(one)
        asm.label(more)
        wider.often(self.out, near=True)
        usual.hops()
        wider.hops()
        asm.label(near_few)
        asm.branch("j", to=few)
        self._rare()
        usual.seldom()
        wider.seldom()
        asm.label(few)
        names = {panel: asm.fresh() for panel in fewer}
        for panel in fewer[:-1]:
            other = asm.fresh()
            asm.bne_imm(COLUMNS, panel.held, to=other)
            asm.branch("j", to=names[panel])
            asm.label(other)
        for panel in reversed(fewer):
            asm.label(names[panel])
            panel.often(self.out, near=False)
            panel.hops()
            panel.seldom()

    def _end(self) -> None:
        """The next panel, or back."""
        asm = self.asm
        asm.compressed(True)
        asm.label(self.done)
        self.word("lw", COLUMNS, "columns")
        asm.branch("bnez", COLUMNS, to=self.again)
        asm.label(self.out)
        asm.pop(KEPT, self.frame)

    def _again(self, one: str) -> None:
        asm = self.asm
        asm.label(self.again)
        for register, name in (
            (self.held_at, "h_next"),
            (self.c_at, "c_next"),
            (BIAS, "bias_next"),
            (POINTER, "s_first"),
            (HEIGHT, "height"),
            (DISTANCE, "apart"),
        ):
            self.word("lw", register, name)
        asm.branch("j", to=one)

    def _slow_cut(self) -> None:
        """The C function looks at everything; what it finds takes the place of the quick cut."""
        asm = self.asm
        kept = {f"s{i}": self.argument[name] for i, name in enumerate(("c", "a", "b", "bias"))}
        for safe, register in kept.items():
            asm.mv(safe, register)
        asm.mv("s5", self.argument["sizes"])
        asm.mv("a2", "s5")
        asm("addi", "a3", "sp", at("row"))
        asm("jal", "ra", "cut")
        for register, name in ((K, "k"), (M, "m"), (N, "n")):
            asm.lw(register, "s5", 4 * SIZES.index(name))
        asm("addi", MORE, K, -1)
        self._pairs()
        for safe, register in kept.items():
            asm.mv(register, safe)
        for register, name in (
            (ROW, "row"),
            (ROWS, "rows"),
            (COLUMN, "column"),
            (WIDTH, "width"),
            (DISTANCE, "distance"),
        ):
            self.word("lw", register, name)
        asm.branch("j", to=self.joined)
