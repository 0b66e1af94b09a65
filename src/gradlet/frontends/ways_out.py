"""What to write instead of an operation that is not there."""

from __future__ import annotations

import re

UNKNOWN = "build it from supported ones (docs/support.md) or keep it out of the model"
OF_BOOLS = (
    "a mask comes as int64 or float32 instead, and the model makes one of it: mask = mask > 0"
)
INSTEAD = {
    r"aten\.item\.|aten\._local_scalar_dense": (
        "a number from the data cannot go through Python; leave .item(), float() or int() out: a "
        "tensor of one element goes with any shape"
    ),
    r"(Dynamic)?QuantizeLinear|DequantizeLinear|QLinear|ConvInteger|MatMulInteger|fake_quant": (
        "a quantised model cannot be trained further; take the float32 model that it was made from"
    ),
    r"TreeEnsemble|SVM": "it has no gradient, so nothing before it could be trained",
    r"aten\.grid_sampler": (
        "with mode 'bilinear' or 'nearest' and padding_mode 'zeros' or 'border' it is there"
    ),
    r"aten\.asinh": "torch.log(x + torch.sqrt(x * x + 1)) is there",
    r"aten\.copysign": "x.abs() * torch.where(other < 0, -1.0, 1.0) is there",
    r"aten\.cummax|aten\.cummin": "torch.amax and torch.amin of the parts x[:, :n] are there",
    r"linalg_|cholesky|Det$": (
        "matrices are multiplied, but neither inverted nor factored; for constant ones do it "
        "before, and store the result in a buffer"
    ),
}


def reason_for(target: str) -> str:
    """Why an operation by this name is refused, and the way out."""
    found = (way for pattern, way in INSTEAD.items() if re.search(pattern, target))
    return f"no such operation; {next(found, UNKNOWN)}"
