"""Ctrl-C while packages load, which takes seconds: one line and an exit status, no traceback.

Foreign packages may swallow an exception in the middle of their import, or turn it into another.
Nothing has been done by then that would have to be undone, so the process ends at once. That is
for the command `gradlet`; who imports the package keeps Python's own way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INTERRUPTED = 130
LEAVE = os._exit
"""Taken now: while code of the user's runs, its place is taken by another."""
stdout = [1]
"""Where a JSON document goes, if one was asked for."""


def is_command() -> bool:
    """Whether this process is the command line: the script `gradlet`, or `python -m gradlet...`."""
    started = Path(sys.argv[0]).stem if sys.argv else ""
    words = sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return started == "gradlet" or (started in ("-m", "cli", "__main__") and "gradlet" in module)


def begin() -> None:
    """From the first import of the package until the command starts."""
    if is_command() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _leave)


def end() -> None:
    """From now on an interruption is an exception, so that what is half done is undone."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def importing() -> Iterator[None]:
    """Around the import of a large package in the middle of a command."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    begin() if ours else None
    try:
        yield
    finally:
        end()


def _leave(*_: Any) -> None:
    os.write(2, b"interrupted\n")
    if "--json" in sys.argv:
        os.write(stdout[0], b'{"error": "interrupted", "exit_status": 130}\n')
    LEAVE(INTERRUPTED)
