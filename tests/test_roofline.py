"""The bounds of calls: read off the kernels, counted by hand, and never passed by the simulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.engines.costs import run_json
from gradlet.engines.roofline import Bound, bound
from gradlet.ir.recipe import Recipe
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.source import render
from gradlet.kernels.xpulp.isa.issue import instructions_per_mac, macs_of
from gradlet.ops import OPS
from gradlet.planner.planner import Options, Plan, plan
from gradlet.targets.target import load as load_target


def planned(module: nn.Module, *shape: int, memory: str = "64k", **options: str) -> Plan:
    captured = gradlet.capture(module, (torch.randn(*shape),), name="net")
    target = load_target("pulp-open", sizes={"L1": memory})
    made = Options(**options)  # type: ignore[arg-type]
    return plan(training_graph(captured, Recipe()), target, options=made)


@pytest.mark.parametrize(
    ("kernel", "instructions", "macs"),
    [
        (("gemm", "nt", "", "hold_b_5x4"), 5 * 4 + 5 + 4, 5 * 4),
        (("gemm", "nn", "relu", "vector"), 16 + 16 + 1, 16),
        (("gemm", "tn", "sgd", "outer"), 3 * 16 + 1, 16),
        (("back", "sgd", "", "once"), 4 * 8 + 1, 2 * 8),
        (("conv2d", "forward", "", "columns_full"), 5 * 4 + 5 + 4, 5 * 4),
    ],
    ids=str,
)
def test_of_the_best_block(kernel: tuple[str, str, str, str], instructions: int, macs: int) -> None:
    found = instructions_per_mac(render(Kernel(*kernel, "f32")))
    assert found == pytest.approx(instructions / macs)


def test_of_a_text() -> None:
    """A loop in a loop; what is outside of loops does not count; halves come two at a time."""
    lines = [
        "fmadd.s t0, t1, t2, t0",
        ".insn i 0x7b, 4, x1, a0, 16",  # eight instructions
        "addi t0, t0, 1",
        ".insn i 0x7b, 4, x0, a1, 8",  # four of them
        ".balign 4",
        "lw t1, 0(a0)",
        ".Llabel:",
        "lw t2, 0(a1)",
        ".insn r 0x33, 0, 0x4b, t0, t1, t2",
        "fmadd.s t3, t1, t2, t3",
        "sw t0, 0(a2)",
        "nop",
    ]
    text = "".join(f'        "{line}\\n"\n' for line in lines)
    assert instructions_per_mac(text) == pytest.approx(4 / 3)
    assert instructions_per_mac(text.replace("0x4b", "0x01")) == pytest.approx(4)
    assert instructions_per_mac(text.replace("0x7b", "0x13")) is None
    assert [macs_of(line) for line in (lines[0], lines[8], lines[5])] == [1, 2, 0]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_taps_that_meet_padding_are_left_out(padding: int, stride: int) -> None:
    """As many as there are zeros around the map, in all three steps."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=padding, stride=stride), nn.Conv2d(4, 2, 1))
    net.insert(0, nn.Conv2d(3, 3, 1))
    made = planned(net, 1, 3, 7, 5)
    rows, columns = ((n + 2 * padding - 3) // stride + 1 for n in (7, 5))
    places = product(range(rows), range(columns), range(3), range(3))
    outside = sum(
        not (0 <= y * stride + i - padding < 7 and 0 <= x * stride + j - padding < 5)
        for y, x, i, j in places
    )
    found = {}
    for node in made.graph.nodes:
        if "conv2d" in node.op and OPS[node.op].work(made.graph.site(node)).macs:
            work = OPS[node.op].work(made.graph.site(node))
            if work.macs == rows * columns * 9 * 12:
                found[node.op] = work.padded
    assert found == dict.fromkeys(
        ("conv2d", "conv2d_input_grad", "conv2d_weight_grad"), 12 * outside
    )


def test_a_layer_by_hand() -> None:
    """Weights from L2 once, eight bytes in a cycle; a narrow element has more lanes."""
    made = planned(nn.Sequential(nn.Linear(64, 140), nn.Linear(140, 8)), 1, 64, buffers="double")
    call = next(c for c in made.calls if c.kernel.mode == "nt")
    assert call.macs == 64 * 140
    assert call.kernel.variant.startswith("stream")
    assert bound(made, call) == Bound(64 * 140 * 33 / 16 / 8, 4 * 64 * 140 / 8)
    (launch,) = call.whole
    kernel = replace(launch.kernel, dtype="f16", variant="vector")
    narrow = replace(call, whole=(replace(launch, kernel=kernel),), tiling=None)
    halves = {name: replace(t, dtype="f16") for name, t in made.graph.tensors.items()}
    made = replace(made, graph=replace(made.graph, tensors=halves))
    assert bound(made, narrow) == Bound(64 * 140 * 33 / 16 / 8 / 2, 0.0)


@pytest.mark.parametrize("memory", ["16k", "64k"])
def test_nothing_is_faster(tmp_path: Path, memory: str) -> None:
    """On the simulator, in tiles and without."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8)]
    layers += [nn.Tanh(), nn.Conv2d(8, 12, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12 * 36, 7)]
    memories = {"L1": memory}
    project = gradlet.build(
        nn.Sequential(*layers),
        tmp_path / "net",
        inputs=(torch.randn(1, 2, 12, 12),),
        memories=memories,
    )
    value = run_json(project, gradlet.run(project, steps=2))
    for node in value["nodes"]:
        own = node["bound"]
        assert own["cycles"] == max(own["issue"], own["transfers"])
        assert 0 < own["reached"] < 1, node["name"]
        assert own["reached"] == own["cycles"] / node["cycles"]
        assert bool(node["tile"] and node["tile"]["copied"]) == (own["transfers"] > 0)
    step = value["bound"]
    for key in ("issue", "transfers"):
        assert step[key] == pytest.approx(sum(node["bound"][key] for node in value["nodes"]))
    assert step["reached"] == max(step["issue"], step["transfers"]) / value["cycles"][-1]
    assert run_json(project, gradlet.run(project, engine="host"))["bound"] is None
