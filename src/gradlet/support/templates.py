"""Templates of C and linker scripts: the one way in which all of them are read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import jinja2


def environment(folders: Iterable[Path]) -> jinja2.Environment:
    """A name that a template uses and nobody has given is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(list(folders)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
