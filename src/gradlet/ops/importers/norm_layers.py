"""How the front ends spell batch, layer, group, instance and RMS norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Attrs
from gradlet.ops.elementwise import affine
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.reduce import keepdims

SINGLE_EPS = float(np.finfo(np.float32).eps)  # what PyTorch's RMS norm takes unless told


def _attrs(axes: Sequence[int], eps: float, *, center: bool = True) -> Attrs:
    return {"axes": tuple(axes), "eps": eps, "center": center}


def _optional(imp: Importer, values: Sequence[Any]) -> list[str]:
    """Weight and bias, as far as they are there; a bias alone is not one of the op's forms."""
    weight, bias = values
    if weight is None and bias is not None:
        raise imp.unsupported("a norm with a bias but no weight")
    return [imp.param(value) for value in (weight, bias) if value is not None]


def _shaped(imp: Importer, names: Sequence[str], shape: tuple[int, ...]) -> list[str]:
    return [
        name if imp.shape(name) == shape else imp.add("reshape", [name], {"shape": shape})
        for name in names
    ]


@from_torch("aten.batch_norm.default")
def _torch_batch_norm(imp: Importer, call: Call) -> str:
    x, weights = imp.tensor(call.args[0]), _optional(imp, call.args[1:3])
    mean, var, training, momentum, eps, fused = call.args[3:9]
    shape = imp.shape(x)
    recalibrate = imp.recalibrate and not training and not fused  # see capture/batch_norms.py
    if not training and not recalibrate:
        given = [imp.tensor(mean), imp.tensor(var)]
        return imp.add("frozen_norm", [x, *given, *weights], {"eps": float(eps)})
    axes = tuple(dim for dim in range(len(shape)) if dim != 1)
    steps = []
    if mean is not None:
        steps = _steps(imp, x, axes, imp.tensor(mean), imp.tensor(var), momentum)
    for old, new, step in steps:
        imp.update(old, imp.add("blend", [old, new], step))
    if recalibrate:  # by nodes of their own: what replaces a state comes after all that predicts
        running = [imp.add("blend", [old, new], step) for old, new, step in steps]
        given = [*running, imp.tensor(var)][:2]
        return imp.add("frozen_norm", [x, *given, *weights], {"eps": float(eps)})
    column = (shape[1], *(1,) * (len(shape) - 2))
    return imp.add("normalize", [x, *_shaped(imp, weights, column)], _attrs(axes, float(eps)))


def _steps(
    imp: Importer, x: str, axes: tuple[int, ...], mean: str, var: str, momentum: float
) -> list[tuple[str, str, Attrs]]:
    """Running statistics and those of the batch, towards which they take a step; the variance
    without bias. One value alone has none: then the running one stays."""
    count = int(np.prod([imp.shape(x)[axis] for axis in axes], dtype=int))
    batch_mean = affine(imp, imp.add("sum", [x], {"axes": axes}), 1 / count)
    step: Attrs = {"momentum": float(momentum), "scale": 1.0}
    if count == 1:
        return [(mean, batch_mean, step)]
    batch_var = imp.add("variance", [x], {"axes": axes})
    return [(mean, batch_mean, step), (var, batch_var, {**step, "scale": count / (count - 1)})]


@from_torch("aten.layer_norm.default", "aten.rms_norm.default")
def _torch_layer_norm(imp: Importer, call: Call) -> str:
    center = "layer_norm" in call.target
    x, weights = imp.tensor(call.args[0]), (call.args[2:4] if center else [call.arg(2), None])
    eps = float(call.arg(4, 1e-5) if center else call.arg(3, SINGLE_EPS))
    rank = len(imp.shape(x))
    axes = range(rank - len(call.args[1]), rank)
    attrs = _attrs(axes, eps, center=center)
    return imp.add("normalize", [x, *_optional(imp, weights)], attrs)


def _grouped(imp: Importer, x: str, groups: int, weights: Sequence[str], eps: float) -> str:
    """x[batch, channels, ...] with its channels in groups of neighbours."""
    shape = imp.shape(x)
    if shape[1] % groups:
        raise imp.unsupported(f"{shape[1]} channels in {groups} groups")
    inside = shape[1] // groups
    apart = imp.add("reshape", [x], {"shape": (shape[0], groups, inside, *shape[2:])})
    column = (groups, inside, *(1,) * (len(shape) - 2))
    attrs = _attrs(range(2, len(shape) + 1), eps)
    y = imp.add("normalize", [apart, *_shaped(imp, weights, column)], attrs)
    return imp.add("reshape", [y], {"shape": shape})


@from_torch("aten.group_norm.default")
def _torch_group_norm(imp: Importer, call: Call) -> str:
    x, weights = imp.tensor(call.args[0]), _optional(imp, call.args[2:4])
    return _grouped(imp, x, int(call.args[1]), weights, float(call.arg(4, 1e-5)))


@from_torch("aten.instance_norm.default")
def _torch_instance_norm(imp: Importer, call: Call) -> str:
    x, weights = imp.tensor(call.args[0]), _optional(imp, call.args[1:3])
    mean, var, own, momentum, eps = call.args[3:8]
    if not own:
        given = [imp.tensor(mean), imp.tensor(var)]
        return imp.add("frozen_norm", [x, *given, *weights], {"eps": float(eps)})
    if mean is not None:
        _track_instances(imp, x, imp.tensor(mean), imp.tensor(var), float(momentum))
    return _instances(imp, x, weights, float(eps))


