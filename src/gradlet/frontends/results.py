"""Which of the tensors that a model returns is the one that a loss sees.

A result may be a tensor, or tuples, lists, mappings (a `ModelOutput` is one) and dataclasses of
them. Each tensor has a path: `logits`, `1`, `aux.0`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradlet.errors import GradletError
from gradlet.frontends.user_code import refuse_strange
from gradlet.ir.recipe import USUAL
from gradlet.support.extras import require_torch


def chosen(result: Any, wanted: str, model: str) -> Any:
    """The tensor at `wanted`, a path or a number; without one the only one, or the logits."""
    found = dict(_tensors(result))
    if not found:
        _refuse(result, model)
    path = _named(found, result, wanted, model) if wanted else _usual(found, model)
    value = found[path]
    what = f"result '{path}'" if path else "the result"
    refuse_strange(value, f"{what} of model '{model}'")
    if not value.dtype.is_floating_point:
        raise GradletError(
            f"model '{model}' returns {value.dtype}{f' as {path!r}' if path else ''}; a loss needs "
            f"scores in floating point{_others(found, path)}"
        )
    return value


def paths(result: Any) -> list[str]:
    return [path for path, _ in _tensors(result)]


def _tensors(result: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(result, require_torch().Tensor):
        yield path, result
        return
    for key, value in _items(result):
        yield from _tensors(value, f"{path}.{key}" if path else str(key))


def _items(result: Any) -> list[tuple[Any, Any]]:
    """What a result holds, by name or number; nothing if it is no container that we know."""
    if isinstance(result, Mapping):
        return list(result.items())
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return list(zip(result._fields, result, strict=True))
    if isinstance(result, tuple | list):
        return list(enumerate(result))
    if dataclasses.is_dataclass(result):
        return [(f.name, getattr(result, f.name, None)) for f in dataclasses.fields(result)]
    return []


def _usual(found: Mapping[str, Any], model: str) -> str:
    """Without a wish: whatever leaves no doubt."""
    scores = {path: value for path, value in found.items() if value.dtype.is_floating_point}
    if len({id(value) for value in scores.values()}) == 1:
        return next(iter(scores))
    if len(found) == 1:
        return next(iter(found))
    if USUAL in scores:
        return USUAL
    raise GradletError(
        f"model '{model}' returns {len(found)} tensors ({_listed(found)}); a loss needs one: "
        f"choose it with --output {next(iter(scores or found))} (in Python, output=...)"
    )


def _named(found: Mapping[str, Any], result: Any, wanted: str, model: str) -> str:
    below = [path for path in found if path.startswith(f"{wanted}.")]
    if wanted in found:
        return wanted
    if len(below) == 1:
        return below[0]
    items = _items(result)
    if wanted.lstrip("-").isdigit() and -len(items) <= int(wanted) < len(items):
        key = str(items[int(wanted)][0])
        if key != wanted:
            return _named(found, result, key, model)
    if list(found) == [""]:
        if wanted in ("0", "-1"):
            return ""
        raise GradletError(f"model '{model}' returns a single tensor; leave out --output {wanted}")
    hint = f"'{wanted}' holds {len(below)}" if below else f"none of them is '{wanted}'"
    raise GradletError(
        f"--output {wanted}: model '{model}' returns {_listed(found)}; {hint}, so name one of these"
    )


def _listed(found: Mapping[str, Any], most: int = 12) -> str:
    named = [f"{path} {list(value.shape)}" for path, value in found.items()]
    return ", ".join(named[:most]) + (f" and {len(named) - most} more" if len(named) > most else "")


def _others(found: Mapping[str, Any], path: str) -> str:
    scores = [p for p, v in found.items() if p != path and v.dtype.is_floating_point]
    return f"; --output {scores[0]} is in floating point" if scores else ""


def _refuse(result: Any, model: str) -> None:
    held = [str(key) for key, _ in _items(result)] or list(getattr(result, "__dict__", {}))
    listed = f" with {', '.join(held[:8])}" if held else ""
    kind = type(result).__name__
    if isinstance(result, Sequence) and not isinstance(result, str) and result:
        kind = f"{kind} of {type(result[0]).__name__}"
    raise GradletError(
        f"model '{model}' returns a {kind}{listed}, in which there is no tensor; a loss needs one. "
        f"Wrap it: a module whose forward returns that tensor, `return self.model(x).scores`"
    )
