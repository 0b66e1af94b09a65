"""C programs on the port and the start-up code of a device, with a linker script from the template
that projects use."""

from __future__ import annotations

from pathlib import Path

from gradlet.codegen.project import render
from gradlet.runtime import includes, port_file, startup
from gradlet.support.compiler import build_program
from gradlet.targets.target import Target


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
    script.write_text(render("link.ld", view, target.port))
    (folder / "gl_port.h").write_text(render("gl_port.h", view))
    sources = [source, *(port_file(target.port, name) for name in startup(target.port))]
    defines = [f"GL_CORES={target.cores}"]
    elf = build_program(
        sources,
        folder / f"{source.stem}.elf",
        flags=target.flags,
        script=script,
        include=[folder, *includes(target.port)],
        defines=dict.fromkeys(sources, defines),
    )
    return elf.read_bytes()
