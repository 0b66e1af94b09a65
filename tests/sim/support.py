"""Assembling test programs, and building tiny ones without an assembler."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gradlet.sim import Machine, SimConfig
from gradlet.support.cache import cache_folder

HERE = Path(__file__).resolve().parent
CALIBRATION = HERE / "calibration"
PROGRAMS = HERE / "programs"
CODE_BASE = 0x1C010000
ASSEMBLE = [
    "-target",
    "riscv32-freestanding-none",
    "-mcpu=generic_rv32+m+c+zicsr+zfinx",
    "-mabi=ilp32",
    "-nostdlib",
    "-static",
    "-g0",
    "-mno-relax",
    "-Wl,-T,link.ld",
]


def assemble(source: Path, **defines: int) -> Path:
    """The ELF file of an assembler program; kept for the next session."""
    directory = source.parent
    digest = hashlib.sha256(repr((ASSEMBLE, sorted(defines.items()))).encode())
    for path in sorted(
        {source, directory / "link.ld", *directory.glob("*.inc"), *CALIBRATION.glob("*.inc")}
    ):
        digest.update(path.name.encode() + path.read_bytes())
    output = cache_folder() / "test-elf" / f"{source.stem}-{digest.hexdigest()[:16]}.elf"
    if output.exists():
        return output
    output.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".elf", dir=output.parent)
    os.close(handle)
    macros = [f"-D{name}={value}" for name, value in defines.items()]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            *ASSEMBLE,
            f"-I{CALIBRATION}",
            *macros,
            source.name,
            "-o",
            temporary,
        ],
        cwd=directory,
        check=True,
    )
    os.replace(temporary, output)
    return output


def elf_of(words: Sequence[int], base: int = CODE_BASE) -> bytes:
    """An ELF file whose only segment is these instruction words, entered at the first."""
    code = struct.pack(f"<{len(words)}I", *[word & 0xFFFFFFFF for word in words])
    ident = b"\x7fELF\x01\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIIIIIHHHHHH", 2, 243, 1, base, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<8I", 1, 84, base, base, len(code), len(code), 5, 4)
    return header + segment + code


def r_type(opcode: int, f3: int, f7: int, rd: int, rs1: int, rs2: int) -> int:
    return f7 << 25 | rs2 << 20 | rs1 << 15 | f3 << 12 | rd << 7 | opcode


def i_type(opcode: int, f3: int, rd: int, rs1: int, imm: int) -> int:
    return (imm & 0xFFF) << 20 | rs1 << 15 | f3 << 12 | rd << 7 | opcode


def s_type(opcode: int, f3: int, rs2: int, rs1: int, imm: int) -> int:
    return (imm >> 5 & 0x7F) << 25 | rs2 << 20 | rs1 << 15 | f3 << 12 | (imm & 31) << 7 | opcode


def b_type(f3: int, rs1: int, rs2: int, offset: int) -> int:
    return (
        (offset >> 12 & 1) << 31
        | (offset >> 5 & 0x3F) << 25
        | rs2 << 20
        | rs1 << 15
        | f3 << 12
        | (offset >> 1 & 15) << 8
        | (offset >> 11 & 1) << 7
        | 0x63
    )


def li(rd: int, value: int) -> list[int]:
    """Load any 32-bit constant."""
    value &= 0xFFFFFFFF
    upper = (value + 0x800) >> 12 & 0xFFFFF
    return [upper << 12 | rd << 7 | 0x37, i_type(0x13, 0, rd, rd, value & 0xFFF)]


EXIT = [*li(5, 0x1A1040A0), *li(6, 0x80000000), s_type(0x23, 2, 6, 5, 0)]
TABLE = 0x1C080000
A, B, C, ACC = 10, 11, 13, 12  # operands, and the register that is source and result


def apply(word: int, operands: Sequence[tuple[int, ...]], *, frm: int = 0) -> list[int]:
    """Run one instruction for many operands: rs1 = x10, rs2 = x11, rs3 = x13, rd = x12.

    A row is (a, b, c); rd and rs3 both hold c before the instruction. Returns rd after it.
    """
    loop = [
        i_type(3, 2, A, 8, 0),
        i_type(3, 2, B, 8, 4),
        i_type(3, 2, C, 8, 8),
        i_type(0x13, 0, ACC, C, 0),
        word,
        s_type(0x23, 2, ACC, 8, 12),
        i_type(0x13, 0, 8, 8, 16),
        i_type(0x13, 0, 9, 9, -1),
    ]
    loop.append(b_type(1, 9, 0, -4 * len(loop)))
    code = [
        *li(8, TABLE),
        *li(9, len(operands)),
        i_type(0x13, 0, 5, 0, frm),
        i_type(0x73, 1, 0, 5, 2),
        *loop,
        *EXIT,
    ]
    machine = Machine(SimConfig.load())
    assert machine.load_elf(elf_of(code)) is None
    rows = b"".join(
        struct.pack("<4I", *[value & 0xFFFFFFFF for value in (*row, 0, 0, 0)[:3]], 0)
        for row in operands
    )
    machine.write(TABLE, rows)
    status = machine.run(100 * len(operands) + 1000)
    assert status == 1, f"status {status}, fault {machine.fault().kind.name}"
    data = machine.read(TABLE, len(rows))
    machine.close()
    return [struct.unpack_from("<I", data, 16 * i + 12)[0] for i in range(len(operands))]
