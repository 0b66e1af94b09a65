"""Rows of a matrix go by and are updated with the outer product of two vectors (a matrix product
whose k is 1); on the way back through a linear layer they are also multiplied, as they were, by
one of the vectors.

Columns are held in registers, multiplied by the scale of the update once; then for each row: load,
one or two multiply-adds, store. Eight cores take blocks of columns in turn, so that neighbours meet
other banks, and share what is left evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradlet.ir.elements import F32, Element
from gradlet.kernels.xpulp.isa.asm import SAVED, SCRATCH, Asm, Registers
from gradlet.kernels.xpulp.isa.narrow import (
    LANES,
    Narrow,
    load_half,
    load_half_post,
    narrow,
    store_half_post,
)

TEAM, LOG = 8, 3
KEPT = (*SAVED, "ra")
WORK = (*SCRATCH, "gp", *SAVED)
"""Registers of a block; all others last from one to the next."""
ID, LEFT, SCALE, HEIGHT = "a0", "a1", "a6", "a7"
"""LEFT: columns to come, of all cores."""
ONE = 0x3F800000
AT_ONCE = 2
"""Elements in flight, so that no load is waited for."""
LARGE, LONG = 16, 64
"""Blocks that are worth their code for so many rows, not for fewer."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    """stored: what C writes where a number of the element goes."""
    element = params["element"]
    made = {"stored": element.store.format}
    if epilogue in ("momentum", "relu"):
        return {"body": "", **made}
    sizes = ("a7" if epilogue == "sgd" else "a6", 4, 8)
    pointers = {"matrix": "a2", "rows": "a3", "columns": "a4"}
    kernel = Kernel(epilogue, pointers, sizes, tuple(params["held"]), "a5", element)
    return {"body": kernel.text(), **made}


class Kernel:
    """pointers: registers of the matrix, the vector with an element for each row, that with one for
    each column, and the product if there is one. sizes: their register, and the bytes where rows
    and columns are. bias: where a register must be 0, else the work is left to C; then what is too
    narrow is cut into rows, not columns."""

    def __init__(
        self,
        epilogue: str,
        pointers: dict[str, str],
        sizes: tuple[str, int, int],
        held: tuple[int, ...],
        bias: str = "",
        element: Element = F32,
    ) -> None:
        self.element, self.narrow = element, narrow(element)
        self.shift = element.bytes.bit_length() - 1
        self.asm, self.epilogue, self.held, self.bias = Asm("outer"), epilogue, held, bias
        self.sizes, self.rows, self.matrix = sizes, pointers["rows"], pointers["matrix"]
        self.columns, self.product = pointers["columns"], pointers.get("product", "")
        self.moving = tuple(filter(None, (self.matrix, self.columns, self.product)))
        self.n4, self.keep, self.log = (bias, "ra", "tp") if bias else ("ra", "tp", "")
        self.out, self.eight = self.asm.fresh(), self.asm.fresh()
        self.far: list[Callable[[], None]] = []  # what is seldom needed, behind all the rest

    def text(self) -> str:
        asm, rare = self.asm, self.asm.fresh()
        asm.compressed(True)
        asm.bne_imm(LEFT, TEAM, to=rare)  # so far the number of cores
        if self.bias:
            asm.branch("bnez", self.bias, to=rare)
        asm.entry("one_group")
        asm.push(KEPT)
        self._begin()
        for size in self.held:
            if size >= TEAM:
                self._in_turn(size)
        self._shared()
        asm.label(self.out)
        asm.pop(KEPT)
        for write in self.far:
            write()
        asm.label(rare)
        asm("j", "otherwise")
        return "\n".join(f'        "{line}\\n"' for line in asm.text())

    def _begin(self) -> None:
        """Sizes, and the factors of the update."""
        asm, (sizes, at_rows, at_columns) = self.asm, self.sizes
        asm.lw(LEFT, sizes, at_columns)
        if self.epilogue == "sgd":
            asm.lw("t0", SCALE, 4)  # so far the settings
            asm.lw(SCALE, SCALE)
            asm.li(self.keep, ONE)
            asm("fsgnjn.s", SCALE, SCALE, SCALE)
            asm("fmadd.s", self.keep, SCALE, "t0", self.keep)
        asm.lw(HEIGHT, sizes, at_rows)
        asm("slli", self.n4, LEFT, self.shift)
        if self.log:
            by_rows, go = asm.fresh(), asm.fresh()
            asm("addi", self.log, "zero", LOG)
            asm("sltiu", "t0", LEFT, TEAM * TEAM)
            asm.branch("bnez", "t0", to=by_rows)
            asm.label(go)
            self.far.append(lambda: self._by_rows(by_rows, go))

    def _by_rows(self, label: str, go: str) -> None:
        """A share of the rows, of which this core has all columns."""
        asm, size, first = self.asm, "t0", "t1"
        asm.label(label)
        asm("addi", size, HEIGHT, TEAM - 1)
        asm("srli", size, size, LOG)
        asm("mul", first, ID, size)
        asm("sub", HEIGHT, HEIGHT, first)
        asm.branch("blez", HEIGHT, to=self.out)
        asm.min(HEIGHT, HEIGHT, size)
        asm.mac(self.matrix, first, self.n4)
        asm("slli", first, first, self.shift)
        asm("add", self.rows, self.rows, first)
        asm.mv(ID, "zero")
        asm.mv(self.log, "zero")
        asm.branch("j", to=go)

    def _of_all(self, register: str, size: int) -> None:
        """The columns of one block of each core that takes turns."""
        self.asm("addi", register, "zero", size if self.log else size << LOG)
        if self.log:
            self.asm("sll", register, register, self.log)

    def _move(self, op: str, by: str | int) -> None:
        for pointer in self.moving:
            self.asm(op, pointer, pointer, by)

    def _in_turn(self, size: int) -> None:
        """One block of each core, again and again, as long as there are columns for all of them."""
        asm, behind, more = self.asm, self.asm.fresh(), self.asm.fresh()
        if size >= LARGE:
            asm("sltiu", "t0", HEIGHT, LONG)
            asm.branch("bnez", "t0", to=behind)
        self._of_all("t0", size)
        asm.branch("blt", LEFT, "t0", to=behind)
        asm("slli", "t0", ID, (self.element.bytes * size).bit_length() - 1)
        self._move("add", "t0")
        asm.label(self.eight if size == TEAM else more)
        self._block(size)
        self._of_all("t0", size)
        asm("sub", LEFT, LEFT, "t0")
        asm("slli", "t1", "t0", self.shift)
        self._move("add", "t1")
        asm.branch("bge", LEFT, "t0", to=self.eight if size == TEAM else more)
        asm("slli", "t0", ID, (self.element.bytes * size).bit_length() - 1)
        self._move("sub", "t0")
        asm.label(behind)

    def _shared(self) -> None:
        """Eight for each core or fewer are left."""
        asm, size, first = self.asm, "t0", "t1"
        asm.branch("blez", LEFT, to=self.out)
        self._of_all(size, 1)
        asm("add", size, size, LEFT)
        asm("addi", size, size, -1)
        asm(*(("srl", size, size, self.log) if self.log else ("srli", size, size, LOG)))
        asm("mul", first, ID, size)
        asm("sub", LEFT, LEFT, first)
        asm.min(LEFT, LEFT, size)
        asm.branch("blez", LEFT, to=self.out)
        asm("slli", first, first, self.shift)
        self._move("add", first)
        asm("andi", "t0", LEFT, TEAM)  # what is said to be left then is less than nothing
        asm.branch("bnez", "t0", to=self.eight)
        for size_of_block in self.held:
            if size_of_block < TEAM:
                smaller = asm.fresh()
                asm("andi", "t0", LEFT, size_of_block)
                asm.branch("beqz", "t0", to=smaller)
                self._block(size_of_block)
                self._move("addi", self.element.bytes * size_of_block)
                asm.label(smaller)

    def _block(self, size: int) -> None:
        asm, regs = self.asm, Registers(WORK)
        to, factor = regs.take("to", "factor")
        held = regs.take(*(f"held{i}" for i in range(size)))
        at_once = LANES * AT_ONCE if self.narrow else AT_ONCE
        flow = regs.take(*(f"flow{i}" for i in range(min(size, at_once))))
        sums = regs.take(*(f"sum{i}" for i in range(size))) if self.product else []
        for column, value in enumerate(held):
            if self.narrow:
                load_half(asm, value, self.columns, self.element.bytes * column)
            else:
                asm.lw(value, self.columns, 4 * column)
        if self.narrow:
            for value in held:
                self.narrow.widen(asm, value, value)
        for value in held if self.epilogue == "sgd" else ():
            asm("fmul.s", value, value, SCALE)
        for total in sums:
            asm.mv(total, "zero")
        asm.mv(to, self.matrix)
        made = _PairedRow if self.narrow else _Row
        row = made(to, self.rows, factor, self.n4, held, flow, sums, bool(self.epilogue))
        row.narrow = self.narrow
        decays, done = asm.fresh(), asm.fresh()
        if self.epilogue == "sgd":
            asm.li(factor, ONE)
            asm.branch("bne", self.keep, factor, to=decays)
            self.far.append(lambda: self._decaying(decays, done, row))
        self._rows(row, "")
        asm.label(done)
        asm("slli", factor, HEIGHT, self.shift)
        asm("sub", self.rows, self.rows, factor)
        for column, total in enumerate(sums):
            asm.sw(total, self.product, 4 * column)

    def _decaying(self, label: str, done: str, row: _Row) -> None:
        self.asm.label(label)
        self._rows(row, self.keep)
        self.asm.branch("j", to=done)

    def _rows(self, row: _Row, keep: str) -> None:
        self.asm.compressed(False)
        with self.asm.loop(0, HEIGHT):
            row.write(self.asm, keep)
        self.asm.compressed(True)


class _Row:
    """The registers of what is done to one row; the first column comes last: it is at the pointer,
    which its store moves on."""

    def __init__(
        self,
        to: str,
        rows: str,
        factor: str,
        n4: str,
        held: list[str],
        flow: list[str],
        sums: list[str],
        loads: bool,
    ) -> None:
        self.to, self.rows, self.factor, self.n4 = to, rows, factor, n4
        self.held, self.flow, self.sums, self.loads = held, flow, sums, loads
        self.narrow: Narrow | None = None

    def write(self, asm: Asm, keep: str) -> None:
        asm.lw_post(self.factor, self.rows, 4)
        order = [*range(1, len(self.held)), 0]
        for begin in range(0, len(order), len(self.flow)):
            part = list(zip(order[begin:], self.flow, strict=False))
            for column, value in part if self.loads else []:
                asm.lw(value, self.to, 4 * column)
            for column, value in part if self.sums else []:
                asm("fmadd.s", self.sums[column], self.factor, value, self.sums[column])
            for _, value in part if keep else []:
                asm("fmul.s", value, value, keep)
            for column, value in part:
                added = [value] if self.loads else []
                asm(
                    "fmadd.s" if self.loads else "fmul.s",
                    value,
                    self.factor,
                    self.held[column],
                    *added,
                )
            for column, value in part:
                if column:
                    asm.sw(value, self.to, 4 * column)
                else:
                    asm.sw_post(value, self.to, self.n4)


class _PairedRow(_Row):
    """The same of narrow elements, which are computed with as floats: two in a word. The products
    of rows that go by are not summed up."""

    def write(self, asm: Asm, keep: str) -> None:
        assert self.narrow is not None
        load_half_post(asm, self.factor, self.rows, 2)
        starts = range(0, len(self.held), LANES)
        order = [*starts[1:], 0]
        loads = [self.flow[i : i + LANES] for i in range(0, len(self.flow), LANES)]
        widened = False
        for begin in range(0, len(order), len(loads)):
            part = list(zip(order[begin:], loads, strict=False))
            for column, (word, *_) in part if self.loads else []:
                if len(self.held) == 1:
                    load_half(asm, word, self.to)
                else:
                    asm.lw(word, self.to, 2 * column)
            if not widened:
                self.narrow.widen(asm, self.factor, self.factor)
                widened = True
            for _, (word, *high) in part if self.loads else []:
                for other in high:
                    self.narrow.widen_high(asm, other, word)
                self.narrow.widen(asm, word, word)
            for column, values in part:
                self._products(asm, keep, column, values)
            for column, values in part:
                self._store(asm, column, values)

    def _products(self, asm: Asm, keep: str, column: int, values: list[str]) -> None:
        for value in values if keep else []:
            asm("fmul.s", value, value, keep)
        for i, value in enumerate(values):
            added = [value] if self.loads else []
            op = "fmadd.s" if self.loads else "fmul.s"
            asm(op, value, self.factor, self.held[column + i], *added)

    def _store(self, asm: Asm, column: int, values: list[str]) -> None:
        assert self.narrow is not None
        word = values[0]
        self.narrow.join(asm, word, word, values[-1])
        if len(values) == 1:
            store_half_post(asm, word, self.to, self.n4)
        elif column:
            asm.sw(word, self.to, 2 * column)
        else:
            asm.sw_post(word, self.to, self.n4)
