"""Elements of two bytes, half precision and bfloat16, go through every stage: each is a row of a
table, two functions in C, kernels that load and store by them, and nothing else."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradlet
from gradlet.api import plan
from gradlet.codegen.project import Project, emit
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.check import check_graph
from gradlet.ir.elements import BF16, F16, F32, Element
from gradlet.ir.graph import Array, Graph, Node
from gradlet.ir.recipe import Recipe
from gradlet.ops import OPS
from gradlet.oracle.recording import Recording
from gradlet.runtime import FOLDER
from gradlet.sim import Machine, SimConfig, Symbols
from gradlet.sim.binding import STATUS_EXIT
from gradlet.support import compiler
from gradlet.targets import target as targets
from gradlet.training.autodiff import train
from tests.sim.c_programs import compile_c

BATCH, INPUTS, HIDDEN, OUTPUTS = 3, 21, 77, 5
"""Odd, so that rows of halves begin in the middle of words."""


def network(dtype: str, *, narrow_input: bool, scale: float = 1.0) -> Graph:
    """Products, sums, a ReLU and a transposition, whose weights and maps are of a type."""
    generator = np.random.default_rng(3)

    def drawn(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(np.float32)

    builder = GraphBuilder("halves")
    x = builder.external("x", (BATCH, INPUTS), "input", dtype if narrow_input else F32.name)
    first = x if narrow_input else builder.add(f"to_{dtype}", [x])
    weights = {
        "w1": (INPUTS, HIDDEN),
        "b1": (HIDDEN,),
        "w2": (HIDDEN, HIDDEN),
        "w3": (HIDDEN, OUTPUTS),
    }
    for name, shape in weights.items():
        builder.value(name, drawn(*shape) / np.sqrt(shape[0]), "param", dtype)
    hidden = builder.add("matmul", [first, "w1", "b1"], {"layout": "nn"})
    hidden = builder.add("relu", [hidden])
    more = builder.add("matmul", [hidden, "w2"], {"layout": "nn"})
    hidden = builder.add("add", [more, hidden])
    turned = builder.add("transpose", [hidden], {"axes": (1, 0)})
    hidden = builder.add("transpose", [turned], {"axes": (1, 0)})
    result = builder.add("to_f32", [builder.add("matmul", [hidden, "w3"], {"layout": "nn"})])
    fed = np.stack([scale * drawn(BATCH, INPUTS) for _ in range(2)])
    element = builder.tensors[x].element
    return Graph(
        "halves",
        dict(builder.tensors),
        tuple(builder.nodes),
        ("x",),
        (result,),
        dict(builder.data),
        {"x": element.loaded(element.stored(fed))},
    )


def narrowed(graph: Graph, dtype: str) -> Graph:
    """A captured model with all its numbers of a type, but for what comes in and what goes out."""
    builder = GraphBuilder(graph.name)
    names: dict[str, str] = {}
    for tensor in graph.tensors.values():
        if tensor.role == "input":
            x = builder.external(tensor.name, tensor.shape, "input")
            names[tensor.name] = builder.add(f"to_{dtype}", [x])
        elif tensor.name in graph.data:
            kind = dtype if tensor.element.is_float else tensor.dtype
            value = graph.data[tensor.name]
            names[tensor.name] = builder.value(tensor.name, value, tensor.role, kind)
    for node in graph.nodes:
        made = builder.add_many(node.op, [names[n] for n in node.inputs], node.attrs)
        names |= dict(zip(node.outputs, made, strict=True))
    result = builder.add("to_f32", [names[graph.outputs[0]]])
    parts = dict(builder.tensors), tuple(builder.nodes), graph.inputs, (result,)
    return Graph(graph.name, *parts, dict(builder.data), graph.samples)


def trained(graph: Graph, **settings: Any) -> Graph:
    shape = graph.tensors[graph.outputs[0]].shape
    count = len(next(iter(graph.samples.values())))
    wanted = np.random.default_rng(4).standard_normal((count, *shape)).astype(np.float32)
    made = train(graph, replace(Recipe(loss="mse", lr=0.02), **settings), wanted)
    check_graph(made)
    return made


def project(graph: Graph, folder: Path, target: str = "pulp-open", **sizes: str) -> Project:
    found = plan(graph, targets.load(target, sizes=sizes))
    return emit(found, folder, Recording(absent="there is no module"))


@pytest.mark.drawn(4)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("narrow_input", [False, True], ids=["cast", "narrow"])
@pytest.mark.parametrize("sizes", [{}, {"L1": "16k"}], ids=["whole", "tiles"])
def test_narrow_elements_train_and_verify(
    tmp_path: Path, sizes: dict[str, str], narrow_input: bool, dtype: str
) -> None:
    """On the simulator, sanitizer on, bit for bit as on the host, whole and tile by tile."""
    graph = trained(network(dtype, narrow_input=narrow_input))
    built = project(graph, tmp_path / "halves", **sizes)
    assert dtype in {kernel.dtype for call in built.plan.calls for kernel in call.kernels}
    assert bool(built.plan.tilings) == bool(sizes)
    weights = sum(graph.tensors[name].elements for name in graph.trained)
    assert sum(graph.tensors[name].bytes for name in graph.trained) == 2 * weights
    verdict = gradlet.verify(built, steps=3)
    assert verdict.passed, verdict.to_json()
    assert verdict.bit_identical == {"host": True, "sim": True}


def with_masters(graph: Graph, dtype: str) -> Graph:
    """The same whose weights and what is remembered of them are in single precision: a cast in
    front of every reader, and narrow gradients."""
    tensors, nodes, cast = dict(graph.tensors), [], {}
    states = [t.name for t in graph.of_role("state") if t.dtype == dtype]
    for name in graph.trained:
        cast[name] = f"{name}.cast"
        tensors[cast[name]] = replace(tensors[name], name=cast[name], role="activation")
        nodes.append(Node(cast[name], f"to_{dtype}", (name,), (cast[name],), {}))
    for name in (*graph.trained, *states):
        new = dict(graph.updates)[name]
        tensors |= {n: replace(tensors[n], dtype=F32.name) for n in (name, new)}
    for node in graph.nodes:
        own = node.inputs if OPS[node.op].name in ("sgd", "momentum", "adam") else ()
        inputs = tuple(n if own else cast.get(n, n) for n in node.inputs)
        nodes.append(replace(node, inputs=inputs))
    made = replace(graph, tensors=tensors, nodes=tuple(nodes))
    check_graph(made)
    return made


@pytest.mark.parametrize(
    ("dtype", "recipe", "kinds"),
    [
        ("f16", {"momentum": 0.9}, {"f16/weight/state"}),
        ("bf16", {}, {"bf16/weight"}),
        ("f16", {"optimizer": "adam", "lr": 1e-3}, {"f16/weight"}),
    ],
    ids=["momentum", "sgd", "adam"],
)
def test_narrow_gradients_update_wide_weights(
    tmp_path: Path, dtype: str, recipe: dict[str, Any], kinds: set[str]
) -> None:
    """In the store of the gradient's kernel where there is such a store, and by a call of its own,
    whole and in tiles."""
    graph = with_masters(trained(network(dtype, narrow_input=False), **recipe), dtype)
    for target, sizes in (("host", {}), ("pulp-open", {"L1": "24k"})):
        built = project(graph, tmp_path / target, target, **sizes)
        found = {k.dtype for call in built.plan.calls for k in call.kernels if "/" in k.dtype}
        assert found == kinds
        assert bool(built.plan.tilings) == bool(sizes)
        verdict = gradlet.verify(built, steps=3)
        assert verdict.passed, verdict.to_json()
        assert all(verdict.bit_identical.values()), verdict.bit_identical


@pytest.mark.drawn(1)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_captured_network_in_a_narrow_type(tmp_path: Path, dtype: str) -> None:
    """Convolutions, a norm and activations of PyTorch, in tiles, with momentum."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 7, 3, padding=1), torch.nn.ReLU()),
        *(torch.nn.Conv2d(7, 14, 3, stride=2, groups=7), torch.nn.GELU()),
        *(torch.nn.Flatten(), torch.nn.LayerNorm(14 * 25), torch.nn.Linear(14 * 25, 5)),
    )
    captured = gradlet.capture(module, torch.randn(2, 3, 11, 11))
    graph = trained(narrowed(captured.graph, dtype), momentum=0.9, lr=1e-3)
    built = project(graph, tmp_path / "narrow", L1="20k")
    assert built.plan.tilings
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, verdict.to_json()
    assert verdict.bit_identical == {"host": True, "sim": True}


