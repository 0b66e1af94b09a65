"""The front door: bad input of every kind is one sentence, and a fault of our own says so."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.cli import failures as cli_errors
from gradlet.cli.commands import app
from gradlet.errors import GradletError, InternalError
from gradlet.sim import SimConfig, SimError
from gradlet.sim.binding import Machine
from gradlet.sim.config import LIMITS
from gradlet.targets.target import load, simulator_options
from tests.bad_input import cases, outcome

SAMPLE = 45
ALWAYS: tuple[str, ...] = (
    "model out_dict",
    "model exits",
    "model exits_hard",
    "model fails_hard",
    "model keeps_list",
    "model large",
    "model strings",
)
ALWAYS += ("model prints", "--prefix 'main'", "--l1=inf", "data: overflow", "data: fewer targets")
ALWAYS += ("model out_half", "model out_param", "model out_nan", "build exits.py:net -o d")
ALWAYS += ("build leaves.py:net -o d", "model input_nested")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_bad_input_is_one_sentence(folder: Path) -> None:
    """A sample of `python -m tests.bad_input`, and what was wrong once."""
    found = list(cases(folder))
    chosen = [case for case in found if case.name in ALWAYS]
    assert len(chosen) == len(ALWAYS)
    chosen += random.Random(1).sample(found, SAMPLE)
    faults = {case.name: fault for case in chosen if (fault := outcome(case))}
    assert not faults


def fails(error: BaseException, capsys: pytest.CaptureFixture[str], **options: Any) -> Any:
    """Status, JSON and text of a command that ends with this."""

    def command(**_: Any) -> int:
        raise error

    with pytest.raises(BaseException) as ended:  # noqa: PT011
        cli_errors.guarded(command)(json_=True, **options)
    said = capsys.readouterr()
    return ended.value.exit_code, json.loads(said.out), said.err  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GradletError("yours"), 2),
        (InternalError("plan is not sound"), 3),
        (SimError("core 3 jumps to nowhere"), 3),
        (AssertionError("must be"), 3),
        (KeyError("name"), 3),
        (RecursionError("deep"), 3),
        (MemoryError("4 TB"), 2),
        (PermissionError(13, "Permission denied", "d"), 2),
        (OSError(28, "No space left on device"), 2),
        (OSError("a bare one"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_whose_fault_it_is(
    error: BaseException, status: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "m.py").write_text("MODEL = 1\n")
    code, value, text = fails(error, capsys, model="m.py:MODEL")
    assert code == value["exit_status"] == status
    assert "Traceback" not in text
    assert ("internal error" in text) == (status == 3)
    if status == 3:
        report = Path(value["report"]).read_text()
        assert "Traceback" in report
        assert "MODEL = 1" in report
        assert "numpy" in report
        assert str(value["report"]) in text.replace("\n", "")


def test_a_program_of_the_users_own_that_fails_is_no_fault_of_ours(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(SimError("it jumps to nowhere"), capsys, program="x.elf")[0] == 1


def test_text_is_never_markup(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold]x[/] [/] :smile: last:-1: \udcff"
    _, value, said = fails(GradletError(text), capsys)
    assert value["error"] == text
    assert text[:-1] in said


def command(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gradlet", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_a_model_that_prints_does_not_spoil_the_json(folder: Path) -> None:
    """Neither Python, nor a process of its own, nor what it does at the very end."""
    (folder / "m.py").write_text(
        "import atexit, os, torch\n"
        "print('{')\nos.system('echo [')\nos.write(1, b']')\natexit.register(print, 'late')\n"
        "def net(): return torch.nn.Linear(4, 3), torch.randn(2, 4), torch.tensor([0, 7])\n"
    )
    name = os.fsdecode(b"[bold]\xff:smile:")
    done = command("build", "m.py:net", "-o", name, "--json")
    out, err = done.communicate()
    assert done.returncode == 2
    assert "labels run from 0 to 7" in json.loads(out)["error"]
    assert b"late" in err
    assert b"Traceback" not in err


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)
at = sys.argv[1]
sys.meta_path.insert(0, Finder())
sys.argv = ["gradlet", "build", "m.py:net", "-o", "d", "--json"]
runpy.run_module("gradlet", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["numpy", "typer", "rich.table", "torch", "of_the_user"])
def test_an_interruption_is_one_line(module: str, folder: Path) -> None:
    """During the imports of the package, of PyTorch, or in the user's own code."""
    (folder / "m.py").write_text("import of_the_user\n")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module], capture_output=True, check=False
    )
    assert done.returncode == 130
    assert done.stderr == b"interrupted\n"
    assert json.loads(done.stdout)["exit_status"] == 130


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_settings_are_judged_as_the_simulator_judges_them(name: str) -> None:
    low, high, grain = LIMITS[name]
    usual = SimConfig.load()
    for value in (low, high):
        with_it = {name: value}
        if "sets" in name or "ways" in name:  # their product is limited too
            other = name.replace("sets", "ways") if "sets" in name else name.replace("ways", "sets")
            with_it = {name: value, other: 1}
        config = usual.with_settings(with_it)
        if name in ("l1_bytes", "l2_bytes", "l3_bytes"):
            continue  # as much memory as that is not needed here
        Machine(config).close()
    for value in (low - grain, high + grain, -(2**40), 2**40):
        with pytest.raises(GradletError, match=name):
            usual.with_settings({name: value})
    record = dict(usual.__dict__, **{name: high + grain})
    with pytest.raises(GradletError, match="out of range"):
        Machine(SimConfig(**record))


def test_the_readme_says_how_to_simulate(tmp_path: Path) -> None:
    settings: dict[str, str | int] = {"L1": "128k", "contention": "off", "l2_latency": 20}
    target = load("pulp-open", cores=4, sizes=settings)
    words = simulator_options(target)
    pairs = dict(word.split("=") for word in words if "=" in word)
    config = SimConfig.load("pulp-open", {**pairs, "cores": words[words.index("--cores") + 1]})
    assert {k: int(v) for k, v in config.__dict__.items()} == dict(target.machine)


def test_samples_of_several_inputs(folder: Path) -> None:
    """An input that is called `targets` has a name of its own in the file."""
    (folder / "m.py").write_text(
        "import torch\nclass Two(torch.nn.Bilinear):\n"
        "    def forward(self, x, targets): return super().forward(x, targets)\n"
        "def net(): return Two(2, 2, 3), (torch.randn(2, 2), torch.randn(2, 2))\n"
    )
    x = np.ones((2, 2), np.float32)
    arrays: dict[str, Any] = {"x": x, "input.targets": 2 * x, "targets": np.array([2, 0])}
    np.savez("d.npz", **arrays)
    arguments = ["build", "m.py:net", "-o", "d", "--data", "d.npz", "--target", "host"]
    assert cli_errors.invoke(app, arguments, False) == 0
    graph = json.loads((folder / "d" / "plan.json").read_text())["graph"]
    assert {name: value["shape"][1:] for name, value in graph["samples"].items()} == {
        "x": [2, 2],
        "targets": [2, 2],
        "target": [2],
    }
