"""Which buffers lie in the nearest memory, when not all of them fit there.

A word that is touched often is worth more there than one that is touched once. Buffers are taken by
touches per byte, as long as those that are alive together fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradlet.plan.alias import Storage
from gradlet.plan.model import Plan
from gradlet.plan.place import Request, height

SLACK = 0.97
"""Share of the room that the first choice may fill; a perfect placement is not always found."""


def chosen_nearer(
    plan: Plan, requests: Sequence[Request], persistent: Sequence[Storage], room: int, align: int
) -> set[str]:
    """Names of the buffers that go into `room` bytes of the nearest memory."""
    touches = _touches(plan)
    end = len(plan.calls)
    always = {storage.name for storage in persistent}
    spans = {r.name: (r.bytes, r.first, r.last) for r in requests}
    spans |= {storage.name: (storage.bytes, 0, end) for storage in persistent}
    order = sorted(spans, key=lambda name: (-touches.get(name, 0) / max(spans[name][0], 1), name))
    level = [0] * (end + 2)  # bytes taken at each call
    taken: list[str] = []
    for name in order:
        size, first, last = spans[name]
        size = -(-size // align) * align
        if max(level[first : last + 1], default=0) + size <= room * SLACK:
            level[first : last + 1] = [used + size for used in level[first : last + 1]]
            taken.append(name)
    while taken and _need(taken, spans, requests, always, align) > room:
        taken.pop()
    return set(taken)


def _touches(plan: Plan) -> dict[str, int]:
    """How often each buffer's words are read or written in a step, roughly: a product reads both
    factors once per multiply-add."""
    places = plan.buffer_of()
    found: dict[str, int] = {}
    for call in plan.calls:
        for names, reads in ((call.inputs, True), ((*call.outputs, call.scratch), False)):
            for name in filter(None, names):
                buffer = places[name]
                count = max(call.macs if reads else 0, buffer.bytes // 4)
                found[buffer.name] = found.get(buffer.name, 0) + count
    return found


def _need(
    taken: Sequence[str],
    spans: dict[str, tuple[int, int, int]],
    requests: Sequence[Request],
    always: set[str],
    align: int,
) -> int:
    kept = set(taken)
    forever = sum(-(-spans[name][0] // align) * align for name in taken if name in always)
    return forever + height([r for r in requests if r.name in kept], align)
