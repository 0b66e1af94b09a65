"""The package as users get it: built, installed into an empty environment, used from elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import gradlet

ROOT = Path(__file__).parent.parent


def run(command: list[str | Path], folder: Path, path: str = os.environ["PATH"]) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from what git knows, through an sdist as a release is."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listing.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", made, source], made)
    assert [path.name for path in made.glob("*.tar.gz")] == [
        f"gradlet-{gradlet.__version__}.tar.gz"
    ]
    return next(made.glob("*.whl"))


@pytest.mark.thorough
def test_a_wheel_works_in_an_empty_environment_without_a_compiler(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    bin_folder = tmp_path / "venv" / "bin"
    constraints = ROOT / "constraints.txt"
    install: list[str | Path] = [bin_folder / "python", "-m", "pip", "install", "--quiet"]
    run([*install, "-c", constraints, f"{wheel}[torch]"], tmp_path)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    program = bin_folder / "gradlet"
    only_here = str(bin_folder)
    run([program, "build", "zoo:tutorial-cnn", "-o", "net", "--json"], folder, only_here)
    trained = json.loads(run([program, "run", "net", "--json"], folder, only_here))
    assert trained["engine"] == "sim"
    assert json.loads(run([program, "verify", "net", "--json"], folder, only_here))["pass"]
