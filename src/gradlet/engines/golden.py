"""The program that a project ships: its own main.c, compiled as its Makefile does.

It trains on the samples that it brings along and checks itself. What it prints is read back: the
bits of the losses, and checksums of the weights after the last step and of a prediction with them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np

from gradlet.codegen.golden import sample_count
from gradlet.codegen.project import Project
from gradlet.engines.device import GOLDEN, build_golden
from gradlet.engines.model import Run
from gradlet.errors import GradletError
from gradlet.ir.graph import Array
from gradlet.planner.model import FARTHEST, L1, REGIONS, Plan
from gradlet.sim import Machine, SimConfig, SimError, Symbols, simulate
from gradlet.sim.binding import ANYBODY
from gradlet.support.cache import held_by, scratch_folder
from gradlet.support.compiler import Compiler, build_executable, build_library

STEPS = re.compile(r"^#define GOLDEN_STEPS (\d+)$", flags=re.MULTILINE)
LOSS = re.compile(r"^step \d+: loss (\S+) = 0x([0-9a-f]{8})", flags=re.MULTILINE)
SUM = re.compile(r"^checksum of (\w+): 0x([0-9a-f]{8})$", flags=re.MULTILINE)
CHECKED = re.compile(
    r"^(\d+) values of (\d+) tensors checked(?:, (\d+) tensors and losses wrong)?: (PASS|FAIL)$",
    flags=re.MULTILINE,
)
DATA = "golden.h"
PRINTED = 1e-5
"""Six decimals, and what up to 38 factors of ten lose in single precision."""
NAN = 0x7FC00000
PRIME = 16777619
LOAD = (sys.executable, "-c", "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).main())")
"""Starts main() of a library. With ziglang alone a program of its own would need a libc, which it
compiles anew: so the same objects are run in a process that has one."""
SECONDS = 3600
"""A program for the host that takes longer hangs."""


@dataclass(frozen=True)
class Result:
    """What a golden program makes: the bits of each loss, and checksums by what they are of."""

    losses: tuple[int, ...]
    sums: tuple[tuple[str, int], ...]

    def unlike(self, other: Result) -> str:
        """The first thing that differs, in the order in which it is made; '' if nothing does."""
        if len(self.losses) != len(other.losses):
            return f"{len(self.losses)} losses instead of {len(other.losses)}"
        for step, (mine, theirs) in enumerate(zip(self.losses, other.losses, strict=True)):
            if mine != theirs:
                return f"the loss of step {step} is {mine:#010x} instead of {theirs:#010x}"
        for name, value in other.sums:
            if dict(self.sums).get(name) != value:
                return f"the checksum of the {name} is not {value:#010x}"
        return ""


@dataclass(frozen=True)
class Printed:
    """A golden program that has run; `ended` says how, if it did not come to its end."""

    exit_code: int
    stdout: str
    ended: str = ""

    @property
    def problem(self) -> str:
        """Why it did not pass by its own judgement; '' if it did."""
        if self.ended:
            return self.ended
        if self.exit_code or not self.passes:
            first = next((x for x in self.stdout.splitlines() if "wrong" in x.lower()), "")
            return f"it ends with status {self.exit_code} and does not pass. {first}".rstrip()
        for text, bits in LOSS.findall(self.stdout):
            value = float(np.uint32(int(bits, 16)).view(np.float32))
            if np.isfinite(value) and not abs(float(text) - value) <= PRINTED * abs(value):
                return f"it prints a loss of {value:.7g} as {text}"
        return ""

    @property
    def passes(self) -> bool:
        found = CHECKED.search(self.stdout)
        return found is not None and found[4] == "PASS"

    @property
    def counts(self) -> tuple[int, int]:
        """Values and tensors that it has looked at."""
        found = CHECKED.search(self.stdout)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def wrong(self) -> int:
        """Of how many tensors and losses it says so, in a way that a script notices."""
        found = CHECKED.search(self.stdout)
        told = found is not None and found[4] == "FAIL" and self.exit_code > 0
        return int(found[3] or 0) if found and told else 0

    @property
    def result(self) -> Result:
        sums = tuple((name, int(value, 16)) for name, value in SUM.findall(self.stdout))
        losses = (int(bits, 16) for _, bits in LOSS.findall(self.stdout))
        return Result(tuple(map(_canonical, losses)), sums)


def run_on_host(project: Project, compiler: Compiler, data: str = "") -> Printed:
    """`make golden`; with other golden data than the project's, if they are given."""
    folder, prefix = project.folder, project.plan.prefix
    build, start = (build_library, LOAD) if compiler.name == "ziglang" else (build_executable, ())
    defines = [f"GL_CORES={project.plan.target.cores}", "GL_PROBE"]
    with scratch_folder() as scratch:
        main = scratch / GOLDEN if data else folder / GOLDEN
        if data:
            shutil.copyfile(folder / GOLDEN, main)
            (scratch / DATA).write_text(data)
        changing = [main, folder / f"{prefix}.c"]
        program = build(
            [*changing, folder / "weights.c", *sorted((folder / "kernels").glob("*.c"))],
            scratch / "golden",
            include=[folder],
            defines=dict.fromkeys(changing, defines),
            compiler=compiler,
        )
        try:
            done = subprocess.run(
                [*start, str(program)],
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
                pass_fds=held_by(scratch),
            )
        except subprocess.TimeoutExpired:
            return Printed(-1, "", f"it is not done after {SECONDS} seconds")
    ended = f"it is killed by signal {-done.returncode}" if done.returncode < 0 else ""
    return Printed(done.returncode, done.stdout, ended)


