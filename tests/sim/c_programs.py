"""C programs on the port and the start-up code of a device, with a linker script from the template
that projects use."""

from __future__ import annotations

from pathlib import Path

from gradlet.compiler import build_program
from gradlet.emit.project import RUNTIME, _render
from gradlet.emit.view import STARTUP
from gradlet.target import Target


def compile_c(source: Path, target: Target, folder: Path) -> bytes:
    """The ELF of one source file with a main() that every core enters."""
    view = {
        "model": source.stem,
        "target_name": target.name,
        "port": target.port,
        "memories": target.memories,
        "stack": target.stack,
        "cores": target.cores,
    }
    script = folder / "link.ld"
    script.write_text(_render("link.ld", view))
    (folder / "gl_port.h").write_text(_render("gl_port.h", view))
    sources = [source, *(RUNTIME / target.port / name for name in STARTUP)]
    defines = [f"GL_CORES={target.cores}"]
    elf = build_program(
        sources,
        folder / f"{source.stem}.elf",
        flags=target.flags,
        script=script,
        include=[folder, RUNTIME],
        defines=dict.fromkeys(sources, defines),
    )
    return elf.read_bytes()
