"""Matrix products on register blocks: `hold = "b"` holds columns of b and streams rows of a,
`hold = "a"` the other way round, for few rows.

A core has a rectangle of c and does it panel by panel: all of its lines for some held ones. Every
element is fma over k in ascending order, begun with the bias or 0.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gradlet.xpulp.asm import SAVED, Asm
from gradlet.xpulp.gemm_block import (
    COUNT,
    ON_STACK,
    POINTER,
    SIZES,
    Block,
    Product,
    at,
    frame,
    save_settings,
    signature,
)

KEPT = (*SAVED, "ra")
ID, CORES = "a0", "a1"
BATCH, K, M, N, MORE = "t0", "t1", "t2", "t3", "t4"
ROW, ROWS, COLUMN, WIDTH = "s0", "s1", "s2", "s3"
DISTANCE, BIAS, COLUMNS, HEIGHT = "s4", "s5", "s6", "s7"
LONG = 32
"""From so many lines on it pays to look for the best cut."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    blocks = {int(held): tuple(lines) for held, lines in params["blocks"].items()}
    product = Product(mode, epilogue, params["hold"], params.get("bias_of_rows", False))
    kernel = _Kernel(product, blocks)
    return {"body": kernel.text()}


class _Kernel:
    def __init__(self, product: Product, blocks: dict[int, tuple[int, ...]]) -> None:
        self.asm, self.product, self.blocks = Asm("gemm"), product, blocks
        self.width = next(iter(blocks))
        self.argument = signature(product.epilogue)
        self.lines, self.held = (M, N) if product.by_columns else (N, M)

    def text(self) -> str:
        asm = self.asm
        self.out, self.slow, self.joined = asm.fresh(), asm.fresh(), asm.fresh()
        self.plain, self.batches, self.nothing = asm.fresh(), asm.fresh(), asm.fresh()
        self.long, self.short, self.again, self.done = (asm.fresh() for _ in range(4))
        self.second = asm.fresh()
        asm.compressed(True)
        self._begin()
        self._quick_cut()
        asm.label(self.joined)
        self._place()
        self._panels()
        self._end()
        return "\n".join(f'        "{line}\\n"' for line in asm.text())

    def word(self, op: str, register: str, name: str) -> None:
        self.asm(op, register, f"{at(name)}(sp)")

    def _begin(self) -> None:
        """Sizes into registers. Several batches and a single k are left to C."""
        asm, sizes = self.asm, self.argument["sizes"]
        self._first_instruction()
        asm.label(self.second)
        if sizes == ON_STACK:
            asm.lw(K, sizes, 4 * SIZES.index("k"))
        for register, name in ((BATCH, "batch"), (M, "m"), (N, "n")):
            asm.lw(register, sizes, 4 * SIZES.index(name))
        asm("addi", MORE, K, -1)
        asm.branch("beqz", MORE, to=self.plain)
        asm.bne_imm(BATCH, 1, to=self.batches)
        asm.push(KEPT, frame(self.product.epilogue))
        asm("csrw", "mepc", "sp")
        save_settings(asm, self.product.epilogue, self.argument)

    def _first_instruction(self) -> None:
        sizes = self.argument["sizes"]
        if sizes == ON_STACK:
            self.asm.lw(sizes, "sp")
        else:
            self.asm.lw(K, sizes, 4 * SIZES.index("k"))

    def _rare(self) -> None:
        """Whatever is seldom comes here, where branches reach it; and the cut of many lines into
        panels that go round among the cores, if that leaves none over."""
        asm = self.asm
        for label, function in ((self.plain, "plain"), (self.batches, "batches")):
            asm.label(label)
            asm("j", function)
        asm.entry("one_batch")  # not at the beginning, where a call of the network is looked for
        self._first_instruction()
        asm.branch("j", to=self.second)
        asm.label(self.nothing)
        asm.branch("j", to=self.out)
        asm.label(self.long)
        asm.branch("bnez", "s10", to=self.short)
        parts = 8 * self.width
        asm("andi", ROW, self.held, parts - 1)
        asm.branch("bnez", ROW, to=self.slow)
        asm.mv(ROWS, self.lines)
        asm("srli", WIDTH, self.held, 3)
        asm("slli", COLUMN, ID, self.width.bit_length() - 1)
        asm("addi", DISTANCE, "zero", parts)
        asm.branch("j", to=self.joined)
        asm.label(self.slow)
        self._slow_cut()

    def _quick_cut(self) -> None:
        """Eight cores, few lines: as many parts of the held ones as are wide enough."""
        asm, down, mask, t, u = self.asm, "s10", "t5", "gp", "tp"
        asm.bne_imm(CORES, 8, to=self.slow)
        asm("srli", t, self.lines, LONG.bit_length() - 1)
        asm("sltiu", down, self.held, 2 * self.width)
        asm.branch("bnez", t, to=self.long)
        asm.label(self.short)
        for parts in (4, 8):
            asm("sltiu", t, self.held, parts * self.width)
            asm("add", down, down, t)
        asm("srl", t, self.lines, down)
        asm.branch("beqz", t, to=self.slow)
        asm("addi", u, "zero", 1)
        asm("sll", mask, u, down)
        asm("addi", mask, mask, -1)
        asm("and", ROW, ID, mask)
        asm("add", ROWS, self.lines, mask)
        asm("srl", ROWS, ROWS, down)
        asm("srl", COLUMN, ID, down)
        asm("xori", t, down, 3)
        asm("sll", mask, u, t)
        asm("addi", mask, mask, -1)
        asm("add", WIDTH, self.held, mask)
        asm("srl", WIDTH, WIDTH, t)
        asm("mul", ROW, ROW, ROWS)
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
        asm("slli", K, K, 2)
        asm("slli", N, N, 2)
        if self.product.mode == "tn":
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
        asm("slli", "t0", column, 2)
        asm("add", c, c, "t0")
        go = asm.fresh()
        asm.mv(POINTER, self.argument[streamed])
        asm.mv(BIAS, bias)
        asm.branch("beqz", bias, to=go)
        if self.product.bias_of_rows:
            asm("slli", "t0", row, 2)
        asm("add", BIAS, bias, "t0")
        asm.label(go)
        self.held_at, self.c_at = self.argument[held], c

    def _panels(self) -> None:
        """As many held ones as a panel has, or one more if that leaves none."""
        asm, few, more, one = self.asm, self.asm.fresh(), self.asm.fresh(), self.asm.fresh()
        asm.label(one)
        usual, wider, *fewer = self.blocks
        asm("addi", "t0", "zero", usual)
        asm("addi", "t1", "zero", wider)
        near_few, near_more = asm.fresh(), asm.fresh()
        asm.branch("blt", COLUMNS, "t0", to=near_few)
        asm.branch("beq", COLUMNS, "t1", to=near_more if self.product.epilogue else more)
        self._panel(usual)
        self._rare()
        for near, far in ((near_few, few), (near_more, more)):
            asm.label(near)
            asm.branch("j", to=far)
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
        asm.label(more)
        self._panel(wider)
        asm.label(few)
        names = {held: asm.fresh() for held in fewer}
        for held in fewer[:-1]:
            other = asm.fresh()
            asm.bne_imm(COLUMNS, held, to=other)
            asm.branch("j", to=names[held])
            asm.label(other)
        for held in reversed(fewer):
            asm.label(names[held])
            self._panel(held)

    def _end(self) -> None:
        """The next panel, or back."""
        asm = self.asm
        asm.label(self.done)
        self.word("lw", COLUMNS, "columns")
        asm.branch("beqz", COLUMNS, to=self.out)
        asm.branch("j", to=self.again)
        asm.label(self.out)
        asm.pop(KEPT, frame(self.product.epilogue))

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

    def _panel(self, held: int) -> None:
        """Full blocks of lines, then what is left of them. Only the usual one has others behind."""
        asm, few, biased, go = (self.asm, *(self.asm.fresh() for _ in range(3)))
        sizes, after = self.blocks[held], self.done if held == self.width else self.out
        whole, *smaller = [Block(asm, self.product, lines, held) for lines in sizes]
        unbiased = Block(asm, self.product, sizes[0], held, biased=False)
        with_bias = asm.fresh()
        self._next(whole, held, biased, go)
        asm.branch("beqz", COUNT, to=few)
        asm.compressed(False)
        asm.branch("bnez", BIAS, to=with_bias)
        self._blocks(unbiased)
        asm.label(few)
        exact = sizes == tuple(range(sizes[0], 0, -1))
        for before, block in pairwise([whole, *smaller]):
            following = asm.fresh()
            if before is whole or not exact:
                self.word("lw", "t0", "rest")
                self._jump_if_none("t0", after)
            asm("addi", "t1", "zero", block.lines)
            asm.branch("blt", "t0", "t1", to=following)
            if not exact:
                asm("sub", "t0", "t0", "t1")
                self.word("sw", "t0", "rest")
            block.enter()
            block.write()
            if exact:
                asm.branch("j", to=after)
            else:
                block.leave()
            asm.label(following)
        asm.branch("j", to=after)
        asm.label(with_bias)
        self._blocks(whole)
        asm.branch("j", to=few)
        asm.compressed(True)
        if not self.product.bias_by_line:
            asm.label(biased)
            for i in range(held):
                asm.lw("t0", BIAS, 4 * i)
                self.word("sw", "t0", f"init{i}")
            asm.branch("j", to=go)

    def _blocks(self, block: Block) -> None:
        block.enter()
        with self.asm.loop(1, COUNT):
            block.write()
        block.leave()

    def _jump_if_none(self, register: str, to: str) -> None:
        some = self.asm.fresh()
        self.asm.branch("bnez", register, to=some)
        self.asm.branch("j", to=to)
        self.asm.label(some)

    def _next(self, block: Block, held: int, biased: str, go: str) -> None:
        """What the panel begins with, and where the next one will."""
        asm = self.asm
        for name, register in (("h", self.held_at), ("c", self.c_at)):
            self.word("sw", register, name)
        if not self.product.bias_by_line:
            asm.branch("bnez", BIAS, to=biased)
            for i in range(held):
                self.word("sw", "zero", f"init{i}")
            asm.label(go)
        else:
            self.word("sw", BIAS, "bias")
        if held == self.width:
            self._move_on(held)
        if not block.stream.inside:
            self.word("sw", POINTER, "s")
        asm.li("t1", -(-(1 << 32) // block.lines))
        asm("mulhu", COUNT, HEIGHT, "t1")
        asm("addi", "t0", "zero", block.lines)
        asm("mul", "t0", "t0", COUNT)
        asm("sub", "t0", HEIGHT, "t0")
        self.word("sw", "t0", "rest")

    def _move_on(self, held: int) -> None:
        """To the next panel, as many held ones away as the cut says."""
        asm, inside = self.asm, self.product.operand("h", 1).inside
        asm("addi", COLUMNS, COLUMNS, -held)
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
        if not self.product.bias_by_line:
            go = asm.fresh()
            asm.branch("beqz", BIAS, to=go)
            asm("add", BIAS, BIAS, "t1")
            asm.label(go)
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
