"""The machine that is simulated: what a target file says, with the user's changes."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradlet.errors import GradletError

BASES = {"L1": 0x10000000, "L2": 0x1C000000, "L3": 0x80000000}
"""Where the simulated memories begin."""

LIMITS = {
    "l1_bytes": (0x100, 0x100000, 0x100),
    "l2_bytes": (0x1000, 0x4000000, 0x100),
    "l3_bytes": (0, 0x4000000, 0x100),
    "cores": (1, 16, 1),
    "fill": (0, 0xFF, 1),
    "fpus": (1, 16, 1),
    "l1_banks": (1, 64, 1),
    **dict.fromkeys(("l2_latency", "l3_latency", "dma_l3_setup"), (0, 100000, 1)),
    **dict.fromkeys(("cluster_periph_latency", "soc_periph_latency"), (0, 100000, 1)),
    **dict.fromkeys(("load_use", "branch_taken", "jump", "mul_result"), (0, 100000, 1)),
    **dict.fromkeys(("icache_private_refill", "icache_shared_refill"), (0, 100000, 1)),
    **dict.fromkeys(("wakeup_latency", "elw_overhead", "blocking_read_latency"), (0, 100000, 1)),
    **dict.fromkeys(("mul_cycles", "mulh_cycles"), (1, 1000, 1)),
    **dict.fromkeys(("fdiv_cycles", "fdiv_small_cycles"), (1, 1000, 1)),
    "div_base": (2, 1000, 1),
    "icache_line_bytes": (16, 16, 1),
    **dict.fromkeys(("icache_private_ways", "icache_shared_ways"), (1, 64, 1)),
    "icache_private_sets": (1, 256, 1),
    "icache_shared_sets": (1, 2048, 1),
    "icache_shared_banks": (1, 8, 1),
    "dma_channels": (1, 17, 1),
    "dma_counters": (1, 16, 1),
    **dict.fromkeys(("dma_core_queue", "dma_global_queue"), (1, 16, 1)),
    **dict.fromkeys(("dma_reads", "dma_writes"), (1, 16, 1)),
    "dma_burst_bytes": (4, 256, 1),
    "dma_ports": (2, 4, 2),
    "dma_l3_rate": (1, 256, 1),
}
"""Smallest, largest, multiple of: as the simulator has them, so that they are told beforehand."""
POWERS_OF_TWO = (
    *("l1_banks", "icache_private_sets", "icache_private_ways", "icache_shared_banks"),
    *("icache_shared_sets", "icache_shared_ways"),
)
LINES = {"private": 256, "shared": 2048}
"""Sets times ways of a cache, at most."""
TARGETS = Path(__file__).parent.parent / "targets"
SWITCHES = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}
SUFFIXES = {"k": 1024, "M": 1024 * 1024}


class ConfigError(GradletError):
    """A target or a setting that does not exist or has no sense."""


@dataclasses.dataclass(frozen=True)
class SimConfig:
    """Every parameter of the cycle model. The fields carry the names of the target file."""

    cores: int
    fpus: int
    contention: bool
    l1_bytes: int
    l1_banks: int
    l2_bytes: int
    l3_bytes: int
    fill: int
    l2_latency: int
    l3_latency: int
    cluster_periph_latency: int
    soc_periph_latency: int
    load_use: int
    branch_taken: int
    jump: int
    mul_cycles: int
    mulh_cycles: int
    mul_result: int
    div_base: int
    fdiv_cycles: int
    fdiv_small_cycles: int
    icache_line_bytes: int
    icache_private_sets: int
    icache_private_ways: int
    icache_private_refill: int
    icache_shared_banks: int
    icache_shared_sets: int
    icache_shared_ways: int
    icache_shared_refill: int
    wakeup_latency: int
    elw_overhead: int
    blocking_read_latency: int
    dma_channels: int
    dma_counters: int
    dma_core_queue: int
    dma_global_queue: int
    dma_reads: int
    dma_writes: int
    dma_burst_bytes: int
    dma_ports: int
    dma_l3_setup: int
    dma_l3_rate: int

    @classmethod
    def load(
        cls, target: str | Path = "pulp-open", overrides: Mapping[str, object] | None = None
    ) -> SimConfig:
        """Read a target (its name, or the path of a TOML file) and apply the overrides."""
        values = _parameters(target)
        known = {field.name for field in dataclasses.fields(cls)}
        missing = sorted(known - values.keys())
        if missing:
            raise ConfigError(f"target {target} does not set {', '.join(missing)}")
        parsed: dict[str, Any] = {name: _parse(name, values[name]) for name in known}
        config = cls(**parsed)
        return config.with_settings(overrides or {})

    @classmethod
    def of(cls, values: Iterable[tuple[str, int]]) -> SimConfig:
        """From all fields by name, as a plan keeps them."""
        parsed: dict[str, Any] = dict(values)
        if parsed.keys() != {field.name for field in dataclasses.fields(cls)}:
            raise ConfigError(
                "the settings of the simulator are those of another version of Gradlet; "
                "build the project again"
            )
        return cls(**{**parsed, "contention": bool(parsed["contention"])})

    def with_settings(self, settings: Mapping[str, object]) -> SimConfig:
        """The same machine with some values changed; strings are read as on the command line."""
        known = {field.name for field in dataclasses.fields(self)}
        for name in settings:
            if name not in known:
                raise ConfigError(f"no setting {name!r}; there are {', '.join(sorted(known))}")
        changes: dict[str, Any] = {name: _parse(name, value) for name, value in settings.items()}
        for name in LIMITS.keys() & changes.keys():
            low, high, grain = LIMITS[name]
            if not low <= changes[name] <= high or changes[name] % grain:
                of = f", a multiple of {grain}" if grain > 1 else ""
                raise ConfigError(f"{name} = {changes[name]}: it must be {low} to {high}{of}")
        for name in set(POWERS_OF_TWO) & changes.keys():
            if changes[name] & (changes[name] - 1):
                raise ConfigError(f"{name} = {changes[name]}: it must be a power of two")
        config = dataclasses.replace(self, **changes)
        for cache, most in LINES.items():
            sets, ways = (getattr(config, f"icache_{cache}_{part}") for part in ("sets", "ways"))
            if sets * ways > most:
                raise ConfigError(
                    f"icache_{cache}_sets = {sets}, icache_{cache}_ways = {ways}: their product "
                    f"must be at most {most}"
                )
        return config


def memory_at(address: int) -> str:
    """The simulated memory that has this address, by its name there."""
    below = [name for name, base in BASES.items() if base <= address]
    if not below:
        raise ConfigError(f"a memory at {address:#x}: the simulator has none there")
    return max(below, key=lambda name: BASES[name])


def _parameters(target: str | Path) -> dict[str, Any]:
    """Those of all sections; what they leave out is as in the target that `machine` names."""
    table = tomllib.loads(_target_text(target))
    values = _parameters(table["machine"]) if "machine" in table else {}
    for section in table.values():
        if isinstance(section, dict):
            values.update(section)
    return values


def _target_text(target: str | Path) -> str:
    if isinstance(target, Path) or str(target).endswith(".toml"):
        try:
            return Path(target).read_text()
        except OSError as error:
            raise ConfigError(f"cannot read target {target}: {error}") from error
    path = TARGETS / f"{target}.toml"
    if not path.is_file():
        raise ConfigError(f"no target {target!r}")
    return path.read_text()


def _parse(name: str, value: object) -> int | bool:
    if name == "contention":
        if isinstance(value, str) and value.lower() in SWITCHES:
            return SWITCHES[value.lower()]
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{name} is on or off, not {value!r}")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            scale = SUFFIXES.get(value[-1:], 1)
            number = value[:-1] if scale != 1 else value
            return round(float(number) * scale) if scale != 1 else int(number, 0)
        except (ValueError, OverflowError):
            pass
    raise ConfigError(f"{name} is a whole number, not {value!r}")
