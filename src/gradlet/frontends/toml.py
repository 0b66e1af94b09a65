"""TOML front end: a model as a list of layers, for those who have neither PyTorch nor ONNX.

name = "my-net"
input = [1, 28, 28]         without the batch
indices = true              the input holds whole numbers, which an embedding looks up
seed = 0                    of the weights, which are drawn as PyTorch draws them
weights = "weights.npz"     or taken from here, by parameter name
[training]                  optional defaults for what `gradlet build` asks
lr = 0.05
dtype = "mixed"             or by layers, the first that fits: { "conv1*" = "f32", "*" = "f16" }
[[training.losses]]         several losses that add up, in place of `loss`
loss = "mse"
output = "decoder"          a layer; by default the last
weight = 0.1
[[layer]]
op = "conv2d"               any key of gradlet.ops.TOML
name = "conv1"              or its index; parameters are conv1.weight and conv1.bias
input = ["pool"]            earlier layers, or "input"; by default the layer before
out = 8                     and what else the op takes
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.frontends.importer import Captured, GraphImporter, Unsupported, drawn_samples
from gradlet.ir.builder import MOST_ELEMENTS
from gradlet.ir.graph import Array, Attrs, Shape
from gradlet.ir.recipe import Loss, Recipe, dtype_text, outputs_of
from gradlet.ops import OPS, TOML
from gradlet.ops.importer import Call

_TOP = ("name", "input", "indices", "seed", "weights", "training", "layer")
_COMMON = ("op", "name", "input")


def capture_toml(
    path: Path, *, batch: int | None = None, outputs: Sequence[str] = ("",)
) -> Captured:
    """The forward graph of a TOML file and its defaults for training."""
    table = _read(path)
    try:
        _known_keys(table, _TOP)
        defaults = _training(table.get("training", {}))
        batch = int(defaults.get("batch", 1)) if batch is None else batch
        if batch < 1:
            raise GradletError(f"a batch of {batch} makes no sense; it must be at least 1")
        importer = _TomlImporter(table, path, batch)
        if not any(outputs):
            outputs = outputs_of(defaults.get("losses", ()), "") or ("",)
        results = importer.walk(_layers(table), outputs)
        samples = drawn_samples(importer.builder, ["input"])
        graph = importer.finish(["input"], results, samples, outputs)
    except GradletError as error:
        raise GradletError(f"{path}: {error}") from None
    return Captured(graph, defaults=defaults)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise GradletError(f"there is no file {path}") from None
    except OSError as error:
        raise GradletError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GradletError(f"{path} is not valid TOML: {error}") from None


def _known_keys(table: Mapping[str, Any], known: Sequence[str], where: str = "") -> None:
    for key in table:
        if key not in known:
            raise GradletError(
                f"{where}unknown key '{key}'{_near(key, known)}; {_there_are(known)}"
            )


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word.lower(), known, n=1)
    return f" (do you mean '{near[0]}'?)" if near else ""


def _there_are(known: Sequence[str]) -> str:
    return f"there are {', '.join(known)}" if known else "there are none"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _training(table: Any) -> dict[str, Any]:
    """The [training] table; its keys and their types are those of a Recipe, and the batch."""
    if not isinstance(table, dict):
        raise GradletError("'training' must be a table: [training]")
    samples = {**dataclasses.asdict(Recipe()), "batch": 1}
    samples.pop("bn")  # there are no batch norms
    _known_keys(table, list(samples), "training: ")
    result = _typed({k: v for k, v in table.items() if k not in ("losses", "dtype")}, samples)
    if "dtype" in table:
        result["dtype"] = dtype_text(table["dtype"])
    if "losses" in table:
        result["losses"] = tuple(_losses(table["losses"]))
    return result


def _losses(tables: Any) -> Iterator[Loss]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise GradletError("'losses' must be tables: [[training.losses]]")
    for table in tables:
        samples = dataclasses.asdict(Loss())
        _known_keys(table, list(samples), "losses: ")
        yield Loss(**_typed(table, samples))


def _typed(table: Mapping[str, Any], samples: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table, which have the types of these."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        kind = type(samples[key])
        if kind is tuple:
            result[key] = _numbers(key, value)
            continue
        if kind is float and _is_integer(value):
            value = float(value)
        if type(value) is not kind:
            raise GradletError(f"training: '{key}' must be {_KINDS[kind]}, not {value!r}")
        result[key] = value
    return result


def _numbers(key: str, value: Any) -> tuple[float, ...]:
    """One number, or a list of them."""
    items = value if isinstance(value, list) else [value]
    if not items or not all(_is_integer(item) or isinstance(item, float) for item in items):
        raise GradletError(f"training: '{key}' must be a number or a list of them, not {value!r}")
    return tuple(map(float, items))


_KINDS: dict[type, str] = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a string",
}


def _layers(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    layers = table.get("layer", [])
    if not layers or not isinstance(layers, list) or not all(isinstance(v, dict) for v in layers):
        raise GradletError("the model has no layers; write each one as a [[layer]] table")
    return layers


class _LayerKeys(Mapping[str, Any]):
    """What a layer says, with a record of what its op asked for: the rest it does not know.

    A value must have the type of the default; without one it is a whole number or a list of them.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.asked: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        self.asked[key] = None
        return self._checked(key, self._values[key], 0)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked[key] = None
        return self._checked(key, self._values[key], default) if key in self._values else default

    def __contains__(self, key: object) -> bool:
        self.asked[str(key)] = None
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def unknown(self) -> list[str]:
        return [key for key in self._values if key not in self.asked]

    def _checked(self, key: str, value: Any, default: Any) -> Any:
        kind = type(default)
        if kind in (bool, str):
            if type(value) is kind:
                return value
            raise GradletError(f"'{key}' must be {_KINDS[kind]}, not {value!r}")
        if kind is float:
            if _is_integer(value) or isinstance(value, float):
                return float(value)
            raise GradletError(f"'{key}' must be {_KINDS[kind]}, not {value!r}")
        if _is_integer(value) or (isinstance(value, list) and all(map(_is_integer, value))):
            return value
        raise GradletError(f"'{key}' must be a whole number or a list of them, not {value!r}")


