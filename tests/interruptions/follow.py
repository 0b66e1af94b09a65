"""Runs an action in a forked process that is killed at a chosen system call that changes a file."""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradlet import compiler

SOURCE = Path(__file__).with_name("follow.c")


@dataclass(frozen=True)
class Outcome:
    """changes: system calls that change a file, begun by the process and its children."""

    changes: int
    exit_code: int | None  # None: killed


class Follower:
    """`folder` is where the library is put that does it."""

    def __init__(self, folder: Path) -> None:
        tool = compiler.system() or compiler.zig()
        assert tool is not None
        path = folder / "follow.so"
        flags = ["-O1", "-shared", "-fPIC"]
        subprocess.run([*tool.command, *flags, str(SOURCE), "-o", str(path)], check=True)
        self.library = ctypes.CDLL(str(path))
        self.library.follow.restype = ctypes.c_long
        self.library.follow.argtypes = (
            *(ctypes.c_int, ctypes.c_long, ctypes.c_int),
            ctypes.POINTER(ctypes.c_int),
        )

    def run(
        self, action: Callable[[], Any], kill_at: int = 0, *, only_first: bool = False
    ) -> Outcome:
        """kill_at: the number of the change that is not begun any more, from 1; 0: run to the end.
        only_first: children of the process go on."""
        child = os.fork()
        if not child:
            _in_child(action, self.library)
        status = ctypes.c_int()
        changes = self.library.follow(child, kill_at, int(only_first), ctypes.byref(status))
        assert changes >= 0, "this system does not let a process be traced"
        code = os.waitstatus_to_exitcode(status.value)
        return Outcome(changes, None if code < 0 else code)


def _in_child(action: Callable[[], Any], library: Any) -> None:
    """As a program of its own would end: with what was registered for that."""
    atexit._clear()
    tempfile.tempdir = None
    status = 3
    try:
        silent = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silent, descriptor)
        sys.stdout, sys.stderr = (os.fdopen(d, "w", closefd=False) for d in (1, 2))
        library.wait_for_follower()
        try:
            action()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        atexit._run_exitfuncs()
    finally:
        os._exit(status)
