"""All fusions. Where two match the same node, the later one in this list has it."""

from __future__ import annotations

from gradlet.planner.fuse import bias_gradient, epilogue, linear_backward, loss_gradient, update
from gradlet.planner.fuse.rule import FusionGroup, Lowerer
from gradlet.planner.model import Call

RULES = {
    rule.fusion: rule
    for rule in (
        epilogue.RULE,
        update.RULE,
        bias_gradient.RULE,
        linear_backward.RULE,
        loss_gradient.RULE,
    )
}


def call_of(lower: Lowerer, group: FusionGroup) -> Call:
    return RULES[group.fusion].call(lower, group) if group.fusion else lower.single(group)
