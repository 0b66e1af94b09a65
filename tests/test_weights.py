"""The numbers of a project: once in a binary file, which the program, plan.json and C agree on."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.codegen.project import Project
from gradlet.codegen.regions import regions
from gradlet.engines import host
from gradlet.errors import GradletError
from gradlet.ir.graph import Array
from gradlet.ir.recipe import Recipe
from gradlet.planner.planner import Plan, plan
from gradlet.support import compiler
from gradlet.targets.target import load
from tests.models import MODELS

WAYS = [(), ("WEIGHTS=c",)]
BUILDERS = ["make", *(["cmake"] if shutil.which("cmake") else [])]


def planned(name: str = "lenet") -> Plan:
    if name == "words":  # the state of dropout is of integers
        network = nn.Sequential(nn.Embedding(9, 4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 3))
        captured = gradlet.capture(network, (torch.randint(0, 9, (2, 3)),), name=name)
    else:
        captured = gradlet.capture(*MODELS[name](), name=name)
    return plan(training_graph(captured, Recipe(loss="mse")), load("host"))


def odd_numbers(given: Plan) -> Plan:
    """The same with numbers that are hard to write down in the first of its weights."""
    odd = [np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4028235e38, 1 / 3, -1e-30, 16777216.0]
    data = dict(given.graph.data)
    name = given.graph.trained[0]
    value = data[name].copy()
    value.reshape(-1)[: len(odd)] = odd[: value.size]
    return replace(given, graph=replace(given.graph, data={**data, name: value}))


def arrays_of(
    project: Project, folder: Path, tool: compiler.Compiler, *, in_c: bool
) -> list[bytes]:
    """What a library of weights.c holds, array by array."""
    folder.mkdir()
    if in_c:
        host.write_weights(project, folder)
    source = project.folder / "weights.c"
    library = ctypes.CDLL(
        str(
            compiler.build_library(
                [source],
                folder / "weights.so",
                include=[project.folder, folder],
                defines={source: ["GL_WEIGHTS_IN_C"] if in_c else []},
                compiler=tool,
            )
        )
    )
    return [
        bytes((ctypes.c_char * region["bytes"]).in_dll(library, f"net_{region['name']}"))
        for region in regions(project.plan)
    ]


@pytest.mark.parametrize("name", ["lenet", "words"])
def test_the_assembler_and_c_hold_the_same_bytes(name: str, tmp_path: Path) -> None:
    """With every compiler; integers among the floats, and numbers that are none, too."""
    from gradlet.codegen.golden import made_up
    from gradlet.codegen.project import project_files
    from gradlet.oracle.recording import Recording

    given = odd_numbers(planned(name))
    project = Project(tmp_path / "p", given)
    for path, content in project_files(given, Recording(), made_up(given)).items():
        (tmp_path / "p" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / path).write_bytes(content)
    blob = (tmp_path / "p" / "net_weights.bin").read_bytes()
    wanted = [blob[r["first"] : r["first"] + r["bytes"]] for r in regions(given)]
    assert sum(map(len, wanted)) > 0
    for index, tool in enumerate(compiler.available()):
        for in_c in (False, True):
            found = arrays_of(project, tmp_path / f"{index}{in_c}", tool, in_c=in_c)
            assert found == wanted, (tool.name, in_c)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("builder", BUILDERS)
def test_the_golden_program_passes_either_way(
    way: tuple[str, ...], builder: str, tmp_path: Path
) -> None:
    folder = gradlet.emit(planned(), tmp_path / "p").folder
    tool = compiler.system() or compiler.zig()
    assert tool is not None
    if builder == "make":
        options = [f"CC={' '.join(tool.command)}", "CFLAGS=-O1", f"PYTHON={sys.executable}"]
        commands = [["make", "--no-print-directory", "golden", *options, *way]]
    else:
        option = f"-DGL_WEIGHTS_IN_C={'ON' if way else 'OFF'}"
        commands = [
            ["cmake", "-S", ".", "-B", "b", option],
            ["cmake", "--build", "b"],
            ["b/golden"],
        ]
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("PASS")
    assert bool(list(folder.rglob("net_weights.h"))) == bool(way)


def test_a_plan_comes_back_with_all_its_numbers(tmp_path: Path) -> None:
    given = planned("words")
    again = gradlet.load(gradlet.emit(given, tmp_path / "p").folder).plan
    assert again == given

    def same(one: dict[str, Array], other: dict[str, Array]) -> None:
        assert list(one) == list(other)
        for name, value in one.items():
            assert value.dtype == other[name].dtype, name
            assert value.shape == other[name].shape, name
            assert value.tobytes() == other[name].tobytes(), name

    same(dict(given.graph.data), dict(again.graph.data))
    same(dict(given.graph.samples), dict(again.graph.samples))


def test_every_number_is_in_the_project_once(tmp_path: Path) -> None:
    folder = gradlet.emit(planned(), tmp_path / "p").folder
    value = json.loads((folder / "plan.json").read_text())
    listed = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in value["files"]
    }
    assert value["files"] == listed
    entries = [*value["graph"]["data"].values(), *value["graph"]["samples"].values()]
    assert {entry["file"] for entry in entries} == set(listed) == {"net_weights.bin", "plan.bin"}
    weights = sum(np.prod(e["shape"], dtype=int) * 4 for e in value["graph"]["data"].values())
    assert weights <= (folder / "net_weights.bin").stat().st_size < weights + 1024
    assert (folder / "plan.json").stat().st_size < 60_000


@pytest.mark.parametrize("name", ["net_weights.bin", "plan.bin"])
@pytest.mark.parametrize("gone", [False, True])
def test_changed_numbers_are_refused(name: str, gone: bool, tmp_path: Path) -> None:
    folder = gradlet.emit(planned(), tmp_path / "p").folder
    content = bytearray((folder / name).read_bytes())
    content[5] ^= 1
    (folder / name).unlink() if gone else (folder / name).write_bytes(content)
    with pytest.raises(GradletError, match=f"cannot be trusted: {name} was edited or deleted"):
        gradlet.load(folder)


def test_a_project_with_other_weights_is_another_build(tmp_path: Path) -> None:
    given = planned()
    project = gradlet.emit(given, tmp_path / "p")
    assert not project.changes
    data = {
        **given.graph.data,
        given.graph.trained[0]: given.graph.data[given.graph.trained[0]] + 1,
    }
    gradlet.emit(replace(given, graph=replace(given.graph, data=data)), tmp_path / "p")
    assert project.changes == ("plan.json (of another build)",)


def test_other_weights_are_not_taken_from_the_cache(tmp_path: Path) -> None:
    """weights.c names the digest of the file, as compilers have caches of their own; our own cache
    looks at the file as well."""
    given = planned()
    first = gradlet.emit(given, tmp_path / "p")
    tool = compiler.default()
    before = arrays_of(first, tmp_path / "a", tool, in_c=False)
    text = (first.folder / "weights.c").read_text()
    blob = first.folder / "net_weights.bin"
    assert hashlib.sha256(blob.read_bytes()).hexdigest() in text
    blob.write_bytes(bytes(byte ^ 1 for byte in blob.read_bytes()))
    after = arrays_of(first, tmp_path / "b", tool, in_c=False)
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_large_weights_are_not_kept_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = gradlet.emit(planned(), tmp_path / "p")
    monkeypatch.setenv("GRADLET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "LARGE", 16)
    small = arrays_of(project, tmp_path / "a", compiler.default(), in_c=False)
    assert not list((tmp_path / "cache").rglob("*.o"))
    monkeypatch.undo()
    assert small == arrays_of(project, tmp_path / "b", compiler.default(), in_c=False)
