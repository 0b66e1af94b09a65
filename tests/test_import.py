"""What loads when: the package and its help answer at once, since they load hardly anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gradlet
from gradlet.cli import bench as cli_bench
from gradlet.cli import options as cli_options
from gradlet.cli import tune as cli_tune
from gradlet.kernels import lab as bench
from gradlet.ops.learning.labels import LOSSES
from gradlet.tuner.tune import Settings

HEAVY = ("torch", "onnx", "numpy", "jinja2", "cffi", "gradlet.ops", "gradlet.planner.planner")


def loaded(code: str) -> set[str]:
    """The modules that a new process has after this code."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_package_loads_little() -> None:
    assert not loaded("import gradlet").intersection(HEAVY)


@pytest.mark.parametrize("words", [["--help"], ["build", "--help"], ["tune", "--help"]])
def test_help_loads_little(words: list[str]) -> None:
    code = f"from gradlet.cli.commands import app\ntry: app({words})\nexcept SystemExit: pass"
    assert not loaded(code).intersection(HEAVY)


def test_help_says_what_holds() -> None:
    """Its numbers and names stand apart from what they are, which takes long to load."""
    assert ", ".join(LOSSES) == cli_options.LOSSES
    assert Settings.keep == cli_tune.KEEP
    assert cli_bench.ALIGNMENTS == bench.ALIGNMENTS


def test_no_verb_has_the_name_of_a_room() -> None:
    """So that a verb stays one, whatever is imported."""
    package = Path(gradlet.__file__).parent
    for name in gradlet.__all__:
        assert not (package / name).exists(), name
        assert not (package / f"{name}.py").exists(), name


def test_verbs_are_found() -> None:
    code = "import gradlet\nfrom gradlet import verify\n"
    code += "assert callable(gradlet.plan) and callable(gradlet.train) and callable(verify)\n"
    code += "assert {'build', 'plan', 'Recipe', 'GradletError'} <= set(dir(gradlet))"
    assert "gradlet.api" in loaded(code)
