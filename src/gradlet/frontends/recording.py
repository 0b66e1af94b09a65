"""Trains the user's own module for a few steps: eager, in float64, by torch.nn and torch.optim. An
ONNX file is a module as well (`onnx_oracle`), whose names need not be those of the graph.

The module is copied first, and PyTorch's settings are as before afterwards. Whatever goes wrong
here, a build goes on; the recording then says why it is none.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradlet.frontends.calling import Calling
from gradlet.frontends.recording_loss import torch_loss
from gradlet.frontends.recording_modes import (
    Narrow,
    Refused,
    dense_gradients,
    first_of_equals,
    our_dropout,
    watched,
)
from gradlet.frontends.recording_types import (
    Parts,
    places_of,
    round_as_stored,
    skipped_steps,
)
from gradlet.frontends.torch.check import copied, in_type, plain_attention, same_epsilon
from gradlet.frontends.user_code import noticed_exits
from gradlet.ir.graph import Array, Graph
from gradlet.ir.recipe import Loss, Recipe
from gradlet.ops.learning.loss_scale import scale_of
from gradlet.ops.learning.optimizer import wanted_update
from gradlet.oracle.interpreter import run_reference
from gradlet.oracle.recording import Recording, digest
from gradlet.support.extras import require_torch

STEPS = 3
PASSES = 192
"""No further step is recorded after so many passes: a step of 1,000 micro-batches tells enough."""


@dataclass(frozen=True)
class Aim:
    """A loss, which of the outputs it sees, and the micro-batches of its target."""

    loss: Loss
    output: int
    target: Array


def record(
    module: Any,
    graph: Graph,
    recipe: Recipe,
    inputs: Sequence[Array],
    aims: Sequence[Aim],
    calling: Calling,
) -> Recording:
    """What the module does with these micro-batches, in float64, unless the module computes some
    of it in float32: then its constants are what single precision makes of them, in the program as
    well. Of the training graph only the names of what is trained are used, and where their elements
    lie."""

    def recorded(double: bool) -> Recording:
        with settings(double=double):
            return _Recorder(module, graph, recipe, calling, double=double).run(inputs, aims)

    def first_wide() -> Recording:
        with suppress(Narrow):
            recording = recorded(double=True)
            if _same_constants(recording, graph):
                return recording
        return recorded(double=False)

    return guarded(first_wide)


def guarded(recorded: Callable[[], Recording]) -> Recording:
    """A recording, or why there is none."""
    try:
        with noticed_exits():
            return recorded()
    except Refused as error:
        return Recording(absent=str(error))
    except (Exception, SystemExit) as error:  # whatever a module does, the build is none the worse
        line = (str(error).splitlines() or [""])[0]
        return Recording(absent=f"it cannot be trained apart: {type(error).__name__}: {line}")
    finally:
        _give_back()


def _give_back() -> None:
    """Ask glibc to return what was freed: it keeps blocks of up to 32 MB, which are hundreds of MB
    after the training of a large module. Other allocators do not have this call."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def record_exactly(
    module: Any,
    graph: Graph,
    recipe: Recipe,
    inputs: Sequence[Array],
    aims: Sequence[Aim],
    origins: Mapping[str, Parts],
) -> Recording:
    """The same of a module whose constants are float32 already, and which says itself what of it
    each tensor of the graph is."""
    with settings(double=True):
        recorder = _Recorder(module, graph, recipe, None, double=True, origins=origins)
        return recorder.run(inputs, aims)


def _same_constants(recording: Recording, graph: Graph) -> bool:
    """Whether the first loss is that of the graph, in double precision."""
    expected = next(iter(run_reference(graph, 1))).loss
    return bool(abs(recording.losses[0] - expected) <= 1e-9 * abs(expected))


@contextmanager
def settings(*, double: bool) -> Iterator[None]:
    """Tensors that a forward pass makes are as wide as all others; nothing is left changed."""
    torch = require_torch()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.enable_grad():
            warnings.simplefilter("ignore")
            with plain_attention(), redirect_stdout(sys.stderr), np.errstate(all="ignore"):
                yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class _Trained:
    """A parameter of the graph: what of the module's it holds, element by element."""

    name: str
    parts: tuple[tuple[str, Any], ...]
    leaf: Any

    @property
    def paths(self) -> set[str]:
        return {path for path, _ in self.parts}


