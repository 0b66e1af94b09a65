"""What a fusion is: a rule that finds groups of nodes, and makes each of them a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gradlet.errors import GradletError
from gradlet.ir.graph import OWN_SPACE, Graph, Node, Site
from gradlet.kernels.catalogue import (
    MAY,
    Kernel,
    candidates,
    dtype_of,
    fetched,
    scratch_bytes,
    updates,
)
from gradlet.kernels.traits import steps
from gradlet.ops import OPS
from gradlet.ops.base import Size
from gradlet.planner.choice import worthwhile
from gradlet.planner.launch import Launch
from gradlet.planner.model import Call
from gradlet.targets.target import Target


@dataclass(frozen=True)
class FusionGroup:
    """What one call computes. beside: nodes that are fused horizontally, which need nothing of what
    the others make."""

    nodes: tuple[Node, ...]
    fusion: str = ""
    beside: tuple[Node, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        made = {name for node in self.all_nodes for name in node.outputs}
        return tuple(n for node in self.all_nodes for n in node.inputs if n not in made)

    @property
    def writes(self) -> tuple[str, ...]:
        inside = {name for node in self.all_nodes for name in node.inputs}
        return tuple(n for node in self.all_nodes for n in node.outputs if n not in inside)

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        return (*self.nodes, *self.beside)

    @property
    def others(self) -> tuple[str, ...]:
        """What the nodes behind the first one read besides what is made before them."""
        made = {name for node in self.nodes for name in node.outputs}
        return tuple(n for node in self.nodes[1:] for n in node.inputs if n not in made)

    @property
    def phase(self) -> str:
        return self.nodes[0].phase


def dtype_of_node(graph: Graph, node: Node) -> str:
    """What the kernel of a node is rendered for."""
    site = graph.site(node)
    lowering = OPS[node.op].lower(site)
    return dtype_of(lowering.family, lowering.mode, site)


def fused_dtype(graph: Graph, node: Node, update: Node) -> str:
    """The same of a node whose store does an update: the groups that stay wide are the update's."""
    _, *wide = dtype_of_node(graph, update).split("/")
    return "/".join((dtype_of_node(graph, node), *wide))


@dataclass(frozen=True)
class Lowerer:
    """Makes calls of groups. variants: of kernels, by family; asked: by the name of a call."""

    graph: Graph
    target: Target
    variants: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)

    def best(self, found: Sequence[Kernel], call: str = "") -> Kernel:
        """The kernel that is asked for, else the last one."""
        wanted = self.asked.get(call, self.variants.get(found[0].family))
        return next((kernel for kernel in found if kernel.variant == wanted), found[-1])

    def kernel(
        self, family: str, mode: str, epilogue: str, sizes: Mapping[str, Size], dtype: str
    ) -> Kernel:
        found = candidates(family, mode, epilogue, sizes, self.target.isa, dtype)
        assert found, f"nothing computes {family} {mode} {epilogue} in {dtype}"
        return self.best(found)

    def scratch(self, kernel: Kernel, sizes: Mapping[str, Size], name: str) -> str:
        """The name of the scratch of a call, if it needs any."""
        needed = scratch_bytes(kernel, sizes, self.target.cores)
        return f"{OWN_SPACE}scratch.{name}" if needed else ""

    def single(
        self,
        group: FusionGroup,
        epilogue: str = "",
        *,
        settings: Sequence[str] = (),
        others: Sequence[str] = (),
    ) -> Call:
        """The launch of the group's first node, with what its store does. settings: of the
        epilogue, its last operands; others: inputs of further launches."""
        first, last = group.nodes[0], group.nodes[-1]
        op = OPS[first.op]
        site = self.graph.site(first)
        lowering = op.lower(site)
        sizes, isa = lowering.sizes, self.target.isa
        dtype = dtype_of_node(self.graph, first)
        if epilogue in updates():
            dtype = fused_dtype(self.graph, first, last)
        found = candidates(lowering.family, lowering.mode, epilogue, sizes, isa, dtype)
        if not found:
            raise GradletError(_no_kernel(site, dtype))
        macs = op.work(site).macs
        found = worthwhile(found, sizes, macs, self.target)
        kernel = self.best([k for k in found if self._has_room(k, sizes)], last.name)
        outputs = last.outputs + ("",) * (len(OPS[last.op].outputs) - len(last.outputs))
        beside = group.beside[-1].outputs if group.beside else ()
        inputs = (*first.inputs, *[""] * (len(op.inputs) - len(first.inputs)), *settings)
        begin = len(outputs) + len(beside)
        places = (*enumerate(outputs), *enumerate(inputs, start=begin))
        operands = tuple(place if name else None for place, name in places)
        return Call(
            last.name,
            tuple(node.name for node in group.all_nodes),
            group.fusion,
            group.phase,
            (*outputs, *beside),
            (*inputs, *others),
            (Launch(kernel, operands, (sizes,), repeat=lowering.repeat * steps(kernel)),),
            self.scratch(kernel, sizes, last.name),
            macs,
        )

    def _has_room(self, kernel: Kernel, sizes: Mapping[str, Size]) -> bool:
        """A kernel that fetches its inputs needs the nearest memory for them."""
        if not fetched(kernel, MAY):
            return True
        size = scratch_bytes(kernel, sizes, self.target.cores)
        return size <= self.target.room(self.target.memories[0])


def _no_kernel(site: Site, dtype: str) -> str:
    where = f"module '{site.node.module}': " if site.node.module else ""
    shapes = ", ".join(map(str, site.ins))
    return f"{where}no kernel computes {site.node.op}({shapes}) in {dtype}"


@dataclass(frozen=True)
class Rule:
    """A fusion. groups: finds what matches, for cores with these instruction sets. call: the
    launches of such a group. tiles: whether its calls can run on operands in backing memory.
    cut: whether they run tile by tile then; others are a single tile, whose large operands their
    kernel fetches itself if one `fits` into so many bytes."""

    fusion: str
    groups: Callable[[Graph, tuple[str, ...]], Iterable[FusionGroup]]
    call: Callable[[Lowerer, FusionGroup], Call]
    tiles: bool = True
    cut: bool = True
    fits: Callable[[Graph, Target, FusionGroup], bool] = lambda graph, target, group: True
