"""plan.json, and the numbers that belong to it: in binary files beside it, each number once.

Weights, states and constants are in the file that the program itself takes them from; samples, and
what the program has no place for, in another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from gradlet.codegen.regions import initial_bytes, region_starts
from gradlet.ir.graph import Array
from gradlet.planner.model import Plan

PLAN, ARRAYS = "plan.json", "plan.bin"
STEP = 16
"""Bytes; every array begins at a multiple of it."""
NESTED = 2
"""So deep does every item of plan.json have a line of its own."""


def blob_name(plan: Plan) -> str:
    """Of the file with the initial weights. Two networks in one program have two of them."""
    return f"{plan.prefix}_weights.bin"


def stored(plan: Plan) -> dict[str, bytes]:
    """plan.json and what it refers to, by name."""
    blob, starts, places = blob_name(plan), region_starts(plan), plan.buffer_of()
    arrays = bytearray()

    def is_exact(name: str, value: Array) -> bool:
        return value.dtype == np.dtype(plan.graph.tensors[name].element.numpy)

    def write(name: str, value: Array) -> dict[str, Any]:
        entry: dict[str, Any] = {"dtype": value.dtype.name, "shape": list(value.shape)}
        place = places.get(name)
        if place and place.name == name and place.region in starts and is_exact(name, value):
            return {**entry, "file": blob, "at": starts[place.region] + place.offset}
        arrays.extend(bytes(-len(arrays) % STEP))
        entry |= {"file": ARRAYS, "at": len(arrays)}
        arrays.extend(value.astype(value.dtype.newbyteorder("<")).tobytes())
        return entry

    value = plan.to_json(write)
    files = {blob: initial_bytes(plan), ARRAYS: bytes(arrays)}
    value["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return {PLAN: f"{_text(value)}\n".encode(), **files}


def restored(text: str, read: Callable[[str], bytes]) -> Plan:
    """The plan again; `read` gives the bytes of a file that it names."""
    value = json.loads(text)
    files = {name: read(name) for name in value["files"]}

    def array(entry: Mapping[str, Any]) -> Array:
        dtype, shape = np.dtype(entry["dtype"]).newbyteorder("<"), entry["shape"]
        count = int(np.prod(shape, dtype=np.int64))
        flat = np.frombuffer(files[entry["file"]], dtype, count, entry["at"])
        return flat.astype(entry["dtype"], copy=False).reshape(shape)

    return Plan.from_json(value, array)


def _text(value: Any, depth: int = 0) -> str:
    """JSON with a line for every item that is not too deep inside: to be read, and compared."""
    if depth > NESTED or not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n" + ",\n".join(_items(value, depth)) + f"\n{' ' * depth}{end}"


def _items(value: dict[str, Any] | list[Any], depth: int) -> Iterator[str]:
    indent = " " * (depth + 1)
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{indent}{json.dumps(key)}: {_text(item, depth + 1)}"
    else:
        for item in value:
            yield f"{indent}{json.dumps(item)}"
