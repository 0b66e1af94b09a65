"""How a user's module is called: where its tensors go, and which of its results a loss sees.

Example inputs are a tensor, a tuple of arguments, a mapping of keyword arguments, or arguments with
such a mapping at the end. The tensors in them, wherever they are, are the inputs of the model; all
else, such as None and numbers, is passed as it is.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradlet.errors import GradletError
from gradlet.frontends.passes.batch_norms import batch_norms, switch
from gradlet.frontends.results import chosen
from gradlet.frontends.user_code import FOREIGN, refuse_strange
from gradlet.support.extras import require_torch

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Calling:
    """names: of the tensors, one for each. spec: where among the arguments they are.
    samples: how many each tensor holds.
    outputs: paths of the results that are taken; '' is whatever leaves no doubt.
    bn: what its batch norms do; '' is what they do by themselves.
    whole: the tensors whose first dimension counts no samples."""

    model: str
    names: tuple[str, ...]
    leaves: tuple[Any, ...]
    spec: Any
    dtypes: tuple[Any, ...]
    samples: tuple[int, ...]
    outputs: tuple[str, ...] = ("",)
    bn: str = ""
    whole: tuple[str, ...] = ()

    def __call__(self, module: Any, tensors: Sequence[Any]) -> list[Any]:
        """The results that are taken, of a pass with these tensors, which it may not change."""
        return self.taken(self.run(module, [value.clone() for value in tensors]))

    def run(self, module: Any, tensors: Sequence[Any], forward: Any = None) -> Any:
        tree = require_torch().utils._pytree
        tensor = iter(
            value if kind.is_floating_point or value.dtype == kind else value.to(kind)
            for value, kind in zip(tensors, self.dtypes, strict=True)
        )
        leaves = [next(tensor) if leaf is _TENSOR else leaf for leaf in self.leaves]
        args, kwargs = tree.tree_unflatten(leaves, self.spec)
        switch(module, self.bn)
        with batch_norms(self.bn, traced=forward is not None):
            return (forward or module)(*args, **kwargs)

    def taken(self, result: Any) -> list[Any]:
        return [chosen(result, wanted, self.model) for wanted in self.outputs]

    def into(self, module: Any) -> Any:
        """The module itself, now called with its tensors alone, and giving the chosen ones."""
        forward = module.forward

        def plain(*tensors: Any) -> Any:
            return tuple(self.taken(self.run(module, tensors, forward)))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind) for name in self.names]
        vars(plain)["__signature__"] = inspect.Signature(parameters)
        module.forward = plain
        return module


class _Tensor:
    """Stands where a tensor goes."""


_TENSOR = _Tensor()


def calling(
    module: Any,
    inputs: Any,
    name: str,
    outputs: Sequence[str] = ("",),
    bn: str = "",
    whole: Sequence[str] = (),
) -> tuple[Calling, list[Any]]:
    """How the module is called with such inputs, and the tensors among them."""
    torch = require_torch()
    tree = torch.utils._pytree
    arguments = _arguments(module, inputs)
    placed, spec = tree.tree_flatten_with_path(arguments)
    tensors = [leaf for _, leaf in placed if isinstance(leaf, torch.Tensor)]
    names = _names(module, [p for p, leaf in placed if isinstance(leaf, torch.Tensor)])
    for path, leaf in placed:
        if not isinstance(leaf, (torch.Tensor, *PLAIN)):
            kind = type(leaf).__name__
            raise GradletError(f"example input {_spelled(path)} is a {kind}; tensors are needed")
    if not tensors:
        raise GradletError(f"the example inputs of '{name}' hold none; tensors are needed")
    leaves = tuple(_TENSOR if isinstance(leaf, torch.Tensor) else leaf for _, leaf in placed)
    for own, value in zip(names, tensors, strict=True):  # before anything asks for its shape
        refuse_strange(value, f"example input '{own}'")
    dtypes = tuple(value.dtype for value in tensors)
    samples = tuple(value.shape[0] if value.ndim else 0 for value in tensors)
    for own in whole:
        if own not in names:
            raise GradletError(f"--whole {own}: the inputs of '{name}' are {', '.join(names)}")
    if set(names) <= set(whole):
        raise GradletError(f"--whole {', '.join(names)}: no input of '{name}' is left for samples")
    call = Calling(name, names, leaves, spec, dtypes, samples, tuple(outputs), bn, tuple(whole))
    return call, tensors


def _arguments(module: Any, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional ones and those by name. A mapping is the latter, unless forward wants one."""
    if isinstance(inputs, Mapping):
        given = dict(inputs)
        return ((), given) if _takes(module, given, 0) else ((given,), {})
    listed = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    *before, last = listed if listed else (None,)
    if before and isinstance(last, Mapping) and _takes(module, last, len(before)):
        return tuple(before), dict(last)
    return tuple(dict(v) if isinstance(v, Mapping) else v for v in listed), {}


def _takes(module: Any, given: Mapping[Any, Any], positional: int) -> bool:
    """Whether forward takes these as keyword arguments."""
    try:
        signature = inspect.signature(module.forward)
        signature.bind(*(None,) * positional, **{str(key): None for key in given})
    except FOREIGN:
        return False
    return bool(given)


def _names(module: Any, places: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """As forward calls its arguments; a tensor inside of one adds where it is."""
    try:
        own = list(inspect.signature(module.forward).parameters.values())
    except FOREIGN:
        own = []
    names: list[str] = []
    for place in places:
        _, first, *inner = (getattr(key, "key", getattr(key, "idx", "")) for key in place)
        name = _positional(own, first) if isinstance(first, int) else str(first)
        text = re.sub(r"\W", "_", "_".join([name, *map(str, inner)]))
        text = text if text[:1].isalpha() else f"input_{text}"
        while text in names or keyword.iskeyword(text):
            text = f"{text}_"
        names.append(text)
    return tuple(names)


def _positional(own: Sequence[inspect.Parameter], index: int) -> str:
    for place, parameter in enumerate(own):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return f"{parameter.name}_{index - place}"
        if place == index:
            return parameter.name
    return f"args_{index}"


def _spelled(path: Sequence[Any]) -> str:
    """The place of an argument: 0, mask, batch.image."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path[1:])
