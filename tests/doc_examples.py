"""Examples of docs/add-*.md as they stand there: files, added to the package for a time."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradlet.kernels import catalogue, source
from gradlet.ops import ONNX, OPS, TORCH

DOCS = Path(__file__).parent.parent / "docs"
FAMILIES = "kernels/families/"


def blocks(page: str) -> dict[str, str]:
    """The text of each file that a page shows."""
    text = (DOCS / page).read_text()
    return dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", text, re.S | re.M))


@contextmanager
def added(page: str, folder: Path) -> Iterator[dict[str, Any]]:
    """The ops registered, and their kernels in a copy of the catalogue; what its rows of the test
    table define."""
    files = blocks(page)
    families = catalogue.FAMILIES
    tables: tuple[dict[str, Any], ...] = (OPS, TORCH, ONNX)
    known = [set(table) for table in tables]
    shutil.copytree(families, folder)
    for path, text in files.items():
        if path.startswith(FAMILIES):
            place = folder / path.removeprefix(FAMILIES)
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)
    rows: dict[str, Any] = {}
    try:
        catalogue.FAMILIES = folder
        source.forget()
        for path, text in files.items():
            if path.startswith("ops/"):
                exec(compile(text, path, "exec"), {"__name__": Path(path).stem})
            if path.startswith("tests/cases/"):
                exec(text, rows)
        yield rows
    finally:
        catalogue.FAMILIES = families
        source.forget()
        for table, names in zip(tables, known, strict=True):
            for name in set(table) - names:
                del table[name]
