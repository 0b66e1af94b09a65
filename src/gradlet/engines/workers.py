"""Where libraries of the host run: in processes of their own, so that a crash there is a message
here.

Starting Python and numpy takes longer than most runs. So one process does it once, waits for jobs,
and forks for each of them: every job still has a fresh library, and takes nobody down with it.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from gradlet.engines.worker import ERRORS
from gradlet.support.cache import held_by

WORKER = Path(__file__).with_name("worker.py")


def work(folder: Path, preload: str = "") -> tuple[int, str]:
    """Do the job that lies in a folder: its exit status, or the signal that ended it as a negative
    number, and what it said about that. preload: a library that has to be there from the start."""
    if preload or not hasattr(os, "fork"):
        return _alone(folder, preload)
    try:
        return server(os.getpid()).work(folder)
    except (OSError, EOFError):  # it is gone; whatever ended it, the job alone tells what is wrong
        server.cache_clear()
        return _alone(folder, preload)


def _alone(folder: Path, preload: str) -> tuple[int, str]:
    environment = dict(os.environ)
    if preload:
        environment["LD_PRELOAD"] = preload
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
    done = subprocess.run(
        [sys.executable, str(WORKER), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        pass_fds=held_by(folder),
    )
    return done.returncode, done.stderr


class Server:
    """A process that does jobs, one at a time. It ends when this one does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKER), "--serve", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        self.channel.close()
        self.process.wait()

    def work(self, folder: Path) -> tuple[int, str]:
        with self.lock:
            request = json.dumps(str(folder)).encode() + b"\n"
            held = list(held_by(folder))  # so that it stays if this process is killed
            socket.send_fds(self.channel, [request], held) if held else self.channel.send(request)
            job = self._answer()
            try:
                status = self._answer()
            except BaseException:  # nobody waits for it any more
                os.kill(job, signal.SIGKILL)
                server.cache_clear()
                self.close()
                raise
        return status, (folder / ERRORS).read_text(errors="replace")

    def _answer(self) -> int:
        text = b""
        while not text.endswith(b"\n"):
            part = self.channel.recv(1)
            if not part:
                raise EOFError
            text += part
        return int(text)


@lru_cache(1)
def server(process: int) -> Server:
    """Of this very process: a fork has its own."""
    return Server()
