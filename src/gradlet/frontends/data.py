"""Inputs and targets of the user's own, from an .npz or as arrays: checked, as micro-batches."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gradlet.errors import GradletError
from gradlet.frontends.importer import Captured, check_indices, stack_batches
from gradlet.ir.graph import Array, Graph

DAMAGED = (OSError, ValueError, EOFError, LookupError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading an archive may end with; methods of compression that are not there among them."""
OF_TARGET = "target."
"""What arrays of several targets are called, before their names."""


def loaded(path: Path) -> dict[str, Array]:
    try:
        with np.load(path) as file:
            return dict(file)
    except DAMAGED as error:
        raise GradletError(f"cannot read '{path}' as .npz: {error}") from None


def with_data(captured: Captured, arrays: Mapping[str, Array], path: str) -> Captured:
    """Replace inputs and targets by the user's own, where there are some."""
    graph = captured.graph
    wanted = {key: value for key, value in arrays.items() if _is_target(key)}
    targets_alone = bool(arrays) and len(wanted) == len(arrays) and captured.module is None
    given = {} if targets_alone else _given_inputs(graph, arrays, path)
    samples = {name: _user_samples(graph, name, value, path) for name, value in given.items()}
    targets = {
        key.removeprefix(OF_TARGET): user_targets(value, graph.batch, f"'{path}': '{key}'")
        for key, value in wanted.items()
    }
    counts = {
        graph.own_name(name): len(values)
        for name, values in given.items()
        if values.ndim and name not in graph.whole
    }
    counts |= {key: len(value) if value.ndim else 0 for key, value in wanted.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
        raise GradletError(
            f"'{path}' has different numbers of samples: {listed}; each input needs its target"
        )
    graph = replace(graph, samples=with_whole({**graph.samples, **samples}, graph.whole))
    check_indices(graph)
    if not targets:
        return replace(captured, graph=graph)
    one = list(wanted) == ["targets"]
    return replace(captured, graph=graph, targets=targets["targets"] if one else targets)


def _given_inputs(graph: Graph, arrays: Mapping[str, Array], path: str) -> dict[str, Array]:
    """The array of each input; one that is taken whole may stay as it is."""
    kept = {n for n in graph.whole if not {f"input.{graph.own_name(n)}", n} & arrays.keys()}
    names = [name for name in graph.inputs if name not in kept]
    return {name: arrays[_key(graph, name, arrays, path)] for name in names}


def with_whole(samples: Mapping[str, Array], whole: Collection[str]) -> dict[str, Array]:
    """What is taken whole comes again with every micro-batch."""
    count = max((len(value) for name, value in samples.items() if name not in whole), default=1)
    return {
        name: np.repeat(value[:1], count, axis=0) if name in whole else value
        for name, value in samples.items()
    }


def _is_target(key: str) -> bool:
    return key == "targets" or key.startswith(OF_TARGET)


def _key(graph: Graph, name: str, arrays: Mapping[str, Array], path: str) -> str:
    """The array of an input: `inputs` of the only one, else its name. `targets` is never an input;
    one that is called so is given as `input.targets`."""
    own = graph.own_name(name)
    keys = [f"input.{own}", *(["inputs"] if len(graph.inputs) == 1 else [])]
    keys += [own] if own != "targets" else []
    found = next((key for key in keys if key in arrays), None)
    if found is None:
        wanted = " or ".join(f"'{key}'" for key in keys[1:] or keys)
        raise GradletError(f"'{path}' has no array {wanted}; it has {', '.join(arrays) or 'none'}")
    return found


def user_targets(values: Array, batch: int, what: str) -> Array:
    """Samples of targets as micro-batches. Their shape and range is the loss's business."""
    values = np.asarray(values)
    if values.dtype.kind not in "fiub":
        raise GradletError(
            f"{what} must be numbers, not {values.dtype}: class labels are whole numbers from 0"
        )
    if values.ndim == 0:
        raise GradletError(f"{what} must have one entry per sample, not a single number")
    if values.dtype.kind == "f":
        _check_range(values, what)
    return stack_batches(values, batch, what)


def _check_range(values: Array, what: str) -> None:
    """Finite, also as float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        bad = ~np.isfinite(values.astype(np.float32))
    if bad.any():
        worst = values[bad].reshape(-1)[0]
        raise GradletError(
            f"{what} must hold finite numbers of the range of float32 (up to 3.4e38); "
            f"{int(bad.sum())} of {values.size} are not, such as {worst}"
        )


def _user_samples(graph: Graph, name: str, values: Array, path: str) -> Array:
    shape, own = graph.tensors[name].shape, graph.own_name(name)
    whole = name in graph.whole
    if whole and values.shape != shape:
        raise GradletError(
            f"'{path}': '{own}' has shape {values.shape}; it is taken whole, as {list(shape)}"
        )
    if not whole and (values.ndim == 0 or values.shape[1:] != shape[1:]):
        raise GradletError(
            f"'{path}': '{own}' has shape {values.shape}; the model takes [N, "
            f"{', '.join(map(str, shape[1:]))}]"
        )
    if values.dtype.kind not in "fiu":
        raise GradletError(f"'{path}': '{own}' must hold finite numbers, not {values.dtype}")
    _check_range(values, f"'{path}': '{own}'")
    dtype = graph.tensors[name].element.value_type
    if dtype == np.int32 and not (values == values.astype(np.int32)).all():
        raise GradletError(f"'{path}': '{own}' must hold indices, which are whole numbers")
    if whole:
        return values.astype(dtype)[None]
    return stack_batches(values.astype(dtype), shape[0], f"'{path}'")
