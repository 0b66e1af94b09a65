"""The file in which verify saves what the first wrong node was given and what it made of it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np

from gradlet.ir.graph import Array
from gradlet.support.files import write_whole

NAME = "verify-failure.npz"


def save(folder: Path, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> str:
    """The path, or '' if the folder cannot be written: the verdict counts, not this."""
    values = {f"input/{name}": value for name, value in inputs.items()}
    values |= {f"output/{name}": value for name, value in outputs.items()}
    content = io.BytesIO()
    np.savez(content, **values)  # type: ignore[arg-type]
    path = _place(folder)
    try:
        write_whole(path, content.getvalue())
    except OSError:
        return ""
    return str(path)


def forget(folder: Path) -> None:
    """Nothing is wrong any more."""
    with suppress(OSError):
        _place(folder).unlink(missing_ok=True)


def _place(folder: Path) -> Path:
    """Where nothing is, or what an earlier verify has saved; a file of the user's stays."""
    for number in count():
        path = folder / (NAME if not number else NAME.replace(".", f"-{number}."))
        if not path.exists() or _is_ours(path):
            return path
    raise AssertionError("there is always another number")


def _is_ours(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as there:
            return all(name.startswith(("input/", "output/")) for name in there.namelist())
    except (OSError, zipfile.BadZipFile):
        return False
