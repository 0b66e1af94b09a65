"""The commands as a person types them: exit codes, messages, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(4, 6)

def bad_label():
    return *net(), torch.tensor([0, 1, 2, 3])

def with_gelu():
    return nn.Sequential(nn.Linear(6, 5), nn.Mish(), nn.Softshrink()), torch.randn(4, 6)

def poisoned():
    module, x = net()
    module[0].weight.data[0, 0] = float("nan")
    return module, x
"""


def gradlet(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradlet.cli", *arguments],
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
    assert value["memory"]["RAM"]["used"] <= value["memory"]["RAM"]["size"]
    assert value["memory"]["lower_bound"] > 0
    run = json.loads(gradlet("run", "d", "--steps", "3", "--json", folder=folder).stdout)
    assert run["engine"] == "host"
    assert len(run["loss"]) == 3
    assert {"name", "op", "phase", "kernel", "tile", "cycles", "macs"} <= set(run["nodes"][0])
    verify = gradlet("verify", "d", "--json", folder=folder)
    assert verify.returncode == 0
    verdict = json.loads(verify.stdout)
    assert verdict["pass"] is True
    roles = {tensor["role"] for tensor in verdict["tensors"]}
    assert roles >= {"activation", "loss", "gradient", "updated"}


def test_plain_output_is_for_people(folder: Path) -> None:
    build = gradlet("build", "model.py:net", "-o", "d", folder=folder)
    assert "lower bound" in build.stdout
    assert "loss" in gradlet("run", "d", folder=folder).stdout
    assert gradlet("verify", "d", folder=folder).stdout.rstrip().endswith("PASS")


def test_a_failed_verification_exits_with_1(folder: Path) -> None:
    gradlet("build", "model.py:net", "-o", "d", folder=folder)
    (path,) = (folder / "d" / "kernels").glob("*relu__ref.c")
    path.write_text(path.read_text().replace("? 0.0f", "? 1.0f"))
    verify = gradlet("verify", "d", folder=folder)
    assert verify.returncode == 1
    assert "first wrong node: relu_0" in verify.stdout


BAD = {
    "missing file": (("build", "nothing.py:net", "-o", "d"), "there is no file 'nothing.py'"),
    "missing onnx": (("build", "nothing.onnx", "-o", "d"), "there is no file 'nothing.onnx'"),
    "no model": (("build", "model.py", "-o", "d"), "is no model"),
    "missing name": (("build", "model.py:nothing", "-o", "d"), "defines no 'nothing'"),
    "unknown zoo": (("build", "zoo:nothing", "-o", "d"), "the zoo has tutorial-cnn"),
    "wrong shape": (
        ("build", "model.py:net", "-o", "d", "--input", "7"),
        "fails in PyTorch itself",
    ),
    "bad shape": (("build", "model.py:net", "-o", "d", "--input", "3xx"), "3x32x32"),
    "unsupported": (("build", "model.py:with_gelu", "-o", "d"), "module '2': aten.softshrink"),
    "label": (("build", "model.py:bad_label", "-o", "d"), "labels run from 0 to 3"),
    "NaN": (("build", "model.py:poisoned", "-o", "d"), "parameter '0.weight'"),
    "foreign folder": (("build", "model.py:net", "-o", "."), "nothing was written"),
    "unknown target": (("build", "model.py:net", "-o", "d", "--target", "z80"), "no target 'z80'"),
    "no such memory": (("build", "model.py:net", "-o", "d", "--l1", "64k"), "has no memory L1"),
    "too many cores": (("build", "model.py:net", "-o", "d", "--cores", "99"), "between 1 and 16"),
    "bad size": (("build", "model.py:net", "-o", "d", "--set", "RAM=lots"), "is not a size"),
    "bad setting": (("build", "model.py:net", "-o", "d", "--set", "RAM"), "KEY=VALUE"),
    "does not fit": (("build", "model.py:net", "-o", "d", "--set", "RAM=100"), "does not fit"),
    "batch": (("build", "model.py:net", "-o", "d", "--batch", "0"), "batch of 0"),
    "loss": (("build", "model.py:net", "-o", "d", "--loss", "magic"), "unknown loss"),
    "dtype": (("build", "model.py:net", "-o", "d", "--dtype", "f8"), "dtype 'f8'"),
    "update": (("build", "model.py:net", "-o", "d", "--update", "9"), "no parameter matches"),
    "data": (("build", "model.py:net", "-o", "d", "--data", "no.npz"), "cannot read 'no.npz'"),
    "no project": (("verify", "."), "is not a Gradlet project"),
    "no engine": (("run", ".", "--engine", "abacus"), "is not a Gradlet project"),
    "unknown option": (("build", "model.py:net", "-o", "d", "--magic"), "No such option"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_use_is_one_message_and_status_2(case: str, folder: Path) -> None:
    arguments, message = BAD[case]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = gradlet(*arguments, folder=folder)
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not done.stdout
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


def test_toml_model(folder: Path) -> None:
    text = 'name = "tiny"\ninput = [4]\n[training]\nlr = 0.5\n'
    text += '[[layer]]\nop = "linear"\nout = 3\n[[layer]]\nop = "relu"\n'
    (folder / "gradlet.toml").write_text(text)
    done = gradlet("build", "gradlet.toml", "-o", "d", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    verify = gradlet("verify", "d", "--json", folder=folder)
    assert json.loads(verify.stdout)["pass"] is True


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


def test_a_small_language_model(tmp_path: Path) -> None:
    """Indices in, words as labels, a causal mask, dropout: nothing that the user has to change."""
    (tmp_path / "tiny.py").write_text(SENTENCES)
    build = gradlet("build", "tiny.py:model", "-o", "d", folder=tmp_path)
    assert build.returncode == 0, build.stderr
    verified = gradlet("verify", "d", "--steps", "3", folder=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    make = ["make", "golden"]
    golden = subprocess.run(make, cwd=tmp_path / "d", capture_output=True, text=True, check=False)
    assert "PASS" in golden.stdout, golden.stdout + golden.stderr
