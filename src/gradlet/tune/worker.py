"""A process that measures for a pool.

It reads pickled tasks and writes pickled results until its input ends. It never sees the program
that started it, so that any script may tune, at its top level too.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import BinaryIO

from gradlet.errors import GradletError
from gradlet.target import Target
from gradlet.tune.measure import Job, measure

Task = tuple[tuple[int, Job, int], ...]
"""Some candidates: number, what to run, and the cycles after which it is given up."""
Result = list[tuple[int, int]]
"""Number and cycles of each, as TileTrial gives them."""
PROGRAM, TASK = "program", "task"


def work(elf: bytes, target: Target, task: Task) -> Result:
    numbers, jobs, limits = zip(*task, strict=True)
    return list(zip(numbers, measure(elf, target, jobs, limits), strict=True))


def serve(tasks: BinaryIO, results: BinaryIO) -> None:
    """A program and its machine come before the tasks that they are for."""
    program: tuple[bytes, Target] | None = None
    while True:
        try:
            what, given = pickle.load(tasks)
        except EOFError:
            return
        if what == PROGRAM:
            program = given
            continue
        assert program is not None
        answer: Result | GradletError
        try:
            answer = work(*program, given)
        except GradletError as error:
            answer = error
        pickle.dump(answer, results)
        results.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner is interrupted, and ends the input
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints by mistake does not get between the results
    serve(sys.stdin.buffer, results)
