"""PyTorch front end: `torch.export` gives the forward graph, about one node per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.frontends.calling import Calling, calling
from gradlet.frontends.data import with_whole
from gradlet.frontends.importer import Missing, Unsupported, check_indices, stack_batches
from gradlet.frontends.parts import parts_of
from gradlet.frontends.passes.batch_norms import check_mode, refuse_cumulative
from gradlet.frontends.passes.canonical import canonical
from gradlet.frontends.torch.aliases import Aliases, in_place, op_name
from gradlet.frontends.torch.check import check_against_module
from gradlet.frontends.torch.draws import RANDOM, Draws, draws
from gradlet.frontends.torch.exported import checked_examples, exported
from gradlet.frontends.torch.flat_program import OWN_NAME, QUIET, STORED, flattened, live
from gradlet.frontends.torch.fold import Folder
from gradlet.frontends.torch.nodes import (
    casts,
    counts,
    flat,
    has_shape,
    module_path,
    narrow,
    positional,
)
from gradlet.frontends.torch.wide import WideImporter, written
from gradlet.frontends.user_code import check_module
from gradlet.ir.builder import MOST_ELEMENTS
from gradlet.ir.graph import Array, Graph
from gradlet.ops.importer import Call
from gradlet.ops.importers.put import put
from gradlet.support.extras import require_torch


def capture_module(
    module: Any, inputs: Any, *, name: str, batch: int | None = None, output: str = "", bn: str = ""
) -> Graph:
    """The forward graph of an nn.Module, with its inputs as samples."""
    return captured_module(module, inputs, name=name, batch=batch, outputs=(output,), bn=bn)[0]


def captured_module(
    module: Any,
    inputs: Any,
    *,
    name: str,
    batch: int | None = None,
    outputs: Sequence[str] = ("",),
    bn: str = "",
    whole: Sequence[str] = (),
) -> tuple[Graph, Calling]:
    """The graph, and how the module is called."""
    if not isinstance(module, require_torch().nn.Module):
        raise GradletError(f"'{name}' is a {type(module).__name__}, not an nn.Module")
    check_module(module, name)
    check_mode(bn)
    refuse_cumulative(module, bn, name)
    call, tensors = calling(module, inputs, name, outputs, bn, whole)
    everything = checked_examples(call, tensors)
    of_samples = [own not in whole for own in call.names]
    size = batch or everything[of_samples.index(True)].shape[0]
    for own, value, many in zip(call.names, everything, of_samples, strict=True):
        if (elements := value[0].numel() * size if many else value.numel()) > MOST_ELEMENTS:
            raise GradletError(
                f"example input '{own}' has {elements:,} elements in a batch of {size}; no target "
                f"holds more than {MOST_ELEMENTS:,}"
            )
    pairs = list(zip(everything, of_samples, strict=True))
    examples = tuple(_first(value, size) if many else value for value, many in pairs)
    importer = _TorchImporter(name, exported(module, call, examples, name))
    importer.recalibrate = bn == "recalibrate"
    importer.walk()
    samples = {
        target: stack_batches(_array(value), size, f"input '{target}'")
        if many
        else _array(value)[None]
        for target, (value, many) in zip(importer.inputs, pairs, strict=True)
    }
    as_is = tuple(n for n, many in zip(importer.inputs, of_samples, strict=True) if not many)
    samples = with_whole(samples, as_is)
    graph = importer.finish(importer.inputs, importer.outputs, samples, outputs)
    graph = canonical(replace(graph, whole=as_is))
    check_indices(graph)
    inexact = importer.known.inexact or importer.casts or importer.rounded
    check_against_module(graph, module, call, examples, rounded=inexact)
    return graph, call


def _array(value: Any) -> Array:
    array: Array = value.detach().numpy()
    return array.astype(np.float32 if value.dtype.is_floating_point else np.int32)


def _first(value: Any, batch: int) -> Any:
    """The first `batch` samples, repeated if there are fewer."""
    repeats = -(-batch // value.shape[0])
    return require_torch().cat([value] * repeats)[:batch]


class _TorchImporter(WideImporter):
    """Walks an exported program; fx nodes stand for graph tensors by name."""

    def __init__(self, name: str, program: Any) -> None:
        super().__init__(name)
        self.program = program
        self.graph = flattened(program)
        self.names: dict[str, Any] = {}  # fx node -> tensor name(s); absent if it was refused
        self.known = Folder(self.graph)
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.casts = any(casts(node) for node in self.graph.nodes)
        self.aliases = Aliases()
        self.draws = Draws()
        self.quiet = False  # whether what is converted is under no_grad
        self.refused: set[str] = set()  # fx nodes that depend on what was refused
        self._owners: dict[tuple[Any, ...], str] = {}
        self._kept: dict[str, str] = {}  # parameters and buffers, which last from step to step
        self._detached: dict[str, str] = {}

    def walk(self) -> None:
        self._externals()
        wanted = live(self.graph)
        for node in self.graph.nodes:
            if node.op == "output":
                self._outputs(node.args[0])
            elif node.op == "get_attr":
                self.known.learn(node.name, node.meta[STORED].detach())
            elif node.op == "call_function" and node.name in wanted:
                self.take(node)
            elif node.op == "call_function":
                self._skip(node)

    def _skip(self, node: Any) -> None:
        """What leads to no result; its draws count, since masks go by their number."""
        name, args = op_name(str(node.target)), positional(node)
        if "alpha_dropout" in name:
            drawn = bool(0 < args[1] < 1 and args[2])
        elif name in ("dropout", "dropout_", "feature_dropout", "feature_dropout_"):
            drawn = bool(args[1] and args[2])
        else:
            drawn = bool("scaled_dot_product" in name and args[4]) or name in ("rand", "rand_like")
            drawn |= name == "bernoulli" or (name == "bernoulli_" and args[1] < 1)
        if drawn:
            self.count("dropout")

    def _externals(self) -> None:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.meta[OWN_NAME]]
            kind = spec.kind.name
            if kind == "USER_INPUT":
                self._input(node)
            else:
                self._kept[node.name] = spec.target
                name = self.names[node.name] = self._stored(spec.target, kind)
                # a parameter that a module keeps in a dict of its own comes as a constant
                trained = bool(name) and self.builder.tensors[name].role == "param"
                if kind != "PARAMETER" and not trained:
                    self.known.learn(node.name, self._value(spec.target))

    def _input(self, node: Any) -> None:
        shape = node.meta["val"].shape
        if not all(isinstance(extent, int) for extent in shape):
            raise GradletError(f"input '{node.meta[OWN_NAME]}' has a dynamic shape {list(shape)}")
        dtype = "f32" if node.meta["val"].dtype.is_floating_point else "i32"
        name = self.builder.model_name(node.meta[OWN_NAME], "input")
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

    def take(self, node: Any) -> None:
        self.module, self.quiet = module_path(node), bool(node.meta.get(QUIET))
        self.code = written(node)
        target = str(node.target)
        args = positional(node)
        self._refuse_dynamic(node)
        if counts(node, args) or "_assert" in target:
            return
        shapes = [str(list(arg.meta["val"].shape)) for arg in flat(args) if has_shape(arg)]
        if in_place(target):
            self._refuse_lasting_change(target, args, shapes)
        if self.known.fold(node):
            self.aliases.note(node, target)
            if in_place(target):  # what was read before has been a constant of its own
                for name in self._family(node):
                    self.names.pop(name, None)
            return
        if self._drawn(node, target, args, shapes):
            return
        if (kind := narrow(node)) and not narrow(args[0] if args else None):
            reason = f"it rounds to {kind}; float32 is supported, so leave out the conversion"
            self.missing.note(self.module, target, shapes, reason, self.code)
        result = self._converted(node, target, args, shapes)
        if result is None:
            self.refused.add(node.name)
            result = self._stand_in(node.meta.get("val"))
        self.names[node.name] = result
        self.aliases.note(node, target)
        if in_place(target):
            try:
                self._overwrite(node)
            except Unsupported as error:
                self.missing.note(self.module, target, shapes, f"not supported: {error}", self.code)

    def _drawn(self, node: Any, target: str, args: Sequence[Any], shapes: Sequence[str]) -> bool:
        try:
            made = self.draws.take(self, node, args)
        except Unsupported as error:
            self.missing.note(self.module, target, shapes, f"not supported: {error}", self.code)
            self.refused.add(node.name)
            made = {node.name: self._stand_in(node.meta.get("val"))}
        self.names |= made or {}
        self.rounded |= bool(made)  # PyTorch adds the probability in single precision
        return made is not None

    def _converted(
        self, node: Any, target: str, args: Sequence[Any], shapes: Sequence[str]
    ) -> str | Sequence[str] | None:
        """The tensors that a node makes; None, and a note, if it cannot be taken over."""
        if target == "<built-in function getitem>":
            whole = self.names[args[0].name]
            part: str = whole[args[1]]
            if isinstance(part, str) and part not in self.builder.tensors:  # a remark in its place
                source = str(args[0].target)
                reason = f"not supported: its result {args[1]} {part}"
                self.missing.note(self.module, source, shapes, reason, self.code)
                return None
            return self._without_gradient(args[0], part)
        target, handler = self.handler(target)
        before = len(self.missing.lines)
        if self.is_complex(node, handler):
            return self.of_pairs(node, target, args, shapes, handler)
        lost = any(operand.name in self.refused for operand in node.all_input_nodes)
        if handler is None and lost and parts_of(node) is not None:
            return None
        if handler is None and (made := self.by_parts(node)) is not None:
            return made
        if handler is None and draws(node):
            self.missing.note(self.module, target, shapes, RANDOM, self.code)
            return None
        try:
            result = self.convert(handler, Call(target, args), shapes)
        except ZeroDivisionError:
            self.missing.note(self.module, target, shapes, "it divides by a constant 0", self.code)
            result = None
        except GradletError:
            if not lost:
                raise
            result = None
        if lost and handler is not None:  # its own fault or not: nobody can tell
            del self.missing.lines[before:]
            return None
        return result

    def _family(self, node: Any) -> list[str]:
        root = self.aliases.root(node.name)
        return [root, *(view.name for view in self.aliases.views.get(root, ()))]

    def _refuse_lasting_change(
        self, target: str, args: Sequence[Any], shapes: Sequence[str]
    ) -> None:
        """What a module writes to its own buffers would have to last until the next step."""
        first = getattr(args[0], "name", "") if args else ""
        root = self.aliases.root(first)
        if owner := self._kept.get(root):
            reason = (
                f"it changes '{owner}' of the model at every step; only the running statistics of "
                "norms may change. Compute with a copy: .clone()"
            )
            self.missing.note(self.module, target, shapes, f"not supported: {reason}", self.code)
        elif self.quiet and first not in self.known.values and not args[0].meta.get(QUIET):
            reason = "it overwrites, under no_grad, what has a gradient; overwrite a .clone() of it"
            self.missing.note(self.module, target, shapes, f"not supported: {reason}", self.code)

    def _overwrite(self, node: Any) -> None:
        """The tensor that a view shows has changed, and with it all other views of it."""
        root = self.aliases.root(node.name)
        if root in self._kept or self.refused.intersection(self._family(node)):
            self.refused.update(self._family(node))
            return
        first = next(n for n in self.graph.nodes if n.name == root)
        value = self.names[node.name]
        changed = put(self, self._current(first), self.aliases.places(node), value)
        for name in self._family(node):
            self.known.values.pop(name, None)
        self.names[root] = changed
        quiet = self.quiet
        for view in self.aliases.views[root]:
            self.quiet = bool(view.meta.get(QUIET))
            target = str(view.target)
            if in_place(target):
                self.names[view.name] = self.names[view.args[0].name]
            else:
                again = self._converted(view, target, positional(view), [])
                if again is None:
                    self.refused.add(view.name)
                self.names[view.name] = again or self._stand_in(view.meta.get("val"))
        self.quiet = quiet

    def _current(self, node: Any) -> str:
        """A tensor as it is now, whoever asks."""
        quiet, self.quiet = self.quiet, False
        name = self.tensor(node)
        self.quiet = quiet
        return name

    def _refuse_dynamic(self, node: Any) -> None:
        shape = list(getattr(node.meta.get("val"), "shape", ()))
        if not all(isinstance(extent, int) for extent in shape):
            args = [str(list(a.meta["val"].shape)) for a in node.all_input_nodes if has_shape(a)]
            reason = (
                f"it gives a shape {shape} that depends on the data; Gradlet plans memory "
                f"beforehand and needs static shapes. Keep all elements, and make those 0 that do "
                f"not count: torch.where(condition, x, 0), or x * mask"
            )
            maker = node
            while "getitem" in str(maker.target):  # the user wrote what has several results
                maker = maker.args[0]
            missing = Missing()
            missing.note(self.module, str(maker.target), args, reason, self.code)
            missing.raise_if_any(self.builder.name)

    def _stand_in(self, value: Any) -> Any:
        """A tensor in place of a refused result, so that the walk finds all that is missing."""
        if isinstance(value, list | tuple):
            return [self._stand_in(item) for item in value]
        shape = [n if isinstance(n, int) else 1 for n in getattr(value, "shape", ())]
        floats = getattr(getattr(value, "dtype", None), "is_floating_point", True)
        dtype = "f32" if floats else "i32"
        return self.builder.external(self.builder.fresh("missing"), shape, "activation", dtype)

    def _outputs(self, values: Sequence[Any]) -> None:
        self.outputs = [self.tensor(value) for value in values if value is not None]

    def tensor(self, value: Any) -> str:
        own = getattr(value, "name", str(value))  # a complex number has none
        name, known = self.names.get(own), self.known.values.get(own)
        if name not in self.builder.tensors and known is not None and hasattr(known, "dtype"):
            # whole numbers and masks beside floats count as floats
            self.names[own] = name = self.constant(known.float().numpy().copy())
        if not isinstance(name, str) or name not in self.builder.tensors:  # '' is none
            raise Unsupported(f"operand '{own}' is no tensor of numbers")
        return self._without_gradient(value, name)

    def _without_gradient(self, value: Any, name: str) -> str:
        """What enters no_grad from outside; whatever it was made of there has none anyway."""
        role = self.builder.tensors[name].role
        if not self.quiet or value.meta.get(QUIET) or role in ("const", "input", "state"):
            return name
        if name not in self._detached:
            self._detached[name] = self.add("detach", [name])
        return self._detached[name]

    def param(self, value: Any) -> str:
        return self.tensor(value)

    def kind(self, value: Any) -> str:
        torch = require_torch()
        dtype = value.meta["val"].dtype if hasattr(value, "meta") else torch.tensor(value).dtype
        return "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"

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
