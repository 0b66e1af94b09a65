"""The one exception that a user is meant to see: a message, never a traceback."""

from __future__ import annotations


class GradletError(Exception):
    """A mistake that the user can mend; `str()` is the whole message."""


class InternalError(GradletError):
    """A fault of Gradlet's own, found by one of its checks: nothing that the user can mend."""


class DoesNotFit(GradletError):
    """The model needs more memory than the target has."""