def _misspelt(keys: _LayerKeys) -> str:
    """A hint at the key that was meant, where one is missing and another one is not known."""
    hints = [f"'{key}'{near}" for key in keys.unknown() if (near := _near(key, list(keys.asked)))]
    return f"; there is {', '.join(hints)}" if hints else ""


class _TomlImporter(GraphImporter):
    """Layers by name; parameters drawn, or taken from the file of weights."""

    def __init__(self, table: Mapping[str, Any], path: Path, batch: int) -> None:
        name = table.get("name", path.stem)
        if not isinstance(name, str) or not name:
            raise GradletError(f"'name' must be a string, not {name!r}")
        super().__init__(name)
        seed = table.get("seed", 0)
        if not _is_integer(seed) or seed < 0:
            raise GradletError(f"'seed' must be a whole number from 0 up, not {seed!r}")
        self.generator = np.random.default_rng(seed)
        self.weights_file = table.get("weights")
        self.weights = self._read_weights(path.parent)
        indices = table.get("indices", False)
        if not isinstance(indices, bool):
            raise GradletError(f"'indices' must be true or false, not {indices!r}")
        shape, dtype = (batch, *_input_shape(table)), "i32" if indices else "f32"
        self.builder.external("input", shape, "input", dtype)
        self.results: dict[str, str] = {"input": "input"}
        self.made: set[str] = set()  # parameters, as the file of weights calls them

    def _read_weights(self, folder: Path) -> dict[str, Array] | None:
        name = self.weights_file
        if name is None:
            return None
        if not isinstance(name, str):
            raise GradletError(f"'weights' must be the name of an .npz file, not {name!r}")
        try:
            with np.load(folder / name, allow_pickle=False) as archive:
                return {key: archive[key] for key in archive.files}
        except FileNotFoundError:
            raise GradletError(f"there is no file of weights {folder / name}") from None
        except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
            raise GradletError(f"weights {folder / name} are no .npz of arrays: {error}") from None

    def walk(self, layers: Sequence[Mapping[str, Any]], outputs: Sequence[str]) -> list[str]:
        """The results of these layers; '' is the last one."""
        previous = "input"
        open_ends: dict[str, None] = {}
        for index, layer in enumerate(layers):
            name = self._layer_name(index, layer)
            try:
                sources = self._sources(layer, previous)
                self.results[name] = self._layer(layer, [self.results[s] for s in sources])
            except GradletError as error:
                text = str(error).removeprefix(f"module '{name}': ")
                raise GradletError(f"layer '{name}': {text}") from None
            open_ends[name] = None
            for source in sources:
                open_ends.pop(source, None)
            previous = name
        for name in outputs:
            if name and name not in self.results:
                known = [layer for layer in self.results if layer != "input"]
                raise GradletError(f"output '{name}' is no layer; {_there_are(known)}")
        for name in open_ends:
            if name not in (*outputs, previous):
                raise GradletError(
                    f"layer '{name}' is read by no other; the last one is the output, unless a "
                    f"loss names others"
                )
        unused = [name for name in self.weights or () if name not in self.made]
        if unused:
            raise GradletError(f"{self.weights_file} holds {unused}, which no layer has")
        return [self.results[name or previous] for name in outputs]

    def _layer_name(self, index: int, layer: Mapping[str, Any]) -> str:
        name = layer.get("name", str(index))
        if not isinstance(name, str) or not name:
            raise GradletError(f"layer {index}: 'name' must be a string, not {name!r}")
        if name in self.results:
            raise GradletError(f"layer {index}: the name '{name}' is taken")
        self.module = name
        return name

    def _sources(self, layer: Mapping[str, Any], previous: str) -> list[str]:
        value = layer.get("input", previous)
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
            raise GradletError(f"'input' must name earlier layers, not {value!r}")
        for name in names:
            if name not in self.results:
                known = list(self.results)
                raise GradletError(
                    f"input '{name}' is no earlier layer{_near(name, known)}; {_there_are(known)}"
                )
        return names

    def _layer(self, layer: Mapping[str, Any], inputs: list[str]) -> str:
        op = layer.get("op")
        if not isinstance(op, str):
            raise GradletError(f"'op' is missing; {_there_are(sorted(TOML))}")
        if op not in TOML:
            known = sorted(TOML)
            raise GradletError(f"unknown op '{op}'{_near(op, known)}; {_there_are(known)}")
        keys = _LayerKeys({k: v for k, v in layer.items() if k not in _COMMON})
        before = len(self.builder.nodes)
        try:
            result = TOML[op](self, Call(op, inputs, keys))
        except GradletError as error:
            what = f"{op}: " if isinstance(error, Unsupported) else ""
            raise GradletError(f"{what}{error}{_misspelt(keys)}") from None
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            shapes = ", ".join(str(list(self.shape(name))) for name in inputs)
            raise GradletError(f"{op} on {shapes}: {error}") from None
        for key in keys.unknown():
            asked = sorted(keys.asked)
            raise GradletError(f"{op} has no '{key}'{_near(key, asked)}; {_there_are(asked)}")
        read = {name for node in self.builder.nodes[before:] for name in node.inputs}
        if any(name not in read and name != result for name in inputs):
            raise GradletError(f"{op} takes one input, not {len(inputs)}")
        assert isinstance(result, str)
        return result

    def add(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        slots = OPS[op].inputs
        required = sum(not slot.endswith("?") for slot in slots)
        if not required <= len(inputs) <= len(slots):
            raise GradletError(
                f"{op} takes {required} inputs, not {len(inputs)}; name them: input = [...]"
            )
        return super().add(op, inputs, attrs)

    def tensor(self, value: Any) -> str:
        return str(value)

    def static(self, value: Any) -> Array:
        return np.asarray(value)

    def fixed(self, value: Any) -> Array | None:
        return None

    def param(self, value: tuple[str, Shape, int]) -> str:
        """A parameter of the layer at hand; uniform within 1 / sqrt(fan_in) as PyTorch has it."""
        kind, shape, fan_in = value
        if any(extent < 1 for extent in shape):
            raise GradletError(f"the {kind} would have the shape {list(shape)}; sizes start at 1")
        if (elements := math.prod(shape)) > MOST_ELEMENTS:
            raise GradletError(
                f"the {kind} would have the shape {list(shape)}, {elements:,} elements; no target "
                f"holds more than {MOST_ELEMENTS:,}"
            )
        name = f"{self.module}.{kind}"
        bound = 1.0 / np.sqrt(fan_in)
        drawn = self.generator.uniform(-bound, bound, shape)
        self.made.add(name)
        own = self.builder.model_name(name, "param")
        return self.builder.value(own, self._stored(name, shape, drawn), "param")

    def _stored(self, name: str, shape: Shape, drawn: Array) -> Array:
        if self.weights is None:
            return drawn
        if name not in self.weights:
            held = list(self.weights)
            raise GradletError(
                f"{self.weights_file} lacks '{name}'{_near(name, held)}; {_there_are(held)}"
            )
        array = self.weights[name]
        if array.dtype.kind != "f":
            raise GradletError(f"{self.weights_file}: '{name}' holds {array.dtype}, not floats")
        if array.shape != shape:
            raise GradletError(
                f"{self.weights_file}: '{name}' has shape {list(array.shape)}, the layer needs "
                f"{list(shape)}"
            )
        return array


def _input_shape(table: Mapping[str, Any]) -> Shape:
    value = table.get("input")
    if value is None:
        raise GradletError("'input' is missing: the shape of one sample, such as [1, 28, 28]")
    good = isinstance(value, list) and value and all(_is_integer(n) and n > 0 for n in value)
    if not good:
        raise GradletError(f"'input' must be a list of sizes such as [1, 28, 28], not {value!r}")
    return tuple(value)
