"""Whose fault it is that a project fails: not Gradlet's, where its files were edited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradlet.codegen.folder import listing
from gradlet.codegen.project import Project
from gradlet.errors import GradletError, InternalError


@contextmanager
def edits_blamed(project: Project, *crashes: type[GradletError]) -> Iterator[None]:
    """What would be a fault of ours in a project as it was built is told as one of its edits.
    crashes: what its program may end with."""
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception as error:
        ours = isinstance(error, (InternalError, *crashes)) or not isinstance(error, GradletError)
        changes = project.changes if ours else ()
        if not changes:
            raise
        said, trace, rest = str(error).partition("Traceback (most recent call last)")
        said += rest.strip().rpartition("\n")[2] if trace else ""
        raise GradletError(
            f"'{project.folder}' fails, and it is not as it was built: {listing(changes)}. "
            f"Put back what was there, or build it again with --force. What failed: {said}"
        ) from error
