"""The project that comes out: it builds by itself, links beside another, and spoils nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.codegen.names import identifiers, literal
from gradlet.codegen.project import Project
from gradlet.errors import GradletError, InternalError
from gradlet.ir.recipe import Recipe
from gradlet.support import compiler
from tests.models import MODELS


def built(folder: Path, name: str = "lenet", prefix: str = "net", **recipe: int) -> Project:
    captured = gradlet.capture(*MODELS[name](), name=name)
    graph = training_graph(captured, Recipe(**recipe))  # type: ignore[arg-type]
    from gradlet.planner.planner import plan
    from gradlet.targets.target import load

    return gradlet.emit(plan(graph, load("host", cores=2), prefix=prefix), folder)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cc() -> str:
    """A compiler that links with libc: what a user would name on make's command line."""
    tool = compiler.system() or compiler.zig()
    assert tool is not None
    return " ".join(tool.command)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_make_golden_prints_pass(accumulate: int, tmp_path: Path) -> None:
    project = built(tmp_path / "p", accumulate=accumulate)
    text = run(
        ["make", "--no-print-directory", "golden", f"CC={cc()}", "CFLAGS=-O1"], project.folder
    )
    assert text.rstrip().endswith("PASS")
    assert "FAIL" not in text
    golden = (project.folder / "golden.h").read_text()
    tensors = re.search(r"#define GOLDEN_CHECKS (\d+)", golden)
    assert tensors is not None
    assert f"of {tensors.group(1)} tensors checked" in text