def _track_instances(imp: Importer, x: str, mean: str, var: str, momentum: float) -> None:
    """As with a batch, but the variances of single maps are averaged."""
    batch, _, *inner = imp.shape(x)
    count = int(np.prod(inner, dtype=int))
    whole, each = (0, *range(2, len(inner) + 2)), tuple(range(2, len(inner) + 2))
    means = affine(imp, imp.add("sum", [x], {"axes": whole}), 1 / (count * batch))
    variances = imp.add("sum", [imp.add("variance", [x], {"axes": each})], {"axes": (0,)})
    step = {"momentum": momentum, "scale": 1.0}
    imp.update(mean, imp.add("blend", [mean, means], step))
    step["scale"] = count / ((count - 1) * batch)
    imp.update(var, imp.add("blend", [var, variances], step))


def _instances(imp: Importer, x: str, weights: Sequence[str], eps: float) -> str:
    shape = imp.shape(x)
    column = (shape[1], *(1,) * (len(shape) - 2))
    attrs = _attrs(range(2, len(shape)), eps)
    return imp.add("normalize", [x, *_shaped(imp, weights, column)], attrs)


@from_onnx("BatchNormalization")
def _onnx_batch_norm(imp: Importer, call: Call) -> list[str]:
    """In training ONNX keeps the variance as it is, where PyTorch takes out its bias."""
    x, weights = imp.tensor(call.args[0]), _optional(imp, call.args[1:3])
    eps = float(call.attrs.get("epsilon", 1e-5))
    if not call.attrs.get("training_mode", 0):
        given = [_statistic(imp, value) for value in call.args[3:5]]
        return [imp.add("frozen_norm", [x, *given, *weights], {"eps": eps})]
    mean, var = (imp.tensor(value) for value in call.args[3:5])
    shape = imp.shape(x)
    axes = tuple(dim for dim in range(len(shape)) if dim != 1)
    count = int(np.prod([shape[axis] for axis in axes], dtype=int))
    step = {"momentum": 1 - float(call.attrs.get("momentum", 0.9)), "scale": 1.0}
    means = affine(imp, imp.add("sum", [x], {"axes": axes}), 1 / count)
    running = [
        imp.add("blend", [mean, means], step),
        imp.add("blend", [var, imp.add("variance", [x], {"axes": axes})], step),
    ]
    for place, old, new in zip(call.args[3:5], (mean, var), running, strict=True):
        if _is_stored(imp, place):
            imp.update(old, new)
    column = (shape[1], *(1,) * (len(shape) - 2))
    y = imp.add("normalize", [x, *_shaped(imp, weights, column)], _attrs(axes, eps))
    return [y, *running]


def _statistic(imp: Importer, value: Any) -> str:
    """Exporters store equal tensors once, so that a fresh mean may be some layer's bias as well."""
    return imp.constant(imp.static(value)) if _is_stored(imp, value) else imp.tensor(value)


def _is_stored(imp: Importer, value: Any) -> bool:
    try:
        imp.static(value)
    except GradletError:
        return False
    return True


@from_onnx("LayerNormalization", "RMSNormalization")
def _onnx_layer_norm(imp: Importer, call: Call) -> list[str]:
    """The result, and for those who ask the mean and the inverse deviation."""
    x, weights = imp.tensor(call.args[0]), _optional(imp, (call.arg(1), call.arg(2)))
    rank = len(imp.shape(x))
    axes = tuple(range(int(call.attrs.get("axis", -1)) % rank, rank))
    eps = float(call.attrs.get("epsilon", 1e-5))
    attrs = _attrs(axes, eps, center=call.target == "LayerNormalization")
    results = [imp.add("normalize", [x, *weights], attrs)]
    if call.results > 1:
        count = int(np.prod(imp.shape(x)[axes[0] :]))
        mean = affine(imp, imp.add("sum", [x], {"axes": axes}), 1 / count)
        shifted = affine(imp, imp.add("variance", [x], {"axes": axes}), 1.0, eps)
        inverse = imp.add("reciprocal", [imp.add("sqrt", [shifted])])
        results += [keepdims(imp, name, imp.shape(x), axes) for name in (mean, inverse)]
    return results


@from_onnx("GroupNormalization")
def _onnx_group_norm(imp: Importer, call: Call) -> str:
    x, weights = imp.tensor(call.args[0]), _optional(imp, call.args[1:3])
    if any(imp.shape(name) != imp.shape(x)[1:2] for name in weights):
        raise imp.unsupported("one weight per group; there is one per channel since opset 21")
    eps = float(call.attrs.get("epsilon", 1e-5))
    return _grouped(imp, x, int(call.need("num_groups")), weights, eps)


@from_onnx("InstanceNormalization")
def _onnx_instance_norm(imp: Importer, call: Call) -> str:
    x, weights = imp.tensor(call.args[0]), _optional(imp, call.args[1:3])
    return _instances(imp, x, weights, float(call.attrs.get("epsilon", 1e-5)))