def test_gradients_that_no_large_learning_rate_shows(tmp_path: Path) -> None:
    """Half precision ends at 65504, so a gradient inside an update is shown by a smaller rate; and
    momentum, whose state is narrow as well, is updated in the store."""
    graph = trained(network("f16", narrow_input=False, scale=30.0), momentum=0.9, lr=1e-4)
    largest = max(np.abs(value).max() for value in graph.samples["x"])
    assert largest * 2.0**20 > F16.largest
    built = project(graph, tmp_path / "halves", "host")
    assert any(call.kernel.epilogue == "momentum" for call in built.plan.calls)
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, verdict.to_json()


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("gl_f16_load(gl_f16 half)\n{", "gl_f16_load(gl_f16 half)\n{\n    half.bits &= 0x7fffu;"),
        ("return result;", "return (gl_f16){(uint16_t)(result.bits + 9)};"),
    ],
    ids=["sign", "rounding"],
)
def test_wrong_halves_are_found(tmp_path: Path, line: str, wrong: str) -> None:
    """The conversions of a project are those that are verified."""
    built = project(trained(network("f16", narrow_input=False)), tmp_path / "halves", "host")
    header = built.folder / "gl_f16.h"
    text = header.read_text()
    assert text.count(line) == 1
    header.write_text(text.replace(line, wrong))
    verdict = gradlet.verify(built, steps=1, edited=True)
    assert not verdict.passed


