"""Devices: cores, memories and instruction sets, one TOML file each in `targets/`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gradlet.errors import GradletError
from gradlet.targets.cost import Cost

FOLDER = Path(__file__).parent
UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
MAX_CORES = 16
MAX_SIZE = 2**31 - 1
DEFAULT = "pulp-open"
INEXACT = "inexact"
"""Among the instruction sets of a target: kernels whose errors are larger than those of plain sums
may be taken."""
CHUNKED = "chunked"
"""Likewise: kernels whose sums are of 16 bits over a few terms, before they go on in single
precision; never taken unless they are asked for."""
SUMS = ("f32", CHUNKED)


@dataclass(frozen=True)
class Memory:
    name: str
    size: int
    align: int
    base: int = 0


@dataclass(frozen=True)
class Target:
    """memories stand in order, nearest to the cores first; isa lists what kernels may ask for.

    stack: bytes per core, in the nearest memory, guard included. code: bytes that are kept for the
    program, in the second memory if there are several. flags: the compiler's, with a macro for
    each instruction set that C cannot ask for itself, such as GL_XPULP. machine: every parameter of
    the simulator, if there is one for this target. gvsoc: what GVSoC calls the same machine. cost:
    by what the planner compares tilings.
    """

    name: str
    cores: int
    isa: tuple[str, ...]
    port: str
    engine: str
    memories: tuple[Memory, ...]
    stack: int = 0
    code: int = 0
    flags: tuple[str, ...] = ()
    machine: tuple[tuple[str, int], ...] = ()
    gvsoc: str = ""
    cost: Cost = field(default_factory=Cost)

    @property
    def home(self) -> Memory:
        """The memory of the program, and of data that nothing asks to lie elsewhere."""
        return self.memories[min(1, len(self.memories) - 1)]

    def room(self, memory: Memory) -> int:
        """Bytes of a memory that are left for data."""
        stacks = self.stack * self.cores if memory == self.memories[0] else 0
        return memory.size - stacks - (self.code if memory == self.home else 0)

    def exact(self) -> Target:
        """The same, for plans whose sums are plain."""
        return replace(self, isa=tuple(name for name in self.isa if name != INEXACT))

    def summed(self, sums: str) -> Target:
        """The same, for plans whose sums are like this."""
        if sums not in SUMS:
            raise GradletError(f"--sums {sums}: there are {', '.join(SUMS)}")
        return replace(self, isa=(*self.isa, CHUNKED)) if sums == CHUNKED else self

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Target:
        memories = tuple(Memory(**memory) for memory in value["memories"])
        lists = {key: tuple(value[key]) for key in ("isa", "flags")}
        machine = tuple((name, number) for name, number in value["machine"])
        cost = Cost(**value["cost"])
        given = {**lists, "machine": machine, "memories": memories, "cost": cost}
        return Target(**{**value, **given})


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def parse_size(text: str | int) -> int:
    """Bytes from `64k`, `1.5M` or a plain number."""
    if isinstance(text, int):
        text = str(text)
    lower = text.strip().lower().removesuffix("b")
    unit = lower[-1:] if lower[-1:] in "kmg" else ""
    try:
        size = int(float(lower.removesuffix(unit)) * UNITS[unit])
    except (ValueError, OverflowError):
        raise GradletError(f"'{text}' is not a size; write for example 64k or 1.5M") from None
    if not 0 <= size <= MAX_SIZE:
        raise GradletError(
            f"'{text}': a memory has 0 to {MAX_SIZE:,} bytes; addresses have 32 bits"
        )
    return size


def load(
    name: str, *, cores: int | None = None, sizes: Mapping[str, str | int] | None = None
) -> Target:
    """The target of that name, with another number of cores, other memory sizes, or other
    parameters of its simulator if given."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        value = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise GradletError(
            f"there is no target '{name}'; known: {', '.join(names())}, or the path of a .toml"
        ) from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise GradletError(f"cannot read the target '{path}': {error}") from None
    target = _from_toml(value, path)
    if cores is not None:
        target = replace(target, cores=cores)
    if not 1 <= target.cores <= MAX_CORES:
        raise GradletError(f"{target.cores} cores: between 1 and {MAX_CORES} are possible")
    given = dict(sizes or {})
    sized = [
        (memory, replace(memory, size=parse_size(given.pop(memory.name, memory.size))))
        for memory in target.memories
    ]
    # one that the file gives no size is there only if it is asked for
    memories = tuple(memory for as_in_file, memory in sized if memory.size or as_in_file.size)
    target = replace(target, memories=memories)
    if target.engine == "sim":
        target = replace(target, machine=_machine(target, path, given))
    elif given:
        raise _no_memory(target, next(iter(given)))
    for memory in memories:
        if target.room(memory) <= 0:
            raise GradletError(
                f"{memory.name} has {memory.size:,} bytes, but stacks and code of "
                f"'{target.name}' with {target.cores} core(s) take "
                f"{memory.size - target.room(memory):,}"
            )
    return target


