"""What the front ends share: an importer that the op files write through, and a list of faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gradlet.errors import GradletError
from gradlet.frontends.passes.guard import rows_of
from gradlet.frontends.ways_out import reason_for
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.check import check_graph
from gradlet.ir.graph import Array, Attrs, Graph, Node, Shape
from gradlet.ir.recipe import USUAL
from gradlet.ops import OPS
from gradlet.ops.base import integer
from gradlet.ops.importer import FromFrontEnd
from gradlet.ops.lib.pointwise import MAX_RANK, TooManyDimensions
from gradlet.ops.mask import BLOCKED, add_constant


@dataclass(frozen=True)
class Captured:
    """A model as a front end saw it.

    targets has one leading index per micro-batch, several are by name; defaults are the model's own
    wishes for training (loss, lr, ...), which the command line may overrule. module is the user's
    own, if the model came as one, and calling says how it is called; source is the ONNX file and
    what of it the graph holds. bn is what the batch norms were told to do. notes is what was done
    to the model that its owner should know.
    """

    graph: Graph
    targets: Array | Mapping[str, Array] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    module: Any = field(default=None, compare=False)
    calling: Any = field(default=None, compare=False)
    source: Any = field(default=None, compare=False)
    bn: str = ""
    notes: tuple[str, ...] = ()


class Unsupported(GradletError):
    """One operation that cannot be taken over; capture collects them all before it gives up."""


class Line(NamedTuple):
    """An operation that is missing: where, what, on which shapes, why, and where it is written."""

    module: str
    target: str
    shapes: str
    reason: str
    code: str = ""


@dataclass
class Missing:
    """What a model uses and Gradlet lacks, in the order of appearance."""

    lines: list[Line] = field(default_factory=list)

    def note(
        self, module: str, target: str, shapes: Sequence[str], reason: str, code: str = ""
    ) -> None:
        self.lines.append(Line(module, target, ", ".join(shapes), reason, code))

    def raise_if_any(self, model: str) -> None:
        if self.lines:
            kinds: dict[tuple[str, str], list[Line]] = {}
            for line in self.lines:
                kinds.setdefault((line.target, line.reason), []).append(line)
            listing = "\n  ".join(map(_told, kinds.values()))
            raise GradletError(f"model '{model}' uses what Gradlet does not support:\n  {listing}")


def _told(lines: Sequence[Line]) -> str:
    """The same operation, wherever it is: once, with a count."""
    first = lines[0]
    where = f"module '{first.module}'" if first.module else "the top module"
    code = f" ({first.code})" if first.code else ""
    operands = f" on {first.shapes}" if first.shapes else ""
    others = list(dict.fromkeys(f"'{line.module}'" for line in lines if line.module))
    also = [name for name in others if name != f"'{first.module}'"]
    listed = ", ".join(also[:3]) + (" and others" if len(also) > 3 else "")
    count = f" ({len(lines)} times{f', also in {listed}' if also else ''})"
    return f"{where}: {first.target}{operands}{code}: {first.reason}{count * (len(lines) > 1)}"


class GraphImporter:
    """The common half of an Importer (see gradlet.ops.base); front ends resolve their operands."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name)
        self.module = ""
        self.code = ""  # where the user wrote what is converted, if that is known
        self.missing = Missing()
        self.updates: dict[str, str] = {}
        self.recalibrate = False  # whether running statistics normalise after their step
        self.rounded = False  # whether a constant was computed in double precision
        self._constants: dict[tuple[str, Shape, bytes], str] = {}
        self._counts: Counter[str] = Counter()
        self._as_other: dict[tuple[str, str], str] = {}
        self._states: dict[str, str] = {}  # by what they are asked for as

    def shape(self, name: str) -> Shape:
        return self.builder.tensors[name].shape

    def dtype(self, name: str) -> str:
        return self.builder.tensors[name].dtype

    def kind(self, value: Any) -> str:
        return "int" if self.dtype(self.tensor(value)) == "i32" else "float"

    def tensor(self, value: Any) -> str:
        raise NotImplementedError

    def tensors(self, value: Any) -> Any:
        return self.tensor(value)

    def count(self, kind: str) -> int:
        self._counts[kind] += 1
        return self._counts[kind] - 1

    def add(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        for name in inputs:
            if 0 in self.shape(name) and op not in ("reshape", "transpose"):
                raise Unsupported(f"an operand without elements, of shape {list(self.shape(name))}")
        for x, other in (inputs, inputs[::-1]) if op == "add" else ():
            constant = self.builder.tensors[other].role == "const"
            if constant and (self.builder.data[other] <= BLOCKED).any():
                return add_constant(self, x, self.builder.data[other])  # type: ignore[arg-type]
        return self.add_many(op, inputs, attrs)[0]

    def add_many(
        self, op: str, inputs: Sequence[str], attrs: Attrs | None = None
    ) -> tuple[str, ...]:
        made = self.builder.add_many(op, self._typed(op, inputs), attrs, module=self.module)
        node = self.builder.nodes[-1]
        rank = max(len(self.shape(name)) for name in (*node.inputs, *made))
        if rank > MAX_RANK and op not in ("reshape", "transpose"):  # permutations go by steps
            self._refuse_many_dimensions(node)
        return made

    def _refuse_many_dimensions(self, node: Node) -> None:
        """Where dimensions that go together are not few enough for a kernel."""
        try:
            OPS[node.op].lower(Graph("", self.builder.tensors, (), (), ()).site(node))
        except TooManyDimensions as error:
            raise Unsupported(
                f"{error}; bring those that go together next to each other, or flatten them before "
                f"(x.flatten(0, 1))"
            ) from None

    def _typed(self, op: str, inputs: Sequence[str]) -> list[str]:
        """Whole numbers count as numbers, and numbers as indices where something is looked up."""
        operands = []
        for slot, name in zip(OPS[op].inputs, inputs, strict=False):
            holds = self.dtype(name) == "i32"
            if not OPS[op].untyped and holds != (slot.rstrip("?") in OPS[op].integers):
                kind = "number" if holds else "to_index"
                if (name, kind) not in self._as_other:
                    self._as_other[name, kind] = self.builder.add(kind, [name], module=self.module)
                name = self._as_other[name, kind]
            operands.append(name)
        return operands

    def constant(self, array: Array) -> str:
        """Equal ones, such as the masks of all layers, are one."""
        dtype = "f32" if array.dtype.kind == "f" else "i32"
        self.rounded |= dtype == "f32" and bool((array.astype(np.float32) != array).any())
        key = (dtype, array.shape, np.ascontiguousarray(array).tobytes())
        if key not in self._constants:
            name = self.builder.fresh("const")
            self._constants[key] = self.builder.value(name, array, "const", dtype)
        return self._constants[key]

    def state(self, name: str, array: Array) -> str:
        if name not in self._states:
            dtype = "f32" if array.dtype.kind == "f" else "i32"
            own = self.builder.unique(name)
            self._states[name] = self.builder.value(own, array, "state", dtype)
        return self._states[name]

    def update(self, old: str, new: str) -> None:
        if old in self.updates:
            raise Unsupported(f"'{old}' is updated twice in one pass")
        self.builder.tensors[old] = replace(self.builder.tensors[old], role="state")
        self.updates[old] = new

    def stored(self, value: Any) -> Array | None:
        return None

    def piece(self, value: Any, suffix: str, places: Array) -> str:
        raise Unsupported(f"weight '{value}' is computed")

    def producer(self, name: str) -> Node | None:
        return next((n for n in reversed(self.builder.nodes) if name in n.outputs), None)

    def unsupported(self, reason: str) -> GradletError:
        return Unsupported(reason)

    def convert(
        self, handler: FromFrontEnd | None, call: Any, shapes: Sequence[str]
    ) -> str | Sequence[str] | None:
        """Run an op file's handler; None (and a note) if there is none or it refuses."""
        if handler is None:
            self.missing.note(self.module, call.target, shapes, reason_for(call.target), self.code)
            return None
        try:
            return handler(self, call)  # type: ignore[arg-type]
        except Unsupported as error:
            reason = f"not supported: {error}"
            self.missing.note(self.module, call.target, shapes, reason, self.code)
            return None

    def finish(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        samples: dict[str, Array],
        results: Sequence[str] = (),
    ) -> Graph:
        """The checked graph, without tensors that no node touches. results: what the outputs were
        asked for as."""
        self.missing.raise_if_any(self.builder.name)
        for name in outputs:
            if 0 in self.shape(name):
                raise GradletError(
                    f"model '{self.builder.name}': its result {self.builder.tensors[name]} has no "
                    f"elements"
                )
        nodes = _needed(self.builder, [*outputs, *self.updates.values()])
        touched = {name for node in nodes for name in (*node.inputs, *node.outputs)}
        touched.update((*inputs, *outputs))
        tensors = {n: t for n, t in self.builder.tensors.items() if n in touched}
        graph = Graph(
            self.builder.name,
            tensors,
            tuple(nodes),
            tuple(inputs),
            tuple(outputs),
            {name: value for name, value in self.builder.data.items() if name in touched},
            samples,
            updates=tuple(self.updates.items()),
            own_names={n: own for n, own in self.builder.own_names.items() if n in touched},
            results=_named(results),
        )
        refuse_bad_values(graph)
        check_graph(graph)
        return graph


def _named(results: Sequence[str]) -> tuple[str, ...]:
    """Names of outputs; one without a wish is not named, unless it is one of several."""
    if len(results) == 1 and not results[0]:
        return ()
    return tuple(name or USUAL for name in results)


def _needed(builder: GraphBuilder, outputs: Sequence[str]) -> list[Any]:
    """Nodes that lead to an output; a model may compute more than it returns."""
    wanted = set(outputs)
    kept = []
    for node in reversed(builder.nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return kept[::-1]


def refuse_bad_values(graph: Graph) -> None:
    """Weights and samples that would poison every result."""
    for name, value in graph.data.items():
        if not np.isfinite(value).all():
            bad = int((~np.isfinite(value)).sum())
            what, way = "parameter", "repair or retrain the weights first"
            if graph.tensors[name].role == "const":
                what, way = "constant", "compute with large numbers such as -1e9 instead"
            raise GradletError(
                f"{what} '{name}' of model '{graph.name}' contains NaN or infinity in {bad} of "
                f"{value.size} places; {way}"
            )
    for name, value in graph.samples.items():
        if not np.isfinite(value).all():
            raise GradletError(f"the example input '{name}' contains NaN or infinity")


def table_rows(
    graph: Graph | GraphBuilder, name: str, *, from_the_end: bool = False
) -> dict[str, int]:
    """How many rows each table has that is looked up by an input, by the module that does; also
    where negative indices count from the end, if asked for."""
    same, rows = {name}, {}
    for node in graph.nodes:
        if node.op == "reshape" and node.inputs[0] in same:
            same.update(node.outputs)
        if from_the_end and node.op == "flat_index" and node.inputs[0] in same:
            rows[node.module or node.inputs[0]] = integer(node.attrs, "size")
        if same.intersection(node.inputs[1:2]) and (extent := rows_of(node, graph.tensors)):
            rows[node.module or node.inputs[0]] = extent
    return rows


def check_indices(graph: Graph) -> None:
    """Samples of integers must be rows of every table that they are looked up in."""
    for name, value in graph.samples.items():
        if name not in graph.inputs or graph.tensors[name].dtype != "i32":
            continue
        for module, rows in table_rows(graph, name).items():
            if value.min() < 0 or value.max() >= rows:
                raise GradletError(
                    f"input '{name}' holds indices from {value.min()} to {value.max()}, but the "
                    f"table of '{module}' has {rows} rows: 0 to {rows - 1} are possible"
                )


def drawn_samples(builder: GraphBuilder, inputs: Sequence[str]) -> dict[str, Array]:
    """One sample per input, the same in every run, for models that come without data: standard
    normal numbers, or rows of the tables that it looks up."""
    generator = np.random.default_rng(0)
    samples: dict[str, Array] = {}
    for name in inputs:
        shape = (1, *builder.tensors[name].shape)
        if builder.tensors[name].dtype == "f32":
            samples[name] = generator.standard_normal(shape).astype(np.float32)
        else:
            rows = min(table_rows(builder, name, from_the_end=True).values(), default=2)
            samples[name] = generator.integers(0, rows, shape).astype(np.int32)
    return samples


def stack_batches(array: Array, batch: int, what: str) -> Array:
    """Samples [S, ...] as micro-batches [S // batch, batch, ...]; what is left over is dropped."""
    if len(array) < batch:
        repeats = -(-batch // max(len(array), 1))
        if len(array) == 0:
            raise GradletError(f"{what} holds no samples")
        array = np.concatenate([array] * repeats)[:batch]
    count = len(array) // batch
    return array[: count * batch].reshape(count, batch, *array.shape[1:])
