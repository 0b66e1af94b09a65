"""The bound of a whole program: the deepest way through its calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .decode import RA
from .program import Program
from .program import StackError as StackError
from .walk import Function, Walk

START = "_start"
GUARD = 16
"""Bytes at the end of each stack that nobody may touch: the program looks at them at times."""
ALIGN = 16
_known: dict[bytes, int] = {}


class Analysis:
    """The call graph from start-up on. called: functions that others call by address."""

    def __init__(self, program: Program, called: Sequence[str] = ()) -> None:
        self.program = program
        self.functions: dict[tuple[int, int], Function] = {}
        self.called = {program.address(name) for name in called}
        self.taken = program.pointers()
        start = program.address(START)
        self._needs: dict[tuple[int, int], int] = {}
        self.root = start, RA
        self.functions[self.root] = Walk(program, start, RA, "none").found
        self._walk_all()

    def _walk_all(self) -> None:
        while True:
            known = set(self.functions)
            wanted = {key for function in self.functions.values() for key in function.calls}
            wanted |= {(address, RA) for address in self.taken | self.called}
            for address, link in sorted(wanted - known):
                found = Walk(self.program, address, link).found
                self.functions[address, link] = found
                self.taken |= found.taken
            if not wanted - known:
                return

    def need(self, name: str = "") -> int:
        """Bytes of the deepest way from start-up on, or from a function that it calls."""
        return self._need((self.program.address(name), RA) if name else self.root, ())

    def _need(self, key: tuple[int, int], above: tuple[tuple[int, int], ...]) -> int:
        if key in above:
            names = [self.program.where(address) for address, _ in (*above, key)]
            raise StackError(f"no bound of the stack: {' calls '.join(names)}")
        if key not in self._needs:
            way = (*above, key)
            depths = [d + self._need(target, way) for target, d in self._calls(key)]
            self._needs[key] = max([self.functions[key].depth, *depths])
        return self._needs[key]

    def _calls(self, key: tuple[int, int]) -> Iterator[tuple[tuple[int, int], int]]:
        function = self.functions[key]
        yield from function.calls.items()
        if function.pointer is not None:
            for address in sorted(self.taken | self.called):
                yield (address, RA), function.pointer
        if function.marked is not None:
            for address in sorted(self.taken):
                if self.functions[address, RA].is_block:
                    yield (address, RA), function.marked


def stack_need(elf: bytes, called: Sequence[str] = ()) -> int:
    """Bytes that a core needs at most. The same code with other data needs the same."""
    program = Program(elf)
    key = program.code_digest([START, *called])
    if key not in _known:
        _known[key] = Analysis(program, called).need()
    return _known[key]


def needs_of(elf: bytes, names: Sequence[str]) -> dict[str, int]:
    """Bytes that functions need, with all that they call."""
    analysis = Analysis(Program(elf), names)
    return {name: analysis.need(name) for name in names}


def reserved_for(need: int) -> int:
    """What is set aside for a core: all stacks begin at a multiple of 16, as compilers want it."""
    return -(-need // ALIGN) * ALIGN + GUARD