class _Recorder:
    def __init__(
        self,
        module: Any,
        graph: Graph,
        recipe: Recipe,
        calling: Calling | None,
        *,
        double: bool,
        origins: Mapping[str, Parts] | None = None,
    ) -> None:
        torch = require_torch()
        self.graph, self.recipe, self.calling = graph, recipe, calling
        self.origins = origins
        self.dtype, self.single = (torch.float64 if double else torch.float32), not double
        self.module = in_type(copied(module), self.dtype).cpu()
        same_epsilon(self.module)
        every = dict(self.module.named_parameters(remove_duplicate=False))
        first = {id(p): path for path, p in self.module.named_parameters()}
        self.paths = {path: first[id(p)] for path, p in every.items()}
        round_as_stored(graph, every, origins, lambda name: self._parts(name, every)[1])
        self.trained = list(self._chosen(every))
        extra = self.trained[len(self.graph.trained) :]
        self.start = {t.name: t.leaf.detach().clone() for t in extra}
        self.passed: dict[str, Any] = {}

    def _chosen(self, every: Mapping[str, Any]) -> Iterator[_Trained]:
        """What the graph trains; with update=all also what it should."""
        setters = {n.inputs[1]: n for n in self.graph.nodes if n.op == "set_rows"}
        seen: dict[str, list[Any]] = {}
        for name in self.graph.trained:
            setter = setters.get(name)
            whole = setter.inputs[0] if setter else name
            label, parts = self._parts(whole, every)
            if setter:
                begin, rows = int(setter.attrs["begin"]), self.graph.tensors[name].shape[0]  # type: ignore[arg-type]
                shape = self.graph.tensors[whole].shape
                parts = tuple((p, v.reshape(shape)[begin : begin + rows]) for p, v in parts)
                label = f"{label}[{begin}:{begin + rows}]"
            chosen = tuple((path, places_of(places.reshape(-1))) for path, places in parts)
            for path, places in chosen:
                seen.setdefault(path, []).append(places)
            path, places = chosen[0]
            leaf = every[path].detach().reshape(-1)[places].clone().requires_grad_(True)
            yield _Trained(label, chosen, leaf)
        for path, parameter in every.items() if self.recipe.update == "all" else ():
            if self.paths[path] == path and parameter.requires_grad:
                unseen = np.ones(parameter.numel(), bool)
                for places in seen.get(path, ()):
                    unseen[places] = False
                if unseen.any():
                    left = places_of(np.flatnonzero(unseen))
                    leaf = parameter.detach().reshape(-1)[left].clone().requires_grad_(True)
                    yield _Trained(path, ((path, left),), leaf)

    def _parts(self, name: str, every: Mapping[str, Any]) -> tuple[str, Parts]:
        """What the module calls a tensor of the graph, and what of the module it is."""
        own = self.graph.own_name(name)
        if self.origins is None:
            if own not in every:
                raise Refused(f"the module has no parameter '{own}', which the program trains")
            path = self.paths[own]
            return path, ((path, self._places(name, every[own].numel())),)
        parts = self.origins.get(name, ())
        if not parts or not every.keys() >= {path for path, _ in parts}:
            raise Refused(f"the file stores no '{own}', which the program trains")
        order = self._places(name, parts[0][1].size)
        alone = len(parts) == 1 and parts[0][1].size == every[parts[0][0]].numel()
        label = parts[0][0] if alone else own
        return label, tuple((path, places.reshape(-1)[order]) for path, places in parts)

    def _places(self, name: str, size: int) -> Array:
        """Where in the module's tensor the elements of the graph's are."""
        places: Array = np.arange(size, dtype=np.int32 if size < 2**31 else np.int64)
        if name in self.graph.stored:
            view, order = self.graph.stored[name]
            places = places.reshape(view).transpose(order)
        return places.reshape(-1)

    def run(self, inputs: Sequence[Array], aims: Sequence[Aim]) -> Recording:
        fed_in = (*inputs, *(aim.target for aim in aims))
        batches = [[self._tensor(v) for v in value] for value in fed_in]
        optimizer = self._optimizer()
        skipped = skipped_steps(self.graph, STEPS)
        losses: list[float] = []
        after: list[dict[str, Array]] = []
        gradients: dict[str, Array] = {}
        scale = self.graph.data.get(scale_of(self.graph), np.ones(1))[0]
        fed = 0
        while len(losses) < STEPS and (not losses or fed < PASSES):
            optimizer.zero_grad()
            total = 0.0
            for _ in range(self.recipe.accumulate):
                now = [values[fed % len(values)] for values in batches]
                outputs = self._forward(now[: len(inputs)], fed)
                loss = self._total(aims, outputs, now[len(inputs) :])
                found = self._gradients(loss / self.recipe.accumulate)
                for trained, gradient in zip(self.trained, found, strict=True):
                    old, new = trained.leaf.grad, gradient
                    trained.leaf.grad = new if old is None else old if new is None else old + new
                total += float(loss)
                fed += 1
            if not losses:
                gradients = {
                    trained.name: digest(gradient.numpy() * scale)
                    for trained, gradient in zip(self.trained, found, strict=True)
                    if gradient is not None
                }
            if len(losses) not in skipped:
                self._clip()
                optimizer.step()
            losses.append(total / self.recipe.accumulate)
            after.append({name: digest(value) for name, value in self._state().items()})
        return self._recording(losses, gradients, after)

    def _gradients(self, loss: Any) -> list[Any]:
        """Of what is trained, as it lies in the program."""
        torch = require_torch()
        names = list(dict.fromkeys(path for trained in self.trained for path in trained.paths))
        with dense_gradients():
            found = torch.autograd.grad(loss, [self.passed[n] for n in names], allow_unused=True)
        whole = dict(zip(names, found, strict=True))
        self.passed = {}

        def summed(trained: _Trained) -> Any:
            parts = [
                whole[path].reshape(-1)[places]
                for path, places in trained.parts
                if whole[path] is not None
            ]
            return sum(parts[1:], parts[0]) if parts else None

        return [summed(trained) for trained in self.trained]

    def _tensor(self, value: Array) -> Any:
        tensor = require_torch().from_numpy(np.array(value))
        return tensor.to(self.dtype) if tensor.dtype.is_floating_point else tensor.long()

    def _forward(self, given: Sequence[Any], fed: int) -> list[Any]:
        """A pass of the module with the parameters as they are now. It keeps them itself: some hold
        them in places of their own, where nobody could put others."""
        torch = require_torch()
        parameters = dict(self.module.named_parameters())
        with torch.no_grad():
            for path, places, leaf in ((*p, t.leaf) for t in self.trained for p in t.parts):
                whole = parameters[path].detach().reshape(-1).clone()
                whole[places] = leaf
                parameters[path].copy_(whole.reshape(parameters[path].shape))
        module = copied(self.module)  # what a pass leaves in plain attributes is of that pass
        self.passed = dict(module.named_parameters())
        for path, parameter in self.passed.items():
            parameter.requires_grad_(any(path in trained.paths for trained in self.trained))
        with our_dropout(fed) as draws, watched(draws, single=self.single), first_of_equals():
            outputs = self.calling(module, given) if self.calling else module(*given)
        for path, buffer in module.named_buffers():
            self._keep(path, buffer.detach().clone())
        return outputs

    def _keep(self, path: str, buffer: Any) -> None:
        if self.origins is not None:
            self.module.set_buffer(path, buffer)
            return
        parent, _, name = path.rpartition(".")
        self.module.get_submodule(parent)._buffers[name] = buffer

    def _total(self, aims: Sequence[Aim], outputs: Sequence[Any], targets: Sequence[Any]) -> Any:
        """The weighted sum, with weights as the program has them: in single precision."""
        parts = [
            float(np.float32(aim.loss.weight)) * torch_loss(aim.loss, outputs[aim.output], target)
            for aim, target in zip(aims, targets, strict=True)
        ]
        return sum(parts[1:], parts[0])

    def _optimizer(self) -> Any:
        """With the settings as the program has them: in single precision."""
        op, torch = wanted_update(self.recipe), require_torch()
        space = {"torch": torch, "parameters": [trained.leaf for trained in self.trained]}
        space |= {name: float(np.float32(getattr(self.recipe, name))) for name in op.hyper}
        exec(op.torch_source, space)
        return eval(op.torch_optimizer, space)

    def _clip(self) -> None:
        utils, recipe = require_torch().nn.utils, self.recipe
        leaves = [trained.leaf for trained in self.trained]
        for leaf in leaves if recipe.clip_norm or recipe.clip_value else ():
            if (
                leaf.grad is not None
            ):  # autograd may give one storage to two; these are cut in place
                leaf.grad = leaf.grad.clone()
        if recipe.clip_norm:
            utils.clip_grad_norm_(leaves, float(np.float32(recipe.clip_norm)))
        if recipe.clip_value:
            utils.clip_grad_value_(leaves, float(np.float32(recipe.clip_value)))

    def _state(self) -> dict[str, Array]:
        """Parameters, and the buffers that the graph replaces, as they lie in the program."""
        state = {t.name: t.leaf.detach().numpy().copy() for t in self.trained}
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        for old, _ in self.graph.updates:
            path = self.graph.own_name(old)
            if self.origins is not None:
                path = next((value for value, _ in self.origins.get(old, ())), path)
            if self.graph.tensors[old].role == "state" and path in buffers:
                places = self._places(old, buffers[path].numel())
                state[path] = buffers[path].detach().numpy().reshape(-1)[places].astype(np.float64)
        return state

    def _state_tensor(self, path: str) -> str:
        """What the graph calls a buffer."""
        states = [old for old, _ in self.graph.updates if self.graph.tensors[old].role == "state"]
        parts = self.origins or {n: ((self.graph.own_name(n), np.zeros(0)),) for n in states}
        return next((old for old in states if path in dict(parts.get(old, ()))), path)

    def _recording(
        self, losses: list[float], gradients: Mapping[str, Array], after: list[dict[str, Array]]
    ) -> Recording:
        known = {t.name: name for t, name in zip(self.trained, self.graph.trained, strict=False)}
        tensors = {}
        for name in after[0]:
            tensors[name] = known.get(name, self._state_tensor(name))
        idle = {
            t.name
            for t in self.trained[len(self.graph.trained) :]
            if (self.start[t.name] == t.leaf.detach()).all()
        }
        tensors |= {t.name: "" for t in self.trained[len(self.graph.trained) :]}
        kept = tuple({n: v for n, v in values.items() if n not in idle} for values in after)
        return Recording(tuple(losses), gradients, kept, tensors, self.single)
