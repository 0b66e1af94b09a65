"""What is known of a node of an exported program by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def narrow(node: Any) -> str:
    """The floating-point type of a result with fewer bits than float32, if it has one."""
    dtype = getattr(getattr(node, "meta", {}).get("val"), "dtype", None)
    narrow = dtype is not None and dtype.is_floating_point and dtype.itemsize < 4
    return str(dtype).removeprefix("torch.") if narrow else ""


def casts(node: Any) -> bool:
    """Whether a node makes floats of whole numbers, or of floats of another precision: PyTorch
    makes float32, also where all else is in double precision."""
    operands = [arg.meta["val"].dtype for arg in flat(node.args) if has_shape(arg)]
    whole = bool(operands) and not any(dtype.is_floating_point for dtype in operands)
    result = getattr(node.meta.get("val"), "dtype", None)
    made = whole and result is not None and result.is_floating_point
    return made or str(node.target).startswith("aten.to.")


def counts(node: Any, args: Sequence[Any]) -> bool:
    """Whether a node only advances a counter that nothing reads, as a batch norm's of batches."""
    value = args[0].meta.get("val") if args and has_shape(args[0]) else None
    whole = value is not None and not value.dtype.is_floating_point
    return whole and str(node.target) == "aten.add_.Tensor" and not node.users


def module_path(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def positional(node: Any) -> list[Any]:
    """All arguments in the order of the schema, defaults filled in."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return list(node.args)
    args = list(node.args)
    for argument in schema.arguments[len(args) :]:
        args.append(node.kwargs.get(argument.name, argument.default_value))
    return args


def flat(args: Sequence[Any]) -> list[Any]:
    result: list[Any] = []
    for arg in args:
        result.extend(flat(arg) if isinstance(arg, list | tuple) else [arg])
    return result


def has_shape(arg: Any) -> bool:
    return hasattr(arg, "meta") and hasattr(arg.meta.get("val"), "shape")
