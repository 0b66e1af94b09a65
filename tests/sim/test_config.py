"""Target files and settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gradlet.sim import ConfigError, Machine, SimConfig, simulate
from gradlet.sim.config import TARGETS
from tests.sim.support import EXIT, elf_of


def test_defaults() -> None:
    config = SimConfig.load("pulp-open")
    assert (config.cores, config.fpus, config.contention) == (8, 8, True)
    assert (config.l1_bytes, config.l1_banks) == (65536, 16)


def test_settings_as_on_the_command_line() -> None:
    config = SimConfig.load(
        overrides={
            "fpus": "4",
            "contention": "off",
            "l1_bytes": "128k",
            "l2_bytes": "1.5M",
            "cores": 4,
        }
    )
    assert (config.fpus, config.contention, config.cores) == (4, False, 4)
    assert (config.l1_bytes, config.l2_bytes) == (131072, 1572864)
    assert SimConfig.load().with_settings({"contention": "on"}).contention is True


@pytest.mark.parametrize(
    "settings",
    [
        {"fpu": 4},
        {"fpus": "many"},
        {"contention": 3},
        {"contention": "maybe"},
        {"cores": None},
        {"cores": True},
        {"l1_bytes": ""},
    ],
)
def test_settings_without_sense(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SimConfig.load(overrides=settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"cores": 0},
        {"cores": 17},
        {"fpus": 0},
        {"fill": 256},
        {"l1_bytes": 100},
        {"l1_bytes": 1 << 24},
        {"l1_banks": 12},
        {"icache_private_sets": 3},
        {"icache_shared_banks": 16},
        {"icache_line_bytes": 32},
        {"dma_burst_bytes": 512},
        {"dma_ports": 3},
        {"l2_latency": -1},
        {"dma_counters": 17},
        {"mul_cycles": 0},
        {"icache_private_ways": 1 << 20},
    ],
)
def test_settings_out_of_range(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"out of range|it must be"):
        Machine(SimConfig.load(overrides=settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"cores": 16, "fpus": 16},
        {"l1_banks": 32, "cores": 16},
        {"l1_bytes": "256k"},
        {"icache_private_sets": 1},
        {"icache_shared_banks": 1},
        {"dma_ports": 2},
        {"dma_burst_bytes": 4},
        {"l2_latency": 0},
        {"dma_counters": 1},
        {"wakeup_latency": 0},
    ],
)
def test_settings_in_range(settings: dict[str, object]) -> None:
    config = SimConfig.load(overrides=settings)
    assert simulate(elf_of(EXIT), config, max_cycles=1000).exit_code == 0


def test_target_of_the_user(tmp_path: Path) -> None:
    text = (TARGETS / "pulp-open.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("cores = 8", "cores = 2"))
    assert SimConfig.load(path).cores == 2
    path.write_text(text.replace("l2_latency = 14", ""))
    with pytest.raises(ConfigError, match="does not set l2_latency"):
        SimConfig.load(path)
    path.write_text('machine = "pulp-open"\n[memories]\nl2_latency = 3\n')
    config = SimConfig.load(path)
    assert (config.cores, config.l2_latency) == (8, 3)
    with pytest.raises(ConfigError, match="no target 'nowhere'"):
        SimConfig.load("nowhere")


def test_every_parameter_is_in_the_target_file() -> None:
    text = (TARGETS / "pulp-open.toml").read_text()
    for field in dataclasses.fields(SimConfig):
        assert f"\n{field.name} = " in text
