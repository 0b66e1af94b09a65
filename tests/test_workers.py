"""The process that runs libraries for the host: a job that fails is told, and ends nobody else."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np

from gradlet.engines import workers


def job(folder: Path, library: str) -> Path:
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"library": library, "prefix": "n", "places": {}}))
    np.savez(folder / "in.npz", nothing=np.zeros(1))
    return folder


def test_a_job_that_fails_is_told_and_the_next_one_runs(tmp_path: Path) -> None:
    status, said = workers.work(job(tmp_path / "a", "/no/such/library.so"))
    first = workers.server(os.getpid()).process.pid
    again, _ = workers.work(job(tmp_path / "b", "/no/such/library.so"))
    assert (status, again) == (1, 1)
    assert "library.so" in said
    assert workers.server(os.getpid()).process.pid == first


def test_a_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    workers.work(job(tmp_path / "a", "/no/such/library.so"))
    server = workers.server(os.getpid())
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    status, said = workers.work(job(tmp_path / "b", "/no/such/library.so"))
    assert status == 1
    assert "library.so" in said
    assert workers.work(job(tmp_path / "c", "/no/such/library.so"))[0] == 1
