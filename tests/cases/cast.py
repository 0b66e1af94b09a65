from __future__ import annotations

from tests.cases.base import Case

ROWS: tuple[Case, ...] = tuple(
    case
    for shape in ((1,), (7,), (3, 5), (2, 3, 5))
    for narrow in ("f16", "bf16")
    for case in (Case(f"to_{narrow}", (shape,)), Case("to_f32", (shape,), dtype=narrow))
)
