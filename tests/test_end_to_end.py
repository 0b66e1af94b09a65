"""Models to C and back: every tensor and many steps against PyTorch, and proof that it can fail."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradlet
from gradlet import zoo
from gradlet.api import training_graph
from gradlet.codegen.project import Project
from gradlet.engines import host
from gradlet.errors import GradletError
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.ops import OPS
from gradlet.planner.model import EPILOGUE
from gradlet.planner.planner import Options, plan
from gradlet.support import compiler
from gradlet.targets.target import load as load_target
from tests.models import MODELS

ZOO = (
    "tutorial-cnn",
    "deep-ae",
    "ds-cnn",
    "resnet8",
    "mobilenet-v1-025",
    "cct-tiny",
    "gru-kws",
    "rnn-har",
)


def project_of(name: str, folder: Path, **options: Any) -> Project:
    """Build a test model with a seeded recipe; options of Recipe, plan and target by name."""
    module, inputs = MODELS[name]()
    captured = gradlet.capture(module, inputs, name=name, batch=options.pop("batch", None))
    cores = options.pop("cores", 1)
    planning = Options(fuse=options.pop("fuse", True), variants=options.pop("variants", None))
    recipe = Recipe(lr=0.05, weight_decay=0.01, **options)
    graph = training_graph(captured, recipe)
    return gradlet.emit(plan(graph, load_target("host", cores=cores), options=planning), folder)


def assert_passes(project: Project, steps: int = 5) -> Any:
    verdict = gradlet.verify(project, steps=steps)
    wrong = verdict.first_wrong
    assert verdict.passed, wrong or verdict.losses
    assert verdict.bit_identical == {"host": True}
    return verdict


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", ZOO)
def test_zoo_verifies(name: str, tmp_path: Path) -> None:
    project = gradlet.build(f"zoo:{name}", tmp_path / "p", target="host")
    verdict = assert_passes(project)
    listed = {row.name for row in verdict.tensors}
    graph = project.plan.graph
    made = {node.name: node.outputs[0] for node in graph.nodes}
    epilogues = [call for call in project.plan.calls if call.fusion == EPILOGUE]
    inside = {made[name] for call in epilogues for name in call.nodes[:-1]}
    for tensor in graph.tensors.values():
        if tensor.role in ("activation", "loss", "gradient", "updated"):
            # what an elementwise node takes up where it is made is in no memory to be looked at
            compared = tensor.name in listed or tensor.name in inside
            assert compared, f"{tensor} was never compared"
    judges = {row.oracle for row in verdict.tensors if row.role != "partial"}
    assert judges == {"torch", "module"}
    assert project.plan.used <= 1.10 * project.plan.lower_bound


def test_zoo_names() -> None:
    assert set(zoo.models()) == set(ZOO)


SEES_ONE_TIME = {"gru_in_reverse": {"gru.weight_hh_l0_reverse"}}
"""Weights of a state that is 0: of the way back, the last output has seen one time only."""


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_parameter_of_a_model_learns(name: str) -> None:
    """A gradient that is 0 shows nothing of the rules that lead to it."""
    module, inputs = MODELS[name]()
    found = module(*inputs)
    torch.manual_seed(0)
    (found * torch.randn_like(found)).sum().backward()
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    idle = {name for name, gradient in gradients.items() if not gradient.any()}
    assert idle == SEES_ONE_TIME.get(name, set())


@pytest.mark.drawn(10)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_model_verifies(name: str, tmp_path: Path) -> None:
    loss = "mse" if name in ("tied", "single_neuron") else "cross_entropy"
    assert_passes(project_of(name, tmp_path / "p", loss=loss, cores=3))


LOSSES = (
    {"loss": "cross_entropy", "label_smoothing": 0.1, "ignore_index": 2},
    {"loss": "cross_entropy", "class_weights": (0.5, 2.0, 1.0), "reduction": "sum"},
    {"loss": "nll", "class_weights": (0.5, 2.0, 1.0), "ignore_index": 1},
    *({"loss": name} for name in ("l1", "huber", "smooth_l1", "berhu", "bce_with_logits")),
    {"loss": "smooth_l1", "delta": 0.2, "reduction": "sum"},
    {"loss": "bce_with_logits", "pos_weight": (3.0,)},
    {"loss": "bce_with_logits", "pos_weight": (0.3, 1.0, 2.0, 4.0, 1.5)},
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options", LOSSES, ids=lambda options: "-".join(map(str, options.values()))
)
def test_loss_verifies(options: dict[str, Any], tmp_path: Path) -> None:
    assert_passes(project_of("segmentation", tmp_path / "p", cores=3, **options), steps=4)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("batch", [1, 4])
def test_batch_and_accumulation(batch: int, accumulate: int, tmp_path: Path) -> None:
    project = project_of("lenet", tmp_path / "p", batch=batch, accumulate=accumulate)
    assert_passes(project, steps=4)


def test_accumulation_equals_the_large_batch_of_torch(tmp_path: Path) -> None:
    """Three micro-batches of one are one mini-batch of three."""
    module, inputs = MODELS["lenet"]()
    labels = torch.tensor([0, 4, 2])
    captured = gradlet.capture(module, inputs, labels, batch=1)
    recipe = Recipe(lr=0.1, accumulate=3)
    project = gradlet.emit(
        plan(training_graph(captured, recipe), load_target("host")), tmp_path / "p"
    )
    run = host.run(project, steps=1, states=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(module(*inputs), labels).backward()
    optimizer.step()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(
            run.states[0][name], parameter.detach().numpy(), rtol=0, atol=2e-6
        )


def test_running_statistics_are_those_of_the_module(tmp_path: Path) -> None:
    """Against the user's own module in training, over several steps, and in eval mode after."""
    module, inputs = MODELS["norms"]()
    labels = torch.tensor([0, 2, 1, 1])
    captured = gradlet.capture(module, inputs, labels)
    graph = training_graph(captured, Recipe(lr=0.01))
    project = gradlet.emit(plan(graph, load_target("host")), tmp_path / "p")
    verdict = assert_passes(project, steps=4)
    assert {row.name for row in verdict.tensors} >= {
        f"{new} after step 4" for _, new in graph.updates
    }
    run = host.run(project, steps=4, states=True)
    module = module.double()
    module.norms[4].eps = torch.finfo(torch.float32).eps  # its default depends on the dtype
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs[0].double()), labels).backward()
        optimizer.step()
    for name in ("norms.0.running_mean", "norms.0.running_var", "rows.2.running_var"):
        wanted = module.state_dict()[name].numpy()
        np.testing.assert_allclose(run.states[-1][name], wanted, rtol=1e-4, atol=1e-6)


