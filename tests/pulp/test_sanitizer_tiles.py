"""Tiles that are broken on purpose, in the C of a good plan: each is stopped where it leaves its
region, and named with the node and the tensor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradlet.codegen.project import Project
from gradlet.engines import sim
from gradlet.planner.planner import Options
from gradlet.sim import SimError
from tests.pulp.support import break_kernel, device_project, model_graph


@pytest.fixture
def project(tmp_path: Path) -> Project:
    plain = Options(variants={"pool": "ref"})
    found = device_project(model_graph("lenet"), tmp_path / "p", cores=4, options=plain, L1="11k")
    assert len(found.plan.tilings) > 10
    return found


def fault(project: Project) -> str:
    with pytest.raises(SimError) as caught:
        sim.run(project, sanitize=True)
    return str(caught.value)


def change(project: Project, name: str, old: str, new: str) -> None:
    path = project.folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def table(project: Project, call: str, pattern: str, new: str) -> None:
    """Change the first match in the table of a tiled call."""
    path = project.folder / "net.c"
    before, start, rest = path.read_text().partition(f"/* {call}: ")
    changed, count = re.subn(pattern, new, rest, count=1)
    assert (bool(start), count) == (True, 1)
    path.write_text(before + start + changed)


def test_nothing_is_wrong_at_first(project: Project) -> None:
    sim.run(project, steps=2, sanitize=True)


SECOND_SLOT = r"@tile\d+.max_pool2d_0.0.max_pool2d_0.1"
SHARE = "    const gl_range share = gl_share(me, s->planes);\n"


@pytest.mark.parametrize(
    ("access", "kind", "tensor"),
    [
        ("y[s->planes * s->out_h * s->out_w] = 1.0f;", "write", SECOND_SLOT),
        ("y[0] = y[s->planes * s->out_h * s->out_w];", "read", SECOND_SLOT),
    ],
    ids=["store", "load"],
)
def test_an_access_beside_its_box(access: str, kind: str, tensor: str, project: Project) -> None:
    """The stage of the next region is nobody's business now."""
    line = f"    if (me.id == 2) {access}\n"
    break_kernel(project, "*pool_max_forward__ref.c", SHARE, line + SHARE)
    message = fault(project)
    assert "node 'max_pool2d_0' of module '2' (kernel gl_f32_pool_max_forward__ref)" in message
    assert "core 2, pc 0x" in message
    assert re.search(rf"of '{tensor}', not its business", message), message
    assert f"which this code may not {kind}" in message or "with DMA" in message


def test_a_slot_that_is_another(project: Project) -> None:
    """The second stage where the input has its first."""
    stages = r"\{(\(char \*\)T_max_pool2d_0, \{[^,]+), [^}]+(.*\s*.*T_relu_0, \{)([^,]+)"
    table(project, "max_pool2d_0", stages, r"{\1, \3\2\3")
    message = fault(project)
    assert "node 'max_pool2d_0' of module '2'" in message
    assert "'tile.max_pool2d_0.0.max_pool2d_0'" in message or "'max_pool2d_0'" in message


def test_a_copy_that_leaves_its_tensor(project: Project) -> None:
    """A region of more lines than there are."""
    table(project, "max_pool2d_0", r"(\.regions = \{\s*\{)(\d+), 1,", r"\g<1>60000, 1,")
    message = fault(project)
    assert "node 'max_pool2d_0'" in message
    assert "DMA" in message


def test_a_window_on_another_tensor(project: Project) -> None:
    table(project, "max_pool2d_0", r"\{\(char \*\)T_relu_0,", "{(char *)T_input,")
    message = fault(project)
    assert "node 'max_pool2d_0'" in message
    assert "DMA" in message
    assert "'input'" in message


@pytest.mark.parametrize(
    ("wait", "node"),
    [
        ("    gl_dma_wait_all();\n    GL_BARRIER();\n    if (next && count > 1)", "relu_0"),
        ("        if (!more) break;\n        gl_dma_wait_all();\n", "relu_0"),
    ],
    ids=["the first", "a later one"],
)
def test_a_slot_that_is_read_before_its_copy_is_done(
    wait: str, node: str, project: Project
) -> None:
    change(project, "gl_tiles.h", wait, wait.replace("gl_dma_wait_all();\n", "\n"))
    message = fault(project)
    assert f"node '{node}'" in message
    assert "that nobody has waited for" in message
    assert re.search(r"byte \d+ of 'input'", message)


def test_a_table_that_is_used_before_it_is_there(project: Project) -> None:
    change(project, "gl_tiles.h", "        GL_ONE(gl_dma_wait_all());\n", "")
    with pytest.raises(SimError):
        sim.run(project, sanitize=True)


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    "barrier",
    [
        "        gl_dma_wait_all();\n        GL_BARRIER();\n        gl_frame *done",
        "            GL_BARRIER();\n            gl_tiles_prepare(&walk, next",
        "    GL_BARRIER();\n    GL_EACH_CORE(me) { gl_tiles_end(",
        "gl_tiles_end(&walk, me); }\n    GL_BARRIER();\n",
    ],
    ids=["before a tile", "behind a tile", "before the end", "behind the end"],
)
@pytest.mark.parametrize("buffers", ["double", "single"])
def test_a_barrier_that_is_missing(barrier: str, buffers: str, tmp_path: Path) -> None:
    """Found whether a core was late or not. Copies of the next tile need none behind a tile."""
    options = Options(buffers=buffers)
    graph = model_graph("lenet")
    found = device_project(graph, tmp_path / "p", cores=4, options=options, L1="11k")
    change(found, "gl_tiles.h", barrier, barrier.replace("GL_BARRIER();", ""))
    if buffers == "double" and "gl_tiles_prepare" in barrier:
        sim.run(found, sanitize=True)
        return
    assert re.search("barriers were passed|nobody|not its business|which this", fault(found))
