"""How far long work has come, told to whoever watches; by default nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Watcher = Callable[[str, int, int], None]
"""What is done, how much of it is, and of how much."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


def counted(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items as they come, each told of when it is there."""
    watcher = _watcher.get()
    for done, item in enumerate(items):
        if watcher:
            watcher(what, done, total)
        yield item
