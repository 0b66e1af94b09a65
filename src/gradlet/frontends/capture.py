"""From whatever the user has to a forward graph: one door for all front ends."""

from __future__ import annotations

import importlib.util
import math
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.frontends.data import OF_TARGET, loaded, user_targets, with_data
from gradlet.frontends.importer import Captured
from gradlet.frontends.user_code import FOREIGN, described, noticed_exits
from gradlet.ir.builder import MOST_ELEMENTS
from gradlet.ir.graph import Array, Graph

__all__ = ["Captured", "Note", "capture"]


def capture(
    model: Any,
    inputs: Any = None,
    targets: Any = None,
    *,
    batch: int | None = None,
    input_shape: Sequence[int] | None = None,
    data: Path | None = None,
    output: str | int | Sequence[str | int] = "",
    bn: str = "",
    dims: Mapping[str, int] | None = None,
    whole: str | Sequence[str] = (),
    name: str = "",
) -> Captured:
    """Capture an nn.Module, `file.py:name`, a `.onnx`, a `.toml` or `zoo:NAME`.

    inputs is a tensor, a tuple of arguments or a dict of keyword arguments. inputs and targets hold
    samples along their first dimension; `batch` of them are computed together, the rest become
    further micro-batches of the golden data. `data` names an .npz with arrays `inputs` and
    `targets` that take their place. `output` chooses among the tensors that the model returns, by
    name or by number, also several for several losses, whose targets are a dict by name (in an .npz
    `target.NAME`); `bn` says what batch norms do in training: train, frozen or recalibrate.
    `dims` are the sizes of open dimensions of an ONNX file by their names; examples tell them, too.
    `whole` names inputs whose first dimension counts no samples, such as the state of a recurrent
    layer: they come as they are with every batch.
    """
    if batch is not None and not 1 <= batch <= MOST_ELEMENTS:
        raise GradletError(f"a batch of {batch} makes no sense")
    outputs = [output] if isinstance(output, str | int) else output
    whole = (whole,) if isinstance(whole, str) else tuple(whole)
    wishes = Wishes(batch, tuple(dict.fromkeys(map(str, outputs))) or ("",), bn, dims or {}, whole)
    arrays = {} if data is None else loaded(data)
    with redirect_stdout(sys.stderr), noticed_exits():  # a model's own prints are no result
        if isinstance(model, str | Path) and _is_file(model):
            given = Given(inputs, targets, input_shape, arrays)
            captured = _from_file(Path(model), wishes, given)
        else:
            if wishes.dims:
                raise GradletError("--dim is for ONNX files; a module has the sizes of its inputs")
            captured = _captured(model, inputs, targets, input_shape, name, wishes)
        captured = captured if data is None else with_data(captured, arrays, str(data))
    for note in captured.notes:
        warnings.warn(note, Note, stacklevel=2)
    return captured


class Note(UserWarning):
    """What was done to a model that its owner should know."""


@dataclass(frozen=True)
class Given:
    """What a user has beside a file that holds a model."""

    inputs: Any = None
    targets: Any = None
    shape: Sequence[int] | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)


def _is_file(model: str | Path) -> bool:
    return not str(model).startswith("zoo:") and ".py:" not in str(model)


@dataclass(frozen=True)
class Wishes:
    """How a model is to be captured, wherever it comes from."""

    batch: int | None = None
    outputs: tuple[str, ...] = ("",)
    bn: str = ""
    dims: Mapping[str, int] = field(default_factory=dict)
    whole: tuple[str, ...] = ()


def _captured(
    model: Any,
    inputs: Any,
    targets: Any,
    input_shape: Sequence[int] | None,
    name: str,
    wishes: Wishes,
) -> Captured:
    if not isinstance(model, str | Path):
        own = name or type(model).__name__.lower()
        return _from_module(model, inputs, targets, own, wishes)
    if str(model).startswith("zoo:"):
        return _from_zoo(str(model), wishes)
    return _from_python(str(model), input_shape, wishes)