def _no_memory(target: Target, name: str) -> GradletError:
    known = ", ".join(memory.name for memory in target.memories)
    return GradletError(f"target '{target.name}' has no memory {name}; it has {known}")


def _machine(
    target: Target, path: Path, settings: Mapping[str, object]
) -> tuple[tuple[str, int], ...]:
    from gradlet.sim.config import BASES, SimConfig, memory_at

    sizes = {}
    for memory in target.memories:
        simulated = memory_at(memory.base)
        sizes[f"{simulated.lower()}_bytes"] = memory.base - BASES[simulated] + memory.size
    absent = next((name for name in settings if name in BASES), None)
    if absent:
        raise _no_memory(target, absent)
    fpus = {"fpus": target.cores}  # one each, unless the settings say otherwise
    config = SimConfig.load(path, {"cores": target.cores, **fpus, **sizes, **settings})
    if config.dma_counters < config.cores:
        raise GradletError(
            f"dma_counters = {config.dma_counters}: each of the {config.cores} cores needs one"
        )
    return tuple((item.name, int(getattr(config, item.name))) for item in fields(config))


def simulator_options(target: Target) -> list[str]:
    """What `gradlet sim` has to be told to run a program as this target does."""
    from gradlet.sim.config import SimConfig

    known = target.name if target.name in names() else DEFAULT
    usual = SimConfig.load(known)
    given = {name: value for name, value in target.machine if value != int(getattr(usual, name))}
    cores = given.pop("cores", None)
    options = ["--target", known] if known != DEFAULT else []
    options += ["--cores", str(cores)] if cores is not None else []
    if "contention" in given:
        options += ["--set", f"contention={'on' if given.pop('contention') else 'off'}"]
    return [
        *options,
        *(word for item in given.items() for word in ("--set", "{}={}".format(*item))),
    ]


def _macros(isa: Sequence[str]) -> list[str]:
    return [f"-DGL_{name.upper()}" for name in isa if name not in ("c", INEXACT, CHUNKED)]


def _from_toml(value: Mapping[str, Any], path: Path) -> Target:
    try:
        memories = tuple(
            Memory(
                item["name"], parse_size(item["size"]), item.get("align", 4), item.get("base", 0)
            )
            for item in value["memory"]
        )
        return Target(
            value["name"],
            {**value.get("cluster", {}), **value}["cores"],
            tuple(value["isa"]),
            value["port"],
            value["engine"],
            memories,
            value.get("stack", 0),
            parse_size(value.get("code", 0)),
            (*value.get("flags", ()), *_macros(value["isa"])),
            gvsoc=value.get("gvsoc", ""),
            cost=Cost.of(value.get("cost", {}), path),
        )
    except KeyError as missing:
        raise GradletError(f"{path}: the key {missing} is missing") from None
