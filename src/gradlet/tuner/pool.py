"""Where candidates are measured: on the processors of this machine, or on many machines through
Dask.

The simulator is C and runs outside of Python's lock, so that threads are enough here: they start at
once, and share the program.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from gradlet.errors import GradletError
from gradlet.targets.target import Target
from gradlet.tuner.measure import Job, measure

CHUNK = 4
Task = tuple[tuple[int, Job, int], ...]
"""Some candidates: number, what to run, and the cycles after which it is given up."""
Result = list[tuple[int, int]]
"""Number and cycles of each, as TileRunner gives them."""


def work(elf: bytes, target: Target, task: Task) -> Result:
    numbers, jobs, limits = zip(*task, strict=True)
    return list(zip(numbers, measure(elf, target, jobs, limits), strict=True))


class Pool:
    """jobs: at a time on this machine, or 0 for one per processor. dask: a scheduler's address."""

    def __init__(self, jobs: int = 0, dask: str = "") -> None:
        if jobs < 0:
            raise GradletError(f"{jobs} jobs: 0 or more are possible")
        self.jobs = jobs or os.cpu_count() or 1
        self._client = _dask_client(dask) if dask else None

    def run(
        self, elf: bytes, target: Target, jobs: Sequence[Job], limits: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """(number of the job, cycles), as they get ready."""
        numbered = tuple(zip(range(len(jobs)), jobs, limits, strict=True))
        if self._client is not None:
            yield from self._on_dask(elf, target, numbered)
        elif self.jobs == 1 or len(numbered) == 1:
            for each in numbered:
                yield from work(elf, target, (each,))
        else:
            yield from self._in_threads(elf, target, numbered)

    def _in_threads(self, elf: bytes, target: Target, numbered: Task) -> Iterator[tuple[int, int]]:
        threads = ThreadPoolExecutor(self.jobs)
        try:
            futures = [threads.submit(work, elf, target, (each,)) for each in numbered]
            for future in as_completed(futures):
                yield from future.result()
        finally:  # whoever is interrupted waits for what is running only
            threads.shutdown(cancel_futures=True)

    def _on_dask(self, elf: bytes, target: Target, numbered: Task) -> Iterator[tuple[int, int]]:
        assert self._client is not None
        tasks = [numbered[at : at + CHUNK] for at in range(0, len(numbered), CHUNK)]
        futures = [
            self._client.submit(work, elf, target, task, pure=False, retries=2) for task in tasks
        ]
        for future in futures:  # those behind are computed meanwhile
            yield from future.result()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


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
