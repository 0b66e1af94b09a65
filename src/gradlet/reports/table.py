"""A memory report as aligned text and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from gradlet.reports.memory import Level, MemoryReport, Peak
from gradlet.reports.owners import KINDS

LISTED = 10


def as_text(report: MemoryReport) -> str:
    return "\n".join(line.rstrip() for line in _lines(report))


HEADER = ("module", "step", *KINDS)


def is_csv(content: bytes) -> bool:
    """Whether this is one of these tables."""
    return content.startswith(f"{','.join(HEADER)}\n".encode())


def as_csv(report: MemoryReport) -> str:
    """One line per layer and step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for row in report.layers:
        writer.writerow((row.module, row.step, *(row.bytes[kind] for kind in KINDS)))
    return text.getvalue()


def _lines(report: MemoryReport) -> Iterator[str]:
    graph, target = report.plan.graph, report.plan.target
    yield f"{graph.name} on {target.name}, {target.cores} core(s): bytes by layer and step"
    yield ""
    kinds = [kind for kind in KINDS if any(row.bytes[kind] for row in report.layers)]
    rows = [
        [row.module, row.step, *(_number(row.bytes[kind]) for kind in kinds)]
        for row in report.layers
    ]
    yield from _aligned([["layer", "step", *kinds], *rows], left=2)
    for peak in report.peaks:
        yield ""
        yield from _peak_lines(report, peak)
    yield ""
    heads = ["level", "used", "lower bound", "alive", "room", ""]
    yield from _aligned([heads, *map(_level, report.levels)], 1)
    ratio = report.used / max(report.lower_bound, 1)
    yield f"lower bound of this order of calls: {report.lower_bound:,} ({ratio:.3f} x)"


def _peak_lines(report: MemoryReport, peak: Peak) -> Iterator[str]:
    makers = ", ".join(f"{kind} {size:,}" for kind, size in peak.kinds.items() if size)
    where = f"{peak.call} ({peak.step} of {peak.module})"
    calls = len(report.plan.calls)
    yield f"peak of {peak.level}: {peak.bytes:,} bytes in call {peak.index} of {calls}, {where}"
    yield f"  {makers}"
    rows = [
        ["", f"{h.bytes:,}", h.kind, h.tensor, h.module, f"calls {h.first} to {h.last}"]
        for h in peak.buffers[:LISTED]
    ]
    yield from _aligned(rows, left=1, numbers=(1,))
    rest = peak.buffers[LISTED:]
    if rest:
        yield f"  and {len(rest)} more of {sum(h.bytes for h in rest):,} bytes together"


def _level(level: Level) -> list[str]:
    over = level.used - level.room
    note = f"does not fit: {over:,} missing" if over > 0 else ""
    numbers = (level.used, level.lower_bound, level.peak, level.room)
    return [level.name, *(f"{number:,}" for number in numbers), note]


def _number(value: int) -> str:
    return f"{value:,}" if value else "."


def _aligned(
    rows: Sequence[Sequence[str]], left: int, numbers: Sequence[int] | None = None
) -> Iterator[str]:
    """Columns of even width; the first `left` are text, the others numbers unless told."""
    if not rows:
        return
    right = set(range(left, len(rows[0])) if numbers is None else numbers)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells)
