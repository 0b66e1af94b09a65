"""Where candidates are measured: in this process, in several, or on many machines through Dask."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

import gradlet
from gradlet.errors import GradletError
from gradlet.target import Target
from gradlet.tune.measure import Job
from gradlet.tune.worker import PROGRAM, TASK, Result, Task, work

CHUNK = 4


class Pool:
    """jobs: processes on this machine, or 0 for one per processor. dask: a scheduler's address."""

    def __init__(self, jobs: int = 0, dask: str = "") -> None:
        if jobs < 0:
            raise GradletError(f"{jobs} jobs: 0 or more are possible")
        self.jobs = jobs or os.cpu_count() or 1
        self._client = _dask_client(dask) if dask else None
        self._workers: list[_Worker] = []

    def run(
        self, elf: bytes, target: Target, jobs: Sequence[Job], limits: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """(number of the job, cycles), as they get ready."""
        numbered = list(zip(range(len(jobs)), jobs, limits, strict=True))
        tasks = [tuple(numbered[at : at + CHUNK]) for at in range(0, len(jobs), CHUNK)]
        if self._client is not None:
            yield from self._on_dask(elf, target, tasks)
        elif self.jobs == 1 or len(tasks) == 1:
            for task in tasks:
                yield from work(elf, target, task)
        else:
            yield from self._in_processes(elf, target, tasks)

    def _in_processes(
        self, elf: bytes, target: Target, tasks: Sequence[Task]
    ) -> Iterator[tuple[int, int]]:
        while len(self._workers) < min(self.jobs, len(tasks)):
            self._workers.append(_Worker())
        idle: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            idle.put(worker)

        def done(task: Task) -> Result:
            worker = idle.get()
            try:
                return worker.work(elf, target, task)
            finally:
                idle.put(worker)

        threads = ThreadPoolExecutor(len(self._workers))
        try:
            for future in as_completed([threads.submit(done, task) for task in tasks]):
                yield from future.result()
        finally:
            threads.shutdown(cancel_futures=True)

    def _on_dask(
        self, elf: bytes, target: Target, tasks: Sequence[Task]
    ) -> Iterator[tuple[int, int]]:
        assert self._client is not None
        futures = [
            self._client.submit(work, elf, target, task, pure=False, retries=2) for task in tasks
        ]
        for future in futures:  # those behind are computed meanwhile
            yield from future.result()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []
        if self._client is not None:
            self._client.close()


class _Worker:
    """A process of its own; it gets a program once, then tasks for it."""

    def __init__(self) -> None:
        root = str(Path(gradlet.__file__).parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from gradlet.tune.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.program: tuple[bytes, Target] | None = None

    def work(self, elf: bytes, target: Target, task: Task) -> Result:
        tasks, results = self.process.stdin, self.process.stdout
        assert tasks is not None
        assert results is not None
        try:
            if self.program != (elf, target):
                self.program = elf, target
                pickle.dump((PROGRAM, self.program), tasks)
            pickle.dump((TASK, task), tasks)
            tasks.flush()
            answer = pickle.load(results)
        except (EOFError, OSError):
            code = self.process.wait()
            raise GradletError(f"a process that measures has ended with status {code}") from None
        if isinstance(answer, GradletError):
            raise answer
        assert isinstance(answer, list)
        return answer

    def close(self) -> None:
        """Its task may be long; nobody waits for that any more."""
        self.process.kill()
        self.process.communicate()


def _dask_client(address: str):  # type: ignore[no-untyped-def]
    try:
        from distributed import Client
    except ImportError:
        raise GradletError(
            "--dask needs the Python package distributed: pip install 'gradlet[dask]'"
        ) from None
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise GradletError(
            f"there is no Dask scheduler at {address} ({error}); start one with `dask scheduler`"
        ) from None
    if not client.scheduler_info()["workers"]:
        client.close()
        raise GradletError(
            f"the Dask scheduler at {address} has no workers; `dask worker {address}` starts some"
        )
    return client
