"""The launches of a call that runs tile by tile, from those over whole operands.

Where tiles of a sum are added up, a kernel that does more than the sum at its store comes apart:
the first tile writes, later ones add, and what the store did is a launch behind the last tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradlet.ir.graph import Graph, Node, Site
from gradlet.kernels.catalogue import Kernel, candidates, operands, updates, variant_of
from gradlet.kernels.traits import is_exact, steps
from gradlet.ops import OPS
from gradlet.ops.base import Size
from gradlet.planner.fuse.epilogue import lowered, post_op
from gradlet.planner.fuse.rule import FusionGroup, Lowerer
from gradlet.planner.launch import EVERY, FIRST, LAST, LATER, Launch, Ref, When
from gradlet.planner.model import Call
from gradlet.planner.tile.classes import Part, all_classes
from gradlet.planner.tile.request import SUM, Problems
from gradlet.planner.tiling import Tiling
from gradlet.targets.target import Target

Sizes = tuple[Mapping[str, Size], ...]


@dataclass(frozen=True)
class TileLaunches:
    graph: Graph
    target: Target
    variants: Mapping[str, str]
    problems: Problems

    def kernels(
        self, call: Call, sizes: Sequence[Mapping[str, Size]], summed: bool, variant: str
    ) -> tuple[Kernel | None, Kernel | None]:
        """The kernel of the first tiles and, for sums over tiles, that of the others."""
        epilogue = "" if summed else call.kernel.epilogue
        kernel = self._common(call.kernel, epilogue, sizes, variant)
        if not summed or kernel is None:
            return kernel, None
        more = self._common(call.kernel, SUM, sizes, variant or kernel.variant)
        return (kernel, more) if more and steps(more) == steps(kernel) else (None, None)

    def of(
        self,
        group: FusionGroup,
        call: Call,
        tiling: Tiling,
        kernels: tuple[Kernel, Kernel | None],
        parts: Sequence[Part],
        sizes: Sizes,
    ) -> tuple[Launch, ...]:
        """tiling: its loops and views."""
        kernel, more = kernels
        fused = more is not None and call.kernel.epilogue in updates()
        gradient = len(call.operands) if fused else None
        found = [*self._own(call, tiling, kernels, sizes, gradient)]
        beside = list(self._beside(group, call, tiling, gradient)) if group.beside else []
        found += [launch for launch in beside if launch.when.tiles != LAST]
        if gradient is not None:
            states = range(call.own_outputs)
            found.append(self._behind(group, parts, _update_operands(call, states, gradient)))
        elif len(group.nodes) > 1 and not kernel.epilogue:
            lower = Lowerer(self.graph, self.target, self.variants)
            whole = post_op(lower, group)
            found.append(self._behind(group, parts, whole.operands, whole.kernel.variant))
        return (*found, *(launch for launch in beside if launch.when.tiles == LAST))

    def _own(
        self,
        call: Call,
        tiling: Tiling,
        kernels: tuple[Kernel, Kernel | None],
        sizes: Sizes,
        gradient: int | None,
    ) -> Iterator[Launch]:
        """Of the first node; an operand that is added once is left out by later tiles."""
        kernel, more = kernels
        made, taken = map(len, operands(kernel))
        results = range(made) if gradient is None else [gradient]
        begin = len(call.outputs)
        places = (*results, *range(begin, begin + taken))
        first: tuple[Ref, ...] = tuple(p if tiling.views[p] else None for p in places)
        when = When(FIRST if more else EVERY)
        repeat = call.repeat // steps(call.kernel) * steps(kernel)
        yield Launch(kernel, first, sizes, when, repeat=repeat)
        if more:
            once = {p for p, view in enumerate(tiling.views) if view and view.once}
            later = tuple(None if p in once else p for p in first)
            yield Launch(more, later, sizes, When(LATER), repeat=repeat)

    def _beside(
        self, group: FusionGroup, call: Call, tiling: Tiling, gradient: int | None
    ) -> Iterator[Launch]:
        """The sum that is fused horizontally: a tile that sees again what it has seen skips it."""
        site, update = self.problems.site_of(group), group.beside[1]
        total, whole = self.problems.fused_sum(group), call.beside
        assert total is not None
        assert whole is not None
        sizes: list[Mapping[str, Size]] = []
        for index in all_classes(tiling.axes):
            ranges = {a.name: a.range(at) for a, at in zip(tiling.axes, index, strict=True)}
            tile = OPS[site.node.op].tile(site, ranges) if ranges else site
            assert tile is not None
            sizes.append(total.sizes(tile))
        axes = enumerate(tiling.axes)
        skipped = tuple(number for number, axis in axes if axis.name in total.first_along)

        def launch(kernel: Kernel | None, places: tuple[Ref, ...], given: Sizes, at: str) -> Launch:
            assert kernel is not None
            return Launch(kernel, places, given, When(at, skipped), barrier=False)

        given = tuple(sizes)
        if gradient is None:
            kernel = self._common(whole.kernel, whole.kernel.epilogue, given)
            yield launch(kernel, whole.operands, given, EVERY)
            return
        own, summed = gradient + 1, whole.operands[-2]
        yield launch(self._common(whole.kernel, "", given), (own, summed), given, FIRST)
        yield launch(self._common(whole.kernel, SUM, given), (own, summed), given, LATER)
        own_site = self.graph.site(update)
        lowering = OPS[update.op].lower(own_site)
        like = Kernel(lowering.family, lowering.mode, "", "", own_site.outs[0].dtype)
        counts = tuple({"count": item["channels"]} for item in given)
        results = range(call.own_outputs, len(call.outputs))
        places = _update_operands(call, results, own)
        yield launch(self._common(like, "", counts), places, counts, LAST)

    def _behind(
        self,
        group: FusionGroup,
        parts: Sequence[Part],
        places: tuple[Ref, ...],
        variant: str = "",
    ) -> Launch:
        """What comes behind a region of the result: elementwise nodes, or the update of weights
        when their gradient has added up there."""
        first, last = group.nodes[0], group.nodes[-1]
        made = self.graph.tensors[first.outputs[0]]
        sizes = tuple(self._part_of(last, made.shape, part) for part in parts)
        lowering = lowered(self.graph, group.nodes[1:])
        kernel = self._common(
            Kernel(lowering.family, lowering.mode, "", "", made.dtype), "", sizes, variant
        )
        assert kernel is not None, f"nothing computes {lowering.family} {lowering.mode} in tiles"
        return Launch(kernel, places, sizes, When(LAST))

    def _part_of(self, last: Node, made: Sequence[int], part: Part) -> Mapping[str, Size]:
        """What an elementwise node gets for a part of the result."""
        whole = self.graph.site(last)
        ins = tuple(replace(t, shape=part.shape) if t.shape == made else t for t in whole.ins)
        outs = tuple(replace(t, shape=part.shape) for t in whole.outs)
        return OPS[last.op].lower(Site(last, ins, outs)).sizes

    def _common(
        self,
        like: Kernel,
        epilogue: str,
        sizes: Sequence[Mapping[str, Size]],
        variant: str = "",
    ) -> Kernel | None:
        """The best kernel that takes all these sizes, or the one that is asked for."""
        isa, streamed = self.target.isa, variant_of(like).streamed() if like.variant else ()
        found: list[Kernel] | None = None
        for item in sizes:
            able = candidates(
                like.family, like.mode, epilogue, item, isa, like.dtype, streamed=streamed
            )
            able = _as_exact(able, like, variant)
            found = able if found is None else [kernel for kernel in found if kernel in able]
        wanted = variant or self.variants.get(like.family)
        named = [kernel for kernel in found or () if kernel.variant == wanted]
        usable = named or found
        if streamed:  # others do not find that operand
            usable = [kernel for kernel in found or () if kernel.variant == like.variant]
        return usable[-1] if usable else None


def _as_exact(found: Sequence[Kernel], like: Kernel, variant: str) -> list[Kernel]:
    """Where the whole is computed by plain sums, what is not was not worth it, unless asked for."""
    plain = bool(like.variant) and is_exact(like)
    return [k for k in found if not plain or is_exact(k) or k.variant == variant]


def _update_operands(call: Call, states: Sequence[int], gradient: int) -> tuple[int, ...]:
    """w_next[, m_next], w, g, hyper[, m]: the weights and their states in place, then the gradient
    in a view behind all operands, then the settings, which are the last operand."""
    return (*states, states[0], gradient, len(call.operands) - 1, *states[1:])
