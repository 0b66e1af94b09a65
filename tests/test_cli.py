"""The commands as a person types them: exit codes, messages, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradlet.cli.commands import app
from gradlet.cli.failures import invoke
from tests.test_project import cc

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(4, 6)

def bad_label():
    return *net(), torch.tensor([0, 1, 2, 3])

def with_rrelu():
    return nn.Sequential(nn.Linear(6, 5), nn.Mish(), nn.RReLU()), torch.randn(4, 6)

def poisoned():
    module, x = net()
    module[0].weight.data[0, 0] = float("nan")
    return module, x
"""


def gradlet(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradlet", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def test_build_run_verify(folder: Path) -> None:
    build = gradlet("build", "model.py:net", "-o", "d", "--cores", "2", "--json", folder=folder)
    assert build.returncode == 0, build.stderr
    value = json.loads(build.stdout)
    assert value["project"] == "d"
    assert value["params"] == 6 * 5 + 5 + 5 * 3 + 3
    assert set(value["macs"]) == {"forward", "weight_grad", "input_grad"}
    assert value["target"] == "pulp-open"
    assert 0 < value["memory"]["L1"]["used"] <= value["memory"]["L1"]["size"] == 64 * 1024
    assert value["memory"]["L2"]["used"] == 0
    assert value["memory"]["lower_bound"] > 0
    run = json.loads(gradlet("run", "d", "--steps", "3", "--json", folder=folder).stdout)
    assert run["engine"] == "sim"
    assert len(run["loss"]) == len(run["cycles"]) == 3
    assert {"name", "op", "phase", "kernel", "tile", "cycles", "macs"} <= set(run["nodes"][0])
    assert 0 < sum(node["cycles"] for node in run["nodes"]) <= run["cycles"][-1]
    assert run["mac_per_cycle"] > 0
    assert [core["instructions"] > 0 for core in run["cores"]] == [True, True]
    host = gradlet("run", "d", "--steps", "3", "--engine", "host", "--json", folder=folder)
    assert json.loads(host.stdout)["loss"] == run["loss"]
    assert json.loads(host.stdout)["cycles"] is None
    verify = gradlet("verify", "d", "--json", folder=folder)
    assert verify.returncode == 0
    verdict = json.loads(verify.stdout)
    assert verdict["pass"] is True
    roles = {tensor["role"] for tensor in verdict["tensors"]}
    assert roles >= {"activation", "loss", "gradient", "updated"}
    assert verdict["bit_identical"] == {"host": True, "sim": True}


@pytest.mark.thorough
def test_layout(folder: Path) -> None:
    args = ("build", "zoo:tutorial-cnn", "-o", "d", "--layout", "hwc", "--json")
    build = gradlet(*args, folder=folder)
    assert build.returncode == 0, build.stderr
    assert json.loads(build.stdout)["layout"] == "hwc"
    manifest = json.loads((folder / "d" / "manifest.json").read_text())
    assert manifest["stored"]["0.weight"]["order"] == [0, 2, 3, 1]
    assert gradlet("verify", "d", "--steps", "1", folder=folder).returncode == 0


@pytest.mark.thorough
def test_plain_output_is_for_people(folder: Path) -> None:
    build = gradlet("build", "model.py:net", "-o", "d", folder=folder)
    assert "lower bound" in build.stdout
    run = gradlet("run", "d", folder=folder).stdout
    assert "loss" in run
    assert "cycles" in run
    assert "us" in gradlet("run", "d", "--engine", "host", folder=folder).stdout
    assert gradlet("verify", "d", folder=folder).stdout.rstrip().endswith("PASS")


def test_a_failed_verification_exits_with_1(folder: Path) -> None:
    gradlet("build", "model.py:net", "-o", "d", "--target", "host", folder=folder)
    path = folder / "d" / "gl.h"
    text = path.read_text()
    assert "x <= 0.0f ? 0.0f" in text
    path.write_text(text.replace("x <= 0.0f ? 0.0f", "x <= 0.0f ? 1.0f"))
    verify = gradlet("verify", "d", folder=folder)
    assert verify.returncode == 1
    assert "first wrong node: relu_0" in verify.stdout


BAD = {
    "missing file": (("build", "nothing.py:net", "-o", "d"), "there is no file 'nothing.py'"),
    "missing onnx": (("build", "nothing.onnx", "-o", "d"), "there is no file 'nothing.onnx'"),
    "no model": (("build", "model.py", "-o", "d"), "is no model"),
    "missing name": (("build", "model.py:nothing", "-o", "d"), "defines no 'nothing'"),
    "layout": (("build", "model.py:net", "-o", "d", "--layout", "nhwc"), "are chw, hwc, chw2"),
    "unknown zoo": (("build", "zoo:nothing", "-o", "d"), "the zoo has tutorial-cnn"),
    "wrong shape": (
        ("build", "model.py:net", "-o", "d", "--input", "7"),
        "fails in PyTorch itself",
    ),
    "bad shape": (("build", "model.py:net", "-o", "d", "--input", "3xx"), "3x32x32"),
    "unsupported": (("build", "model.py:with_rrelu", "-o", "d"), "module '2': aten.rrelu"),
    "label": (("build", "model.py:bad_label", "-o", "d"), "labels run from 0 to 3"),
    "NaN": (("build", "model.py:poisoned", "-o", "d"), "parameter '0.weight'"),
    "foreign folder": (("build", "model.py:net", "-o", "."), "nothing was written"),
    "unknown target": (("build", "model.py:net", "-o", "d", "--target", "z80"), "no target 'z80'"),
    "no such memory": (
        ("build", "model.py:net", "-o", "d", "--target", "host", "--l1", "64k"),
        "has no memory L1",
    ),
    "no such setting": (("build", "model.py:net", "-o", "d", "--set", "foo=1"), "no setting 'foo'"),
    "setting": (("build", "model.py:net", "-o", "d", "--set", "fpus=many"), "is a whole number"),
    "setting too large": (("build", "model.py:net", "-o", "d", "--set", "fpus=99"), "1 to 16"),
    "L1 too large": (("build", "model.py:net", "-o", "d", "--l1", "2M"), "256 to 1048576"),
    "L1 too small": (("build", "model.py:net", "-o", "d", "--l1", "1k"), "stacks and code"),
    "too many cores": (("build", "model.py:net", "-o", "d", "--cores", "99"), "between 1 and 16"),
    "bad size": (("build", "model.py:net", "-o", "d", "--l2", "lots"), "is not a size"),
    "bad setting": (("build", "model.py:net", "-o", "d", "--set", "RAM"), "KEY=VALUE"),
    "does not fit": (
        ("build", "zoo:mobilenet-v1-025", "-o", "d"),
        "has 59,392 of L1 and 1,441,792 of L2",
    ),
    "batch": (("build", "model.py:net", "-o", "d", "--batch", "0"), "batch of 0"),
    "loss": (("build", "model.py:net", "-o", "d", "--loss", "magic"), "unknown loss"),
    "dtype": (("build", "model.py:net", "-o", "d", "--dtype", "f8"), "dtype 'f8'"),
    "update": (("build", "model.py:net", "-o", "d", "--update", "9"), "no parameter matches"),
    "data": (("build", "model.py:net", "-o", "d", "--data", "no.npz"), "cannot read 'no.npz'"),
    "no project": (("verify", "."), "is not a Gradlet project"),
    "no project to run": (("run", ".", "--engine", "abacus"), "is not a Gradlet project"),
    "unknown option": (("build", "model.py:net", "-o", "d", "--magic"), "No such option"),
}


SLOW = pytest.mark.thorough


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=SLOW) if c == "does not fit" else c for c in BAD]
)
def test_bad_use_is_one_message_and_status_2(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which is quicker than one for each."""
    arguments, message = BAD[case]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.chdir(folder)
    status = invoke(app, list(arguments), False)
    done = capsys.readouterr()
    assert status == 2, done.err
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert not done.out
    after = {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix != ".pyc" and path.is_file()
    }
    assert {k: v for k, v in after.items() if "__pycache__" not in str(k)} == before


def test_an_error_with_json_is_json(folder: Path) -> None:
    done = gradlet("build", "zoo:nothing", "-o", "d", "--json", folder=folder)
    assert done.returncode == 2
    assert "there is no zoo:nothing" in json.loads(done.stdout)["error"]


def test_doctor(folder: Path) -> None:
    done = gradlet("doctor", "--json", folder=folder)
    assert done.returncode == 0
    findings = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert findings["numpy"]["present"]
    assert findings["C compiler"]["present"]
    assert "needed for" in gradlet("doctor", folder=folder).stdout


@pytest.mark.thorough
def test_toml_model(folder: Path) -> None:
    text = 'name = "tiny"\ninput = [4]\n[training]\nlr = 0.5\n'
    text += '[[layer]]\nop = "linear"\nout = 3\n[[layer]]\nop = "relu"\n'
    (folder / "gradlet.toml").write_text(text)
    done = gradlet("build", "gradlet.toml", "-o", "d", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    verify = gradlet("verify", "d", "--json", folder=folder)
    assert json.loads(verify.stdout)["pass"] is True


@pytest.mark.thorough
def test_engines_that_cannot_run_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    gradlet("build", "model.py:net", "-o", "h", "--target", "host", folder=folder)
    gradlet("build", "model.py:net", "-o", "d", folder=folder)
    for arguments, message in (
        (("run", "d", "--engine", "abacus"), "there is sim, gvsoc, host"),
        (("run", "h", "--engine", "sim"), "built for the target 'host'"),
        (("run", "h", "--engine", "gvsoc"), "built for the target 'host'"),
        (("run", "d", "--engine", "gvsoc", "--gvsoc", "nowhere"), "GVSoC is not here"),
        (("verify", "d", "--engine", "gvsoc"), "verify runs on the engines host and sim"),
    ):
        assert invoke(app, list(arguments), False) == 2
        assert message in " ".join(capsys.readouterr().err.split())


SENTENCES = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(4, 9)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.body(self.words(ids), mask=mask)).transpose(1, 2)

def model():
    ids = torch.arange(12).view(2, 6) % 9
    return Tiny(), ids[:, :-1], ids[:, 1:]
"""


@pytest.mark.thorough
def test_a_small_language_model(tmp_path: Path) -> None:
    """Indices in, words as labels, a causal mask, dropout: nothing that the user has to change."""
    (tmp_path / "tiny.py").write_text(SENTENCES)
    build = gradlet("build", "tiny.py:model", "-o", "d", folder=tmp_path)
    assert build.returncode == 0, build.stderr
    verified = gradlet("verify", "d", "--steps", "3", folder=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    make = ["make", "golden", f"CC={cc()}"]
    golden = subprocess.run(make, cwd=tmp_path / "d", capture_output=True, text=True, check=False)
    assert "PASS" in golden.stdout, golden.stdout + golden.stderr
