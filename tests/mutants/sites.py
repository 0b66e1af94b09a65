"""Where the source can be made wrong, and how: operators, constants, operands, instructions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Site:
    """One fault: `before` at `offset` of a file (relative to the package) becomes `after`."""

    file: str
    line: int
    column: int
    function: str  # '' outside of Python
    offset: int
    before: str
    after: str

    def applied_to(self, text: str) -> str:
        end = self.offset + len(self.before)
        assert text[self.offset : end] == self.before, f"{self.file} has changed"
        return text[: self.offset] + self.after + text[end:]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.before!r} -> {self.after!r}"


def sites(package: Path, file: str) -> list[Site]:
    """Every fault that can be put into a file."""
    text = (package / file).read_text()
    found = _of_python(file, text) if file.endswith(".py") else _of_c(file, text)
    return list(found)


# ------------------------------------------------------------------------------------------ Python

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.And: "or",
    ast.Or: "and",
}
INSTRUCTIONS = {
    "fadd.s": "fsub.s",
    "fsub.s": "fadd.s",
    "fmul.s": "fadd.s",
    "fmadd.s": "fmsub.s",
    "fnmsub.s": "fmadd.s",
    "fmax.s": "fmin.s",
    "fmin.s": "fmax.s",
    "flt.s": "fle.s",
    "fle.s": "flt.s",
}
JUDGES = frozenset({"reference", "torch", "magnitude", "check", "__str__", "__repr__"})
"""Functions that say what is right, not what is computed; a fault in one would only accuse."""


def _of_python(file: str, text: str) -> Iterator[Site]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.expr) -> tuple[int, str]:
        # Columns count UTF-8 bytes; the sources' code lines are ASCII, only comments may not be.
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
        return begin, text[begin:end]

    for function, node in _expressions(ast.parse(text)):
        for part, after in _changes(node, lambda n: place(n)[1]):
            begin, before = place(part)
            where = part.lineno, part.col_offset + 1
            yield Site(file, *where, function, begin, before, after)


def _expressions(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Expressions inside functions, with the function's name; no messages of errors."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments):
                continue
            name = function
            if isinstance(child, ast.FunctionDef):
                if child.name in JUDGES:
                    continue
                name = child.name
            if isinstance(child, ast.expr) and function:
                yield function, child
            yield from walk(child, name)

    yield from walk(tree, "")


def _changes(node: ast.expr, source: Callable[[ast.expr], str]) -> Iterator[tuple[ast.expr, str]]:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            if not any(
                isinstance(side, ast.Constant | ast.JoinedStr) and _is_text(side)
                for side in (left, right)
            ):
                yield node, f"({source(left)} {OPERATORS[type(op)]} {source(right)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
            yield node, f"({source(left)} {OPERATORS[type(op)]} {source(right)})"
        case ast.BoolOp(op=op, values=[left, right]):
            yield node, f"({source(left)} {OPERATORS[type(op)]} {source(right)})"
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield node, source(operand)
        case ast.Constant(value=bool(value)):
            yield node, repr(not value)
        case ast.Constant(value=int(value)):
            yield node, repr(value + 1)
        case ast.Constant(value=float(value)):
            yield node, repr(value * 2 or 1.0)
        case ast.Constant(value=str(value)) if value in INSTRUCTIONS:
            yield node, repr(INSTRUCTIONS[value])
        case ast.Call(func=func, args=[ast.Name() as first, ast.Name() as second, *rest]):
            swapped = ", ".join(map(source, [second, first, *rest]))
            if not node.keywords and first.id != second.id:
                yield node, f"{source(func)}({swapped})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


# ---------------------------------------------------------------------------------- C and templates

C_CHANGES = (
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" \* ", " + "),
    (r" / ", " * "),
    (r" \+= ", " -= "),
    (r" < ", " <= "),
    (r" > ", " >= "),
    (r" <= ", " < "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" && ", " || "),
    (r"\b0\.5f", "0.25f"),
    (r"\b1\.0f", "2.0f"),
    (r"\b0\.0f", "1.0f"),
    (r"\bfadd\.s\b", "fsub.s"),
    (r"\bfmul\.s\b", "fadd.s"),
    (r"\bfmadd\.s\b", "fmsub.s"),
    (r"(?<= )1u?(?=[;,)\]])", "2"),
)
NOT_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\{#.*?#\}|^\s*#[^\n]*|_Static_assert[^;]*;", re.S | re.M)


def _of_c(file: str, text: str) -> Iterator[Site]:
    code = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", "~", match.group()), text)
    for pattern, after in C_CHANGES:
        for match in re.finditer(pattern, code):
            begin = match.start()
            where = text.count("\n", 0, begin) + 1, begin - text.rfind("\n", 0, begin)
            yield Site(file, *where, "", begin, match.group(), after)
