"""Losses."""

from __future__ import annotations

from gradlet.ir.graph import Attrs
from tests.cases.base import Case


def labelled(op: str, classes: int, *rest: int, weights: bool = False, **attrs: object) -> Case:
    """Scores [rest[0], classes, rest[1:]] and labels; an ignored index among the labels."""
    scores, labels = (rest[0], classes, *rest[1:]), tuple(rest)
    shapes = (scores, labels, *([(classes,)] if weights else []))
    options: Attrs = attrs  # type: ignore[assignment]
    return Case(op, shapes, options, labels=classes, frozen=(2,), positive=weights)


ROWS: tuple[Case, ...] = (
    labelled("cross_entropy", 2, 1),
    labelled("cross_entropy", 7, 5),
    labelled("cross_entropy", 1, 3),
    labelled("cross_entropy", 4, 2, 3, 5),
    labelled("cross_entropy", 7, 5, reduction="sum"),
    labelled("cross_entropy", 3, 9, ignore_index=1),
    labelled("cross_entropy", 6, 4, label_smoothing=0.1),
    labelled("cross_entropy", 4, 2, 3, weights=True),
    labelled("cross_entropy", 3, 7, 2, weights=True, ignore_index=2, label_smoothing=0.3),
    labelled("cross_entropy", 3, 8, weights=True, reduction="sum", label_smoothing=1.0),
    labelled("cross_entropy", 4, 2, 3, 5, weights=True, reduction="sum", ignore_index=1),
    labelled("nll", 5, 3),
    labelled("nll", 1, 2),
    labelled("nll", 3, 9, weights=True, ignore_index=1),
    labelled("nll", 4, 2, 3, reduction="sum"),
    *(
        Case(op, (shape, shape), {} if mean else {"reduction": "sum"}, frozen=(1,))
        for op in ("mse", "l1", "huber", "smooth_l1", "berhu", "bce_with_logits")
        for shape, mean in (((3, 5), True), ((1,), True), ((2, 3, 4), False), ((17,), True))
    ),
    Case("bce_with_logits", ((4, 5), (4, 5), (5,)), frozen=(1, 2), positive=True),
    Case("bce_with_logits", ((2, 3, 4), (2, 3, 4), (1,)), {"reduction": "sum"}, frozen=(1, 2)),
    Case("bce_with_logits", ((7,), (7,), (7,)), frozen=(1, 2), scale=4.0),
    Case("huber", ((4, 5), (4, 5)), {"delta": 0.5}, frozen=(1,)),
    Case("smooth_l1", ((4, 5), (4, 5)), {"delta": 0.3}, frozen=(1,)),
    Case("smooth_l1", ((4, 5), (4, 5)), {"delta": 0.0}, frozen=(1,)),
)