def converts(function: Any, to: Array, given: Array) -> None:
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (to, given))
    function(*pointers, ctypes.c_int(given.size))


PATTERNS = np.arange(2**16, dtype=np.uint16)
KINDS = {"f16": torch.float16, "bf16": torch.bfloat16}


def widened(element: Element) -> Array:
    """What PyTorch makes of every pattern."""
    tensor = torch.from_numpy(PATTERNS.view(np.int16)).view(KINDS[element.name])
    return np.asarray(tensor.float().numpy())


def hard_to_round(element: Element) -> Array:
    """Numbers of all sizes, every number of the type, those between two neighbours and those beside
    them, and what is no number."""
    wanted = widened(element)
    finite = np.sort(wanted[np.isfinite(wanted)])
    between = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    ends = np.float32(np.inf)
    drawn = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    nan = np.array([0x7FC00001, 0xFFC00000, 0x7F800001], np.uint32).view(np.float32)
    beside = [np.nextafter(between, ends), np.nextafter(between, -ends)]
    return np.concatenate([drawn, between, *beside, finite, wanted, nan])


def narrowed_by_torch(element: Element, numbers: Array) -> Array:
    tensor = torch.from_numpy(numbers).to(KINDS[element.name])
    return np.asarray(tensor.view(torch.int16).numpy()).view(np.uint16)