def _from_zoo(model: str, wishes: Wishes) -> Captured:
    from gradlet import zoo

    entry = zoo.get(model.removeprefix("zoo:"))
    module, inputs, targets = entry.make()
    wishes = replace(wishes, batch=wishes.batch or 1)
    captured = _from_module(module, inputs, targets, entry.name, wishes)
    return replace(captured, defaults={"loss": entry.loss})


def _from_file(path: Path, wishes: Wishes, given: Given) -> Captured:
    readers = {".onnx": _from_onnx, ".toml": _from_toml}
    reader = readers.get(path.suffix)
    if reader is None:
        raise GradletError(
            f"'{path}' is no model: name file.py:NAME, an .onnx or .toml file, or zoo:NAME"
        )
    if not path.is_file():
        raise GradletError(f"there is no file '{path}'")
    if wishes.bn:
        raise GradletError(
            f"--bn {wishes.bn}: {path} says itself what its norms do; --bn is for PyTorch modules"
        )
    captured = reader(path, wishes, given)
    if given.inputs is None and given.targets is None:
        return captured
    return with_data(captured, _by_name(captured.graph, given, path), f"the data for {path}")


def _by_name(graph: Graph, given: Given, path: Path) -> dict[str, Array]:
    """Inputs and targets of a caller as arrays, as a file of data has them."""
    values = _listed(given.inputs)
    if not isinstance(values, Mapping):
        if len(values) not in (0, len(graph.inputs)):
            wanted = ", ".join(map(graph.own_name, graph.inputs))
            raise GradletError(f"{path} has inputs {wanted}; {len(values)} were given")
        values = dict(zip(map(graph.own_name, graph.inputs), values, strict=False))
    arrays = {f"input.{name}": np.asarray(value) for name, value in values.items()}
    if isinstance(given.targets, Mapping):
        targets = {f"{OF_TARGET}{name}": np.asarray(v) for name, v in given.targets.items()}
    else:
        targets = {} if given.targets is None else {"targets": np.asarray(given.targets)}
    return {**arrays, **targets}


def _listed(inputs: Any) -> Mapping[str, Any] | Sequence[Any]:
    if inputs is None:
        return ()
    return inputs if isinstance(inputs, Mapping | list | tuple) else (inputs,)


def _from_onnx(path: Path, wishes: Wishes, given: Given) -> Captured:
    from gradlet.frontends.onnx.model import captured_onnx
    from gradlet.frontends.onnx.sizes import Sizes

    values = _listed(given.inputs)
    examples: Any = [np.shape(value) for value in values]
    if isinstance(values, Mapping):
        examples = {name: np.shape(value) for name, value in values.items()}
    elif given.arrays:
        examples = {k.removeprefix("input."): v.shape for k, v in given.arrays.items()}
        if "inputs" in examples:
            examples = [examples["inputs"]]
    elif given.shape:
        examples = [(1, *given.shape)]
    sizes = Sizes(wishes.batch, wishes.dims, examples, wishes.whole)
    return captured_onnx(path, sizes, wishes.outputs)


def _from_toml(path: Path, wishes: Wishes, given: Given) -> Captured:
    from gradlet.frontends.toml import capture_toml

    if wishes.dims:
        raise GradletError(f"--dim is for ONNX files; {path} gives the size of its input itself")
    if wishes.whole:
        raise GradletError(f"--whole {wishes.whole[0]}: {path} has one input, which holds samples")
    return capture_toml(path, batch=wishes.batch, outputs=wishes.outputs)


def _from_python(spec: str, input_shape: Sequence[int] | None, wishes: Wishes) -> Captured:
    from gradlet.support.extras import require_torch

    path, _, attribute = spec.rpartition(":")
    random = require_torch().random
    with random.fork_rng(devices=[]):
        random.manual_seed(0)  # weights that the file leaves to chance are the same every time
        module = _load_python(Path(path))
        if not hasattr(module, attribute):
            public = ", ".join([n for n in vars(module) if not n.startswith("_")][:12])
            raise GradletError(f"'{path}' defines no '{attribute}'; it has {public}")
        value, inputs, targets = _resolve(getattr(module, attribute), spec)
    if input_shape is not None:
        inputs = _random_input(input_shape)
    if inputs is None:
        inputs = getattr(module, "example_inputs", None)
    if inputs is None:
        raise GradletError(
            f"'{spec}' gives a module without inputs: let it be a function that returns "
            f"(module, example_inputs), define `example_inputs` beside it, or pass --input CxHxW"
        )
    return _from_module(value, inputs, targets, attribute, wishes)


