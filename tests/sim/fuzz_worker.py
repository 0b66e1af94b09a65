"""Throws random programs, damaged files and wild DMA descriptors at the simulator.

Run by test_fuzz.py in a process of its own: `fuzz_worker.py SEED ROUNDS`. Every case must end
with an exit or a SimError; anything else kills or hangs this process.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from gradlet.sim import SimConfig, SimError, simulate
from tests.sim.support import EXIT, b_type, elf_of, i_type, li, s_type

CYCLES = 20_000
OPCODES = [
    0x03,
    0x0B,
    0x0F,
    0x13,
    0x17,
    0x23,
    0x2B,
    0x33,
    0x37,
    0x43,
    0x47,
    0x4B,
    0x4F,
    0x53,
    0x57,
    0x5B,
    0x63,
    0x67,
    0x6F,
    0x73,
    0x7B,
]
PLACES = [
    0x10000000,
    0x1000FFF0,
    0x10010000,
    0x10100000,
    0x10200000,
    0x10200400,
    0x10200800,
    0x10201400,
    0x10201800,
    0x10204000,
    0x10204200,
    0x10204400,
    0x1A104000,
    0x1A10F000,
    0x1C000000,
    0x1C010000,
    0x1C18FFF0,
    0x1C190000,
    0,
    0xFFFFFFF0,
]


def boot(body: list[int], cores: int) -> list[int]:
    """The fabric controller starts the cores at the body, then sleeps."""
    start = [*li(5, 0x10201400), *li(6, -1), s_type(0x23, 2, 6, 5, 0), *li(5, 0x10200000)]
    size = len(start) + 2 + cores + 4
    target = 0x1C010000 + 4 * size
    start += li(6, target)
    start += [s_type(0x23, 2, 6, 5, 0x40 + 4 * core) for core in range(cores)]
    return [*start, *li(6, (1 << cores) - 1), s_type(0x23, 2, 6, 5, 8), 0x10500073, *body]


def registers(rng: random.Random) -> list[int]:
    """Some registers with addresses worth touching, some with noise."""
    code = []
    for register in rng.sample(range(1, 32), 6):
        value = (
            rng.choice(PLACES) + rng.randrange(0, 64) if rng.random() < 0.8 else rng.getrandbits(32)
        )
        code += li(register, value)
    return code


def random_word(rng: random.Random) -> int:
    word = rng.getrandbits(32)
    kind = rng.random()
    if kind < 0.75:
        return word & ~0x7F | rng.choice(OPCODES)
    if kind < 0.9:
        return word & ~3 | rng.randrange(3)
    return word


def random_instructions(rng: random.Random, config: SimConfig) -> bytes:
    body = registers(rng) + [random_word(rng) for _ in range(rng.randrange(4, 200))]
    return elf_of(boot(body, config.cores) if rng.random() < 0.7 else body)


def arithmetic(rng: random.Random, rd: int, rs1: int, rs2: int) -> int:
    opcode, f3, f7 = rng.choice(
        (
            (0x33, rng.randrange(8), 0),
            (0x33, rng.randrange(8), 1),
            (0x33, rng.randrange(1, 8), 2),
            (0x33, rng.choice((1, 2, 5, 6)), 0x41 + rng.randrange(6)),
            (0x33, 0, 0x4B),
            (0x53, 0, rng.choice((0, 4, 8, 12, 16, 20, 2, 6, 10, 14, 18))),
            (0x57, rng.choice((0, 1, 4, 5, 6, 7)), 2 * rng.randrange(14)),
            (0x5B, rng.randrange(8), rng.randrange(32)),
            (0x43, 0, rng.randrange(8, 14) << 2),
        )
    )
    return f7 << 25 | rs2 << 20 | rs1 << 15 | f3 << 12 | rd << 7 | opcode


def valid_instructions(rng: random.Random, config: SimConfig) -> bytes:
    """Instructions that mostly succeed, so that programs go on for a while."""
    body = [*li(8, 0x10000100), *li(9, 0x1C100000), *li(18, 0x10204000), *li(19, 0x10204400)]
    for _ in range(rng.randrange(20, 300)):
        rd, rs1, rs2 = (rng.choice((5, 6, 7, 10, 11, 12, 13)) for _ in range(3))
        offset = rng.randrange(0, 0x200)
        kind = rng.random()
        if kind < 0.5:
            body.append(arithmetic(rng, rd, rs1, rs2))
        elif kind < 0.65:
            body.append(i_type(0x03, rng.choice((0, 1, 2, 4, 5)), rd, rng.choice((8, 9)), offset))
        elif kind < 0.75:
            body.append(i_type(0x0B, rng.choice((0, 1, 2, 4, 5)), rd, 8, rng.randrange(0, 8)))
        elif kind < 0.9:
            body.append(s_type(0x23, rng.randrange(3), rs2, rng.choice((8, 9)), offset))
        elif kind < 0.93:
            body.append(i_type(0x7B, rng.randrange(6), rng.randrange(2), rs1, rng.randrange(0, 16)))
        elif kind < 0.98:
            body.append(b_type(rng.choice((0, 1, 4, 5, 6, 7)), rs1, rs2, 4 * rng.randrange(1, 8)))
        else:
            body.append(i_type(0x03, 2, rd, rng.choice((18, 19)), 4 * rng.randrange(0, 16)))
    return elf_of(boot([*body, *[0x13] * 8, *EXIT], config.cores))


def wild_dma(rng: random.Random, config: SimConfig) -> bytes:
    body = [*li(8, 0x10204400 if rng.random() < 0.8 else 0x10201800)]
    for _ in range(rng.randrange(1, 40)):
        body.append(i_type(0x03, 2, 5, 8, rng.choice((0, 0, 4))))
        flags = (
            rng.getrandbits(23)
            if rng.random() < 0.5
            else rng.choice((0x160000, 0x140000, 0x1E0000, 0x1C0000)) | rng.randrange(0, 3000)
        )
        words = [
            flags,
            rng.choice((0x10000100, 0x1000FF00, 0, rng.getrandbits(32))),
            rng.choice((0x1C100000, 0x1C18FF00, 0x10000000, rng.getrandbits(32))),
            rng.choice((0, 1, 7, 64, rng.getrandbits(32))),
            rng.choice((0, 3, 128, rng.getrandbits(32))),
        ]
        for value in words[: rng.choice((3, 5, 5, rng.randrange(1, 6)))]:
            body += [*li(6, value), s_type(0x23, 2, 6, 8, rng.choice((0, 0, 0, 0, 4)))]
    body += [i_type(0x13, 0, 0, 0, 0)] * rng.randrange(0, 50)
    return elf_of(boot([*body, *EXIT], config.cores))


def damaged_file(rng: random.Random, config: SimConfig) -> bytes:
    data = bytearray(valid_instructions(rng, config))
    kind = rng.random()
    if kind < 0.4:
        return bytes(data[: rng.randrange(len(data))])
    for _ in range(rng.randrange(1, 12)):
        limit = 84 if kind < 0.8 else len(data)
        data[rng.randrange(limit)] = rng.getrandbits(8)
    return bytes(data)


CASES: list[Callable[[random.Random, SimConfig], bytes]] = [
    random_instructions,
    valid_instructions,
    wild_dma,
    damaged_file,
]


def main() -> None:
    seed, rounds = int(sys.argv[1]), int(sys.argv[2])
    exits = faults = 0
    for number in range(rounds):
        rng = random.Random(f"{seed}/{number}")
        config = SimConfig.load(
            overrides={
                "cores": rng.choice((1, 2, 8, 16)),
                "fpus": rng.choice((1, 4, 8)),
                "contention": rng.random() < 0.5,
            }
        )
        data = rng.choice(CASES)(rng, config)
        trace = (lambda line: None) if number % 10 == 0 else None
        print(f"case {number}", file=sys.stderr, flush=True)
        try:
            simulate(data, config, max_cycles=CYCLES, trace=trace)
            exits += 1
        except SimError:
            faults += 1
    print(f"{exits} exits, {faults} faults")


if __name__ == "__main__":
    main()
