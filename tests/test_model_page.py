"""docs/models.md: what a machine has not run stays as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def page(tmp_path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("model_page", BENCH / "model_page.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    copy = tmp_path / "models.md"
    copy.write_text(module.PAGE.read_text())
    module.PAGE = copy
    return module


def test_a_row_that_was_run_replaces_its_own(page: Any) -> None:
    rows = page.read_page()
    order = list(dict.fromkeys(f"{row['package']}/{row['model']}" for row in rows))
    assert len(order) > 300
    before = page.PAGE.read_text()
    page.write_page([], order)
    assert page.PAGE.read_text() == before
    fresh = {**rows[0], "outcome": "wrong", "message": "the sky is green", "seconds": 77.0}
    page.write_page([fresh], order)
    changed = set(page.PAGE.read_text().splitlines()) - set(before.splitlines())
    assert len(changed) == 3, "the row, what it says and the summary"
    assert any("the sky is green" in line for line in changed)
