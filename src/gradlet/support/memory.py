"""How much memory this machine has for one program."""

from __future__ import annotations

import os
from pathlib import Path

LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""What a container may take, where it is in one."""


def machine_bytes() -> int | None:
    """None where the system does not say."""
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):
        return None
    for place in LIMITS:
        try:
            found.append(int(place.read_text()))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    return min(found)