def _load_python(path: Path) -> Any:
    if not path.is_file():
        raise GradletError(f"there is no file '{path}'")
    spec = importlib.util.spec_from_file_location(f"gradlet_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise GradletError(f"'{path}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except FOREIGN as error:
        raise GradletError(f"'{path}' cannot be imported: {_last_line(error, path)}") from None
    finally:
        sys.path.remove(folder)
    return module


def _last_line(error: BaseException, path: Path) -> str:
    """What happened, and the last line of the user's own file that led there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).name == path.name] or frames
    where = f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
    return f"{described(error)}{where}"


def _resolve(value: Any, spec: str) -> tuple[Any, Any, Any]:
    """(module, inputs, targets) from a module, a module class, or a function that returns some."""
    from gradlet.support.extras import require_torch

    torch = require_torch()
    if callable(value) and not isinstance(value, torch.nn.Module):
        try:
            value = value()
        except FOREIGN as error:
            path = Path(spec.rpartition(":")[0])
            raise GradletError(f"'{spec}' fails when called: {_last_line(error, path)}") from None
    if isinstance(value, torch.nn.Module):
        return value, getattr(value, "example_inputs", None), None
    if isinstance(value, tuple) and value and isinstance(value[0], torch.nn.Module):
        if len(value) in (2, 3):
            return (*value, None)[:3]
        raise GradletError(
            f"'{spec}' returns {len(value)} values; (module, inputs) or (module, inputs, targets)"
        )
    raise GradletError(f"'{spec}' is a {type(value).__name__}, not an nn.Module or such a function")


def _random_input(shape: Sequence[int]) -> Any:
    from gradlet.support.extras import require_torch

    if (elements := math.prod(shape)) > MOST_ELEMENTS:
        raise GradletError(
            f"--input {'x'.join(map(str, shape))}: {elements:,} numbers are more than any target "
            f"holds; {MOST_ELEMENTS:,} are possible"
        )
    values = np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32)
    return (require_torch().from_numpy(values),)


def _from_module(module: Any, inputs: Any, targets: Any, name: str, wishes: Wishes) -> Captured:
    from gradlet.frontends.torch.program import captured_module

    if inputs is None:
        raise GradletError(f"module '{name}' needs example inputs to be captured")
    graph, calling = captured_module(
        module,
        inputs,
        name=name,
        batch=wishes.batch,
        outputs=wishes.outputs,
        bn=wishes.bn,
        whole=wishes.whole,
    )
    size = graph.batch
    if targets is None:
        return Captured(graph, module=module, calling=calling, bn=wishes.bn)
    values = {
        key: _array(value, f"the targets{f' {key!r}' if key else ''} of '{name}'")
        for key, value in (targets if isinstance(targets, Mapping) else {"": targets}).items()
    }
    given = {
        key: user_targets(value, size, f"the targets{f' {key!r}' if key else ''} of '{name}'")
        for key, value in values.items()
    }
    counts = dict(zip(calling.names, calling.samples, strict=True))
    counts = {own: count for own, count in counts.items() if own not in calling.whole}
    have = {len(value) for value in values.values()}
    if {*counts.values(), *have} != have or len(have) > 1:
        listed = ", ".join(map(str, counts.values()))
        raise GradletError(
            f"'{name}' has different numbers of samples: {listed} of its inputs, "
            f"{', '.join(map(str, map(len, values.values())))} of its targets; each needs the other"
        )
    found = given if isinstance(targets, Mapping) else given[""]
    return Captured(graph, found, module=module, calling=calling, bn=wishes.bn)


def _array(value: Any, what: str) -> Array:
    try:
        return np.asarray(value)
    except Exception as error:  # a list of lists of different lengths, a tensor that is nowhere
        raise GradletError(f"{what} are no array: {error}") from None
