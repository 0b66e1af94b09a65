"""The oracle: a graph's forward pass as plain PyTorch, differentiated by PyTorch's own autograd."""

from __future__ import annotations

from collections.abc import Iterator

from gradlet.graph import Graph
from gradlet.ops import OPS

HEAD = '''import torch
import torch.nn.functional as F


def _pad(x, start, step, size):
    y = x.new_zeros(size)
    y[tuple(slice(a, a + (n - 1) * s + 1, s) for a, s, n in zip(start, step, x.shape))] = x
    return y


def _berhu(x, target, reduction):
    away = (x - target).abs()
    edge = 0.2 * away.detach().max()
    terms = torch.where(away <= edge, away, (away**2 + edge**2) / (2 * edge.clamp(min=1e-300)))
    return terms.mean() if reduction == "mean" else terms.sum()


def forward(v):
    """Add every activation and the loss to v, which holds parameters, constants and one batch."""
'''

TAIL = '''

def steps(parameters, constants, batches, count, accumulate, lr, weight_decay):
    """Train in the dtype of the parameters; yield every value of each step."""
    parameters = {name: p.clone().requires_grad_(True) for name, p in parameters.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=lr, weight_decay=weight_decay)
    fed = 0
    for _ in range(count):
        optimizer.zero_grad()
        losses = []
        for _ in range(accumulate):
            batch = {name: values[fed % len(values)] for name, values in batches.items()}
            fed += 1
            v = {**parameters, **constants, **batch}
            forward(v)
            wanted = {name: t for name, t in v.items() if t.requires_grad and name != LOSS}
            gradients = torch.autograd.grad(
                v[LOSS] / accumulate, list(wanted.values()), allow_unused=True
            )
            gradients = {k: g for k, g in zip(wanted, gradients) if g is not None}
            for name, parameter in parameters.items():
                if name in gradients:
                    old = 0 if parameter.grad is None else parameter.grad
                    parameter.grad = old + gradients[name]
            losses.append(v[LOSS].item())
            constants = {**constants, **{old: v[new].detach() for old, new in STATES}}
        before = {name: t.detach().clone() for name, t in v.items()}
        optimizer.step()
        after = {name: p.detach().clone() for name, p in parameters.items()}
        after.update({old: constants[old] for old, _ in STATES})
        yield before, gradients, after, sum(losses) / accumulate
'''


def oracle_source(graph: Graph) -> str:
    """Python source with `forward(v)` and `steps(...)` for this graph."""
    body = "\n".join(f"    {line}" for line in _lines(graph))
    forward = {name for node in graph.nodes if node.phase == "forward" for name in node.outputs}
    states = [(old, new) for old, new in graph.updates if new in forward]
    return f"{HEAD}{body}\n\n\nLOSS = {graph.loss!r}\nSTATES = {states!r}\n{TAIL}"


def _lines(graph: Graph) -> Iterator[str]:
    for site in graph.sites("forward"):
        operands = [
            f"v[{t.name!r}].long()" if t.dtype == "i32" else f"v[{t.name!r}]" for t in site.ins
        ]
        yield f"v[{site.node.outputs[0]!r}] = {OPS[site.node.op].torch(site.attrs, *operands)}"
