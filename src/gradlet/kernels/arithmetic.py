"""What a TOML of the catalogue may compute: arithmetic over named numbers."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Any

_ARITHMETIC = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Subscript),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
    *(ast.BoolOp, ast.And, ast.Or, ast.Call),
)


def evaluate(expression: str, sizes: Mapping[str, Any]) -> Any:
    """Arithmetic, comparisons, `and`, `or`, min and max over the named sizes and their elements:
    all that a TOML may compute."""
    return eval(_compiled(expression), {"__builtins__": {}, "min": min, "max": max}, sizes)


@cache
def _compiled(expression: str) -> CodeType:
    tree = ast.parse(expression, mode="eval")
    nodes = list(ast.walk(tree))
    chained = any(isinstance(node, ast.Compare) and len(node.ops) > 1 for node in nodes)
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    simple = not chained and called <= {"min", "max"}
    if not simple or not all(isinstance(node, _ARITHMETIC) for node in nodes):
        raise ValueError(f"'{expression}' is not simple arithmetic")
    return compile(tree, "<toml>", "eval")


def expanded(expression: str, terms: Mapping[str, str]) -> str:
    """The expression with the terms that it names written out. A term may name those before it."""
    written: dict[str, ast.expr] = {}

    class Names(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return written.get(node.id, node)

    def write(text: str) -> ast.Expression:
        found: ast.Expression = Names().visit(ast.parse(text, mode="eval"))
        return found

    for name, text in terms.items():
        written[name] = write(text).body
    return ast.unparse(write(expression)) if expression and terms else expression
