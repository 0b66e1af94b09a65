"""PyTorch front end: `torch.export` gives the forward graph, about one node per layer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.builder import MOST_ELEMENTS
from gradlet.capture.aliases import Aliases, in_place
from gradlet.capture.canonical import canonical
from gradlet.capture.importer import GraphImporter, Unsupported, check_indices, stack_batches
from gradlet.capture.torch_check import check_against_module, copied, plain_attention
from gradlet.capture.torch_fold import Folder
from gradlet.capture.user_code import (
    FOREIGN,
    check_module,
    check_result,
    described,
    refuse_strange,
)
from gradlet.errors import GradletError
from gradlet.extras import require_torch
from gradlet.graph import Array, Graph
from gradlet.ops import TORCH
from gradlet.ops.base import Call


def capture_module(module: Any, inputs: Any, *, name: str, batch: int | None = None) -> Graph:
    """The forward graph of an nn.Module, with its inputs as samples."""
    require_torch()
    everything = _examples(inputs)
    if isinstance(module, require_torch().nn.Module):
        check_module(module, name)
    size = batch or (everything[0].shape[0] if everything and everything[0].ndim else 1)
    for index, value in enumerate(everything):
        if (elements := value[0].numel() * size) > MOST_ELEMENTS:
            raise GradletError(
                f"example input {index} has {elements:,} elements in a batch of {size}; no target "
                f"holds more than {MOST_ELEMENTS:,}"
            )
    examples = tuple(_first(value, size) for value in everything)
    program = _export(module, examples, name)
    importer = _TorchImporter(name, program)
    importer.walk()
    samples = {
        target: stack_batches(_array(value), size, f"input '{target}'")
        for target, value in zip(importer.inputs, everything, strict=True)
    }
    graph = canonical(importer.finish(importer.inputs, importer.outputs, samples))
    check_indices(graph)
    inexact = importer.known.inexact or importer.casts or importer.rounded
    check_against_module(graph, module, examples, rounded=inexact)
    return graph


def _array(value: Any) -> Array:
    array: Array = value.detach().numpy()
    return array.astype(np.float32 if value.dtype.is_floating_point else np.int32)


def _examples(inputs: Any) -> tuple[Any, ...]:
    torch = require_torch()
    examples = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    if not examples:
        raise GradletError("the model has no example inputs")
    for index, value in enumerate(examples):
        if not isinstance(value, torch.Tensor):
            raise GradletError(
                f"example input {index} is a {type(value).__name__}; tensors are needed"
            )
        refuse_strange(value, f"example input {index}")
        if not value.dtype.is_floating_point and value.dtype not in (torch.int64, torch.int32):
            raise GradletError(
                f"example input {index} has dtype {value.dtype}; floats, or indices of type int64 "
                f"or int32, are needed"
            )
        if value.ndim == 0 or value.numel() == 0:
            raise GradletError(f"example input {index} has no samples: shape {list(value.shape)}")
    return tuple(v.float() if v.dtype.is_floating_point else v for v in examples)


def _first(value: Any, batch: int) -> Any:
    """The first `batch` samples, repeated if there are fewer."""
    repeats = -(-batch // value.shape[0])
    return require_torch().cat([value] * repeats)[:batch]


def _export(module: Any, examples: tuple[Any, ...], name: str) -> Any:
    torch = require_torch()
    if not isinstance(module, torch.nn.Module):
        raise GradletError(f"'{name}' is a {type(module).__name__}, not an nn.Module")
    module = copied(module).float().cpu()
    examples = tuple(value.detach().clone() for value in examples)
    try:
        with torch.enable_grad():
            result = copied(module)(*examples)  # of a copy: a pass may change buffers
    except FOREIGN as error:
        shapes = ", ".join(str(list(value.shape)) for value in examples)
        raise GradletError(
            f"model '{name}' fails in PyTorch itself on inputs {shapes}: {described(error)}"
        ) from None
    check_result(result, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with plain_attention():
                return torch.export.export(module, examples)
    except FOREIGN as error:
        raise GradletError(
            f"torch.export cannot trace model '{name}': {described(error)}\nShapes and control "
            f"flow must not depend on the data; see the message of `torch.export.export`"
        ) from None


class _TorchImporter(GraphImporter):
    """Walks an exported program; fx nodes stand for graph tensors by name."""

    def __init__(self, name: str, program: Any) -> None:
        super().__init__(name)
        self.program = program
        self.names: dict[str, Any] = {}  # fx node -> tensor name(s); absent if it was refused
        self.known = Folder(program)
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.casts = any(str(n.target).startswith("aten.to.") for n in program.graph.nodes)
        self.aliases = Aliases(list(program.graph.nodes))
        self._owners: dict[tuple[Any, ...], str] = {}
        self._kept: dict[str, str] = {}  # parameters and buffers, which last from step to step

    def walk(self) -> None:
        self._externals()
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._outputs(node.args[0])
            elif node.op != "placeholder":
                self.missing.note("", f"{node.op} {node.target}", [], "control flow")

    def _externals(self) -> None:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op != "placeholder":
                continue
            kind = specs[node.name].kind.name
            if kind == "USER_INPUT":
                self._input(node)
            else:
                self._kept[node.name] = specs[node.name].target
                name = self.names[node.name] = self._stored(specs[node.name].target, kind)
                # a parameter that a module keeps in a dict of its own comes as a constant
                trained = bool(name) and self.builder.tensors[name].role == "param"
                if kind != "PARAMETER" and not trained:
                    self.known.learn(node.name, self._value(specs[node.name].target))

    def _input(self, node: Any) -> None:
        shape = node.meta["val"].shape
        if not all(isinstance(extent, int) for extent in shape):
            raise GradletError(f"input '{node.name}' has a dynamic shape {list(shape)}")
        dtype = "f32" if node.meta["val"].dtype.is_floating_point else "i32"
        name = self.builder.model_name(node.name, "input")
        self.names[node.name] = self.builder.external(name, shape, "input", dtype)
        self.inputs.append(name)

    def _stored(self, target: str, kind: str) -> str:
        """A parameter or buffer under its own path; tied ones under the first path."""
        value = self._value(target)
        key = (value.data_ptr(), tuple(value.shape), tuple(value.stride()))
        if value.numel() and key in self._owners:
            return self._owners[key]
        role = "param" if kind == "PARAMETER" and self._trained(target) else "const"
        if not value.dtype.is_floating_point and kind != "PARAMETER":
            return ""  # counters and the like: only an error if an op reads them
        name = self.builder.model_name(target, "param" if kind == "PARAMETER" else "buffer")
        self._owners[key] = self.builder.value(name, value.float().numpy(), role)
        return name

    def _trained(self, target: str) -> bool:
        """A parameter whose `requires_grad` is off stays as it is."""
        return bool(self.program.state_dict[target].requires_grad)

    def _value(self, target: str) -> Any:
        return {**self.program.state_dict, **self.program.constants}[target].detach()

    def _call(self, node: Any) -> None:
        self.module = _module_path(node)
        target = str(node.target)
        args = _positional(node)
        self._refuse_dynamic(node)
        shapes = [str(list(arg.meta["val"].shape)) for arg in _flat(args) if _has_shape(arg)]
        if _counts(node, args) or "_assert" in target:
            return
        self._refuse_lasting_change(target, args, shapes)
        if self.known.fold(node):
            self.aliases.note(node, target, args[0] if args else None)
            return
        if (kind := _narrow(node)) and not _narrow(args[0] if args else None):
            reason = f"it rounds to {kind}; float32 is supported, so leave out the conversion"
            self.missing.note(self.module, target, shapes, reason)
        if target == "<built-in function getitem>":
            self.names[node.name] = self.names[args[0].name][args[1]]
            self.aliases.note(node, target, args[0])
            return
        try:
            result = self.convert(TORCH.get(target), Call(target, args), shapes, list(TORCH))
        except ZeroDivisionError:
            self.missing.note(self.module, target, shapes, "it divides by a constant 0")
            result = None
        self.names[node.name] = self._stand_in(node.meta.get("val")) if result is None else result
        self.aliases.note(node, target, args[0] if args else None)
        if in_place(target) and result is not None:
            self._overwrite(node, target, shapes)

    def _refuse_lasting_change(
        self, target: str, args: Sequence[Any], shapes: Sequence[str]
    ) -> None:
        """What a module writes to its own buffers would have to last until the next step."""
        first = getattr(args[0], "name", "") if args else ""
        if in_place(target) and (owner := self._kept.get(self.aliases.family.get(first, first))):
            reason = (
                f"it changes '{owner}' of the model at every step; only the running statistics of "
                "norms may change. Compute with a copy: .clone()"
            )
            self.missing.note(self.module, target, shapes, f"not supported: {reason}")

    def _overwrite(self, node: Any, target: str, shapes: Sequence[str]) -> None:
        if stale := self.aliases.stale(node):
            reason = (
                f"'{stale}', a view of what it overwrites, is read later; write it out of place"
            )
            self.missing.note(self.module, target, shapes, f"not supported: {reason}")
        for name in self.aliases.overwritten(node):
            self.names[name] = self.names[node.name]
            self.known.values.pop(name, None)

    def _refuse_dynamic(self, node: Any) -> None:
        shape = list(getattr(node.meta.get("val"), "shape", ()))
        if not all(isinstance(extent, int) for extent in shape):
            where = f"module '{self.module}'" if self.module else "the top module"
            raise GradletError(
                f"{where}: {node.target} gives a shape {shape} that depends on the data; Gradlet "
                f"plans memory beforehand and needs static shapes"
            )

    def _stand_in(self, value: Any) -> Any:
        """A tensor in place of a refused result, so that the walk finds all that is missing."""
        if isinstance(value, list | tuple):
            return [self._stand_in(item) for item in value]
        shape = [n if isinstance(n, int) else 1 for n in getattr(value, "shape", ())]
        return self.builder.external(self.builder.fresh("missing"), shape, "activation")

    def _outputs(self, values: Sequence[Any]) -> None:
        self.outputs = [self.tensor(value) for value in values if value is not None]

    def tensor(self, value: Any) -> str:
        name = self.names.get(value.name)
        known = self.known.values.get(value.name)
        if name not in self.builder.tensors and known is not None and _is_number(known):
            # whole numbers beside floats count as floats
            self.names[value.name] = name = self.constant(known.float().numpy().copy())
        if not isinstance(name, str) or name not in self.builder.tensors:  # '' is none
            raise Unsupported(f"operand '{value.name}' is not a floating-point tensor")
        return name

    def param(self, value: Any) -> str:
        return self.tensor(value)

    def fixed(self, value: Any) -> Array | None:
        if hasattr(value, "meta"):
            known = self.known.values.get(value.name)
            return None if known is None else known.numpy()
        return np.asarray(value)

    def static(self, value: Any) -> Array:
        known = self.fixed(value)
        if known is None:
            raise Unsupported(f"operand '{value.name}' depends on the data; it must be a constant")
        return known


def _narrow(node: Any) -> str:
    """The floating-point type of a result with fewer bits than float32, if it has one."""
    dtype = getattr(getattr(node, "meta", {}).get("val"), "dtype", None)
    narrow = dtype is not None and dtype.is_floating_point and dtype.itemsize < 4
    return str(dtype).removeprefix("torch.") if narrow else ""


def _is_number(value: Any) -> bool:
    return hasattr(value, "dtype") and value.dtype != require_torch().bool


def _counts(node: Any, args: Sequence[Any]) -> bool:
    """Whether a node only advances a counter that nothing reads, as a batch norm's of batches."""
    value = args[0].meta.get("val") if args and _has_shape(args[0]) else None
    whole = value is not None and not value.dtype.is_floating_point
    return whole and str(node.target) == "aten.add_.Tensor" and not node.users


def _module_path(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def _positional(node: Any) -> list[Any]:
    """All arguments in the order of the schema, defaults filled in."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return list(node.args)
    args = list(node.args)
    for argument in schema.arguments[len(args) :]:
        args.append(node.kwargs.get(argument.name, argument.default_value))
    return args


def _flat(args: Sequence[Any]) -> list[Any]:
    result: list[Any] = []
    for arg in args:
        result.extend(_flat(arg) if isinstance(arg, list | tuple) else [arg])
    return result


def _has_shape(arg: Any) -> bool:
    return hasattr(arg, "meta") and hasattr(arg.meta.get("val"), "shape")
