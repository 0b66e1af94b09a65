"""From booleans, whole numbers and floats to one another: here all are numbers in float32."""

from __future__ import annotations

from typing import Any

from gradlet.ops.compare import truth
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch


def cast(imp: Importer, value: Any, wanted: str) -> str:
    """As a bool, an int or a float: what is whole already stays as it is."""
    if wanted == "bool":
        return truth(imp, value)
    x = imp.tensor(value)
    if wanted == "int" and imp.kind(value) == "float":  # towards 0, and integers have no gradient
        return imp.add("detach", [imp.add("trunc", [x])])
    return imp.add("number", [x]) if wanted == "float" and imp.dtype(x) == "i32" else x


_KINDS = {"bool": "bool", "int64": "int", "int32": "int", "double": "float"}
_NARROW = ("uint8", "int8", "int16")  # larger numbers wrap around there; booleans do not


def _named(imp: Importer, value: Any, wanted: str) -> str:
    """As the type of this name."""
    if wanted in _NARROW and imp.kind(value) == "bool":
        return cast(imp, value, "int")
    if wanted.startswith("complex"):  # without an imaginary part it stays what it is
        return imp.tensor(value)
    kind = "float" if wanted.startswith("float") else _KINDS.get(wanted)
    if kind is None:
        raise imp.unsupported(f"numbers as {wanted}; there are float32, int32, int64 and bool")
    return cast(imp, value, kind)


@from_torch("aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten._to_copy.default")
def _torch_cast(imp: Importer, call: Call) -> str:
    names = [str(a).removeprefix("torch.") for a in call.args[1:] if str(a).startswith("torch.")]
    wanted = [name for name in names if name not in ("strided", "contiguous_format")]
    return _named(imp, call.args[0], wanted[0]) if wanted else imp.tensor(call.args[0])


@from_onnx("Cast")
def _onnx_cast(imp: Importer, call: Call) -> str:
    """The types by their numbers."""
    names = {1: "float32", 10: "float16", 11: "double", 2: "uint8", 3: "int8", 5: "int16"}
    names |= {6: "int32", 7: "int64", 9: "bool"}
    number = int(call.need("to"))
    return _named(imp, call.args[0], names.get(number, f"what ONNX calls type {number}"))


@from_torch("aten.to.other", "aten.type_as.default")
@from_onnx("CastLike")
def _cast_like(imp: Importer, call: Call) -> str:
    return cast(imp, call.args[0], imp.kind(call.args[1]))
