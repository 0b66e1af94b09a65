"""Element by element: functions of one variable, arithmetic, comparisons, types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F

from gradlet.frontends.onnx.oracle.base import TABLE, NotWritten, Operator, at, operator

_SAME_NAME = (
    *("Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Erf", "Relu", "Sign"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
    *("Floor", "Ceil", "Round", "IsNaN", "IsInf"),
)
_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Pow": torch.pow,
    "Equal": torch.eq,
    "Less": torch.lt,
    "Greater": torch.gt,
    "LessOrEqual": torch.le,
    "GreaterOrEqual": torch.ge,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}


def _unary(function: Callable[[Any], Any]) -> Callable[[Operator, Sequence[Any]], Any]:
    return lambda op, args: function(args[0])


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Operator, Sequence[Any]], Any]:
    return lambda op, args: function(args[0], args[1])


TABLE |= {name: _unary(getattr(torch, name.lower())) for name in _SAME_NAME}
TABLE |= {name: _binary(function) for name, function in _PAIRS.items()}
TABLE["Not"] = _unary(torch.logical_not)
TABLE["Identity"] = _unary(lambda x: x)
TABLE["HardSwish"] = _unary(F.hardswish)
TABLE["Mish"] = _unary(F.mish)
TABLE["Softsign"] = _unary(F.softsign)
TABLE["Softplus"] = _unary(lambda x: torch.logaddexp(x, torch.zeros_like(x)))


@operator("Div")
def _div(op: Operator, args: Sequence[Any]) -> Any:
    a, b = args
    return a / b if a.dtype.is_floating_point else torch.div(a, b, rounding_mode="trunc")


@operator("Mod")
def _mod(op: Operator, args: Sequence[Any]) -> Any:
    return torch.fmod(*args) if op.get("fmod", 0) else torch.remainder(*args)


@operator("Max", "Min", "Sum", "Mean")
def _several(op: Operator, args: Sequence[Any]) -> Any:
    if op.kind in ("Max", "Min"):
        return reduce(torch.maximum if op.kind == "Max" else torch.minimum, args)
    total = reduce(torch.add, args)
    return total / len(args) if op.kind == "Mean" else total


@operator("LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu", "Shrink", "Gelu")
def _with_numbers(op: Operator, args: Sequence[Any]) -> Any:
    (x,) = args
    alpha = op.get("alpha")
    match op.kind:
        case "LeakyRelu":
            return F.leaky_relu(x, 0.01 if alpha is None else alpha)
        case "Elu":
            return F.elu(x, 1.0 if alpha is None else alpha)
        case "Celu":
            return F.celu(x, 1.0 if alpha is None else alpha)
        case "Selu":
            alpha = 1.6732632423543772 if alpha is None else alpha
            return op.get("gamma", 1.0507009873554805) * F.elu(x, alpha)
        case "HardSigmoid":
            return (x * (0.2 if alpha is None else alpha) + op.get("beta", 0.5)).clamp(0, 1)
        case "ThresholdedRelu":
            return F.threshold(x, 1.0 if alpha is None else alpha, 0.0)
        case "Shrink":
            edge, bias = op.get("lambd", 0.5), op.get("bias", 0.0)
            zero = torch.zeros_like(x)
            return torch.where(x < -edge, x + bias, torch.where(x > edge, x - bias, zero))
    return F.gelu(x, approximate=op.get("approximate", "none"))


@operator("Swish")
def _swish(op: Operator, args: Sequence[Any]) -> Any:
    return args[0] * torch.sigmoid(op.get("alpha", 1.0) * args[0])


@operator("PRelu")
def _prelu(op: Operator, args: Sequence[Any]) -> Any:
    x, slope = args
    return torch.where(x < 0, x * slope, x)


@operator("Clip")
def _clip(op: Operator, args: Sequence[Any]) -> Any:
    """Limits of 0 and 6 are how PyTorch's ReLU6 is exported; nothing passes through its ends."""
    x, low, high = args[0], at(args, 1), at(args, 2)
    low, high = (None if limit is None else float(limit) for limit in (low, high))
    if (low, high) == (0.0, 6.0):
        return F.relu6(x)
    if low is not None and high is not None and low > high:
        return torch.full_like(x, high)
    return x if low is None and high is None else torch.clamp(x, low, high)