def test_running_statistics_with_accumulation(tmp_path: Path) -> None:
    """Each micro-batch moves them, as each forward pass of PyTorch does."""
    assert_passes(project_of("norms", tmp_path / "p", accumulate=2, cores=2), steps=3)


def test_forgotten_running_statistics_are_caught(tmp_path: Path) -> None:
    project = project_of("norms", tmp_path / "p")
    break_file(project, "kernels/*blend_step__ref.c", "s->keep * old[i]", "old[i]")
    verdict = gradlet.verify(project, steps=2)
    assert verdict.first_wrong is not None
    assert graph_op(project, verdict.first_wrong.node) == "blend"


def graph_op(project: Project, name: str) -> str:
    return next(node.op for node in project.plan.graph.nodes if node.name == name)


@pytest.mark.parametrize(
    ("update", "trained"),
    [
        ("all", 8),
        ("last:1", 2),
        ("last:3", 6),
        ("0", 2),
        ("0.weight,9.bias", 2),
        ("3", 2),
        ("*.bias", 4),
        ("7.weight", 1),
        ("biases", 4),
        ("biases,last:1", 5),
        ("0,3,7", 6),
    ],
)
def test_any_subset_can_be_trained(update: str, trained: int, tmp_path: Path) -> None:
    """Also with the last layer frozen, or one in the middle."""
    project = project_of("lenet", tmp_path / "p", update=update)
    graph = project.plan.graph
    assert len(graph.trained) == trained
    assert_passes(project, steps=3)
    changed = host.run(project, steps=3, states=True).states[-1]
    assert set(graph.trained) <= set(changed)
    frozen = {t.name for t in graph.of_role("param")} - set(graph.trained)
    places = project.plan.buffer_of()
    assert all(places[name].region == "constants" for name in frozen)


