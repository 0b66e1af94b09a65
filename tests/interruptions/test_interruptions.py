"""A sample of the campaign; tests/test_folder.py has every position of writing a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = ("build over an earlier project", "memory --csv --svg")


@pytest.mark.thorough
def test_a_sample_of_interruptions(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.interruptions", "--most", "3", "--json", str(found)]
    command += [part for name in SAMPLE for part in ("--only", name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(found.read_text())["commands"]
    assert set(counted) == set(SAMPLE)
    assert all(counts["tried"] >= 2 for counts in counted.values())
