"""Calls kernels of a shared library on arrays of exactly their size, in a process of its own.

Run under a preloaded address sanitizer where there is one, so that a single element too many ends
the run with a report. Every array is padded by guard words as well, which any compiler's build
must leave alone.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

GUARD = 16
PATTERN = 0x7FA5A500  # NaNs that no computation makes; each array has its own, so no copy passes


class Core(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("count", ctypes.c_int))


def guarded(value: np.ndarray[Any, Any], exact: bool, number: int) -> tuple[Any, Any]:
    """(whole, used): a copy between guard words, or exactly sized where a sanitizer watches."""
    edge = np.full(0 if exact else GUARD, PATTERN + number, np.uint32).view(np.uint8)
    inside = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    whole = np.concatenate([edge, inside, edge])
    return whole, whole[edge.size : edge.size + inside.size].view(value.dtype)


def call(library: Any, job: dict[str, Any], exact: bool) -> list[Any]:
    kept: list[Any] = []
    pointers: list[Any] = []
    outputs: list[Any] = []
    inputs = [None if v is None else guarded(v, exact, i) for i, v in enumerate(job["inputs"])]
    for index, value in enumerate(job["outputs"]):
        if value is None:
            pointers.append(None)
            continue
        pair = guarded(value, exact, 100 + index)
        if index in job["in_place"]:
            pair = inputs[job["in_place"][index]]
        outputs.append(pair[1])
        kept.append(pair)
        pointers.append(pair[1].ctypes.data_as(ctypes.c_void_p))
    for item in inputs:
        kept.append(item)
        pointers.append(None if item is None else item[1].ctypes.data_as(ctypes.c_void_p))
    if job["scratch"]:
        pair = guarded(np.full(-(-job["scratch"] // 4), np.nan, np.float32), exact, 200)
        kept.append(pair)
        pointers.append(pair[1].ctypes.data_as(ctypes.c_void_p))
    sizes = np.array(job["sizes"], np.int32)
    pointers.append(sizes.ctypes.data_as(ctypes.c_void_p))
    function = getattr(library, job["symbol"])
    function.restype = None
    for step in range(job["repeat"]):
        stepped = [*pointers[:-1], step, pointers[-1]] if job["stepped"] else pointers
        for core in job["order"]:
            function(Core(core, len(job["order"])), *stepped)
    for whole, _ in () if exact else filter(None, kept):
        edges = [part.view(np.uint32) for part in (whole[: 4 * GUARD], whole[-4 * GUARD :])]
        if len(set(np.concatenate(edges).tolist())) > 1:
            raise SystemExit(f"{job['symbol']} wrote outside an operand: {job['label']}")
    return [output.copy() for output in outputs]


def main(library_path: str, folder: Path, exact: bool) -> None:
    library = ctypes.CDLL(library_path)
    jobs = pickle.loads((folder / "jobs").read_bytes())
    results = []
    for job in jobs:
        print(job["label"], file=sys.stderr, flush=True)  # the last line names a crash
        results.append(call(library, job, exact))
    (folder / "results").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "exact")
