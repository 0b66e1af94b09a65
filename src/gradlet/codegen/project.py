"""Writes a plan as a C project. Nothing is decided here, and nothing but the plan is looked at."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jinja2

import gradlet
from gradlet.codegen.folder import MANIFEST, changes, contents, sealed
from gradlet.codegen.golden import Golden, golden
from gradlet.codegen.install import recover, refuse_foreign, write_folder, writing
from gradlet.codegen.names import literal
from gradlet.codegen.stored import PLAN, blob_name, restored, stored
from gradlet.codegen.view import node_op, parameter_count, view_of
from gradlet.errors import GradletError
from gradlet.kernels import source
from gradlet.kernels.catalogue import Kernel
from gradlet.oracle import recording as recorded
from gradlet.oracle.recording import Recording
from gradlet.planner.model import Call, Plan
from gradlet.runtime import FOLDER, HOST, PORTS, headers, port_file, startup
from gradlet.support.files import locked
from gradlet.support.templates import environment

NOT_RECORDED = "the project was made from a plan, without its module"
JUDGED_BY = (PLAN, recorded.FILE, ".bin")
"""Ends of the names of what everything else in the project is compared with."""
BUILT = ("kernels/*.c",)
"""What the Makefile builds whether we wrote it or not."""
HEADERS = ("gl.h", "gl_blob.h", "gl_schedule.h", "gl_print.h")
STACK_USE = Path(__file__).parent.parent / "stack_use"


@dataclass(frozen=True)
class Project:
    """A written project: its folder, and the plan that it came from."""

    folder: Path
    plan: Plan

    @property
    def manifest(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text("utf-8"))
        return value

    @property
    def recording(self) -> Recording:
        """What the user's own module did in training, when the project was built."""
        try:
            return Recording.loads((self.folder / recorded.FILE).read_bytes())
        except FileNotFoundError:
            return Recording(absent=f"the project has no {recorded.FILE}; build it again")

    @property
    def changes(self) -> tuple[str, ...]:
        """How the folder differs, at this moment, from what was built of the plan."""
        found = changes(self.folder, BUILT)
        same = contents(self.folder).recorded.get(PLAN) == self._plan_digest
        return found if same else (*found, f"{PLAN} (of another build)")

    @cached_property
    def _plan_digest(self) -> str:
        """It tells of the weights as well: their digest is in plan.json."""
        return _digest(stored(self.plan)[PLAN])


def emit(
    plan: Plan, folder: Path, recording: Recording | None = None, *, force: bool = False
) -> Project:
    """Write the project. A folder that is not an earlier project of ours is left alone, and so are
    files that were edited, unless forced. The recording is what the user's own module did."""
    refuse_foreign(folder, force=force)
    files = project_files(plan, recording or Recording(absent=NOT_RECORDED))
    with writing(folder):
        write_folder(folder, files, force=force)
    return Project(folder, plan)


def load(folder: Path | str) -> Project:
    """Read a project back. Its sources may have been edited, but not what they were made from."""
    folder = Path(folder)
    recover(folder)
    with locked(Path(os.path.realpath(folder)).parent, shared=True):
        found = contents(folder)
        if not found.ours:
            raise GradletError(
                f"'{folder}' is not a Gradlet project: {found.fault}; "
                f"make one with `gradlet build MODEL -o {folder}`"
            )
        judges = [name for name in found.recorded if name.endswith(JUDGED_BY)]
        spoilt = [n for n in judges if found.actual[n] != found.recorded[n]]
        if found.fault or spoilt:
            fault = found.fault or f"{spoilt[0]} was edited or deleted after the build"
            raise GradletError(
                f"'{folder}' cannot be trusted: {fault}. Put back what was there, or build it "
                "again with --force, or into another folder"
            )
        try:
            text = (folder / PLAN).read_text("utf-8")
            return Project(folder, restored(text, lambda name: (folder / name).read_bytes()))
        except (KeyError, TypeError, ValueError, FileNotFoundError) as error:
            raise GradletError(
                f"'{folder}/{PLAN}' is of another version of Gradlet ({error!r}); build it again"
            ) from None


def project_files(
    plan: Plan, recording: Recording, expected: Golden | None = None
) -> dict[str, bytes]:
    """Every file of the project, by path: texts as UTF-8, anything else as it is."""
    kept = stored(plan)
    view = _view(plan, expected or golden(plan), kept)
    files: dict[str, str | bytes] = {
        **_sources(plan, view),
        "weights.py": render("weights.py", view),
        "golden.py": render("golden.py", view),
        "Makefile": render("Makefile", view),
        "CMakeLists.txt": render("CMakeLists.txt", view),
        "README.md": render("README.md", view),
        **kept,
        recorded.FILE: recording.dumps(),
    }
    encoded = {n: f.encode() if isinstance(f, str) else f for n, f in sorted(files.items())}
    return {**encoded, MANIFEST: _manifest(plan, encoded)}


