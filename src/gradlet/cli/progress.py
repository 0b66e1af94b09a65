"""What a command shows of long work on stderr: a line that changes where that is a terminal, and
now and then a new one where it is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.text import Text

from gradlet.cli.failures import stderr
from gradlet.support.progress import watched

PATIENCE = 10.0
"""Seconds between two lines of a log."""
CERTAIN = 1.0
"""After so many seconds what is left can be guessed."""


@contextmanager
def progress(text: str, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Shows the text as long as the work goes on, and how far it has come."""
    with stderr.status(Text(text)) as status:
        line = Line(text, clock)

        def watcher(what: str, done: int, total: int) -> None:
            told = line.told(what, done, total)
            if stderr.is_terminal:
                status.update(Text(told))
            elif line.is_due():
                stderr.print(told, markup=False, highlight=False, soft_wrap=True)

        with watched(watcher):
            yield


class Line:
    """What is being done, how much of it, and about how long the rest takes."""

    def __init__(self, text: str, clock: Callable[[], float]) -> None:
        self.text, self.clock = text, clock
        self.what, self.begin, self.shown = "", clock(), clock()

    def told(self, what: str, done: int, total: int) -> str:
        if what != self.what or done == 0:
            self.what, self.begin = what, self.clock()
        passed = self.clock() - self.begin
        left = ""
        if done and passed > CERTAIN:
            left = f", about {_duration(passed / done * (total - done))} left"
        return f"{self.text}: {what}, {done} of {total}{left}"

    def is_due(self) -> bool:
        """Whether a log may have another line."""
        due = self.clock() - self.shown >= PATIENCE
        self.shown = self.clock() if due else self.shown
        return due


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
