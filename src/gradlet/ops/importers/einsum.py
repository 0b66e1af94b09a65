"""Sums over letters: any number of operands, two at a time, as products of matrices.

A letter that an operand has twice means its diagonal; '...' are letters that nobody wrote.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradlet.ir.graph import Shape
from gradlet.ops.elementwise import affine
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.importers.composed import norm
from gradlet.ops.reduce import summed
from gradlet.ops.shape import reshaped, transposed

Letters = tuple[str, ...]


@dataclass(frozen=True)
class Term:
    """A tensor, and a letter for each of its dimensions."""

    name: str
    letters: Letters


def einsum(imp: Importer, equation: str, operands: Sequence[str]) -> str:
    shapes = [imp.shape(name) for name in operands]
    letters, result = _parsed(imp, equation, shapes)
    terms = [_diagonal(imp, Term(name, own)) for name, own in zip(operands, letters, strict=True)]
    size: dict[str, int] = {}
    for term in terms:
        for letter, extent in zip(term.letters, imp.shape(term.name), strict=True):
            size[letter] = max(extent, size.get(letter, 1))
    total, *rest = (_without_ones(imp, term, size) for term in terms)
    for number, term in enumerate(rest, start=1):
        later = {letter for other in rest[number:] for letter in other.letters}
        total = _product(imp, total, term, {*result, *later})
    total = _summed(imp, total, set(result))
    missing = [letter for letter in result if letter not in total.letters]  # all are 1 there
    y = reshaped(imp, total.name, (*imp.shape(total.name), *(1 for _ in missing)))
    own = (*total.letters, *missing)
    return transposed(imp, y, [own.index(letter) for letter in result])


def _parsed(imp: Importer, equation: str, shapes: Sequence[Shape]) -> tuple[list[Letters], Letters]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    plain = [re.fullmatch(r"[a-zA-Z]*(\.\.\.)?[a-zA-Z]*", text) for text in (*texts, right)]
    if len(texts) != len(shapes) or not all(plain):
        raise imp.unsupported(f"the sum '{equation}' of {len(shapes)} operands")
    terms = []
    for text, shape in zip(texts, shapes, strict=True):
        unwritten = len(shape) - len(text.replace("...", ""))
        if unwritten < 0 or (unwritten and "..." not in text):
            raise imp.unsupported(f"the sum '{equation}': '{text}' is {list(shape)}")
        terms.append(_letters(text, unwritten))
    most = max((sum(c.startswith(".") for c in term) for term in terms), default=0)
    if arrow:
        result = _letters(right, most)
    else:
        times = Counter(letter for term in terms for letter in term if letter[0] != ".")
        result = (*_letters("...", most), *sorted(c for c, n in times.items() if n == 1))
    return terms, result


def _letters(text: str, unwritten: int) -> Letters:
    """The letters of a term; those behind the dots are numbered from the right."""
    before, dots, after = text.partition("...")
    between = [f".{number}" for number in range(unwritten, 0, -1)] if dots else []
    return (*before, *between, *after)


def _diagonal(imp: Importer, term: Term) -> Term:
    """One dimension for two that have the same letter."""
    name, letters = term.name, list(term.letters)
    for letter in [c for c, n in Counter(letters).items() if n > 1]:
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            name = diagonal(imp, name, first, second)
            letters = [c for dim, c in enumerate(letters) if dim not in (first, second)] + [letter]
    return Term(name, tuple(letters))


def diagonal(imp: Importer, x: str, first: int, second: int, offset: int = 0) -> str:
    """The elements whose places along two dimensions differ by the offset, as the last one."""
    rank = len(imp.shape(x))
    rest = [dim for dim in range(rank) if dim not in (first, second)]
    x = transposed(imp, x, [*rest, first, second])
    *lead, rows, columns = imp.shape(x)
    begin = offset if offset >= 0 else -offset * columns
    count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    if count < 1:
        raise imp.unsupported(f"a diagonal at {offset} of {rows} x {columns}")
    line = reshaped(imp, x, (*lead, rows * columns))
    attrs = {"start": (*(0 for _ in lead), begin), "step": (*(1 for _ in lead), columns + 1)}
    return imp.add("slice", [line], {**attrs, "size": (*lead, count)})


def _without_ones(imp: Importer, term: Term, size: dict[str, int]) -> Term:
    """A dimension of 1 that others have larger is the same for all of it."""
    shape = imp.shape(term.name)
    kept = [dim for dim, c in enumerate(term.letters) if shape[dim] == size[c]]
    if any(shape[dim] != 1 for dim in range(len(shape)) if dim not in kept):
        raise imp.unsupported(f"a sum over letters whose sizes differ: {list(shape)}")
    name = reshaped(imp, term.name, [shape[dim] for dim in kept])
    return Term(name, tuple(term.letters[dim] for dim in kept))


def _summed(imp: Importer, term: Term, kept: set[str]) -> Term:
    gone = [dim for dim, letter in enumerate(term.letters) if letter not in kept]
    if not gone:
        return term
    letters = tuple(letter for letter in term.letters if letter in kept)
    return Term(summed(imp, term.name, gone, False), letters)


def _product(imp: Importer, a: Term, b: Term, kept: set[str]) -> Term:
    """A product with a sum over what both have and nothing else needs."""
    a, b = (_summed(imp, x, {*y.letters, *kept}) for x, y in ((a, b), (b, a)))
    batch = [c for c in a.letters if c in b.letters and c in kept]
    inner = [c for c in a.letters if c in b.letters and c not in kept]
    rows = [c for c in a.letters if c not in b.letters]
    columns = [c for c in b.letters if c not in a.letters]
    letters = (*batch, *rows, *columns)
    size = dict(zip(a.letters, imp.shape(a.name), strict=True))
    size |= dict(zip(b.letters, imp.shape(b.name), strict=True))
    if inner:
        left = _arranged(imp, a, (batch, rows, inner))
        right = _arranged(imp, b, (batch, inner, columns))
        y = imp.add("matmul", [left, right], {"layout": "nn"})
    else:
        left = _arranged(imp, a, (batch, rows, []))
        right = _arranged(imp, b, (batch, [], columns))
        y = imp.add("mul", [left, right])
    return Term(reshaped(imp, y, [size[c] for c in letters]), letters)


def _arranged(imp: Importer, term: Term, groups: Sequence[Sequence[str]]) -> str:
    """The tensor with its letters in groups, each as one dimension; without a batch it has none."""
    order = [letter for group in groups for letter in group]
    x = transposed(imp, term.name, [term.letters.index(letter) for letter in order])
    size = dict(zip(order, imp.shape(x), strict=True))
    extents = [int(np.prod([size[c] for c in group], dtype=int)) for group in groups]
    return reshaped(imp, x, extents if groups[0] else extents[1:])


@from_torch("aten.einsum.default")
def _torch_einsum(imp: Importer, call: Call) -> str:
    return einsum(imp, str(call.args[0]), [imp.tensor(value) for value in call.args[1]])


@from_onnx("Einsum")
def _onnx_einsum(imp: Importer, call: Call) -> str:
    return einsum(imp, str(call.need("equation")), [imp.param(value) for value in call.args])


@from_torch("aten.outer.default", "aten.ger.default", "aten.vdot.default", "aten.kron.default")
def _torch_outer(imp: Importer, call: Call) -> str:
    a, b = (imp.tensor(value) for value in call.args[:2])
    match call.target.split(".")[1]:
        case "vdot":
            return einsum(imp, "i,i->", [a, b])
        case "kron":
            return _kron(imp, a, b)
    return einsum(imp, "i,j->ij", [a, b])


def _kron(imp: Importer, a: str, b: str) -> str:
    """Every element of a times all of b, as blocks."""
    rank = max(len(imp.shape(a)), len(imp.shape(b)))
    left, right = ((1,) * (rank - len(imp.shape(x))) + imp.shape(x) for x in (a, b))
    a = reshaped(imp, a, [extent for n in left for extent in (n, 1)])
    b = reshaped(imp, b, [extent for n in right for extent in (1, n)])
    blocks = [n * m for n, m in zip(left, right, strict=True)]
    return reshaped(imp, imp.add("mul", [a, b]), blocks)


@from_torch("aten.tensordot.default")
def _torch_tensordot(imp: Importer, call: Call) -> str:
    a, b = (imp.tensor(value) for value in call.args[:2])
    letters = [chr(ord("a") + n) for n in range(len(imp.shape(a)) + len(imp.shape(b)))]
    left, right = letters[: len(imp.shape(a))], letters[len(imp.shape(a)) :]
    for own, other in zip(call.args[2], call.args[3], strict=True):
        right[int(other)] = left[int(own)]
    result = [c for c in (*left, *right) if (c in left) != (c in right)]
    return einsum(imp, f"{''.join(left)},{''.join(right)}->{''.join(result)}", [a, b])


@from_torch("aten.addr.default", "aten.addbmm.default")
def _torch_plus(imp: Importer, call: Call) -> str:
    c, a, b = (imp.tensor(value) for value in call.args[:3])
    y = einsum(imp, "i,j->ij" if "addr" in call.target else "bij,bjk->ik", [a, b])
    y = affine(imp, y, float(call.arg(4, 1)))
    beta = float(call.arg(3, 1))
    return y if beta == 0 else imp.add("add", [y, affine(imp, c, beta)])


@from_torch("aten.linalg_multi_dot.default", "aten.chain_matmul.default")
def _torch_chain(imp: Importer, call: Call) -> str:
    """Products from the left; the ends may be vectors."""
    names = [imp.tensor(value) for value in call.args[0]]
    letters = "abcdefghijklmnopqrstuvwxyz"
    if len(names) >= len(letters):
        raise imp.unsupported(f"a product of {len(names)} factors")
    ranks = [len(imp.shape(name)) for name in names]
    terms = [letters[n : n + 2] for n in range(len(names))]
    terms[0] = terms[0][-ranks[0] :]
    terms[-1] = terms[-1][: ranks[-1]]
    ends = ("a" if ranks[0] == 2 else "") + (letters[len(names)] if ranks[-1] == 2 else "")
    return einsum(imp, f"{','.join(terms)}->{ends}", names)


@from_torch("aten.trace.default", "aten.diagonal.default")
def _torch_diagonal(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    if "trace" in call.target:
        return summed(imp, diagonal(imp, x, 0, 1), [0], False)
    rank = len(imp.shape(x))
    offset, first, second = (int(call.arg(n, d)) for n, d in ((1, 0), (2, 0), (3, 1)))
    return diagonal(imp, x, first % rank, second % rank, offset)


@from_torch("aten.cdist.default", "aten._cdist_forward.default")
def _torch_cdist(imp: Importer, call: Call) -> str:
    """Distances between all rows of two operands."""
    a, b = (imp.tensor(value) for value in call.args[:2])
    (*lead_a, m, width), (*lead_b, n, _) = imp.shape(a), imp.shape(b)
    away = imp.add(
        "sub",
        [reshaped(imp, a, (*lead_a, m, 1, width)), reshaped(imp, b, (*lead_b, 1, n, width))],
    )
    return norm(imp, away, float(call.arg(2, 2)), [-1], False)