def source_files(plan: Plan, expected: Golden) -> dict[str, bytes]:
    """Those that a program is compiled from."""
    kept = stored(plan)
    texts = _sources(plan, _view(plan, expected, kept))
    return {
        **{n: text.encode() for n, text in texts.items()},
        blob_name(plan): kept[blob_name(plan)],
    }


def used_kernels(plan: Plan) -> list[Kernel]:
    return sorted({k for call in plan.calls for k in call.kernels}, key=lambda kernel: kernel.name)


def _view(plan: Plan, expected: Golden, kept: Mapping[str, bytes]) -> dict[str, Any]:
    name = blob_name(plan)
    return {**view_of(plan, expected), "blob": name, "blob_digest": _digest(kept[name])}


def _sources(plan: Plan, view: Mapping[str, Any]) -> dict[str, str]:
    prefix, used = plan.prefix, used_kernels(plan)
    return {
        f"{prefix}.h": render("net.h", view),
        f"{prefix}.c": render("net.c", view),
        "weights.c": render("weights.c", view),
        "main.c": render("main.c", view),
        "golden.h": render("golden.h", view),
        f"{prefix}_kernels.h": source.header(used, prefix),
        **{name: (FOLDER / name).read_text() for name in HEADERS},
        **({"gl_tiles.h": (FOLDER / "gl_tiles.h").read_text()} if plan.tilings else {}),
        **{name: (FOLDER / name).read_text() for name in view["element_headers"]},
        **_port_files(plan.target.port, view),
        **{f"kernels/{k.symbol(prefix)}.c": source.render(k, prefix) for k in used},
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _port_files(port: str, view: Mapping[str, Any]) -> dict[str, str]:
    """The port, and for a device what links a program; there the host's port stands beside."""
    host = {name: port_file(HOST, name).read_text() for name in headers(HOST)}
    if not startup(port):
        return {"gl_port.h": host["gl_port_host.h"], "gl_dma_host.h": host["gl_dma_host.h"]}
    return {
        "gl_port.h": render("gl_port.h", view),
        **host,
        **{name: port_file(port, name).read_text() for name in headers(port)},
        **{f"{port}/{name}": port_file(port, name).read_text() for name in startup(port)},
        f"{port}/link.ld": render("link.ld", view, port),
        **{f"{port}/stack_use/{path.name}": path.read_text() for path in STACK_USE.glob("*.py")},
    }


def _manifest(plan: Plan, files: Mapping[str, bytes]) -> bytes:
    known = {node.name: node for node in plan.graph.nodes}
    nodes = [
        {
            "name": call.name,
            "nodes": list(call.nodes),
            "op": node_op(known, call),
            "phase": call.phase,
            "kernel": call.kernel.name,
            "macs": call.macs,
            "tile": _tile(call),
        }
        for call in plan.calls
    ]
    value = {
        "gradlet": gradlet.__version__,
        "model": plan.graph.name,
        "prefix": plan.prefix,
        "target": plan.target.name,
        "cores": plan.target.cores,
        "layout": plan.graph.layout,
        "stored": {
            name: {"view": list(view), "order": list(order)}
            for name, (view, order) in plan.graph.stored.items()
        },
        "params": parameter_count(plan),
        "macs": plan.macs(),
        "memory": plan.memory(),
        "nodes": nodes,
        "kernels": sorted({k.name for call in plan.calls for k in call.kernels}),
        "files": {name: _digest(content) for name, content in files.items()},
    }
    return sealed(value)


def _tile(call: Call) -> dict[str, Any] | None:
    """How far each axis is split, in the order of the loops; None where the whole runs at once."""
    tiling = call.tiling
    if tiling is None:
        return None
    return {
        "axes": {axis.name: [axis.tile, axis.size] for axis in tiling.axes},
        "tiles": tiling.count,
        "buffers": "double" if tiling.double_buffered else "single",
        "copied": [w.tensor for w in tiling.views if w and (w.load or w.store)],
    }


@cache
def _environment(port: str) -> jinja2.Environment:
    """Templates of every project, and those of a port."""
    made = environment([Path(__file__).parent / "templates", PORTS / port])
    made.filters["literal"] = literal
    return made


def render(name: str, view: Mapping[str, Any], port: str = HOST) -> str:
    return _environment(port).get_template(f"{name}.j2").render(view)
