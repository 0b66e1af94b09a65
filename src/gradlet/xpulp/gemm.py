"""Matrix products on register blocks: `hold = "b"` holds columns of b and streams rows of a,
`hold = "a"` the other way round, for few rows.

A core has a rectangle of c and does it panel by panel: all of its lines for some held ones. Every
element is fma over k in ascending order, begun with the bias or 0.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gradlet.xpulp.asm import SAVED, Asm
from gradlet.xpulp.gemm_block import POINTER, WORK, Block, Product, at

FRAME = 4 * len(WORK)
KEPT = (*SAVED, "ra")
ID, CORES = "a0", "a1"
BATCH, K, M, N, MORE = "t0", "t1", "t2", "t3", "t4"
ROW, ROWS, COLUMN, WIDTH = "s0", "s1", "s2", "s3"
HELD_AT, C_AT, BIAS, COLUMNS, HEIGHT, COUNT = "s4", "s5", "s6", "s7", "s8", "s9"
ON_STACK = "t6"
"""The seventh argument, fetched."""
SIZES = ("batch", "m", "n", "k")
LONG = 32
"""From so many lines on it pays to look for the best cut."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    blocks = {int(held): tuple(lines) for held, lines in params["blocks"].items()}
    kernel = _Kernel(Product(mode, epilogue, params["hold"]), blocks)
    return {"body": kernel.text()}