def test_make_golden_fails_on_a_broken_kernel(tmp_path: Path) -> None:
    project = built(tmp_path / "p")
    (path,) = project.folder.glob("kernels/*conv2d_forward_relu__*.c")
    path.write_text(path.read_text().replace("gl_relu(", "0.5f + gl_relu("))
    done = subprocess.run(
        ["make", "--no-print-directory", "golden", f"CC={cc()}", "CFLAGS=-O1"],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "first wrong value: relu_0" in done.stdout
    assert "FAIL" in done.stdout


def test_make_builds_a_library(tmp_path: Path) -> None:
    folder = built(tmp_path / "p").folder
    tool = compiler.zig()
    archiver = "ar" if shutil.which("ar") else f"{sys.executable} -m ziglang ar"
    assert tool is not None
    run(["make", f"CC={cc()}", f"AR={archiver}", "CFLAGS=-O1"], folder)
    assert (folder / "libnet.a").stat().st_size > 0


def test_golden_py_computes_the_same_bytes_with_torch(tmp_path: Path) -> None:
    folder = built(tmp_path / "p").folder
    before = (folder / "golden.h").read_bytes()
    assert "largest relative difference" in run([sys.executable, "golden.py"], folder)
    run([sys.executable, "golden.py", "--write"], folder)
    assert (folder / "golden.h").read_bytes() == before


def test_golden_py_notices_a_change(tmp_path: Path) -> None:
    folder = built(tmp_path / "p").folder
    path = folder / "golden.h"
    begin = path.read_text().index("/* begin golden_expected */")
    head, tail = path.read_text()[:begin], path.read_text()[begin:]
    first = tail.index("{") + 6
    path.write_text(head + tail[:first] + "9" + tail[first:])
    done = subprocess.run(
        [sys.executable, "golden.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1


BOTH = """
#include <stdio.h>
#include "one.h"
#include "two.h"
int main(void)
{
    for (int i = 0; i < ONE_INPUT_ELEMENTS; ++i) one_input()[i] = 1.0f;
    for (int i = 0; i < ONE_TARGET_ELEMENTS; ++i) one_target()[i] = 0;
    for (int i = 0; i < TWO_INPUT_ELEMENTS; ++i) two_input()[i] = 1.0f;
    for (int i = 0; i < TWO_TARGET_ELEMENTS; ++i) two_target()[i] = 0;
    one_set_learning_rate(0.5f);
    const float a = one_train_step(), b = two_train_step();
    two_predict();
    printf("%d %d %s\\n", a == b, ONE_PARAMETERS, two_parameters[0].name);
    return 0;
}
"""


def test_two_networks_link_together(tmp_path: Path) -> None:
    """The same kernels in both, under different names."""
    sources, include = [tmp_path / "both.c"], []
    sources[0].write_text(BOTH)
    for prefix in ("one", "two"):
        folder = built(tmp_path / prefix, prefix=prefix).folder
        include.append(f"-I{folder}")
        sources += [folder / f"{prefix}.c", *folder.glob("kernels/*.c")]
        weights = tmp_path / f"{prefix}_weights.c"
        weights.write_text((folder / "weights.c").read_text())
        sources.append(weights)
    command = [
        *cc().split(),
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Wsign-conversion",
        "-Werror",
        "-O1",
        *include,
    ]
    run([*command, *map(str, sources), "-lm", "-o", "both"], tmp_path)
    assert run(["./both"], tmp_path).split() == ["1", "8", "0.weight"]


def test_manifest_lists_what_is_there(tmp_path: Path) -> None:
    project = built(tmp_path / "p")
    manifest = project.manifest
    files = {
        str(path.relative_to(project.folder))
        for path in project.folder.rglob("*")
        if path.is_file()
    }
    assert files == {*manifest["files"], "manifest.json"}
    kernels = {path.stem for path in project.folder.glob("kernels/*.c")}
    assert kernels == {name.replace("gl_", "net_", 1) for name in manifest["kernels"]}


def test_building_again_removes_only_our_own_leftovers(tmp_path: Path) -> None:
    folder = built(tmp_path / "p").folder
    (folder / "notes.txt").write_text("mine")
    (folder / "kernels" / "own.c").write_text("/* mine */")
    built(folder, name="two_inputs")
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "kernels" / "own.c").exists()
    assert not list(folder.glob("kernels/*pool*"))
    assert not [path for path in tmp_path.iterdir() if path != folder], "no staging is left"


@pytest.mark.parametrize("kind", ["files", "a file"])
def test_a_folder_that_is_not_ours_is_left_alone(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    if kind == "files":
        folder.mkdir()
        (folder / "thesis.tex").write_text("all my work")
    else:
        folder.write_text("all my work")
    with pytest.raises(GradletError, match=r"is not a Gradlet project|is a file"):
        gradlet.build("zoo:tutorial-cnn", folder)
    kept = folder / "thesis.tex" if kind == "files" else folder
    assert kept.read_text() == "all my work"


def test_a_full_disk_leaves_the_old_project_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built(tmp_path / "p").folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name == "weights.c":
            raise OSError(28, os.strerror(28), str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(GradletError, match="No space left on device"):
        built(folder, name="two_inputs")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("plan.json", "{}", "cannot be trusted: plan.json was edited or deleted.*--force"),
        ("module.npz", "", "cannot be trusted: module.npz was edited or deleted.*--force"),
        ("plan.json", None, "cannot be trusted: plan.json was edited or deleted.*--force"),
        ("manifest.json", None, "is not a Gradlet project: there is no manifest.json"),
        (
            "manifest.json",
            "not json",
            "is not a Gradlet project: its manifest.json is not readable",
        ),
        ("manifest.json", '{"name": "app"}', "manifest.json is not one of Gradlet's"),
        ("manifest.json", '{"made_by": "gradlet"}', "manifest.json was edited after the build"),
    ],
)
def test_a_damaged_project_is_named(
    name: str, text: str | None, message: str, tmp_path: Path
) -> None:
    folder = built(tmp_path / "p", name="two_inputs").folder
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(GradletError, match=message):
        gradlet.load(folder)


def test_an_edited_project_runs_and_passes_only_as_edited(tmp_path: Path) -> None:
    project = built(tmp_path / "p", name="two_inputs")
    with (project.folder / "net.c").open("a") as file:
        file.write("/* mine */\n")
    loaded = gradlet.load(project.folder)
    assert loaded.changes == ("net.c (edited)",)
    assert gradlet.run(loaded, steps=1).loss
    for edited in (False, True):
        verdict = gradlet.verify(loaded, steps=1, edited=edited)
        assert all(tensor.passed for tensor in verdict.tensors)
        assert verdict.passed == edited
        assert verdict.to_json()["changes"] == ["net.c (edited)"]
    with pytest.raises(GradletError, match=r"net\.c\. Nothing was written"):
        built(project.folder, name="two_inputs")


@pytest.mark.parametrize(
    ("old", "new"),
    [("", "not C;"), ("net_train_step", "my_train_step"), ("{", "{ __builtin_trap();")],
)
def test_an_edit_that_breaks_a_project_is_no_fault_of_ours(
    old: str, new: str, tmp_path: Path
) -> None:
    project = built(tmp_path / "p", name="two_inputs")
    source = project.folder / "net.c"
    source.write_text(source.read_text().replace(old, new) if old else new)
    for judged in (gradlet.run, gradlet.verify):
        with pytest.raises(GradletError, match=r"net\.c \(edited\)\. Put back") as told:
            judged(gradlet.load(project.folder), steps=1)
        assert not isinstance(told.value, InternalError)
        assert "Traceback" not in str(told.value)


def test_a_project_that_was_built_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    project = built(tmp_path / "p", name="two_inputs")
    built(project.folder, name="lenet")
    assert project.changes == ("plan.json (of another build)",)


def test_odd_parameter_names_become_c_names(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.int = nn.Linear(3, 3)
            self.s = nn.Linear(3, 3)
            self.register_parameter("batch", nn.Parameter(torch.ones(3)))
            self.register_parameter("s_weight", nn.Parameter(torch.ones(3)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.s(self.int(x)) + self.batch + self.s_weight
            return y

    captured = gradlet.capture(Odd(), (torch.randn(2, 3),), name="*/ #include <evil>")
    from gradlet.planner.planner import plan
    from gradlet.targets.target import load

    graph = training_graph(captured)
    verdict = gradlet.verify(gradlet.emit(plan(graph, load("host")), tmp_path / "p"), steps=2)
    assert verdict.passed


def test_identifiers_are_distinct() -> None:
    names = identifiers(["a.b", "a_b", "a-b", "x", ""])
    assert len(set(names.values())) == 5


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 1e-45, 3.4e38, 1 / 3, -1e-30, 16777216.0])
def test_literals_read_back(value: float) -> None:
    text = literal(float(np.float32(value)))
    assert text.endswith("f")
    assert np.float32(text.rstrip("f")) == np.float32(value)


def test_plan_json_is_whole(tmp_path: Path) -> None:
    project = built(tmp_path / "p")
    value = json.loads((project.folder / "plan.json").read_text())
    assert set(value) == {"prefix", "target", "calls", "buffers", "graph", "files"}
    assert gradlet.load(project.folder).plan == project.plan