@operator("Where")
def _where(op: Operator, args: Sequence[Any]) -> Any:
    return torch.where(*args)


@operator("Cast", "CastLike")
def _cast(op: Operator, args: Sequence[Any]) -> Any:
    """Between floating point types nothing is rounded: all of it is computed in float64."""
    import onnx

    if op.kind == "CastLike":
        return args[0].to(args[1].dtype)
    name = onnx.TensorProto.DataType.Name(op.get("to")).lower()
    if name.startswith(("float", "double", "bfloat16")):
        return args[0].double()
    if not hasattr(torch, name):
        raise NotWritten(f"to {name}")
    return args[0].to(getattr(torch, name))


@operator("Dropout")
def _dropout(op: Operator, args: Sequence[Any]) -> Any:
    """In inference, where it does nothing."""
    if at(args, 2) is not None and bool(args[2]):
        raise NotWritten("in training mode")
    return args[0], torch.ones_like(args[0], dtype=torch.bool)


@operator("Softmax", "LogSoftmax", "Hardmax")
def _softmax(op: Operator, args: Sequence[Any]) -> Any:
    if op.kind == "Hardmax":
        raise NotWritten("")
    function = torch.softmax if op.kind == "Softmax" else torch.log_softmax
    return function(args[0], op.get("axis", -1))


@operator("CumSum", "CumProd")
def _running(op: Operator, args: Sequence[Any]) -> Any:
    """Sums from one end on; an exclusive one leaves out the element itself."""
    x, axis = args[0], int(args[1])
    function = torch.cumsum if op.kind == "CumSum" else torch.cumprod
    x = x.flip(axis) if op.get("reverse", 0) else x
    if op.get("exclusive", 0):
        neutral = torch.full_like(x.narrow(axis, 0, 1), float(op.kind == "CumProd"))
        x = torch.cat([neutral, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
    y = function(x, axis)
    return y.flip(axis) if op.get("reverse", 0) else y


def _axes(op: Operator, args: Sequence[Any]) -> list[int] | None:
    """Those of a reduction: an operand since opset 18 (of a sum since 13), before an attribute."""
    given = at(args, 1)
    listed = op.get("axes") if given is None else [int(axis) for axis in given.reshape(-1)]
    if listed is not None and len(listed):
        return [axis % args[0].ndim for axis in listed]
    return None if op.get("noop_with_empty_axes", 0) else list(range(args[0].ndim))


@operator(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
def _reduce(op: Operator, args: Sequence[Any]) -> Any:
    x, axes, keep = args[0], _axes(op, args), bool(op.get("keepdims", 1))
    if axes is None:
        if op.kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
            return x
        axes, x, keep = [0], x[None], False
    if not axes:
        axes, x, keep = [0], x.reshape(1), False
    match op.kind:
        case "ReduceMax" | "ReduceMin":
            return (torch.amax if op.kind == "ReduceMax" else torch.amin)(x, axes, keep)
        case "ReduceProd":
            for axis in sorted(axes, reverse=True):
                x = x.prod(axis, keepdim=keep)
            return x
        case "ReduceLogSumExp":
            return torch.logsumexp(x, axes, keep)
        case "ReduceMean":
            return x.mean(axes, keep)
    terms = {"ReduceL1": torch.abs, "ReduceL2": torch.square, "ReduceSumSquare": torch.square}
    total = terms.get(op.kind, lambda v: v)(x).sum(axes, keep)
    after = {"ReduceL2": torch.sqrt, "ReduceLogSum": torch.log}
    return after.get(op.kind, lambda v: v)(total)
