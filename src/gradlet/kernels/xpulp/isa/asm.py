"""Writes assembler text for RI5CY; compilers without Xpulpv2 take its instructions by number.

All instructions are four bytes long, so the writer knows every distance and can place the ends of
hardware loops itself. Floats live in the integer registers (Zfinx).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

ARGUMENTS = tuple(f"a{i}" for i in range(8))
SAVED = tuple(f"s{i}" for i in range(12))
"""What a function gives back as it found it, besides sp."""
SCRATCH = tuple(f"t{i}" for i in range(7))
IDLE = ("gp", "tp")
"""Used by no code that our compiler makes: free to be overwritten."""
BRANCHES = ("b", "j", "ret", "call")
REACH = 1024
"""Instructions that a branch can jump over: 4 kB."""
_LOOPS = ".insn i 0x7b"


class AssemblyError(Exception):
    """A mistake in a generator, never in a model."""


class Registers:
    """A pool of registers that are given out by name."""

    def __init__(self, free: Sequence[str]) -> None:
        self._free = list(free)
        self.named: dict[str, str] = {}

    def take(self, *names: str) -> list[str]:
        """One register for each name, in the order of the pool."""
        for name in names:
            if name in self.named:
                raise AssemblyError(f"'{name}' has a register already")
            if not self._free:
                raise AssemblyError(f"no register is left for '{name}': {self.named}")
            self.named[name] = self._free.pop(0)
        return [self.named[name] for name in names]

    def one(self, name: str) -> str:
        return self.take(name)[0]

    def claim(self, name: str, register: str) -> str:
        """This very register, such as the one of an argument."""
        if register not in self._free:
            raise AssemblyError(f"{register} is not free for '{name}'")
        self._free.remove(register)
        self.named[name] = register
        return register

    def give_back(self, *names: str) -> None:
        for name in names:
            self._free.append(self.named.pop(name))

    def __getitem__(self, name: str) -> str:
        return self.named[name]

    @property
    def rest(self) -> tuple[str, ...]:
        """Those that nobody has."""
        return tuple(self._free)

    @property
    def left(self) -> int:
        return len(self._free)


@dataclass(frozen=True)
class _Line:
    text: str
    to: str = ""  # the label whose distance in halfwords stands for {half}


class Asm:
    """One function. Instructions are appended; `text` resolves the loops."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lines: list[_Line] = []
        self._labels: dict[str, int] = {}
        self._ends: set[int] = set()
        self._modes: dict[int, list[str]] = {}
        self._fresh = 0
        self._small = False

    def __call__(self, op: str, *operands: str | int) -> None:
        """An instruction that the assembler knows and that is one word long."""
        self._lines.append(_Line(f"{op} {', '.join(map(str, operands))}".strip()))

    def branch(self, op: str, *operands: str | int, to: str) -> None:
        """beqz, bne, j ... to a label of this function."""
        self._lines.append(
            _Line(f"{op} {', '.join([*map(str, operands), self._local(to)])}", to=to)
        )

    def bne_imm(self, rs: str, value: int, to: str) -> None:
        """Branch where the register is not this number, -16 to 15."""
        number = f".insn b 0x63, 3, {rs}, x{value % 32}, {self._local(to)}"
        self._lines.append(_Line(number, to=to))

    def beq_imm(self, rs: str, value: int, to: str) -> None:
        """Branch where the register is this number, -16 to 15."""
        number = f".insn b 0x63, 2, {rs}, x{value % 32}, {self._local(to)}"
        self._lines.append(_Line(number, to=to))

    def label(self, name: str = "") -> str:
        """Names this place; without a name it finds one."""
        name = name or self.fresh()
        if name in self._labels:
            raise AssemblyError(f"the label '{name}' is there twice")
        self._labels[name] = len(self._lines)
        return name

    def entry(self, name: str) -> None:
        """A name for this place that C can call."""
        self._modes.setdefault(self.count, []).append(f"{name}:")

    def fresh(self) -> str:
        self._fresh += 1
        return f"at{self._fresh}"

    @property
    def count(self) -> int:
        """Instructions so far."""
        return len(self._lines)

    def compressed(self, on: bool) -> None:
        """From here on the assembler may take two bytes where it can: for code that runs once.

        Hardware loops and their set-up stay outside of such parts; loop() sees to that itself."""
        self._small = on
        here = [".option rvc"] if on else [".balign 4", ".option norvc"]
        self._modes.setdefault(self.count, []).extend(here)

    # Constants and addresses

    def li(self, rd: str, value: int) -> None:
        """One or two words."""
        if not -(1 << 31) <= value < 1 << 32:
            raise AssemblyError(f"{value} has more than 32 bits")
        value = (value + (1 << 31)) % (1 << 32) - (1 << 31)
        if -2048 <= value < 2048:
            self("addi", rd, "zero", value)
            return
        low = (value + 2048) % 4096 - 2048
        self("lui", rd, (value - low) >> 12 & 0xFFFFF)
        if low:
            self("addi", rd, rd, low)

    def mv(self, rd: str, rs: str) -> None:
        self("addi", rd, rs, 0)

    # Memory

    def lw(self, rd: str, base: str, offset: int = 0) -> None:
        self("lw", rd, f"{_imm(offset)}({base})")

    def sw(self, rs: str, base: str, offset: int = 0) -> None:
        self("sw", rs, f"{_imm(offset)}({base})")

    def lw_post(self, rd: str, base: str, step: int | str) -> None:
        """rd = [base]; base += step, a number of bytes or a register."""
        if isinstance(step, str):
            self(".insn r 0x0b, 7, 0x10,", rd, base, step)
        else:
            self(".insn i 0x0b, 2,", rd, f"{_imm(step)}({base})")

    def lw_indexed(self, rd: str, base: str, index: str) -> None:
        """rd = [base + index], both registers."""
        self(".insn r 0x03, 7, 0x10,", rd, base, index)

    def sw_post(self, rs: str, base: str, step: int | str) -> None:
        """[base] = rs; base += step, a number of bytes or a register."""
        if isinstance(step, str):
            self(".insn r 0x2b, 6, 0x00,", step, base, rs)
        else:
            self(".insn s 0x2b, 2,", rs, f"{_imm(step)}({base})")

    # Arithmetic that RI5CY has beyond RV32IM

    def mac(self, rd: str, a: str, b: str) -> None:
        """rd += a * b, integers, one cycle."""
        self(".insn r 0x33, 0, 0x21,", rd, a, b)

    def min(self, rd: str, a: str, b: str) -> None:
        self(".insn r 0x33, 4, 0x02,", rd, a, b)

    def max(self, rd: str, a: str, b: str) -> None:
        self(".insn r 0x33, 6, 0x02,", rd, a, b)

    def minu(self, rd: str, a: str, b: str) -> None:
        """Without a sign."""
        self(".insn r 0x33, 5, 0x02,", rd, a, b)

    # Hardware loops: 0 is the inner one. The body runs at least once, also for a count of 0.

    @contextmanager
    def loop(self, level: int, count: str | int) -> Iterator[None]:
        """The body, `count` times: a register, or a number below 4096."""
        end, small = self.fresh(), self._small
        if small:
            self.compressed(False)
        if isinstance(count, int):
            self.bounds(level, self._behind(2), end)
            self.iterations(level, count)
        else:
            self._lines.append(_Line(f"{_LOOPS}, 4, x{level}, {count}, {{half}}", to=end))
        start = self.count
        yield
        self.close(end, start)
        if small:
            self.compressed(True)

    def sum_in_pairs(self, total: str, count: str, pairs: str, single: str) -> None:
        """Begins a sum over pairs of elements: leaves what is left over of `count` there, and goes
        to the label `single` if there is no pair."""
        self.compressed(True)
        self("srli", pairs, count, 1)
        self("andi", count, count, 1)
        self.mv(total, "zero")
        self.branch("beqz", pairs, to=single)
        self.compressed(False)

    def bounds(self, level: int, start: str, end: str) -> None:
        """Start and end of a loop whose count is set elsewhere; `end` is closed by close()."""
        self._lines.append(_Line(f"{_LOOPS}, 0, x{level}, x0, {{half}}", to=start))
        self._lines.append(_Line(f"{_LOOPS}, 1, x{level}, x0, {{half}}", to=end))

    def iterations(self, level: int, count: str | int) -> None:
        if isinstance(count, int):
            self(f"{_LOOPS}, 3, x{level}, x0,", _unsigned(count))
        else:
            self(f"{_LOOPS}, 2, x{level}, {count}, 0")

    def close(self, end: str, start: int) -> None:
        """The last instruction so far is the last of the loop that ends at this label."""
        if self.count - start < 2:
            raise AssemblyError("the body of a hardware loop has at least two instructions")
        last = self._lines[-1].text
        if last.startswith(BRANCHES) or last.startswith(_LOOPS):
            raise AssemblyError(f"a hardware loop ends with '{last}'")
        if self.count - 1 in self._ends:
            raise AssemblyError("two hardware loops end with the same instruction")
        self._ends.add(self.count - 1)
        self._labels[end] = self.count - 1

    def _behind(self, instructions: int) -> str:
        name = self.fresh()
        self._labels[name] = self.count + instructions + 1
        return name

    # The function as text

    def push(self, registers: Sequence[str], frame: int = 0) -> int:
        """Room on the stack: `frame` bytes from sp on, the registers behind; returns its size."""
        size = -(-(frame + 4 * len(registers)) // 16) * 16
        self("addi", "sp", "sp", -size)
        for index, register in enumerate(registers):
            self.sw(register, "sp", frame + 4 * index)
        return size

    def pop(self, registers: Sequence[str], frame: int = 0, to: str = "ra") -> None:
        """Takes back what push() did, and returns to the caller, or goes where `to` points."""
        size = -(-(frame + 4 * len(registers)) // 16) * 16
        for index, register in enumerate(registers):
            self.lw(register, "sp", frame + 4 * index)
        self("addi", "sp", "sp", size)
        self("jr", to)

    def enter(self, field: int) -> None:
        """The stack pointer takes the place of a0, a struct with room for two words at `field`:
        its words are as near as those of a stack, and a0 is free. See gl_call()."""
        self.sw("ra", "a0", field)
        self.sw("sp", "a0", field + 4)
        self.mv("sp", "a0")

    def leave(self, field: int) -> None:
        """Takes back what enter() did, and returns to the caller."""
        self.lw("ra", "sp", field)
        self.lw("sp", "sp", field + 4)
        self("ret")

    def call_block(self, register: str) -> None:
        """As gl_call() in C: the label says that what is called calls nothing itself."""
        self.entry(f"gl_call_site_{self.name}_{self.count}")
        self("jalr", register)

    def text(self) -> list[str]:
        """The lines of the function, loops resolved."""
        at: dict[int, list[str]] = {}
        for name in {line.to for line in self._lines if line.to}:
            if name not in self._labels:
                raise AssemblyError(f"'{self.name}' has no label '{name}'")
        branched = {line.to for line in self._lines if line.to and "{half}" not in line.text}
        for name in sorted(branched):
            at.setdefault(self._labels[name], []).append(self._local(name))
        lines = [".option push", ".option norvc", ".option norelax"]
        for index, line in enumerate(self._lines):
            lines += self._modes.get(index, [])
            lines += [f"{label}:" for label in at.get(index, [])]
            lines.append(self._resolved(index, line))
        lines += [f"{label}:" for label in at.get(self.count, [])]
        return [*lines, ".option pop"]

    def _resolved(self, index: int, line: _Line) -> str:
        if not line.to:
            return line.text
        distance = self._labels[line.to] - index
        if "{half}" not in line.text:
            if not line.text.startswith("j") and not -REACH <= distance < REACH:
                raise AssemblyError(f"'{line.text}' jumps over {distance} instructions")
            return line.text
        ahead = _unsigned(2 * distance)
        return line.text.replace("{half}", str(ahead))

    def _local(self, name: str) -> str:
        return f".L{self.name}_{name}"

    def body(self) -> str:
        """The same as strings of C."""
        return "\n".join(f'        "{line}\\n"' for line in self.text())

    def function(self, parameters: str, align: int = 16, result: str = "void") -> str:
        """A C function with these parameters whose body is this; it must return by itself."""
        return (
            f"__attribute__((naked, noinline, used, aligned({align})))\n"
            f"static {result} {self.name}({parameters})\n"
            f"{{\n    __asm__ volatile(\n{self.body()});\n}}"
        )


def _imm(value: int) -> int:
    if not -2048 <= value < 2048:
        raise AssemblyError(f"{value} does not fit into 12 bits with a sign")
    return value


def _unsigned(value: int) -> int:
    """As the assembler wants the 12 bits to be written: with a sign."""
    if not 0 < value < 4096:
        raise AssemblyError(f"{value} does not fit into 12 bits")
    return value if value < 2048 else value - 4096
