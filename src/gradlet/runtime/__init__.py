"""C that ships with every project, and a port for each family of devices.

`ports/NAME/` has what a device needs besides: the port header (cores, barrier, clock, DMA),
start-up code and the template of the linker script (docs/add-a-device.md). A target names its port;
nothing else does.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
PORTS = FOLDER / "ports"
STEPS = FOLDER / "steps.c"
"""The main program of an engine that feeds samples and reads results."""
HOST = "host"
"""The port under which this machine tries every project out."""
KERNEL_RUNNER, TILE_RUNNER = "kernel_runner.c", "tile_runner.c"
"""Main programs that measure single kernels and single tiled calls; a port may lack them."""


def port_file(port: str, name: str) -> Path:
    return PORTS / port / name


def has(port: str, name: str) -> bool:
    return port_file(port, name).is_file()


def startup(port: str) -> list[str]:
    """What every program of a device is linked with; the host needs nothing."""
    sources = sorted(path.name for path in (PORTS / port).glob("*.[Sc]"))
    return [name for name in sources if name not in (KERNEL_RUNNER, TILE_RUNNER)]


def headers(port: str) -> list[str]:
    return sorted((path.name for path in (PORTS / port).glob(f"gl_*_{port}.h")), reverse=True)


def includes(port: str) -> list[Path]:
    """Where the headers of the runtime are, for a program of a port that is not a project."""
    return [FOLDER, *(PORTS / name for name in dict.fromkeys((port, HOST)))]
