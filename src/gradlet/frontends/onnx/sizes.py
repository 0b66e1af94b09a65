"""The sizes of an ONNX file's inputs: those of the file, of `--batch` and `--dim`, of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradlet.errors import GradletError
from gradlet.frontends.ways_out import OF_BOOLS
from gradlet.ir.graph import Shape
from gradlet.support.extras import require_onnx


@dataclass(frozen=True)
class Sizes:
    """What the user says about the sizes of inputs: the batch, open dimensions by name, and the
    shapes of example inputs by the input's name, or in the order of the inputs. Examples hold
    samples along their first dimension, so that says nothing, except of inputs that are whole."""

    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, Shape] | Sequence[Shape] = ()
    whole: tuple[str, ...] = ()

    def example(self, name: str, place: int) -> Shape | None:
        if isinstance(self.examples, Mapping):
            return self.examples.get(name)
        return self.examples[place] if place < len(self.examples) else None


def told_whole(infos: Sequence[Any], sizes: Sizes) -> Sizes:
    """With the inputs that the file itself says to be whole: numbers, and those that have the batch
    of others in another place, behind a size that is fixed."""
    dims = {info.name: info.type.tensor_type.shape.dim for info in infos}
    shaped = {i.name: i.type.tensor_type.HasField("shape") for i in infos}
    batches = {own[0].dim_param for own in dims.values() if own} - {""}
    found = dict.fromkeys(sizes.whole)
    for name, own in dims.items():
        later = any(dim.dim_param in batches for dim in own[1:])
        number = not own and shaped[name]
        if number or (own and own[0].dim_value > 0 and later):
            found[name] = None
    return replace(sizes, whole=tuple(found) if len(found) < len(dims) else sizes.whole)


def settle(path: Path, infos: Sequence[Any], sizes: Sizes) -> tuple[dict[str, Shape], int | None]:
    """The static shape of each input, written back to the file's values, and the batch that the
    file fixes where another one was asked for."""
    _check_sizes(path, infos, sizes)
    firsts = [i.type.tensor_type.shape.dim[:1] for i in infos if i.name not in sizes.whole]
    batches = {dim.dim_param for dims in firsts for dim in dims} - {""}
    shapes, fixed = {}, None
    for place, info in enumerate(infos):
        shapes[info.name], own = _settled(
            path, info, sizes, sizes.example(info.name, place), batches
        )
        fixed = own if own is not None else fixed
    return shapes, fixed


def _check_sizes(path: Path, infos: Sequence[Any], sizes: Sizes) -> None:
    """What the user says must be about inputs and dimensions that there are."""
    if sizes.batch is not None and sizes.batch < 1:
        raise GradletError(f"a batch of {sizes.batch} makes no sense; it must be at least 1")
    unknown = set(sizes.dims) - {name for info in infos for name in _names(info)}
    if unknown:
        listed = ", ".join(dict.fromkeys(n for info in infos for n in _open(info))) or "none"
        raise GradletError(
            f"--dim {sorted(unknown)[0]}: {path} has no such dimension; open are {listed}"
        )
    inputs = [info.name for info in infos]
    for name in sizes.whole:
        if name not in inputs:
            raise GradletError(f"--whole {name}: the inputs of {path} are {', '.join(inputs)}")
    if sizes.whole and set(inputs) <= set(sizes.whole):
        raise GradletError(f"--whole: no input of {path} is left for samples")


def _names(info: Any) -> list[str]:
    """What `--dim` may call the dimensions of an input: by their names, or input.index."""
    dims = info.type.tensor_type.shape.dim
    return [*(dim.dim_param for dim in dims), *(f"{info.name}.{i}" for i in range(len(dims)))]


def _open(info: Any) -> list[str]:
    dims = info.type.tensor_type.shape.dim
    return [dim.dim_param or f"{info.name}.{n}" for n, dim in enumerate(dims) if _is_open(dim)]


def _is_open(dim: Any) -> bool:
    """Whether the file leaves this dimension to its user."""
    return not dim.HasField("dim_value") or dim.dim_value < 1


def _settled(
    path: Path, info: Any, sizes: Sizes, example: Shape | None, batches: set[str]
) -> tuple[Shape, int | None]:
    where = f"{path}: input '{info.name}'"
    kind = _kind(info, where)
    dims = kind.shape.dim
    if example is not None and len(example) != len(dims):
        raise GradletError(f"{where} has {len(dims)} dimensions; the example is {list(example)}")
    fixed = None
    for index, dim in enumerate(dims):
        counts_samples = index == 0 and info.name not in sizes.whole
        name = f"{info.name}.{index}"
        wished = sizes.dims.get(dim.dim_param or name, sizes.dims.get(name))
        if counts_samples:
            wished = wished if sizes.batch is None else sizes.batch
        elif wished is None:
            wished = _other_size(dim, sizes.batch, example[index] if example else None, batches)
        if _is_open(dim):
            if wished is None and not counts_samples:
                raise _unknown(where, info, index)
            dim.dim_value = wished or 1
        elif wished not in (None, dim.dim_value):
            if not counts_samples:
                raise GradletError(
                    f"{where}: dimension {index} is {dim.dim_value} in the file, not {wished}"
                )
            fixed, dim.dim_value = dim.dim_value, wished or 1
    return tuple(dim.dim_value for dim in dims), fixed


def _other_size(dim: Any, batch: int | None, example: int | None, batches: set[str]) -> int | None:
    """What is known of a dimension behind the first one, which nobody has named. It may be the
    batch of another input."""
    is_batch = dim.dim_param in batches
    if is_batch and batch is not None:
        return batch
    return 1 if is_batch and example is None else example


def _unknown(where: str, info: Any, index: int) -> GradletError:
    dim = info.type.tensor_type.shape.dim[index]
    size = f"'{dim.dim_param}'" if dim.dim_param else dim.dim_value or "unknown"
    first = info.type.tensor_type.shape.dim[0]
    batch = first.dim_param or f"{info.name}.0"
    batch = "" if index == 0 else batch
    wish = " ".join(f"--dim {name}=SIZE" for name in _open(info) if name != batch)
    return GradletError(
        f"{where}: the size of dimension {index} is {size}. Memory is planned beforehand, so say "
        f"how large it is: {wish}, or give examples with --data (in Python, "
        f"dims={{'{dim.dim_param or f'{info.name}.{index}'}': SIZE}} or inputs=...)"
    )


def _kind(info: Any, where: str) -> Any:
    """The type of an input, a tensor of numbers with a shape."""
    onnx = require_onnx()
    if info.type.WhichOneof("value") != "tensor_type":
        raise GradletError(f"{where} is not a tensor; only tensors are supported")
    kind = info.type.tensor_type
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    if kind.elem_type not in (*floats, *integer_types()):
        names = {number: name for name, number in onnx.TensorProto.DataType.items()}
        name = names.get(kind.elem_type, f"number {kind.elem_type}").lower()
        way = OF_BOOLS if name == "bool" else "export the model in float32, without conversions"
        raise GradletError(
            f"{where} has type {name}; floats, or indices of type int64 or int32, are needed: {way}"
        )
    if not kind.HasField("shape"):
        raise GradletError(f"{where} has no shape; export the model with fixed input sizes")
    return kind


def integer_types() -> tuple[int, ...]:
    onnx = require_onnx()
    return (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
