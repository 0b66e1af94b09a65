"""How many instructions a multiply-accumulate takes at least: read off the text of a kernel.

A core issues one instruction in a cycle. The best hardware loop of a kernel, that of its largest
register block, has the fewest instructions for each multiply-accumulate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

SCALAR = re.compile(r"fn?m(add|sub)\.s ")
PACKED = re.compile(r"\.insn r 0x33, *\S+, *(0x48|0x4b),")
"""vfmac, vfdotpex: two halves at a time."""
WIDENING = re.compile(r"\.insn r 0x53, *\S+, *(0x2a),")
"""fmacex: one half."""
_LOOP = re.compile(
    r"\.insn i 0x7b, *(?P<kind>\d), *x(?P<level>\d), *(?P<count>\w+), *(?P<half>-?\d+)"
)
_NUMBERED = {"0": "start", "1": "end", "4": "both"}
_TEXT = re.compile(r'^\s*"(.*)\\n"', re.MULTILINE)


def instructions_per_mac(source: str) -> float | None:
    """Of the best loop of a kernel in C; None if none of its loops multiplies and adds."""
    lines = [
        line
        for line in _TEXT.findall(source)
        if (not line.endswith(":") and line[0] != ".") or line.startswith(".insn")
    ]
    ratios = [len(body) / macs for body in _loops(lines) if (macs := sum(map(macs_of, body)))]
    return min(ratios, default=None)


def macs_of(instruction: str) -> int:
    if PACKED.match(instruction):
        return 2
    return int(bool(SCALAR.match(instruction) or WIDENING.match(instruction)))


def _loops(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """The bodies of all hardware loops."""
    starts: dict[str, int] = {}
    for number, line in enumerate(lines):
        found = _LOOP.match(line)
        if not found or found["kind"] not in _NUMBERED:
            continue
        there = number + int(found["half"]) % 4096 // 2
        match _NUMBERED[found["kind"]]:
            case "start":
                starts[found["level"]] = there
            case "end":
                yield lines[starts.get(found["level"], number) : there + 1]
            case _:
                yield lines[number + 1 : there + 1]
