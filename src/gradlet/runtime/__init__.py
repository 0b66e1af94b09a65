"""C that ships with every project, and a port for each family of devices.

`ports/NAME/` has what a device needs besides: the port header (cores, barrier, clock, DMA),
start-up code and the template of the linker script. A target names its port; nothing else does.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
PORTS = FOLDER / "ports"
STARTUP = ("start.S", "team.c")
"""What every program of a device is linked with."""


def port_file(port: str, name: str) -> Path:
    return PORTS / port / name


def includes(port: str) -> list[Path]:
    """Where the headers of the runtime are, for a program of a port that is not a project."""
    return [FOLDER, *(PORTS / name for name in dict.fromkeys((port, "host")))]
