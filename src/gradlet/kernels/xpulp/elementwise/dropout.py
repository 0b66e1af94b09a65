"""Dropout: a hash of each place decides. From place to place it grows by a constant, so that no
product of places is needed; two multiplications mix it."""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import MAPS, Map, stretch

FIRST, SECOND, GOLDEN = 0x6A09E667, 0xBB67AE85, 0x9E3779B1
DRAWN = Map(
    ("x",),
    (
        ("srli", "t", "hash", 16),
        ("xor", "v", "hash", "t"),
        ("mul", "v", "v", "first"),
        ("add", "hash", "hash", "golden"),
        ("srli", "t", "v", 13),
        ("xor", "v", "v", "t"),
        ("mul", "v", "v", "second"),
        ("fmul.s", "x", "factor", "x"),
        ("srli", "t", "v", 16),
        ("xor", "v", "v", "t"),
        ("srli", "v", "v", 8),
        ("sltu", "v", "v", "threshold"),
        ("addi", "v", "v", -1),
        ("and", "x", "x", "v"),
    ),
    "x",
    ("hash", "threshold", "factor"),
    literals={"first": FIRST, "second": SECOND, "golden": GOLDEN},
    at_once=1,
)


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    made = {name: stretch(name, MAPS[name]) for name in ("scale", "reset")}
    return {"drawn": stretch("drawn", DRAWN), **made, **DRAWN.literals}
