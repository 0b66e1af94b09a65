"""Devices: cores, memories and instruction sets, one TOML file each in `targets/`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gradlet.errors import GradletError

FOLDER = Path(__file__).parent / "targets"
UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
MAX_CORES = 16


@dataclass(frozen=True)
class Memory:
    name: str
    size: int
    align: int


@dataclass(frozen=True)
class Target:
    """memories stand in order, nearest to the cores first; isa lists what kernels may ask for."""

    name: str
    cores: int
    isa: tuple[str, ...]
    port: str
    engine: str
    memories: tuple[Memory, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Target:
        memories = tuple(Memory(**memory) for memory in value["memories"])
        return Target(**{**value, "isa": tuple(value["isa"]), "memories": memories})


def names() -> list[str]:
    """Targets that projects can be built for; others can only be simulated so far."""
    tables = {path.stem: tomllib.loads(path.read_text()) for path in FOLDER.glob("*.toml")}
    return sorted(name for name, table in tables.items() if "port" in table)


def parse_size(text: str | int) -> int:
    """Bytes from `64k`, `1.5M` or a plain number."""
    if isinstance(text, int):
        return text
    lower = text.strip().lower().removesuffix("b")
    unit = lower[-1:] if lower[-1:] in "kmg" else ""
    try:
        return int(float(lower.removesuffix(unit)) * UNITS[unit])
    except ValueError:
        raise GradletError(f"'{text}' is not a size; write for example 64k or 1.5M") from None


def load(
    name: str, *, cores: int | None = None, sizes: Mapping[str, str | int] | None = None
) -> Target:
    """The target of that name, with another number of cores or other memory sizes if given."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        value = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise GradletError(
            f"there is no target '{name}'; known: {', '.join(names())}, or the path of a .toml"
        ) from None
    if "port" not in value:
        raise GradletError(
            f"target '{name}' can be simulated (`gradlet sim`), but projects cannot be built for "
            f"it yet; there is {', '.join(names())}"
        )
    target = _from_toml(value, path)
    if cores is not None:
        target = replace(target, cores=cores)
    if not 1 <= target.cores <= MAX_CORES:
        raise GradletError(f"{target.cores} cores: between 1 and {MAX_CORES} are possible")
    known = {memory.name for memory in target.memories}
    for level in sizes or {}:
        if level not in known:
            raise GradletError(
                f"target '{target.name}' has no memory {level}; it has {', '.join(sorted(known))}"
            )
    memories = tuple(
        replace(memory, size=parse_size((sizes or {}).get(memory.name, memory.size)))
        for memory in target.memories
    )
    return replace(target, memories=memories)


def _from_toml(value: Mapping[str, Any], path: Path) -> Target:
    try:
        memories = tuple(
            Memory(item["name"], parse_size(item["size"]), item.get("align", 4))
            for item in value["memory"]
        )
        return Target(
            value["name"],
            value["cores"],
            tuple(value["isa"]),
            value["port"],
            value["engine"],
            memories,
        )
    except KeyError as missing:
        raise GradletError(f"{path}: the key {missing} is missing") from None
