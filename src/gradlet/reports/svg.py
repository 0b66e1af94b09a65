"""A picture of the memory over a training step: calls to the right, addresses upwards.

One rectangle per buffer, one panel per memory level; the tip of the mouse tells the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

from gradlet.ir.graph import PHASES
from gradlet.planner.model import REGIONS, Buffer
from gradlet.reports.memory import Level, MemoryReport, Peak, written_at
from gradlet.reports.owners import KINDS, Owners

WIDTH = 1200
PANEL = 460
LEFT, RIGHT = 92, 24
HEAD, GAP, FOOT = 76, 78, 44
LETTER = 6.2  # width of a letter of a label, roughly
NEAR = 1.6  # the end of a memory is drawn if the data come that close to it

COLOURS = {
    "weights": "#8db4dc",
    "activations": "#8ccbb5",
    "gradients": "#f2a154",
    "optimizer": "#c0a5d3",
    "tiles": "#e8d27a",
    "im2col": "#d9695f",
    "scratch": "#e3a6a1",
    "constants": "#a9b4c0",
}
STYLE = (
    "text{font-family:sans-serif;font-size:12px;fill:#222}"
    ".title{font-size:16px;font-weight:bold}"
    ".label{font-size:10.5px;pointer-events:none}"
    ".small{font-size:10.5px;fill:#666}"
    ".middle{text-anchor:middle}.end{text-anchor:end}"
    ".buffer{stroke:#fff;stroke-width:.6}.buffer:hover{stroke:#000;stroke-width:1.5}"
)


def is_svg(content: bytes) -> bool:
    """Whether this is one of these pictures."""
    return f"<style>{STYLE}</style>".encode() in content[:2000]


def as_svg(report: MemoryReport) -> str:
    drawn = [level for level in report.levels if level.peak]
    height = HEAD + len(drawn) * (PANEL + GAP) + FOOT - GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">'
    )
    lines = [
        head,
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    lines += _header(report)
    owners = Owners(report.plan)
    for index, level in enumerate(drawn):
        peak = next(peak for peak in report.peaks if peak.level == level.name)
        panel = _Panel(report, level, HEAD + index * (PANEL + GAP))
        lines += panel.draw(owners, peak)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _header(report: MemoryReport) -> Iterator[str]:
    graph, target = report.plan.graph, report.plan.target
    verdict = "" if report.fits else ", does not fit"
    title = f"{graph.name} on {target.name}: {report.used:,} bytes{verdict}"
    yield _text(LEFT, 24, title, "title")
    x: float = LEFT
    used = {kind for peak in report.peaks for kind in KINDS if peak.kinds[kind]}
    used.update(kind for row in report.layers for kind in KINDS if row.bytes[kind])
    for kind in (kind for kind in KINDS if kind in used):
        yield f'<rect x="{x:.0f}" y="35" width="12" height="12" fill="{COLOURS[kind]}"/>'
        yield _text(x + 17, 45.5, kind)
        x += 17 + 7.2 * len(kind) + 18


@dataclass(frozen=True)
class _Panel:
    """One level: its own scale of addresses, the regions one above the other."""

    report: MemoryReport
    level: Level
    top: float

    @property
    def calls(self) -> int:
        return len(self.report.plan.calls)

    @property
    def ceiling(self) -> int:
        data = sum(self.level.regions[region] for region in REGIONS)
        return self.level.room if data < self.level.room < NEAR * data else data

    def x(self, call: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * call / self.calls

    def y(self, address: float) -> float:
        return self.top + PANEL * (1 - address / self.ceiling)

    def draw(self, owners: Owners, peak: Peak) -> Iterator[str]:
        yield from self._phases()
        yield from self._scale()
        bases = self._bases()
        buffers = [b for b in self.report.plan.buffers if b.level == self.level.name]
        written = written_at(self.report.plan)
        for buffer in buffers:
            yield self._rectangle(buffer, bases, owners, written)
        for buffer in buffers:
            yield from self._label(buffer, bases)
        yield from self._regions(bases)
        yield from self._end_of_memory()
        yield from self._peak(peak)

    def _bases(self) -> dict[str, int]:
        bases, base = {}, 0
        for region in REGIONS:
            bases[region] = base
            base += self.level.regions[region]
        return bases

    def _corners(
        self, buffer: Buffer, bases: Mapping[str, int]
    ) -> tuple[float, float, float, float]:
        """x, y, width and height."""
        whole = buffer.kind != "arena"
        first, last = (0, 2 * self.calls - 1) if whole else buffer.interval
        begin, end = first / 2, (min(last, 2 * self.calls - 1) + 1) / 2
        start = bases[buffer.region] + buffer.offset
        x, y = self.x(begin), self.y(start + buffer.bytes)
        return x, y, self.x(end) - x, self.y(start) - y

    def _rectangle(
        self,
        buffer: Buffer,
        bases: Mapping[str, int],
        owners: Owners,
        written: Mapping[str, int],
    ) -> str:
        x, y, width, height = self._corners(buffer, bases)
        held = []
        for name in buffer.tensors:
            since = f", from call {written[name]}" if name in written else ""
            held.append(f"{name} ({owners.kind(name)} of {owners.of_tensor(name)}{since})")
        span = f"calls {buffer.first} to {min(buffer.last, self.calls - 1)}"
        where = f"{buffer.bytes:,} bytes at {buffer.region} + {buffer.offset:,}"
        tip = "\n".join([f"{where}, {span}", *held])
        colour = COLOURS[owners.kind(buffer.tensors[0])]
        return (
            f'<rect class="buffer" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" '
            f'height="{height:.2f}" fill="{colour}"><title>{escape(tip)}</title></rect>'
        )

    def _label(self, buffer: Buffer, bases: Mapping[str, int]) -> Iterator[str]:
        x, y, width, height = self._corners(buffer, bases)
        for text in (f"{buffer.tensors[0]}  {buffer.bytes:,}", buffer.tensors[0]):
            if height >= 12 and len(text) * LETTER + 6 <= width:
                yield _text(x + 4, y + height / 2 + 3.7, text, "label")
                return

    def _phases(self) -> Iterator[str]:
        """A band above the panel for each run of calls of one phase; fused updates are backward."""
        phases = [call.phase for call in self.report.plan.calls]
        starts = [i for i, phase in enumerate(phases) if i == 0 or phase != phases[i - 1]]
        for start, end in zip(starts, [*starts[1:], self.calls], strict=True):
            shade = ("#eef2f6", "#f8f1e7", "#f2edf6")[PHASES.index(phases[start])]
            x, width = self.x(start), self.x(end) - self.x(start)
            yield (
                f'<rect x="{x:.2f}" y="{self.top - 18:.1f}" width="{width:.2f}" '
                f'height="{PANEL + 18}" fill="{shade}"/>'
            )
            if len(phases[start]) * 7 < width:
                yield _text(x + width / 2, self.top - 5, phases[start], "middle")

    def _scale(self) -> Iterator[str]:
        step = _round_step(self.ceiling / 6)
        for address in range(0, self.ceiling + 1, step):
            y = self.y(address)
            yield (
                f'<line x1="{LEFT - 4}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                'stroke="#ccd" stroke-width=".6"/>'
            )
            yield _text(LEFT - 8, y + 4, _bytes(address), "end")
        stride = max(1, -(-self.calls // 24))
        for call in range(0, self.calls, stride):
            yield _text(self.x(call + 0.5), self.top + PANEL + 14, str(call), "small middle")
        yield _text(WIDTH - RIGHT, self.top + PANEL + 30, "kernel call", "small end")
        yield _text(LEFT, self.top + PANEL + 30, f"address in {self.level.name}", "small")

    def _regions(self, bases: Mapping[str, int]) -> Iterator[str]:
        for region in REGIONS:
            if region != REGIONS[0] and self.level.regions[region]:
                y = self.y(bases[region])
                yield _line(LEFT, y, WIDTH - RIGHT, y, "#222", 1)

    def _end_of_memory(self) -> Iterator[str]:
        if self.level.room <= self.ceiling:
            y = self.y(self.level.room)
            yield _line(LEFT, y, WIDTH - RIGHT, y, "#c0182b", 2, "7 4")
            room = f"{self.level.room:,} bytes of {self.level.name} end here"
            yield _boxed(WIDTH - RIGHT - 4, y + 15, room, "end")

    def _peak(self, peak: Peak) -> Iterator[str]:
        x = self.x(peak.index + 0.5)
        yield _line(x, self.top, x, self.top + PANEL, "#222", 1, "2 3")
        left = x < WIDTH / 2
        text = f"peak: {peak.bytes:,} bytes alive in {peak.call}"
        place = x + 6 if left else x - 6
        yield _boxed(place, self.top + PANEL - 8, text, "" if left else "end")


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str, width: float, dashes: str = ""
) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{dashed}/>'
    )


def _text(x: float, y: float, text: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(text)}</text>'


def _boxed(x: float, y: float, text: str, style: str = "") -> str:
    """Text that can be read on any ground."""
    width = len(text) * 6.6 + 8
    left = x - width + 4 if style == "end" else x - 4
    box = f'<rect x="{left:.1f}" y="{y - 12:.1f}" width="{width:.1f}" height="16" rx="3" '
    return f'{box}fill="#fff" fill-opacity=".85"/>' + _text(x, y, text, style)


def _round_step(least: float) -> int:
    """1, 2 or 4 times a power of two, as memories are measured."""
    step = 4
    while step < least:
        step *= 2
    return step


def _bytes(value: int) -> str:
    for unit, size in (("M", 1024**2), ("k", 1024)):
        if value >= size:
            return (
                f"{value / size:g} {unit}B" if value % size == 0 else f"{value / size:.2f} {unit}B"
            )
    return f"{value} B"