def test_nothing_is_computed_below_the_first_trained_layer(tmp_path: Path) -> None:
    project = project_of("lenet", tmp_path / "p", update="last:1")
    ops = [node.op for node in project.plan.graph.nodes if node.phase == "backward"]
    assert ops == ["cross_entropy_grad", "matmul", "sum"]


@pytest.mark.parametrize("variants", [{"conv2d": "ref", "gemm": "ref"}, None])
@pytest.mark.parametrize("fuse", [True, False])
def test_plans_of_one_model_agree(
    fuse: bool, variants: dict[str, str] | None, tmp_path: Path
) -> None:
    assert_passes(project_of("residual", tmp_path / "p", fuse=fuse, variants=variants), steps=2)


def test_fusing_an_update_changes_no_bit(tmp_path: Path) -> None:
    runs = [
        host.run(project_of("lenet", tmp_path / str(fuse), fuse=fuse), steps=4, states=True)
        for fuse in (True, False)
    ]
    assert runs[0].loss == runs[1].loss
    for name in ("0.weight", "9.bias", "7.weight"):
        assert np.array_equal(runs[0].states[-1][name], runs[1].states[-1][name])


def test_fusion_happens(tmp_path: Path) -> None:
    """An optimisation that is claimed is counted."""
    project = project_of("lenet", tmp_path / "p")
    fused = sum(n["op"].count("+sgd") for n in project.manifest["nodes"])
    assert fused == len(project.plan.graph.trained)
    assert not any(call.phase == "update" for call in project.plan.calls)


def test_in_place_happens(tmp_path: Path) -> None:
    places = project_of("lenet", tmp_path / "p", fuse=False).plan.buffer_of()
    assert places["relu_0"] is places["conv2d_0"]
    assert places["d_conv2d_0"] is places["d_relu_0"]


def test_the_number_of_cores_changes_no_bit(tmp_path: Path) -> None:
    reference = None
    for cores in (1, 2, 4, 8, 16):
        run = host.run(
            project_of("residual", tmp_path / str(cores), cores=cores), steps=3, states=True
        )
        reference = reference or run
        assert run.loss == reference.loss
        for name, value in reference.states[-1].items():
            assert np.array_equal(value, run.states[-1][name])


@pytest.mark.parametrize("tool", compiler.available(), ids=lambda tool: tool.name)
def test_generated_code_is_clean_under_sanitizers(tool: Any, tmp_path: Path) -> None:
    project = project_of("asymmetric", tmp_path / "p", cores=3, accumulate=2)
    plain = host.run(project, steps=2, states=True)
    checked = host.run(project, steps=2, watch=True, states=True, compiler=tool, sanitize=True)
    assert checked.loss == plain.loss


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_two_builds_differ_in_no_byte(tmp_path: Path) -> None:
    for name in ("a", "b"):
        gradlet.build("zoo:tutorial-cnn", tmp_path / name, cores=4)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


def test_many_steps_follow_torch(tmp_path: Path) -> None:
    assert_passes(project_of("lenet", tmp_path / "p"), steps=50)


def break_file(project: Project, pattern: str, old: str, new: str) -> None:
    (path,) = project.folder.glob(pattern)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("pattern", "old", "new", "node"),
    [
        ("kernels/*conv2d_forward_relu__*.c", "gl_relu(", "0.01f + gl_relu(", "relu_0"),
        ("kernels/*unary_relu_grad__ref.c", "> 0.0f ? value", "> 0.2f ? value", "d_matmul_0"),
        (
            "kernels/*gemm_nt_relu__dot*.c",
            "l < 16; ++l)\n                lane",
            "l < 15; ++l)\n                lane",
            "relu_2",  # which its store makes
        ),
        ("kernels/*pool_max_forward*.c", "value > top", "value >= top - 0.1f", "max_pool2d_0"),
        (
            "kernels/*cross_entropy_grad*.c",
            "softmax, all, -aim)",
            "softmax, all, -1.001f * aim)",
            "d_matmul_1",
        ),
        (
            "kernels/*conv2d_weight_grad_sgd*.c",
            "sum[r][q] = total",
            "sum[r][q] = 1e-3f + total",
            "d_3.weight",
        ),
    ],
)
def test_a_broken_kernel_is_caught_and_located(
    pattern: str, old: str, new: str, node: str, tmp_path: Path
) -> None:
    project = project_of("lenet", tmp_path / "p")
    break_file(project, pattern, old, new)
    verdict = gradlet.verify(project, steps=2)
    assert not verdict.passed
    assert verdict.first_wrong is not None
    assert verdict.first_wrong.node == node
    saved = np.load(verdict.saved)
    assert any(key.startswith("input/") for key in saved.files)