def run_on_device(project: Project) -> Printed:
    """`make device` on the simulator."""
    with scratch_folder() as scratch:
        elf = build_golden(project, scratch / "golden.elf", probes=True).read_bytes()
    config = SimConfig.of(project.plan.target.machine)
    try:
        done = simulate(elf, config, prepare=partial(watch_program, project.plan))
    except SimError as error:
        return Printed(-1, "", str(error))
    return Printed(done.exit_code, done.stdout)


def watch_program(plan: Plan, machine: Machine, symbols: Symbols) -> None:
    """Let the cores read and write what a program of this plan has, each its own stack. Code and
    constants stay as they are; memory that only the plan fills is not read before.

    The calls are not followed, as the sanitizer does it for training: the program looks at tensors
    between them.
    """

    def at(name: str) -> int:
        return symbols.address(name) or 0

    def grant(first: int, end: int, *, write: bool, initialised: bool) -> None:
        if end > first:
            machine.watch(
                first, end - first, read=True, write=write, initialised=initialised, owner=ANYBODY
            )

    for memory in plan.target.memories[:2]:  # a third has golden data wherever they fit
        machine.watch(memory.base, memory.size, read=False, write=False, initialised=False)
    grant(at("gl_program"), at("gl_program_end"), write=False, initialised=True)
    grant(at("gl_data"), at("gl_data_end"), write=True, initialised=True)
    image = at("gl_l1_image")
    grant(image, image + at("gl_l1_end") - at("gl_l1_start"), write=False, initialised=True)
    grant(at("gl_l1_start"), at("gl_l1_end"), write=False, initialised=False)
    grant(at("gl_control"), at("gl_control_end"), write=True, initialised=True)
    for region in REGIONS:
        start = at(f"{plan.prefix}_{region}")
        in_l1 = start < at("gl_l1_end") and start >= at("gl_l1_start")  # start-up copies it
        kind = region.removeprefix(L1).removeprefix(FARTHEST)
        written = {"write": kind != "constants", "initialised": kind != "arena" and not in_l1}
        if start:
            grant(start, start + plan.region_bytes(region), **written)
    machine.own_stacks(at("gl_stacks_end"), plan.target.stack)


def steps(project: Project) -> int:
    """How many steps the program trains: two, or fewer where training diverges."""
    found = STEPS.search((project.folder / DATA).read_text())
    if found is None:
        raise GradletError(f"'{project.folder}/{DATA}' does not say how many steps it has")
    return int(found[1])


def fed_samples(project: Project) -> dict[str, Array]:
    """The samples that the program brings along; they are used round and round."""
    count = sample_count(project.plan)
    return {name: value[:count] for name, value in project.plan.graph.samples.items()}


def expected(project: Project, run: Run) -> Result:
    """What the program has to print, if `run` is an engine's over its steps and its samples."""
    graph = project.plan.graph
    answers = np.array(run.answers, np.float32).reshape(run.steps, graph.accumulate)
    losses = []
    for row in answers:
        total = np.float32(0)
        for answer in row:
            total = np.float32(total + answer)
        losses.append(np.float32(total / np.float32(graph.accumulate)))
    weights = [run.states[-1][name] for name in graph.trained]
    outputs = [run.outputs[0][name][0] for name in graph.outputs]
    bits = (_canonical(int(loss.view(np.uint32))) for loss in losses)
    return Result(tuple(bits), (("weights", checksum(weights)), ("outputs", checksum(outputs))))


def checksum(tensors: list[Array]) -> int:
    """As main.c computes it: sum = sum * PRIME + (bits ^ bits >> 15), modulo 2^32."""
    flat = [np.ravel(tensor).astype(np.float32) for tensor in tensors]
    values = np.concatenate([*flat, np.zeros(0, np.float32)])
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = NAN
    powers = np.full(bits.size, PRIME, np.uint32)
    if bits.size:
        powers[0] = 1
    powers = np.multiply.accumulate(powers)[::-1]
    return int(np.sum((bits ^ bits >> np.uint32(15)) * powers, dtype=np.uint32))


def _canonical(bits: int) -> int:
    """One bit pattern for all that is not a number: machines differ in its sign and payload."""
    return NAN if bits & 0x7FFFFFFF > 0x7F800000 else bits
