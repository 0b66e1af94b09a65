"""The oracle: a graph's forward pass as plain PyTorch, differentiated by PyTorch's own autograd."""

from __future__ import annotations

from collections.abc import Iterator

from gradlet.ir.graph import Graph, Site
from gradlet.ops import OPS
from gradlet.ops.learning.loss_scale import interval_of, scale_of
from gradlet.ops.learning.optimizer import (
    clip_of,
    correction_of,
    hyper_of,
    optimizer_of,
    remembered_of,
)

HEAD = '''import torch
import torch.nn.functional as F


def _pad(x, start, step, size, value):
    y = x.new_full(size, value)
    y[tuple(slice(a, a + (n - 1) * s + 1, s) for a, s, n in zip(start, step, x.shape))] = x
    return y


def _window(x, start, size):
    for dim, (a, n) in enumerate(zip(start, size), start=2):
        x = F.pad(x, (0, 0) * (x.ndim - 1 - dim) + (-a, n + a - x.shape[dim]))
    return x


def _berhu(x, target, reduction):
    away = (x - target).abs()
    edge = 0.2 * away.detach().max()
    terms = torch.where(away <= edge, away, (away**2 + edge**2) / (2 * edge.clamp(min=1e-300)))
    return terms.mean() if reduction == "mean" else terms.sum()


{helpers}
def forward(v):
    """Add every activation and the loss to v, which holds parameters, constants and one batch."""
'''

TAIL = '''

def next_scale(scale, good, skipped, fault, like):
    """Half of the scale behind a step that was skipped, twice behind INTERVAL good ones."""
    if fault:
        smaller = scale / 2 if INTERVAL and scale > 2.0**-14 else scale
        return like.new_tensor([smaller, 0, skipped + 1])
    if INTERVAL and good + 1 >= INTERVAL and scale < 2.0**24:
        return like.new_tensor([scale * 2, 0, skipped])
    return like.new_tensor([scale, good + 1, skipped])


def steps(parameters, constants, batches, count, accumulate):
    """Train in the dtype of the parameters; yield every value of each step."""
    parameters = {name: p.clone().requires_grad_(True) for name, p in parameters.items()}
    optimizer = make_optimizer(list(parameters.values()), *constants[HYPER].tolist())
    fed = taken = 0
    for step in range(count):
        optimizer.zero_grad()
        losses = []
        scale, fault = constants.get(SCALE, torch.ones(1)), False
        for _ in range(accumulate):
            batch = {name: values[fed % len(values)] for name, values in batches.items()}
            fed += 1
            v = {**parameters, **constants, **batch}
            forward(v)
            for t in v.values():
                if t.requires_grad and not t.is_leaf:  # batch_norm's backward takes a transposed
                    t.register_hook(torch.Tensor.contiguous)  # one of batch 1 for a plain one
            wanted = {name: t for name, t in v.items() if t.requires_grad and name != LOSS}
            gradients = torch.autograd.grad(
                v[LOSS] / accumulate, list(wanted.values()), allow_unused=True
            )
            gradients = {k: g * scale[0] for k, g in zip(wanted, gradients) if g is not None}
            known = LIMITS.keys() & gradients.keys()
            fault |= any(not (gradients[name].abs() < LIMITS[name]).all() for name in known)
            for name, parameter in parameters.items():
                if name in gradients:
                    old = 0 if parameter.grad is None else parameter.grad
                    parameter.grad = old + gradients[name]
                    limit = LIMITS.get(name)
                    fault |= limit is not None and not (parameter.grad.abs() < limit).all()
            losses.append(v[LOSS].item())
            constants = {**constants, **{old: v[new].detach() for old, new in STATES}}
        before = {name: t.detach().clone() for name, t in v.items()}
        if not fault:
            for parameter in parameters.values():
                parameter.grad = None if parameter.grad is None else parameter.grad / scale[0]
            clip(list(parameters.values()), constants)
            optimizer.step()
            taken += 1
        if SCALE:
            constants = {**constants, SCALE: next_scale(*scale.tolist(), fault, scale)}
        after = {name: p.detach().clone() for name, p in parameters.items()}
        for key, tensors in REMEMBERS.items():
            for name, state in tensors.items():
                zeros = torch.zeros_like(parameters[name])  # where no step was taken
                after[state] = optimizer.state[parameters[name]].get(key, zeros).clone()
        if CORRECTION:
            after[CORRECTION] = 1 - constants[HYPER][2:4] ** taken
        if SCALE:
            after[SCALE] = constants[SCALE]
        after.update({old: constants[old] for old, _ in STATES})
        yield before, gradients, after, sum(losses) / accumulate
'''


def oracle_source(graph: Graph) -> str:
    """Python source with `forward(v)` and `steps(...)` for this graph."""
    body = "\n".join(f"    {line}" for line in _lines(graph))
    written = {name for site in _sites(graph) for name in site.node.outputs}
    states = [(old, new) for old, new in graph.updates if new in written]
    tables = f"LOSS = {graph.loss!r}\nSTATES = {states!r}\nHYPER = {hyper_of(graph)!r}\n"
    tables += f"CORRECTION = {correction_of(graph)!r}\n"
    tables += f"SCALE = {scale_of(graph)!r}\nINTERVAL = {interval_of(graph)}\n"
    tables += f"LIMITS = {_limits(graph)}"
    head = HEAD.replace("{helpers}\n", _helpers(graph))
    return f"{head}{body}\n\n\n{_optimizer(graph)}\n\n{tables}\n{TAIL}"


def _limits(graph: Graph) -> dict[str, float]:
    """Where the loss is scaled, what the gradient of each tensor has to stay below."""
    if not scale_of(graph):
        return {}
    found = {}
    for name, grad in graph.grads:
        element = graph.tensors[grad].element
        found[name] = element.largest * (1 + element.unit_roundoff / 2)
    return found


def _helpers(graph: Graph) -> str:
    ops = [OPS[node.op] for node in graph.nodes if node.phase == "forward"]
    ops.append(optimizer_of(graph))
    sources = dict.fromkeys(op.torch_source for op in ops if op.torch_source)
    return "".join(f"{source.strip()}\n\n\n" for source in sources)


def _optimizer(graph: Graph) -> str:
    """What differs between the ways to update: torch.optim's call, its state, and clipping."""
    op = optimizer_of(graph)
    ops = {node.op for node in graph.nodes}
    clip = "pass"
    for kind in ("norm", "value"):
        if {"norm": "clip_factor", "value": "clip_value"}[kind] in ops:
            limit = f"constants[{clip_of(graph)!r}].item()"
            clip = f"torch.nn.utils.clip_grad_{kind}_(parameters, {limit})"
    return (
        f"def make_optimizer(parameters, {', '.join(op.hyper)}):\n"
        f"    return {op.torch_optimizer}\n\n\n"
        f"def clip(parameters, constants):\n    {clip}\n\n\n"
        f"REMEMBERS = {remembered_of(graph)}"
    )


def _sites(graph: Graph) -> Iterator[Site]:
    """The forward pass, and states that count its passes."""
    yield from graph.sites("forward")
    yield from (site for site in graph.sites("backward") if site.node.op == "dropout_step")


def _lines(graph: Graph) -> Iterator[str]:
    for site in _sites(graph):
        operands = [
            f"v[{t.name!r}].long()" if t.dtype == "i32" else f"v[{t.name!r}]" for t in site.ins
        ]
        results = ", ".join(f"v[{name!r}]" for name in site.node.outputs)
        yield f"{results} = {OPS[site.node.op].torch(site.attrs, *operands)}"
