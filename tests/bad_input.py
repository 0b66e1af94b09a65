"""Hundreds of inputs that are wrong in some way: each must end in one sentence, never in a
traceback, and never as if Gradlet itself were at fault.

    python -m tests.bad_input [--seed N] [--sample N]

prints how many were tried and which did not hold. The tests run a sample.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradlet.cli.commands import app
from gradlet.cli.failures import BAD_USE, CHECK_FAILED, DONE, invoke
from tests.bad_models import MODELS

GOOD = {"net", "out_half", "prints", "keeps_attribute", "keeps_buffer", "keeps_list", "keeps_dict"}
GOOD |= {"two_sizes", "weight_huge", "out_numpy", "plain_module", "out_list", "out_nested"}
GOOD |= {"out_dict", "out_dict_int", "out_dataclass"}
"""May be built all the same: not every one of them is wrong for everybody."""

NUMBERS: tuple[str, ...] = (
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e39",
    "-1e-60",
    "x",
    "",
    " ",
    "9" * 30,
    "1e12",
)
NUMBERS += ("1e12", "0x10", "1,5", "²", "[bold]", "--", "1_000")
OPTIONS: tuple[str, ...] = (
    "lr",
    "weight-decay",
    "momentum",
    "eps",
    "clip-norm",
    "clip-value",
    "batch",
    "accumulate",
)
OPTIONS += ("cores", "l1", "l2", "l3", "betas", "input")
WORDS: dict[str, tuple[str, ...]] = {
    "target": ("nowhere", "", ".", "/", "x.toml", "[bold]", "../host", "host.toml"),
    "loss": (
        "none",
        "",
        "cross_entropy:",
        "cross_entropy:x=1",
        "mse:delta=1",
        ":",
        "huber:delta=nan",
    ),
    "optimizer": ("", "sgdd", "SGD", "[/]"),
    "layout": ("", "nhwc", "HWC"),
    "buffers": ("", "triple", "DOUBLE"),
    "dtype": ("f16", "", "float32"),
    "update": (
        "",
        ",",
        "last:",
        "last:-1",
        "last:0",
        "last:99",
        "last:1e9",
        "nobody",
        "weight[0:0]",
    ),
    "prefix": (
        "",
        "1net",
        "main",
        "gl",
        "gl_x",
        "GL",
        "weights",
        "golden",
        "int",
        "a-b",
        "a b",
        "é",
    ),
    "set": ("", "x", "=", "fpus", "fpus=", "fpus=99", "fpus=-1", "fpus=x", "nothing=1", "L1=inf"),
    "data": ("", "nothing.npz", ".", "/dev/null", "model.py"),
}
WORDS["loss"] += (":", "huber:delta=nan", "cross_entropy:label_smoothing=2")
WORDS["loss"] += ("cross_entropy:class_weights=1/x",)
WORDS["loss"] += (
    "cross_entropy:class_weights=1/nan/1",
    "cross_entropy:class_weights=1/2",
    "nll:a=b=c",
)
WORDS["loss"] += ("cross_entropy:ignore_index=99999999999999", "bce_with_logits:pos_weight=-1")
WORDS["loss"] += ("nll:a=b=c",)
WORDS["update"] += ("nobody", "weight[0:0]")
WORDS["update"] += (
    "weight[5:2]",
    "weight[0:9]",
    "[",
    "weight[",
    "*nobody*",
    "bias[0:99999999999999]",
)
WORDS["prefix"] += ("a b", "é")
WORDS["prefix"] += (
    "math",
    "stdint",
    "string",
    "T",
    "x" * 500,
    "net\n",
    "../x",
    "errno",
    "_x",
    "a/b",
)
WORDS["set"] += ("l1_banks=3", "icache_shared_ways=3", "dma_ports=3", "dma_counters=1", "L2=1e12")
WORDS["set"] += (
    "cores=0",
    "l1_bytes=1k1",
    "contention=maybe",
    "l2_latency=-1",
    "icache_line_bytes=32",
)
COMMANDS = (
    "frobnicate",
    "build",
    "build model.py:net",
    "build nothing.py:net -o d",
    "build model.py:nobody -o d",
    "build model.py: -o d",
    "build model.py -o d",
    "build zoo:nobody -o d",
    "build zoo: -o d",
    "build nothing.onnx -o d",
    "build . -o d",
    "build broken.py:net -o d",
    "build exits.py:net -o d",
    "build leaves.py:net -o d",
    "build raises.py:net -o d",
    "build binary.py:net -o d",
    "build model.py:net -o model.py",
    "build model.py:net -o model.py/d",
    "build model.py:net -o /proc/d",
    "build model.py:net -o d --magic",
    "run nowhere",
    "run .",
    "run model.py",
    "verify . --steps -1",
    "tune",
    "tune zoo:resnet8",
    "tune --layer conv3d",
    "tune --layer linear",
    "tune --layer linear --in 0 --out 3 --step forward",
    "tune --layer linear --in 99999999999999 --out 3 --step forward",
    "tune --layer linear --in 8 --out 999999999999 --step forward",
    "tune --layer conv2d --in 3x8x8 --out-channels 4 --kernel 9 --step forward",
    "tune --layer linear --in 8 --out 3 --step sideways",
    "sim nothing.elf",
    "sim model.py",
    "sim .",
    "sim model.py --max-cycles -1",
    "bench",
    "bench gemm",
    "bench gemm --m 0 --n 1 --k 1",
    "bench gemm --m 1000000 --n 1000000 --k 1000000",
    "bench gemm --m 999999999999 --n 1 --k 1",
    "bench gemm --m 99999999999999999999999999 --n 1 --k 1",
    "bench gemm --m 8 --n 8 --k 8 --layout xx",
    "bench gemm --m 8 --n 8 --k 8 --target host",
    "bench gemm --m 8 --n 8 --k 8 --alignments 0",
    "bench gemm --m 8 --n 8 --k 8 --l1 inf",
    "bench layer conv2d --in 3x8x8 --out-channels 4 --kernel 99 --step forward",
    "bench layer conv2d --in 3x99999x99999 --out-channels 4 --kernel 3 --step forward",
    "bench layer conv2d --in 999999999999x8x8 --out-channels 4 --kernel 3 --step forward",
    "bench layer linear --in 1 --out 0 --step forward",
    "bench layer linear --in 1000000 --out 1000000 --step forward",
    "memory model.py:net --csv /proc/x",
    "memory model.py:nobody",
    "doctor --magic",
)
ARRAYS = {
    "fewer targets": {"inputs": np.zeros((3, 4)), "targets": np.zeros(2, int)},
    "more targets": {"inputs": np.zeros((2, 4)), "targets": np.zeros(3, int)},
    "no inputs": {"targets": np.zeros(2, int)},
    "other names": {"x": np.zeros((2, 4))},
    "shape": {"inputs": np.zeros((2, 5)), "targets": np.zeros(2, int)},
    "rank": {"inputs": np.zeros((2, 4, 1)), "targets": np.zeros(2, int)},
    "scalar": {"inputs": np.zeros(()), "targets": np.zeros(2, int)},
    "empty": {"inputs": np.zeros((0, 4)), "targets": np.zeros(0, int)},
    "overflow": {"inputs": np.full((2, 4), 1e39), "targets": np.zeros(2, int)},
    "nan": {"inputs": np.full((2, 4), np.nan), "targets": np.zeros(2, int)},
    "strings": {"inputs": np.full((2, 4), "x"), "targets": np.zeros(2, int)},
    "complex": {"inputs": np.zeros((2, 4), complex), "targets": np.zeros(2, int)},
    "bools": {"inputs": np.zeros((2, 4), bool), "targets": np.zeros(2, int)},
    "dates": {"inputs": np.zeros((2, 4), "datetime64[s]"), "targets": np.zeros(2, int)},
    "label high": {"inputs": np.zeros((2, 4)), "targets": np.array([0, 3])},
    "label low": {"inputs": np.zeros((2, 4)), "targets": np.array([0, -1])},
    "label far": {"inputs": np.zeros((2, 4)), "targets": np.array([0, 2**40])},
    "label half": {"inputs": np.zeros((2, 4)), "targets": np.array([0, 0.5])},
    "label nan": {"inputs": np.zeros((2, 4)), "targets": np.array([0, np.nan])},
    "label text": {"inputs": np.zeros((2, 4)), "targets": np.array(["a", "b"])},
    "label scalar": {"inputs": np.zeros((2, 4)), "targets": np.array(1)},
    "label rank": {"inputs": np.zeros((2, 4)), "targets": np.zeros((2, 3), int)},
}
TOML = """
name = "net"
input = [4]
[training]
lr = 0.1
[[layer]]
op = "linear"
out = 3
"""
PIECES: tuple[str, ...] = (
    "0",
    "-1",
    "1e12",
    "1e400",
    "nan",
    "inf",
    "true",
    '""',
    "[]",
    "{}",
    '"x"',
    "[0]",
    "[1e9]",
)
PIECES += ("999999999999", "[[1]]", "1979-05-27", '"\\u0000"', "[999999, 999999]", "0.5")
LINES: tuple[str, ...] = (
    "class_weights = [1, 2]",
    "class_weights = 'x'",
    "pos_weight = [nan]",
    "class_weights = []",
)
LINES += (
    "class_weights = [1.0, 2, -3.0]",
    "accumulate = 1000000000",
    "batch = 0",
    "batch = 10000000000",
)
LINES += (
    "loss = 'none'",
    "loss = 3",
    "momentum = 'a'",
    "betas = 1",
    "update = ''",
    "ignore_index = 1e9",
)


@dataclass(frozen=True)
class Case:
    name: str
    arguments: tuple[str, ...]
    may_pass: bool = False


def cases(folder: Path, seed: int = 0) -> Iterator[Case]:
    """All of them; files that they need are written to the folder, which they run in."""
    (folder / "model.py").write_text(MODELS)
    (folder / "broken.py").write_text("def net(:\n")
    (folder / "exits.py").write_text("import sys\nsys.exit(0)\n")
    (folder / "leaves.py").write_text("from os import _exit\n_exit(0)\n")
    (folder / "raises.py").write_text("raise KeyError('[bold]')\n")
    (folder / "binary.py").write_bytes(bytes(range(256)))
    build = ("-o", "d", "--target", "host")
    for command in COMMANDS:
        yield Case(command, tuple(command.split()))
    for name in [line.split("(")[0].split("=")[0] for line in MODELS.splitlines()]:
        name = name.removeprefix("def ").strip()
        if (name.isidentifier() and f"{name} =" in MODELS) or f"def {name}()" in MODELS:
            yield Case(f"model {name}", ("build", f"model.py:{name}", *build), name in GOOD)
    for option in OPTIONS:
        for value in NUMBERS:
            arguments = ("build", "model.py:net", "-o", "d", f"--{option}={value}")
            yield Case(f"--{option}={value[:20]}", arguments, may_pass=True)
    for option, values in WORDS.items():
        for value in values:
            chosen = ("build", "model.py:net", "-o", "d", f"--{option}", value)
            yield Case(f"--{option} {value[:30]!r}", chosen, option in ("loss", "update"))
    for name, arrays in ARRAYS.items():
        path = folder / f"{name}.npz"
        np.savez(path, **arrays)  # type: ignore[arg-type]
        data = ("--data", str(path))
        yield Case(f"data: {name}", ("build", "model.py:net", *build, *data), name == "bools")
    yield from _texts(folder, random.Random(seed))
    yield from _bytes(folder, random.Random(seed))


def _texts(folder: Path, chance: random.Random) -> Iterator[Case]:
    """A model in TOML with a value or a line that does not belong there."""
    lines = TOML.strip().splitlines()
    changed = []
    for index, line in enumerate(lines):
        key = line.split(" = ")[0]
        changed += [[*lines[:index], *lines[index + 1 :]]]
        if " = " in line:
            some = chance.sample(PIECES, 8)
            changed += [[*lines[:index], f"{key} = {p}", *lines[index + 1 :]] for p in some]
    changed += [[*lines[:3], extra, *lines[3:]] for extra in LINES]
    for number, text in enumerate(changed):
        path = folder / f"{number}.toml"
        path.write_text("\n".join(text))
        arguments = ("build", str(path), "-o", "d", "--target", "host")
        yield Case(f"toml {number}: {text}", arguments, may_pass=True)


def _bytes(folder: Path, chance: random.Random) -> Iterator[Case]:
    """Damaged files: an .onnx, an .npz and a program with some bytes changed or cut off."""
    kinds = {"onnx": _onnx(), "npz": (folder / "label high.npz").read_bytes()}
    for kind, good in kinds.items():
        for number in range(20):
            data = bytearray(good[: chance.randrange(len(good))] if number % 4 == 0 else good)
            for _ in range(chance.randrange(1, 6)):
                if data:
                    data[chance.randrange(len(data))] = chance.randrange(256)
            path = folder / f"damaged{number}.{kind}"
            path.write_bytes(data)
            arguments = {
                "onnx": ("build", str(path), "-o", "d", "--target", "host"),
                "npz": (
                    "build",
                    "model.py:net",
                    "-o",
                    "d",
                    "--target",
                    "host",
                    "--data",
                    str(path),
                ),
            }[kind]
            yield Case(f"damaged {kind} {number}", arguments, may_pass=True)
    for number in range(10):
        path = folder / f"damaged{number}.elf"
        path.write_bytes(b"\x7fELF" * (number > 4) + chance.randbytes(400 * number))
        yield Case(f"damaged elf {number}", ("sim", str(path)))


def _onnx() -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "net",
        [value("x", TensorProto.FLOAT, [1, 4])],
        [value("y", TensorProto.FLOAT, [1, 3])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def outcome(case: Case) -> str:
    """What is wrong with how the command line deals with it; '' if nothing is."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = invoke(app, [*case.arguments, "--json"], True)
        except BaseException as error:
            return f"raises {type(error).__name__}: {error}"
    if "Traceback" in err.getvalue() + out.getvalue():
        return "shows a traceback"
    allowed = (BAD_USE, CHECK_FAILED) if case.arguments[0] == "sim" else (BAD_USE,)
    if status not in (*allowed, *((DONE,) if case.may_pass else ())):
        return f"status {status}: {err.getvalue().strip()[-300:]}"
    try:
        value = json.loads(out.getvalue())
    except ValueError:
        return f"no JSON: {out.getvalue()[:200]!r}"
    if status != DONE and not (isinstance(value.get("error"), str) and len(value["error"]) > 10):
        return f"no message: {value}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=0, help="so many of them only")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        found = list(cases(Path(folder), options.seed))
        for case in random.Random(options.seed).sample(found, options.sample or len(found)):
            before = time.perf_counter()
            fault = outcome(case)
            slow = time.perf_counter() - before > 60
            counts["held" if not fault and not slow else "did not hold"] += 1
            if fault or slow:
                print(f"{case.name}: {fault or 'takes more than a minute'}", flush=True)
    seconds = time.perf_counter() - begin
    if options.json:
        value = {name: counts[name] for name in ("held", "did not hold")}
        value["tried"] = counts.total()
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(value, indent=1) + "\n")
    print(f"{sum(counts.values())} bad inputs: {dict(counts)}, {seconds:.0f} s")
    return 1 if counts["did not hold"] else 0


if __name__ == "__main__":
    sys.exit(main())
