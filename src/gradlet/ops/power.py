"""A tensor to the power of a tensor, and its two slopes, which are 0 wherever PyTorch's are."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Array, Attrs, Site
from gradlet.ops.base import Arrays, Work, register
from gradlet.ops.elementwise import Binary, affine, operand
from gradlet.ops.emitter import Emitter
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.importers.unary import power_of


def _power(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.power(a, b)


def _base_slope(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0.0, b * _power(a, b - 1))


def _exponent_slope(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.where((a == 0) & (b >= 0), 0.0, _power(a, b) * np.log(a))


class _Power(Binary):
    roundings_each = 16

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.outs[0].elements * (self.roundings_each - 1))

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """exp(b log a) turns the rounding of its argument into a relative error."""
        a, b = ins
        with np.errstate(all="ignore"):
            lost = np.abs((np.abs(b) + 1) * np.log(np.abs(a)))
        return (np.abs(results[0]) * (1 + np.where(np.isfinite(lost), lost, 0.0)),)


@register
class Power(_Power):
    name = "power"
    compute = staticmethod(_power)
    spelling = "torch.pow({}, {})"

    def partial(self, emit: Emitter, site: Site, grad: str, slot: str) -> str:
        op = {"a": "power_base_slope", "b": "power_exponent_slope"}[slot]
        return emit.add("mul", [grad, emit.add(op, site.node.inputs)])


@register
class PowerBaseSlope(_Power):
    name = "power_base_slope"
    compute = staticmethod(_base_slope)
    spelling = ""  # only gradients use it


@register
class PowerExponentSlope(_Power):
    name = "power_exponent_slope"
    compute = staticmethod(_exponent_slope)
    spelling = ""


def _raised(imp: Importer, a: Any, b: Any) -> str:
    return imp.add("power", [operand(imp, a), operand(imp, b)])


@from_torch("aten.pow.Tensor_Tensor", "aten.pow.Scalar", "aten.pow_.Tensor")
def _torch_pow(imp: Importer, call: Call) -> str:
    a, b = call.args[:2]
    if isinstance(a, int | float) and a > 0:
        return imp.add("exp", [affine(imp, imp.tensor(b), float(np.log(float(a))))])
    return _raised(imp, a, b)


@from_torch("aten.exp2.default")
def _torch_exp2(imp: Importer, call: Call) -> str:
    return imp.add("exp", [affine(imp, imp.tensor(call.args[0]), float(np.log(2.0)))])


@from_onnx("Pow")
def _onnx_pow(imp: Importer, call: Call) -> str:
    x = imp.param(call.args[0])
    try:
        exponent = imp.static(call.args[1])
    except GradletError:
        exponent = np.zeros(2)
    if exponent.ndim == 0:  # a number, not a weight
        return power_of(imp, x, float(exponent))
    if exponent.dtype.kind in "iu":
        return imp.add("power", [x, imp.constant(exponent.astype(np.float32))])
    return imp.add("power", [x, imp.param(call.args[1])])
