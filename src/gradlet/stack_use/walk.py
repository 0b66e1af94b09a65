"""One function of a program: how deep its own stack gets, and how deep it is where it calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from .decode import RA, SP, Step, decode
from .program import Program, StackError

FEW = 4
SAVED = (0, 8, 9, *range(18, 28))
"""Registers that functions leave as they were."""
DEEPEST, WORD = 1 << 16, 1 << 32


@dataclass(frozen=True)
class Place:
    """What is known where an instruction begins. depth: bytes on the stack of this function.

    sp: "stack"; "none" before start-up has set it; "lent" while a kernel keeps something else
    there, up to the end of the function, since it comes back from anywhere: what is then taken
    from it counts, what is given back does not. known: registers that hold constants, one of few.
    """

    depth: int
    sp: str
    known: Mapping[int, frozenset[int]]

    def met(self, other: Place) -> Place:
        """What holds by either way."""
        if self == other:
            return self
        known = {
            register: values | other.known[register]
            for register, values in self.known.items()
            if register in other.known and len(values | other.known[register]) <= FEW
        }
        same = self.sp == other.sp
        return Place(max(self.depth, other.depth), self.sp if same else "lent", known)


@dataclass
class Function:
    """depth: bytes of its own. calls: to (address, register with the way back), at these depths;
    pointer: the depth at a call of any function; marked: of any that calls nothing."""

    depth: int = 0
    calls: dict[tuple[int, int], int] = field(default_factory=dict)
    pointer: int | None = None
    marked: int | None = None
    lends: bool = False
    taken: set[int] = field(default_factory=set)

    @property
    def is_block(self) -> bool:
        """Whether gl_call() may reach it: it takes sp for something else, or calls nothing."""
        calls = self.calls or self.pointer is not None or self.marked is not None
        return self.lends or not calls


class Walk:
    """One function, along all its ways."""

    def __init__(self, program: Program, start: int, link: int, sp: str = "stack") -> None:
        self.program, self.start, self.link = program, start, link
        self.found = Function()
        self.places: dict[int, Place] = {start: Place(0, sp, {0: frozenset([0])})}
        self.begins: dict[int, int] = {}
        self.loops: dict[int, int] = {}
        waiting = [start]
        while waiting:
            at = self._straight(waiting.pop())
            for following, place in self._after(at, self.places[at]):
                if self._is_new(at, following, place):
                    waiting.append(following)

    def _is_new(self, at: int, following: int, place: Place) -> bool:
        """Whether this way tells something of the instruction that follows."""
        before = self.places.get(following)
        if before is place:
            return False
        merged = before.met(place) if before else place
        if merged.depth > DEEPEST:
            raise StackError(f"{self.program.where(at)}: the stack grows in a loop")
        self.places[following] = merged
        return merged != before

    def _straight(self, at: int) -> int:
        """Along instructions that have one way and leave sp alone, which most are, to the first
        other one, or as far as anything new is known."""
        program, places = self.program, self.places
        while True:
            step = self._step(at)
            behind = at + step.size
            if step.kind or step.rd == SP or step.below is not None:
                return at
            if at in self.loops or behind in program.functions:
                return at
            place = self._computed(at, step, places[at])
            if behind not in places:
                places[behind] = place
            elif not self._is_new(at, behind, place):
                return at
            at = behind

    def _step(self, at: int) -> Step:
        steps = self.program.decoded
        if at not in steps:
            steps[at] = decode(self.program.word(at), at)
        return steps[at]

    def _after(self, at: int, place: Place) -> Iterator[tuple[int, Place]]:
        step = self._step(at)
        behind = at + step.size
        if step.below is not None and place.sp != "lent":
            self._need_stack(at, place)
            self.found.depth = max(self.found.depth, place.depth + step.below)
        match step.kind:
            case "stop":
                return
            case "branch":
                yield step.target or 0, place
            case "jump":
                yield from self._jump(at, step, place)
                return
            case "call":
                self._call(at, self._targets(step, place), step.rd, place)
                kept = SAVED if at not in self.program.marks and step.rd == RA else (0,)
                place = replace(place, known={r: v for r, v in place.known.items() if r in kept})
            case "loop":
                self._loop(at, step)
            case "alloca" if place.sp == "stack":
                raise StackError(f"{self.program.where(at)}: takes stack that nobody can count")
            case _:
                place = self._computed(at, step, place)
        if at in self.loops:
            yield self.loops[at], place
        if behind in self.program.functions:  # as where a call does not come back
            self._call(at, frozenset([behind]), self.link, place)
        else:
            yield behind, place

    def _targets(self, step: Step, place: Place) -> frozenset[int]:
        if step.target is not None:
            return frozenset([step.target])
        values = place.known.get(step.rs, frozenset())
        return frozenset((value + (step.number or 0)) % WORD & ~1 for value in values)

    def _jump(self, at: int, step: Step, place: Place) -> Iterator[tuple[int, Place]]:
        if step.target is None and step.rs == self.link:
            return
        targets = self._targets(step, place)
        outside = {t for t in targets if t in self.program.functions and t != self.start}
        if outside or not targets:
            self._call(at, frozenset(outside), self.link, place)
        for target in targets - outside if targets else self.program.cases(self.start):
            yield target, place

    def _call(self, at: int, targets: frozenset[int], link: int, place: Place) -> None:
        """No target: it is in a pointer."""
        self._need_stack(at, place)
        found, depth = self.found, place.depth
        for target in targets:
            key = target, link
            found.calls[key] = max(found.calls.get(key, 0), depth)
        if not targets and at in self.program.marks:
            found.marked = max(found.marked or 0, depth)
        elif not targets:
            found.pointer = max(found.pointer or 0, depth)

    def _need_stack(self, at: int, place: Place) -> None:
        if place.sp == "none":
            raise StackError(f"{self.program.where(at)}: needs a stack where there is none yet")

    def _loop(self, at: int, step: Step) -> None:
        """rs: the kind of instruction."""
        assert step.target is not None
        if step.rs == 0:
            self.begins[step.rd] = step.target
        elif step.rs == 1:
            self.loops[step.target] = self.begins.get(step.rd, at)
        elif step.rs in (4, 5):
            self.loops[step.target] = at + step.size

    def _computed(self, at: int, step: Step, place: Place) -> Place:
        if step.rd == SP:
            return self._moved(at, step, place)
        if step.rd == 0:
            return place
        values = place.known.get(step.rs)
        if step.rd not in place.known and (step.number is None or not values):
            return place  # nothing was known of it, and nothing is
        known = {r: values for r, values in place.known.items() if r != step.rd}
        if step.number is not None and values:
            sums = frozenset((value + step.number) % WORD for value in values)
            known[step.rd] = sums
            if step.rs:  # the upper half alone is no address
                self.found.taken |= sums & self.program.named
        return replace(place, known=known)

    def _moved(self, at: int, step: Step, place: Place) -> Place:
        if step.rs != SP:
            self.found.lends = place.sp != "none"
            return replace(place, sp="lent" if self.found.lends else "stack")
        self._need_stack(at, place)
        if step.number is None:
            return replace(place, sp="lent")
        if place.sp == "lent" and step.number > 0:
            return place
        depth = place.depth - step.number
        if depth < 0:
            raise StackError(f"{self.program.where(at)}: gives back more stack than it took")
        self.found.depth = max(self.found.depth, depth)
        return replace(place, depth=depth)
