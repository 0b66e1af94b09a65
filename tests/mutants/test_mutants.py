"""A few mutations of every run of the tests, and what the mutator itself does."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.mutants.campaign import PACKAGE
from tests.mutants.sites import Site, sites
from tests.mutants.trial import change_of, steady


@pytest.mark.thorough
def test_a_sample_of_faults_is_seen(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.mutants", "--count", "5", "--jobs", "1"]
    command += ["--model", "lenet", "--model", "cluster residual", "--json", str(found)]
    command += ["--group", "gradients (vjp)", "--group", "C kernels", "--group", "generators"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = json.loads(found.read_text())["kinds"]
    assert kinds.get("caught", 0) + kinds.get("refused", 0) >= 2, done.stderr


@pytest.mark.parametrize(
    "file", ["ops/matmul.py", "training/autodiff.py", "kernels/xpulp/gemm/block.py"]
)
def test_every_mutation_of_python_is_python_and_another_program(file: str) -> None:
    text = (PACKAGE / file).read_text()
    before = ast.dump(ast.parse(text))
    found = sites(PACKAGE, file)
    assert len(found) > 20
    for site in found:
        assert ast.dump(ast.parse(site.applied_to(text))) != before, str(site)


def test_comments_of_c_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "k.c.j2").write_text("/* a + b */\nx = y + z; // 1 - 2\n{# a * b #}\n")
    found = sites(tmp_path, "k.c.j2")
    assert [str(site) for site in found] == ["k.c.j2:2:6: ' + ' -> ' - '"]


def test_a_site_knows_when_the_file_has_changed() -> None:
    with pytest.raises(AssertionError, match="has changed"):
        Site("f.py", 1, 1, "f", 0, "a + b", "(a - b)").applied_to("x + y")


def test_a_change_is_measured_against_the_largest_value() -> None:
    before = {"w": np.array([1.0, 100.0])}
    assert change_of(before, {"w": np.array([1.0, 101.0])}) == pytest.approx(0.01)
    assert change_of(before, {"v": np.array([1.0])}) == float("inf")
    assert change_of(before, {"w": np.array([1.0, np.nan])}) == float("inf")
    exact_zero = {"w": np.array([1.0]), "bias of keys": np.array([1e-9])}
    assert change_of(exact_zero, {**exact_zero, "bias of keys": np.array([-1e-9])}) < 1e-3


def test_what_rounding_moves_tells_nothing() -> None:
    values = {"w": np.array([1.0, 2.0]), "bias of keys": np.array([1e-3, -1e-3])}
    twin = {"w": np.array([1.0, 2.0000002]), "bias of keys": np.array([-1e-3, -1e-3])}
    assert steady(values, twin).keys() == {"w"}


@pytest.mark.thorough
def test_a_campaign_goes_on_and_tries_again_what_nobody_saw(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.mutants", "--jobs", "1", "--json", str(found)]
    command += ["--model", "lenet", "--group", "gradients (vjp)", "--tries", "1"]
    subprocess.run([*command, "--count", "2"], capture_output=True, check=True)
    rows = json.loads(found.read_text())["mutations"]
    stands = [row for row in rows if row["kind"] not in ("equivalent", "missed")]
    subprocess.run([*command, "--count", "3", "--resume"], capture_output=True, check=True)
    after = json.loads(found.read_text())["mutations"]
    assert all(row in after for row in stands)
    assert len({row["site"] for row in after}) == len(after) > len(stands)
