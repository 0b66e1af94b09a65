"""gradlet bench: what it measures, checks and says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradlet.kernels import lab as bench
from gradlet.kernels import source
from gradlet.kernels.catalogue import Kernel
from gradlet.targets import target


def gradlet(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradlet", "bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("gemm", "--m", "24", "--n", "20", "--k", "32", "--layout", "tn"),
        ("layer", "linear", "--in", "40", "--out", "24", "--step", "forward", "--batch", "8"),
        (
            *("layer", "conv2d", "--in", "4x6x8", "--out-channels", "4", "--kernel", "3"),
            *("--pad", "1", "--groups", "4", "--step", "input_grad", "--cores", "4"),
        ),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_the_fastest_comes_first(arguments: tuple[str, ...]) -> None:
    done = gradlet(*arguments, "--alignments", "2", "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    rows = value["all"]
    assert value["best"] == {key: rows[0][key] for key in value["best"]}
    assert sorted(value["best"]) == ["cycles", "kernel", "mac_per_cycle", "range"]
    assert [row["cycles"] for row in rows] == sorted(row["cycles"] for row in rows)
    assert any(row["kernel"].endswith("__ref") for row in rows)
    assert "ref" not in value["best"]["kernel"]
    for row in rows:
        low, high = row["range"]
        assert low <= row["cycles"] <= high
        assert row["mac_per_cycle"] == pytest.approx(value["macs"] / row["cycles"], abs=1e-3)
        assert 0 < row["issue_limit"] < 1
        assert row["same_bits"]
        assert row["right"]


def test_plain_output_is_for_people() -> None:
    done = gradlet("gemm", "--m", "16", "--n", "16", "--k", "16", "--alignments", "1")
    assert done.returncode == 0, done.stderr
    first, heads, *rows = done.stdout.splitlines()
    assert "4,096 multiply-adds on 8 cores" in first
    assert "MAC/cycle" in heads
    assert "of issue limit" in heads
    assert rows[-1].startswith("gl_f32_gemm_nn__ref")


CONV = ("layer", "conv2d", "--in", "4x6x8", "--out-channels", "4", "--kernel", "3")
LINEAR = ("layer", "linear", "--in", "8", "--out", "4")
BAD = {
    "size": (("gemm", "--m", "0", "--n", "4", "--k", "4"), "--m 0: it must be 1 or more"),
    "layout": (("gemm", "--m", "4", "--n", "4", "--k", "4", "--layout", "tt"), "nn, nt, tn"),
    "dtype": (("gemm", "--m", "4", "--n", "4", "--k", "4", "--dtype", "f8"), "f32, f16, bf16"),
    "no room": (("gemm", "--m", "99", "--n", "99", "--k", "99"), "--l1 "),
    "update": ((*LINEAR, "--step", "weight_grad", "--update", "adam"), "sgd, momentum, sum"),
    "features": (("layer", "linear", "--in", "0", "--out", "4", "--step", "forward"), "--in 0"),
    "step": ((*CONV, "--step", "sideways"), "forward, weight_grad, input_grad"),
    "shape": (
        (
            "layer",
            "conv2d",
            "--in",
            "4x6",
            "--out-channels",
            "4",
            "--kernel",
            "3",
            "--step",
            "forward",
        ),
        "write it as CxHxW",
    ),
    "kernel": (
        (
            "layer",
            "conv2d",
            "--in",
            "4x6x8",
            "--out-channels",
            "4",
            "--kernel",
            "0",
            "--step",
            "forward",
        ),
        "write it as K or HxW",
    ),
    "groups": ((*CONV, "--step", "forward", "--groups", "3"), "cannot be split into 3 groups"),
    "too small": (
        (
            "layer",
            "conv2d",
            "--in",
            "4x2x2",
            "--out-channels",
            "4",
            "--kernel",
            "5",
            "--step",
            "forward",
        ),
        "no output",
    ),
    "alignments": ((*CONV, "--step", "forward", "--alignments", "0"), "--alignments 0"),
    "target": ((*CONV, "--step", "forward", "--target", "host"), "has one"),
    "cores": ((*CONV, "--step", "forward", "--cores", "99"), "between 1 and 16"),
    "nothing": (("gemm",), "Missing option"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_use_is_one_message_and_status_2(case: str) -> None:
    arguments, message = BAD[case]
    done = gradlet(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_wrong_values_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assembler and a C reference that forgets the last term do not have the same bits."""
    case = bench.gemm(5, 6, 7)
    good = source.render

    def forgetful(kernel: Kernel, prefix: str = "gl") -> str:
        return good(kernel, prefix).replace("p < k", "p < k - 1")

    monkeypatch.setattr(source, "render", forgetful)
    report = bench.measure(case, target.load("pulp-open"), alignments=1)
    unlike = [row.kernel for row in report.rows if not row.same_bits]
    assert unlike
    assert "gl_f32_gemm_nn__ref" not in unlike
    assert not report.passed


def test_the_tolerance_is_no_blank_cheque() -> None:
    case = bench.conv2d((3, 6, 5), 4, (3, 3), (1, 1), (1, 1, 1, 1), 1, 1, "forward")
    off = replace(case, expected=case.expected + 1e-3)
    assert float(np.max(case.tolerance)) < 1e-3
    assert not bench.measure(off, target.load("pulp-open"), alignments=1).passed


def test_a_model_that_takes_too_long_has_a_row_that_says_so(tmp_path: Path) -> None:
    """The commands of bench/tool_speed.py end with all that they have started."""
    script = Path(__file__).parent.parent / "bench" / "tool_speed.py"
    code = (
        f"import sys, json; sys.path.insert(0, {str(script.parent)!r}); import tool_speed;"
        f"from pathlib import Path; folder = Path({str(tmp_path)!r});"
        "print(json.dumps(tool_speed.measure('dense', folder, 0.5)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    row = json.loads(done.stdout)
    assert row["outcome"] == "stopped in build (cold) after 0 s"
    assert "build_status" not in row
