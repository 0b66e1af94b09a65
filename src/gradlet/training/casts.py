"""Nodes over tensors of several element types: operands are brought to types that a kernel takes,
by casts that are nodes like all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradlet.errors import GradletError
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.elements import ELEMENTS, F32
from gradlet.ir.graph import Attrs, Node, Site, Tensor
from gradlet.kernels.catalogue import families
from gradlet.ops import OPS
from gradlet.ops.cast import name_of

CASTS = tuple(name_of(element) for element in ELEMENTS if name_of(element) in OPS)


def operand_types(op: str, attrs: Attrs, ins: Sequence[Tensor], dtype: str) -> list[str] | None:
    """The element types that the operands of a node need, if its numbers are to have this one; None
    if no kernel computes it so. What the kernel has a type of its own for keeps that."""
    typed = tuple(replace(t, dtype=dtype) if t.element.is_float else t for t in ins)
    try:
        made = OPS[op].infer(attrs, typed)
    except GradletError:
        return None
    kinds = [tensor.dtype for tensor in typed]
    if OPS[op].view:
        return kinds
    outs = tuple(Tensor(f"{index}", *shape_and_type) for index, shape_and_type in enumerate(made))
    lowering = OPS[op].lower(Site(Node("", op, (), (), attrs), typed, outs))
    mode = families()[lowering.family].modes[lowering.mode]
    if not _portable(lowering.family, mode.name, dtype):
        return None
    for operand, tensor in zip(mode.outputs, outs, strict=False):
        if (operand.dtype or dtype) != tensor.dtype and tensor.element.is_float:
            return None
    for index, operand in enumerate(mode.inputs[: len(kinds)]):
        if typed[index].element.is_float:
            stays = operand.group and ins[index].dtype == ELEMENTS[dtype].sums.name
            kinds[index] = operand.dtype or (ins[index].dtype if stays else dtype)
    return kinds


def _portable(family: str, mode: str, dtype: str) -> bool:
    """Whether there is a kernel in C for this element type."""
    able = (v for v in families()[family].variants if not v.modes or mode in v.modes)
    return any(variant.isa == "c" and variant.takes(ELEMENTS[dtype]) for variant in able)


class Casts:
    """Writes nodes, with casts in front of them where they are needed, each once in a phase."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self._made: dict[tuple[str, str, str], str] = {}

    def to(
        self, name: str, dtype: str, *, phase: str = "forward", role: str = "", module: str = ""
    ) -> str:
        """The tensor as this element type has it: itself, where it is of that."""
        own = self.builder.tensors[name]
        if own.dtype == dtype or not own.element.is_float:
            return name
        key = (name, dtype, phase)
        if key not in self._made:
            start = name
            if F32.name not in (dtype, own.dtype):
                start = self.to(name, F32.name, phase=phase, role=role, module=module)
            kind = role or ("activation" if phase == "forward" else "partial")
            made = self.builder.add(
                name_of(dtype),
                [start],
                phase=phase,
                role=kind,
                module=module,
                name=f"{name}.{dtype}",
            )
            self._made[key] = made
            self._made[made, own.dtype, phase] = name  # the way back is no cast
        return self._made[key]

    def add_many(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Attrs | None = None,
        *,
        dtype: str = "",
        phase: str = "forward",
        role: str = "activation",
        module: str = "",
        name: str = "",
    ) -> tuple[str, ...]:
        """A node that computes with numbers of this element type, or where no kernel does in single
        precision. Without one it is that of its operands."""
        ins = [self.builder.tensors[n] for n in inputs]
        types = _types(op, attrs or {}, ins, dtype, phase)
        inputs = [
            self.to(n, kind, phase=phase, module=module)
            for n, kind in zip(inputs, types, strict=True)
        ]
        return self.builder.add_many(
            op, inputs, attrs, phase=phase, role=role, module=module, name=name
        )

    def add(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None, **how: str) -> str:
        return self.add_many(op, inputs, attrs, **how)[0]


def _types(op: str, attrs: Attrs, ins: Sequence[Tensor], dtype: str, phase: str) -> list[str]:
    """What the operands of a node are to be. In an update nothing is rounded before it is used."""
    own = [tensor.dtype for tensor in ins]
    narrow = {tensor.dtype for tensor in ins if tensor.element.accumulate}
    wanted = dtype or (narrow.pop() if len(narrow) == 1 else F32.name)
    if wanted == F32.name and not narrow:
        return own
    types = operand_types(op, attrs, ins, wanted)
    if types is None or (phase == "update" and types != own):
        return [F32.name if tensor.element.is_float else tensor.dtype for tensor in ins]
    return types