class _Kernel:
    def __init__(self, product: Product, blocks: dict[int, tuple[int, ...]]) -> None:
        self.asm, self.product, self.blocks = Asm("gemm"), product, blocks
        self.width = next(iter(blocks))
        update = product.epilogue in ("sgd", "momentum")
        names = ["c", *(["moment"] if product.epilogue == "momentum" else []), "a", "b", "bias"]
        names += [*(["hyper"] if update else []), "sizes"]
        registers = [*(f"a{i}" for i in range(2, 8)), ON_STACK]
        self.argument = dict(zip(names, registers, strict=False))
        self.lines, self.held = (M, N) if product.by_columns else (N, M)

    def text(self) -> str:
        asm = self.asm
        self.out, self.slow, self.joined = asm.fresh(), asm.fresh(), asm.fresh()
        self.again, self.done = asm.fresh(), asm.fresh()
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
        asm, plain, one = self.asm, self.asm.fresh(), self.asm.fresh()
        sizes = self.argument["sizes"]
        if sizes == ON_STACK:
            asm.lw(sizes, "sp")
        for register, name in ((K, "k"), (BATCH, "batch"), (M, "m"), (N, "n")):
            asm.lw(register, sizes, 4 * SIZES.index(name))
        asm("addi", MORE, K, -1)
        asm.branch("beqz", MORE, to=plain)
        asm("addi", BATCH, BATCH, -1)
        asm.branch("beqz", BATCH, to=one)
        asm("j", "batches")
        asm.label(plain)
        asm("j", "plain")
        asm.label(self.slow)
        self._slow_cut()
        asm.label(one)
        asm.push(KEPT, FRAME)
        asm("csrw", "mscratch", "sp")
        self._settings()

    def _settings(self) -> None:
        asm = self.asm
        count = {"sgd": 2, "momentum": 4}.get(self.product.epilogue, 0)
        for i in range(count):
            asm.lw(f"s{i}", self.argument["hyper"], 4 * i)
        for i, name in enumerate(("rate", "decay", "momentum", "nesterov")[:count]):
            if name == "rate":
                asm("fsgnjn.s", "s0", "s0", "s0")
            self.word("sw", f"s{i}", name)
        if self.product.epilogue == "momentum":
            asm("sub", "s0", self.argument["moment"], self.argument["c"])
            self.word("sw", "s0", "moment")

    def _quick_cut(self) -> None:
        """Eight cores, few lines: as many parts of the held ones as are wide enough."""
        asm, down, mask, t, u, short = self.asm, "s10", "t5", "gp", "tp", self.asm.fresh()
        asm.bne_imm(CORES, 8, to=self.slow)
        asm("sltiu", down, self.held, 2 * self.width)
        asm("srli", t, self.lines, LONG.bit_length() - 1)
        asm.branch("beqz", t, to=short)
        asm.branch("beqz", down, to=self.slow)
        asm.label(short)
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

    def _place(self) -> None:
        """Where the rectangle begins in each operand."""
        asm, some = self.asm, self.asm.fresh()
        c, bias = self.argument["c"], self.argument["bias"]
        streamed, held = ("a", "b") if self.product.by_columns else ("b", "a")
        asm("sub", HEIGHT, self.lines, ROW)
        asm("sub", COLUMNS, self.held, COLUMN)
        asm.min(HEIGHT, HEIGHT, ROWS)
        asm.min(COLUMNS, COLUMNS, WIDTH)
        asm.min("t0", HEIGHT, COLUMNS)
        asm.branch("bgtz", "t0", to=some)
        asm.branch("j", to=self.out)
        asm.label(some)
        asm("slli", K, K, 2)
        asm("slli", M, M, 2)
        asm("slli", N, N, 2)
        for name, register in (("more", MORE), ("k4", K), ("m4", M), ("n4", N)):
            self.word("sw", register, name)
        along = self.product.operand("s", 1).inside, self.product.operand("h", 1).inside
        for matrix, index, inside in ((streamed, ROW, along[0]), (held, COLUMN, along[1])):
            register = self.argument[matrix]
            if inside:
                asm.mac(register, index, K)
            else:
                asm("slli", "t0", index, 2)
                asm("add", register, register, "t0")
        row, column = (ROW, COLUMN) if self.product.by_columns else (COLUMN, ROW)
        asm.mac(c, row, N)
        asm("slli", "t0", column, 2)
        asm("add", c, c, "t0")
        go = asm.fresh()
        asm.branch("beqz", bias, to=go)
        asm("add", bias, bias, "t0")
        asm.label(go)
        asm.mv(HELD_AT, self.argument[held])
        asm.mv(C_AT, c)
        asm.mv(BIAS, bias)
        asm.mv(POINTER, self.argument[streamed])
        self.word("sw", POINTER, "s_first")
        self.word("sw", HEIGHT, "height")

    def _panels(self) -> None:
        """As many held ones as a panel has, or one more if that leaves none."""
        asm, few, more, one = self.asm, self.asm.fresh(), self.asm.fresh(), self.asm.fresh()
        asm.branch("j", to=one)
        asm.label(self.again)
        for register, name in (
            (HELD_AT, "h_next"),
            (C_AT, "c_next"),
            (BIAS, "bias_next"),
            (POINTER, "s_first"),
            (HEIGHT, "height"),
        ):
            self.word("lw", register, name)
        asm.label(one)
        usual, wider, *fewer = self.blocks
        asm("addi", "t0", "zero", usual)
        asm("addi", "t1", "zero", wider)
        asm.branch("blt", COLUMNS, "t0", to=few)
        asm.branch("beq", COLUMNS, "t1", to=more)
        for held, label in ((usual, ""), (wider, more)):
            asm.label(label)
            self._panel(held)
        asm.label(few)
        names = {held: asm.fresh() for held in fewer}
        for held in fewer[:-1]:
            asm("addi", "t0", "zero", held)
            asm.branch("beq", COLUMNS, "t0", to=names[held])
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
        asm.pop(KEPT, FRAME)

    def _slow_cut(self) -> None:
        """The C function looks at everything; what it finds takes the place of the quick cut."""
        asm = self.asm
        kept = {f"s{i}": self.argument[name] for i, name in enumerate(("c", "a", "b", "bias"))}
        for safe, register in kept.items():
            asm.mv(safe, register)
        asm.mv("s4", self.argument["sizes"])
        asm.mv("a2", "s4")
        asm("addi", "a3", "sp", at("row"))
        asm("jal", "ra", "cut")
        for register, name in ((K, "k"), (M, "m"), (N, "n")):
            asm.lw(register, "s4", 4 * SIZES.index(name))
        asm("addi", MORE, K, -1)
        for safe, register in kept.items():
            asm.mv(register, safe)
        for register, name in (
            (ROW, "row"),
            (ROWS, "rows"),
            (COLUMN, "column"),
            (WIDTH, "width"),
        ):
            self.word("lw", register, name)
        asm.branch("j", to=self.joined)

    def _panel(self, held: int) -> None:
        """Full blocks of lines, then what is left of them."""
        asm, few, sizes = self.asm, self.asm.fresh(), self.blocks[held]
        whole, *smaller = [Block(asm, self.product, lines, held) for lines in sizes]
        self._next(whole, held)
        asm.branch("beqz", COUNT, to=few)
        whole.enter()
        with asm.loop(1, COUNT):
            whole.write()
        asm.label(few)
        exact = sizes == tuple(range(sizes[0], 0, -1))
        for before, block in pairwise([whole, *smaller]):
            following = asm.fresh()
            if before is whole or not exact:
                self.word("lw", "t0", "rest")
                self._leave_if_none("t0")
            asm("addi", "t1", "zero", block.lines)
            asm.branch("blt", "t0", "t1", to=following)
            if not exact:
                asm("sub", "t0", "t0", "t1")
                self.word("sw", "t0", "rest")
            block.enter()
            block.write()
            if exact:
                asm.branch("j", to=self.done)
            asm.label(following)
        asm.branch("j", to=self.done)

    def _leave_if_none(self, register: str) -> None:
        some = self.asm.fresh()
        self.asm.branch("bnez", register, to=some)
        self.asm.branch("j", to=self.done)
        self.asm.label(some)

    def _next(self, block: Block, held: int) -> None:
        """What the panel begins with, and where the next one will."""
        asm = self.asm
        asm("addi", COLUMNS, COLUMNS, -held)
        self.word("sw", COLUMNS, "columns")
        self._move("h", HELD_AT, held, "k4" if block.fixed.inside else "")
        self._move("c", C_AT, held, "" if self.product.by_columns else "n4")
        if self.product.by_columns:
            self._begin_with(held)
        else:
            self.word("sw", BIAS, "bias")
        self.word("sw", BIAS, "bias_next")
        if not block.stream.inside:
            self.word("sw", POINTER, "s")
        asm.li("t1", -(-(1 << 32) // block.lines))
        asm("addi", "t0", "zero", block.lines)
        asm("mulhu", COUNT, HEIGHT, "t1")
        asm("mul", "t0", "t0", COUNT)
        asm("sub", "t0", HEIGHT, "t0")
        self.word("sw", "t0", "rest")

    def _begin_with(self, held: int) -> None:
        asm, plain, go = self.asm, self.asm.fresh(), self.asm.fresh()
        asm.branch("beqz", BIAS, to=plain)
        for i in range(held):
            asm.lw_post("t1", BIAS, 4)
            self.word("sw", "t1", f"init{i}")
        asm.branch("j", to=go)
        asm.label(plain)
        for i in range(held):
            self.word("sw", "zero", f"init{i}")
        asm.label(go)

    def _move(self, name: str, pointer: str, held: int, step: str) -> None:
        """On by as many lines as are held: their distance is that word, or 4."""
        asm = self.asm
        self.word("sw", pointer, name)
        if step:
            self.word("lw", "t1", step)
            asm("addi", "t0", "zero", held)
            asm.mac(pointer, "t1", "t0")
        else:
            asm("addi", pointer, pointer, 4 * held)
        self.word("sw", pointer, f"{name}_next")
