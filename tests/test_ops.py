"""Every row of the case table: forward against PyTorch, gradients against autograd and finite
differences, work and axes against what the reference really touches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradlet.ir.check import check_graph
from gradlet.ir.graph import Array, Graph, Node, Site
from gradlet.ir.recipe import Recipe
from gradlet.ops import OPS
from gradlet.ops.base import Axis
from gradlet.ops.learning.labels import LOSSES
from gradlet.ops.learning.loss_scale import scale_of
from gradlet.oracle.interpreter import run_reference
from gradlet.training.autodiff import train
from tests.cases import CASES, Case, random_cases
from tests.helpers import double, op_graph, op_training_graph, operands, torch_forward

ROWS = [*CASES, *random_cases(60)]
every_row = pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)


def close(actual: Array, expected: Array) -> None:
    """Equal but for the order of summation in float64."""
    scale = max(float(np.abs(expected).max()), 1e-12)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 1e-12 * scale * max(1, actual.size)


def scaled(graph: Graph) -> float:
    """How many times the gradient of the loss a gradient is."""
    scale = float(graph.data[scale_of(graph)][0]) if scale_of(graph) else 1.0
    return scale / graph.accumulate


@pytest.mark.sampled(40)
@every_row
def test_reference_matches_torch(case: Case) -> None:
    values = operands(case)
    wide = [v.astype(np.float64) if v.dtype == np.float32 else v for v in values]
    expected = torch_forward(case, [double(v) for v in values])
    for actual, result in zip(OPS[case.op].reference(case.attrs, *wide), expected, strict=True):
        close(actual, result.numpy())


@pytest.mark.sampled(40)
@pytest.mark.parametrize(
    "case", [case for case in ROWS if not OPS[case.op].stops], ids=lambda case: case.id
)
def test_gradients_match_autograd(case: Case) -> None:
    graph = op_training_graph(case)
    step = next(iter(run_reference(graph, 1)))
    values = [double(v) for v in operands(case)]
    for index, value in enumerate(values):
        if value.dtype.is_floating_point and index not in case.frozen:
            value.requires_grad_(True)
    results = torch_forward(case, values)
    loss = output = (
        torch.cat([results[index] for index in case.learnt]) if len(results) > 1 else results[0]
    )
    if case.op not in LOSSES:
        loss = torch.nn.functional.mse_loss(output, double(graph.samples["target"][0]))
    loss.backward()
    gradients = dict(graph.grads)
    for index, value in enumerate(values):
        if value.requires_grad:
            close(step.values[gradients[f"p{index}"]], scaled(graph) * value.grad.numpy())


# The edge of berHu moves with the data, but counts as a constant in its gradient, as it is used;
# the row of a table that pads gets no gradient at all.
SMOOTH = [c for c in ROWS if c.op != "berhu" and c.attrs.get("skip", -1) == -1]


@pytest.mark.sampled(40)
@pytest.mark.parametrize("case", SMOOTH, ids=lambda case: case.id)
def test_gradients_match_finite_differences(case: Case) -> None:
    graph = op_training_graph(case)
    gradients = {name: grad for name, grad in graph.grads if graph.tensors[name].role == "param"}
    step = next(iter(run_reference(graph, 1)))
    generator = np.random.default_rng(3)
    for name, grad in gradients.items():
        direction = generator.standard_normal(graph.data[name].shape)
        size = 1e-6
        ends = []
        for sign in (1, -1):
            moved = {name: graph.data[name].astype(np.float64) + sign * size * direction}
            ends.append(next(iter(run_reference(graph, 1, overrides=moved))).loss)
        slope = (ends[0] - ends[1]) / (2 * size)
        expected = float((step.values[grad] * direction).sum()) / scaled(graph)
        # a central difference errs by size^2 and by rounding of the loss over the size
        assert abs(slope - expected) <= 1e-5 * max(1.0, abs(expected), abs(step.loss))


@pytest.mark.sampled(40)
@every_row
def test_graph_json_round_trip(case: Case) -> None:
    graph = op_training_graph(case)
    again = Graph.loads(graph.dumps())
    assert again == graph
    assert all(np.array_equal(again.data[name], graph.data[name]) for name in graph.data)
    assert again.dumps() == graph.dumps()
    check_graph(again)


def sites(case: Case) -> list[Site]:
    graph = op_training_graph(case)
    return list(graph.sites())


def all_values(case: Case) -> tuple[Graph, dict[str, Array]]:
    graph = op_training_graph(case)
    step = next(iter(run_reference(graph, 1)))
    return graph, dict(step.values)


@pytest.mark.sampled(40)
@every_row
def test_axes_say_what_a_tile_reads(case: Case) -> None:
    """A tile of a free axis depends on nothing outside its spans; the tiles cover the output."""
    graph, values = all_values(case)
    generator = np.random.default_rng(5)
    for site in graph.sites():
        op = OPS[site.node.op]
        ins = [values[name] for name in site.node.inputs]
        whole = op.reference(site.attrs, *ins)[0]
        for axis in op.axes(site):
            if axis.reduction:
                check_reduction(site, axis, ins, whole)
                continue
            covered = np.zeros(whole.shape, bool)
            for begin, end in tiles(axis):
                spoilt = [
                    spoil(op.inputs[i].rstrip("?"), v, axis, begin, end, generator)
                    for i, v in enumerate(ins)
                ]
                region = output_region(op.outputs[0], whole.shape, axis, begin, end)
                with np.errstate(all="ignore"):  # a logarithm of what is not to be read
                    tile = op.reference(site.attrs, *spoilt)[0]
                assert np.array_equal(tile[region], whole[region]), (site.node.op, axis)
                covered[region] = True
            assert covered.all(), (site.node.op, axis)


def tiles(axis: Axis) -> list[tuple[int, int]]:
    cut = max(1, axis.size // 2)
    return [(0, cut), (cut, axis.size)] if axis.size > 1 else [(0, 1)]


def spoil(
    name: str, value: Array, axis: Axis, begin: int, end: int, generator: np.random.Generator
) -> Array:
    """Random values everywhere that the tile says it does not read."""
    for span in axis.spans:
        if span.operand == name and value.dtype.kind == "f":
            low, high = span.range(begin, end, value.shape[span.dim])
            index = [slice(None)] * value.ndim
            index[span.dim] = slice(low, high)
            changed = generator.standard_normal(value.shape)
            changed[tuple(index)] = value[tuple(index)]
            return changed
    return value


def output_region(
    name: str, shape: tuple[int, ...], axis: Axis, begin: int, end: int
) -> tuple[slice, ...]:
    index = [slice(None)] * len(shape)
    for span in axis.spans:
        if span.operand == name:
            index[span.dim] = slice(*span.range(begin, end, shape[span.dim]))
    return tuple(index)


def check_reduction(site: Site, axis: Axis, ins: list[Array], whole: Array) -> None:
    """Sums over tiles of a reduction add up to the whole, where the op is a plain sum."""
    op = OPS[site.node.op]
    if not op.linear or len(ins) > 2:
        return
    total = np.zeros_like(whole)
    for begin, end in tiles(axis):
        parts = []
        for i, value in enumerate(ins):
            kept = value
            for span in axis.spans:
                plain = span.step == 1 and span.extent == 1 and span.start == 0
                if span.operand == op.inputs[i].rstrip("?") and plain:
                    index = [slice(None)] * value.ndim
                    index[span.dim] = slice(begin, end)
                    kept = np.zeros_like(value)
                    kept[tuple(index)] = value[tuple(index)]
            parts.append(kept)
        total += op.reference(site.attrs, *parts)[0]
    close(total, whole)


def test_every_op_has_a_row() -> None:
    seen = {site.node.op for case in ROWS for site in sites(case)} | {case.op for case in ROWS}
    # unscaling into a wider type comes with mixed types, and a detached value has
    # no gradient: both are tested end to end
    assert set(OPS) - seen == {"unscale_wide", "detach"}


def test_work_counts_multiply_accumulates() -> None:
    case = next(c for c in CASES if c.op == "conv2d" and c.shapes[0] == (1, 8, 8, 8))
    graph = op_training_graph(case)
    macs = {s.node.op: OPS[s.node.op].work(s).macs for s in graph.sites()}
    assert macs["conv2d"] == macs["conv2d_input_grad"] == macs["conv2d_weight_grad"] == 41472


def test_gradient_of_an_unneeded_operand_is_never_made() -> None:
    case = next(c for c in CASES if c.op == "matmul" and c.shapes == ((1, 1), (1, 1)))
    graph = op_graph(case)
    trained = train(graph, Recipe(loss="mse", update="p1"), np.zeros((1, 1, 1), np.float32))
    assert [name for name, _ in trained.grads if name.startswith("p")] == ["p1"]
    made = [node for node in trained.nodes if node.op == "matmul" and node.phase == "backward"]
    assert len(made) == 1


@pytest.mark.parametrize("value", [0.0, -0.0, float("nan"), float("inf"), -1.0, 1.0])
def test_relu_edges_are_those_of_torch(value: float) -> None:
    x = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    torch.relu(x).sum().backward()
    y = OPS["relu"].reference({}, np.array([value]))[0]
    dx = OPS["relu_grad"].reference({}, np.array([1.0]), y)[0]
    np.testing.assert_array_equal(y, torch.relu(x).detach().numpy())
    if not np.isnan(value):  # PyTorch lets a gradient pass a NaN; nothing is trained from there
        np.testing.assert_array_equal(dx, x.grad.numpy())


def test_max_pool_ties_go_to_the_first_as_in_torch() -> None:
    x = torch.tensor(np.random.default_rng(0).integers(0, 3, (1, 2, 6, 6)), dtype=torch.float64)
    x.requires_grad_(True)
    y = torch.nn.functional.max_pool2d(x, 3, 1)
    dy = torch.randn_like(y)
    y.backward(dy)
    attrs = {"kernel": (3, 3), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
    (dx,) = OPS["max_pool2d_grad"].reference(attrs, dy.numpy(), x.detach().numpy())
    np.testing.assert_array_equal(dx, x.grad.numpy())


def test_names_of_nodes_are_unique() -> None:
    for case in ROWS[:40]:
        nodes: tuple[Node, ...] = op_training_graph(case).nodes
        assert len({node.name for node in nodes}) == len(nodes)
