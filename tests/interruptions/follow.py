"""Runs an action in a forked process that is stopped at every system call that changes a file, and
may be killed there."""

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

from gradlet.support import compiler

SOURCE = Path(__file__).with_name("follow.c")
GO_ON, KILL, KILL_FIRST = 0, 1, 2
"""KILL_FIRST: children of the process go on."""


@dataclass(frozen=True)
class Place:
    """A call that is about to change a file: its number, from 1, and who calls what."""

    number: int
    thread: int
    call: str
    path: str

    @property
    def program(self) -> str:
        return Path(f"/proc/{self.thread}/comm").read_text().strip()


def killed_at(number: int, how: int = KILL) -> Callable[[Place], int]:
    """For `Follower.run`: that change is not begun any more."""
    return lambda place: how if place.number == number else GO_ON


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

    def run(self, action: Callable[[], Any], at: Callable[[Place], int]) -> Outcome:
        """`at` is asked at every change, before it is made, what is to become of the process."""
        raised: list[BaseException] = []

        def ask(number: int, thread: int, call: bytes, path: bytes) -> int:
            try:
                return at(Place(number, thread, call.decode(), os.fsdecode(path)))
            except BaseException as error:
                raised.append(error)
                return KILL

        asked = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p
        )(ask)
        child = os.fork()
        if not child:
            run_in_child(action, self.library.wait_for_follower)
        status = ctypes.c_int()
        changes = self.library.follow(child, asked, ctypes.byref(status))
        assert changes >= 0, "this system does not let a process be traced"
        if raised:
            raise raised[0]
        code = os.waitstatus_to_exitcode(status.value)
        return Outcome(changes, None if code < 0 else code)


def run_alone(action: Callable[[], Any]) -> int:
    """Run an action in a forked process that nobody follows; its exit status."""
    child = os.fork()
    if not child:
        run_in_child(action, lambda: 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_in_child(action: Callable[[], Any], begin: Callable[[], int]) -> None:
    """As a program of its own would end: with what was registered for that."""
    atexit._clear()
    tempfile.tempdir = None
    status = 3
    try:
        silent = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silent, descriptor)
        sys.stdout, sys.stderr = (os.fdopen(d, "w", closefd=False) for d in (1, 2))
        assert begin() == 0
        try:
            action()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        atexit._run_exitfuncs()
    finally:
        os._exit(status)
