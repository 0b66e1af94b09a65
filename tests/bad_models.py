"""Models that are wrong in some way, as a file of a user's: see bad_input.py."""

from __future__ import annotations

MODELS = """
import sys, dataclasses
import torch
from torch import nn
X, Y = torch.randn(2, 4), torch.tensor([0, 1])
def net(): return nn.Linear(4, 3), X, Y
class Returns(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.layer, self.made = nn.Linear(4, 3), made
        self.free = nn.Parameter(torch.ones(2, 3))
    def forward(self, x): return self.made(self, self.layer(x))
@dataclasses.dataclass
class Out:
    logits: torch.Tensor
class Plain:
    pass
def returns(made): return lambda: (Returns(made), X, Y)
out_dict = returns(lambda s, y: {"logits": y})
out_dict_int = returns(lambda s, y: {1: y})
out_dataclass = returns(lambda s, y: Out(y))
out_object = returns(lambda s, y: Plain())
out_list = returns(lambda s, y: [y, y])
out_nested = returns(lambda s, y: [[y], (y,)])
out_empty = returns(lambda s, y: ())
out_none = returns(lambda s, y: None)
out_number = returns(lambda s, y: 3.5)
out_string = returns(lambda s, y: "[bold]yes[/]")
out_param = returns(lambda s, y: s.free)
out_const = returns(lambda s, y: torch.ones(2, 3))
out_input_only = lambda: (nn.Identity(), X, Y)
out_meta = returns(lambda s, y: y.to("meta"))
out_sparse = returns(lambda s, y: y.to_sparse())
out_complex = returns(lambda s, y: torch.complex(y, y))
out_int = returns(lambda s, y: y.argmax(1))
out_bool = returns(lambda s, y: y > 0)
out_half = returns(lambda s, y: y.half())
out_scalar = returns(lambda s, y: y.sum())
out_empty_tensor = returns(lambda s, y: y[:, :0])
out_nan = returns(lambda s, y: y / 0 * 0)
out_item = returns(lambda s, y: y * y.sum().item())
out_branch = returns(lambda s, y: y if y.sum() > 0 else -y)
out_nonzero = returns(lambda s, y: y[y > 0])
out_numpy = returns(lambda s, y: torch.from_numpy(y.detach().numpy()))
def raises(error):
    def forward(s, y): raise error
    return returns(forward)
fails_value = raises(ValueError("two\\nlines [red]and[/] markup :smile:"))
fails_empty = raises(KeyError())
fails_exit = raises(SystemExit(0))
fails_assert = raises(AssertionError())
fails_memory = raises(MemoryError("much"))
def exits(): sys.exit(0)
def exits_text(): sys.exit("bye")
def exits_hard(): __import__("os")._exit(0)
fails_hard = returns(lambda s, y: __import__("os")._exit(0))
def raises_now(): raise RuntimeError("[/] no [bold]")
def recursion(): return recursion()
def none(): return None
def number(): return 3
def one(): return (nn.Linear(4, 3),)
def four(): return nn.Linear(4, 3), X, Y, 1
def strings(): return nn.Linear(4, 3), X, ["a", "b"]
def scalar(): return nn.Linear(4, 3), X, 1
def ragged(): return nn.Linear(4, 3), X, [[0], [0, 1]]
def fewer(): return nn.Linear(4, 3), X, torch.tensor([0])
def more(): return nn.Linear(4, 3), X, torch.tensor([0, 1, 2])
def high(): return nn.Linear(4, 3), X, torch.tensor([0, 3])
def low(): return nn.Linear(4, 3), X, torch.tensor([0, -1])
def half_label(): return nn.Linear(4, 3), X, torch.tensor([0.5, 1])
def nan_label(): return nn.Linear(4, 3), X, torch.tensor([float("nan"), 1])
def no_label(): return nn.Linear(4, 3), X, []
def meta_label(): return nn.Linear(4, 3), X, torch.zeros(2, dtype=torch.long, device="meta")
def dict_label(): return nn.Linear(4, 3), X, {"a": 1}
def no_samples(): return nn.Linear(4, 3), torch.zeros(0, 4), None
def input_meta(): return nn.Linear(4, 3), torch.zeros(2, 4, device="meta")
def input_sparse(): return nn.Linear(4, 3), torch.eye(4).to_sparse()
def input_nested(): return nn.Linear(4, 3), torch.nested.as_nested_tensor([X[:1], X])
def input_complex(): return nn.Linear(4, 3), torch.zeros(2, 4, dtype=torch.complex64)
def input_bool(): return nn.Linear(4, 3), torch.zeros(2, 4, dtype=torch.bool)
def input_list(): return nn.Linear(4, 3), [1, 2]
def input_dict(): return nn.Linear(4, 3), {"x": X}
def input_string(): return nn.Linear(4, 3), "x"
def input_nan(): return nn.Linear(4, 3), X * float("nan")
def input_huge(): return nn.Linear(4, 3), X.double() * 1e300
def input_wrong(): return nn.Linear(5, 3), X
def input_scalar(): return nn.Linear(4, 3), torch.tensor(1.0)
def two_inputs(): return nn.Linear(4, 3), (X, X)
def two_sizes(): return nn.Bilinear(4, 4, 3), (X, X[:1])
def no_parameters(): return nn.ReLU(), X, torch.tensor([0, 1])
def frozen(): return nn.Linear(4, 3).requires_grad_(False), X, Y
def weight_nan():
    m = nn.Linear(4, 3); m.weight.data[0, 0] = float("nan"); return m, X, Y
def weight_huge():
    m = nn.Linear(4, 3).double(); m.weight.data[0, 0] = 1e300; return m, X, Y
def weight_meta(): return nn.Linear(4, 3, device="meta"), X, Y
def weight_lazy(): return nn.LazyLinear(3), X, Y
def weight_complex(): return nn.Linear(4, 3, dtype=torch.complex64), X, Y
def weight_sparse():
    m = nn.Module(); m.w = nn.Parameter(torch.eye(4).to_sparse()); m.forward = lambda x: x
    return m, X, Y
def large(): return nn.Linear(10000, 10000), torch.randn(1, 10000)
class Keeps(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 4)); self.how = how
        if how == "list": self.kept = [self.w * 2]
        if how == "dict": self.kept = {"a": self.w * 2}
        if how == "attribute": self.kept = self.w * 2
        if how == "buffer": self.register_buffer("kept", self.w * 2)
    def forward(self, x):
        kept = {"list": lambda: self.kept[0], "dict": lambda: self.kept["a"]}
        return x @ (self.w + kept.get(self.how, lambda: self.kept)()).T
def keeps_list(): return Keeps("list"), X, Y
def keeps_dict(): return Keeps("dict"), X, Y
def keeps_attribute(): return Keeps("attribute"), X, Y
def keeps_buffer(): return Keeps("buffer"), X, Y
class Locked(nn.Linear):
    def __deepcopy__(self, memo): raise TypeError("not me")
def locked(): return Locked(4, 3), X, Y
class Prints(nn.Linear):
    def forward(self, x):
        print("{not json"); return super().forward(x)
def prints(): return Prints(4, 3), X, Y
def forward_none():
    m = nn.Linear(4, 3); m.forward = None; return m, X, Y
plain_module = nn.Linear(4, 3)
a_class = nn.Linear
a_string = "net"
"""