@pytest.mark.parametrize("soft", [False, True], ids=["machine", "software"])
@pytest.mark.parametrize("tool", compiler.available(), ids=lambda tool: tool.name)
@pytest.mark.parametrize("element", [F16, BF16], ids=lambda element: element.name)
def test_c_and_python_convert_alike(
    tmp_path: Path, element: Element, tool: compiler.Compiler, soft: bool
) -> None:
    """By the machine's own instructions, if it has any, and without them, beside what PyTorch makes
    of the same numbers."""
    name = element.c
    source = tmp_path / "convert.c"
    source.write_text(
        f"""{"#define GL_SOFT_HALF" if soft else ""}
#include "{element.header}"
void widen(float *y, const {name} *x, int n)
{{
    for (int i = 0; i < n; ++i) y[i] = {name}_load(x[i]);
}}
void narrow({name} *y, const float *x, int n)
{{
    for (int i = 0; i < n; ++i) y[i] = {name}_store(x[i]);
}}
"""
    )
    made = compiler.build_library(
        [source], tmp_path / "convert.so", include=[FOLDER], compiler=tool
    )
    library = ctypes.CDLL(str(made))
    wide = np.zeros(2**16, np.float32)
    converts(library.widen, wide, PATTERNS)
    wanted = widened(element)
    assert np.array_equal(wide, wanted, equal_nan=True)
    loaded = element.loaded(PATTERNS.view(element.numpy))
    assert np.array_equal(loaded, wanted, equal_nan=True)

    numbers = hard_to_round(element)
    narrow = np.zeros(numbers.size, np.uint16)
    converts(library.narrow, narrow, numbers)
    known = ~np.isnan(numbers)
    expected = narrowed_by_torch(element, numbers)
    assert np.array_equal(narrow[known], expected[known])
    assert np.array_equal(element.stored(numbers).view(np.uint16)[known], expected[known])
    assert len(set(narrow[~known].tolist())) == 1
    if element is F16:  # the numbers that are none are all the same one
        assert set(wide[np.isnan(wanted)].view(np.uint32).tolist()) == {0x7FC00000}


@pytest.mark.parametrize("soft", [False, True], ids=["instructions", "software"])
@pytest.mark.parametrize("element", [F16, BF16], ids=lambda element: element.name)
def test_the_cluster_converts_alike(tmp_path: Path, element: Element, soft: bool) -> None:
    """The same patterns, and what is hard to round."""
    numbers = hard_to_round(element)[::3]
    name, count = element.c, numbers.size
    source = tmp_path / "convert.c"
    source.write_text(
        f"""{"#define GL_SOFT_HALF" if soft else ""}
#include "{element.header}"
#include "gl_port.h"
enum {{ COUNT = {count} }};
float given[COUNT] = {{1.0f}};
{name} narrow[COUNT] = {{{{1}}}};
float wide[65536] = {{1.0f}};
int main(void)
{{
    const gl_core me = {{gl_core_id(), GL_CORES}};
    const gl_range all = gl_share(me, 65536), share = gl_share(me, COUNT);
    for (int i = all.begin; i < all.end; ++i) {{
        const {name} half = {{(uint16_t)i}};
        wide[i] = {name}_load(half);
    }}
    for (int i = share.begin; i < share.end; ++i) narrow[i] = {name}_store(given[i]);
    gl_barrier();
    return 0;
}}
"""
    )
    target = targets.load("pulp-open")
    elf = compile_c(source, target, tmp_path)
    machine, symbols = Machine(SimConfig.of(target.machine)), Symbols(elf)
    assert machine.load_elf(elf) is None
    places = [symbols.address(label) for label in ("given", "narrow", "wide")]
    given, narrow, wide = (place for place in places if place is not None)
    machine.write(given, numbers.tobytes())
    assert machine.run(10**9) == STATUS_EXIT, machine.fault()
    made = np.frombuffer(machine.read(wide, 4 * 65536), np.float32)
    assert np.array_equal(made, widened(element), equal_nan=True)
    stored = np.frombuffer(machine.read(narrow, 2 * count), np.uint16)
    known = ~np.isnan(numbers)
    assert np.array_equal(stored[known], narrowed_by_torch(element, numbers)[known])
    assert set(stored[~known].tolist()) == {0x7E00 if element is F16 else 0x7FC0}
