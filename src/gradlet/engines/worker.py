"""Runs a project's shared library in a process of its own: a crash there is a message here.

Started by path, with a folder that holds `job.json` and `in.npz`; leaves `out.npz`. It imports
only numpy, so that it starts quickly and can run under a preloaded sanitizer. With `--serve` and a
socket it waits for such folders, and does each job in a fork.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

ERRORS = "stderr"
"""What a fork had to say, beside its results."""


SEED = 7


class Parameter(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("values", ctypes.c_void_p),
        ("elements", ctypes.c_int32),
    )


def live(address: int, dtype: str, count: int) -> np.ndarray[Any, Any]:
    """Memory as it is, and as it becomes."""
    size = count * np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.ctypeslib.as_array(memory).view(dtype)


class Network:
    """The memory regions and functions of one loaded library."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.library = ctypes.CDLL(job["library"])
        self.prefix = job["prefix"]
        self.places = job["places"]
        self.train_step = self.function("train_step", ctypes.c_float)
        self.predict = self.function("predict", None)

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self.library, f"{self.prefix}_{name}")
        function.restype, function.argtypes = result, list(arguments)
        return function

    def view(self, name: str) -> np.ndarray[Any, Any]:
        """The live memory of a tensor."""
        region, offset, dtype, shape = self.places[name]
        count = int(np.prod(shape, dtype=int))
        symbol = ctypes.c_char.in_dll(self.library, f"{self.prefix}_{region}")
        return live(ctypes.addressof(symbol) + offset, dtype, count).reshape(shape)

    def feed(self, samples: dict[str, Any], number: int) -> None:
        for name, values in samples.items():
            self.view(name)[...] = values[number % len(values)]

    def parameters(self, dtypes: list[str]) -> dict[str, np.ndarray[Any, Any]]:
        """What the table of them says: the names, one after the other, and the values of each."""
        table = (Parameter * len(dtypes)).in_dll(self.library, f"{self.prefix}_parameters")
        names = np.frombuffer(b"".join(row.name + b"\0" for row in table), np.uint8)
        rows = zip(table, dtypes, strict=True)
        shown = (live(row.values, dtype, row.elements) for row, dtype in rows)
        values = {f"parameter/{i}": value.copy() for i, value in enumerate(shown)}
        return {"names": names, **values}

    def probe(self, callback: Any) -> Any:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
        keep = kind(callback) if callback else kind(0)
        slot = ctypes.c_void_p.in_dll(self.library, f"{self.prefix}_probe")
        slot.value = ctypes.cast(keep, ctypes.c_void_p).value
        return keep


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    given = dict(np.load(folder / "in.npz"))
    network = Network(job)
    for name in job["initial"]:
        network.view(name)[...] = given[f"initial/{job['number'][name]}"]
    samples = {name: given[f"sample/{job['number'][name]}"] for name in job["fed"]}
    result: dict[str, Any] = {}
    losses, seconds, answers = [], [], []
    fed = 0
    for step in range(job["steps"]):
        loss, spent = 0.0, 0.0
        for micro in range(job["accumulate"]):
            watched = job["watch"] and step == 0 and micro == job["accumulate"] - 1
            keep = network.probe(_recorder(network, job, result)) if watched else None
            network.feed(samples, fed)
            if job["between"]:  # which trains nothing
                network.predict()
                network.feed(samples, fed)
            fed += 1
            begin = time.perf_counter()
            answers.append(network.train_step())
            spent += time.perf_counter() - begin
            loss += answers[-1]
            if keep is not None:
                network.probe(None)
        losses.append(loss / job["accumulate"])
        seconds.append(spent)
        for name in job["each_step"]:
            result[f"step{step}/{job['number'][name]}"] = network.view(name).copy()
    if job["predict"]:
        result.update(_predictions(network, job, samples))
    for setter, value, tensor, _ in job["setters"]:
        network.function(setter, None, ctypes.c_float)(value)
        result[f"set/{job['number'][tensor]}"] = network.view(tensor).copy()
    if job["setters"] and job["seeded"]:
        network.function("set_seed", None, ctypes.c_uint32)(SEED)
        result[f"set/{job['number'][job['seeded']]}"] = network.view(job["seeded"]).copy()
    if job["setters"]:
        result.update(network.parameters(job["parameters"]))
    result |= {"loss": losses, "seconds": seconds, "answers": answers}
    np.savez(folder / "out.npz", **result)


def _recorder(network: Network, job: dict[str, Any], result: dict[str, Any]) -> Any:
    def record(call: int) -> None:
        for name in job["written_by"][call]:
            result[f"tensor/{job['number'][name]}"] = network.view(name).copy()

    return record


def _predictions(network: Network, job: dict[str, Any], samples: dict[str, Any]) -> dict[str, Any]:
    outputs: dict[str, list[Any]] = {name: [] for name in job["outputs"]}
    for index in range(len(next(iter(samples.values())))):
        network.feed(samples, index)
        network.predict()
        for name, values in outputs.items():
            values.append(network.view(name).copy())
    return {f"predict/{job['number'][name]}": np.stack(values) for name, values in outputs.items()}


def serve(channel: socket.socket) -> None:
    """Do what is asked for until nobody asks any more. Of each job its process is told, and how it
    ended. An interruption is for jobs, not for who waits for them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        request, held, _, _ = socket.recv_fds(channel, 1 << 16, 16)
        while request and not request.endswith(b"\n"):
            request += channel.recv(1 << 16)
        if not request:
            return
        job = os.fork()
        if job == 0:
            channel.close()
            _do(Path(json.loads(request)))
        channel.sendall(f"{job}\n".encode())
        for descriptor in held:  # the job has its own
            os.close(descriptor)
        _, status = os.waitpid(job, 0)
        channel.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _do(folder: Path) -> None:
    """One job, in a process that ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = 1
    try:
        with (folder / ERRORS).open("wb") as file:
            os.dup2(file.fileno(), 2)
        main(folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(socket.socket(fileno=int(sys.argv[2])))
    else:
        main(Path(sys.argv[1]))
