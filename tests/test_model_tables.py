"""The tables of models that others wrote (`bench/models.py`): what they say can be run."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
TABLES = sorted((ROOT / "bench" / "model_tables").glob("*.toml"))
WORDS = {"setup", "inputs", "small", "train", "batch", "recipe", "options", "beyond"}


def _rows(path: Path) -> list[tuple[str, str, dict[str, Any]]]:
    table = tomllib.loads(path.read_text())
    return [
        (package, name, {"setup": content.get("setup", ""), **row})
        for package, content in table.items()
        for name, row in content["models"].items()
    ]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_row_says_how_its_model_is_made(path: Path) -> None:
    for package, name, row in _rows(path):
        ways = {"make", "file", "write"} & set(row)
        assert len(ways) == 1, f"{package}/{name}: {ways}"
        assert set(row) - ways <= WORDS, f"{package}/{name}"
        ast.parse(row["setup"])
        ast.parse(row.get("make", row.get("write", "")))
        assert ("make" in row) == bool(row.get("inputs")), f"{package}/{name}"
        ast.parse(f"({row.get('inputs', '')},)" if "make" in row else "")


def test_there_are_many_models_of_many_packages_and_none_is_installed_by_default() -> None:
    rows = [row for path in TABLES for row in _rows(path)]
    packages = {package for package, _, _ in rows}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(rows) >= 120
    assert len(packages) >= 12
    default = " ".join(project["dependencies"] + project["optional-dependencies"]["dev"])
    assert not [package for package in packages if package in default]
