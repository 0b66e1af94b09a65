"""Where candidates are measured: in this process, in several, or on many machines through Dask."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from gradlet.errors import GradletError
from gradlet.target import Target
from gradlet.tune.measure import Job, measure

CHUNK = 4

Numbered = tuple[int, Job]
Result = list[tuple[int, int | None]]


def _work(elf: bytes, target: Target, jobs: Sequence[Numbered]) -> Result:
    cycles = measure(elf, target, [job for _, job in jobs])
    return [(number, value) for (number, _), value in zip(jobs, cycles, strict=True)]


class Pool:
    """jobs: processes on this machine, or 0 for one per processor. dask: a scheduler's address."""

    def __init__(self, jobs: int = 0, dask: str = "") -> None:
        if jobs < 0:
            raise GradletError(f"{jobs} jobs: 0 or more are possible")
        self.jobs = jobs or os.cpu_count() or 1
        self._client = _dask_client(dask) if dask else None
        self._processes: ProcessPoolExecutor | None = None

    def run(
        self, elf: bytes, target: Target, jobs: Sequence[Job]
    ) -> Iterator[tuple[int, int | None]]:
        """(number of the job, cycles), as they get ready."""
        numbered = list(enumerate(jobs))
        chunks = [numbered[at : at + CHUNK] for at in range(0, len(numbered), CHUNK)]
        if self._client is not None:
            yield from self._on_dask(elf, target, chunks)
        elif self.jobs == 1 or len(chunks) == 1:
            for chunk in chunks:
                yield from _work(elf, target, chunk)
        else:
            if self._processes is None:
                context = get_context("spawn")  # a forked simulator would share what it must not
                self._processes = ProcessPoolExecutor(self.jobs, mp_context=context)
            futures = [self._processes.submit(_work, elf, target, chunk) for chunk in chunks]
            for future in as_completed(futures):
                yield from future.result()

    def _on_dask(
        self, elf: bytes, target: Target, chunks: Sequence[Sequence[Numbered]]
    ) -> Iterator[tuple[int, int | None]]:
        assert self._client is not None
        futures = [
            self._client.submit(_work, elf, target, c, pure=False, retries=2) for c in chunks
        ]
        for future in futures:  # those behind are computed meanwhile
            yield from future.result()

    def close(self) -> None:
        if self._processes is not None:
            self._processes.shutdown(cancel_futures=True)
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