def test_a_broken_optimizer_is_caught_and_located(tmp_path: Path) -> None:
    project = project_of("lenet", tmp_path / "p", fuse=False)
    break_file(project, "gl.h", "gl_fma(hyper[1], w, g)", "gl_fma(hyper[1], w, 1.01f * g)")
    verdict = gradlet.verify(project, steps=2)
    assert verdict.first_wrong is not None
    assert verdict.first_wrong.role == "updated"


def test_a_forgotten_weight_decay_is_caught(tmp_path: Path) -> None:
    project = project_of("lenet", tmp_path / "p")
    break_file(project, "gl.h", "gl_fma(hyper[1], w, g)", "gl_fma(0.0f * hyper[1], w, g)")
    verdict = gradlet.verify(project, steps=2)
    assert verdict.first_wrong is not None
    assert verdict.first_wrong.role == "updated"


def test_a_wrong_gradient_is_caught_and_located(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vjp that is wrong is wrong in numpy and in C alike: only PyTorch knows better."""
    relu = type(OPS["relu"])
    monkeypatch.setattr(relu, "vjp", lambda self, emit, site, grads, wanted: {"x": grads[0]})
    verdict = gradlet.verify(project_of("residual", tmp_path / "p"), steps=1)
    assert not verdict.passed
    wrong = verdict.first_wrong
    assert wrong is not None
    assert wrong.role == "gradient"
    assert wrong.oracle == "torch"


def test_a_wrong_capture_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradlet.ops.importer import TORCH

    monkeypatch.setitem(TORCH, "aten.relu.default", lambda imp, call: imp.tensor(call.args[0]))
    module, inputs = MODELS["residual"]()
    with pytest.raises(GradletError, match="does not compute what the module computes"):
        gradlet.capture(module, inputs)


def test_the_verdict_can_be_read_by_machines(tmp_path: Path) -> None:
    value = gradlet.verify(project_of("tied", tmp_path / "p", loss="mse")).to_json()
    assert value["pass"] is True
    assert value["worst"]["share"] <= 1
    first = value["tensors"][0]
    assert {"name", "role", "max_abs", "max_rel", "tol", "pass"} <= set(first)
    assert value["bit_identical"] == {"host": True}


def test_learning_rate_can_be_changed_at_run_time(tmp_path: Path) -> None:
    project = project_of("lenet", tmp_path / "p")
    zero = {"hyper": np.zeros(2, np.float32)}
    run = host.run(project, steps=2, states=True, overrides=zero)
    for name in project.plan.graph.trained:
        assert np.array_equal(run.states[-1][name], project.plan.graph.data[name])


def test_generated_code_needs_nothing_but_fma(tmp_path: Path) -> None:
    """No malloc, no libc: the only names from outside are its own."""
    project = project_of("lenet", tmp_path / "p")
    text = "\n".join(
        path.read_text()
        for path in (
            *project.folder.glob("net*.[ch]"),
            *project.folder.glob("kernels/*.c"),
            *(path for path in project.folder.glob("gl*.h") if path.name != "gl_print.h"),
        )
    )  # printing is for the golden program alone
    assert set(re.findall(r"#include <(.*)>", text)) == {"stdint.h"}
    assert not re.search(r"\b(malloc|free|printf|memcpy|memset)\b", text.replace("__builtin_", "_"))


def test_graph_prints_as_a_program(tmp_path: Path) -> None:
    graph = project_of("lenet", tmp_path / "p").plan.graph
    text = str(graph)
    assert "forward:" in text
    assert "conv2d_0: f32[3,4,16,16] = conv2d(" in text
    assert "# 0" in text
    assert Graph.loads(graph.dumps()) == graph
