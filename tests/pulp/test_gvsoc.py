"""The GVSoC engine: against a stand-in that takes the same command line, and against a real
installation where there is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gradlet import zoo
from gradlet.codegen.project import Project
from gradlet.engines import device, gvsoc, host
from gradlet.errors import GradletError
from gradlet.planner.planner import Options
from gradlet.sim import SimConfig, simulate
from gradlet.targets import target as targets
from tests.pulp.support import device_project, model_graph, zoo_graph
from tests.sim.c_programs import compile_c
from tests.sim.support import PROGRAMS

SOURCE = Path(__file__).resolve().parents[2] / "src"
STAND_IN = """#!{python}
import sys
sys.path.insert(0, {source!r})
from pathlib import Path
from gradlet.sim import SimConfig, simulate
given = dict(item.split("=", 1) for item in sys.argv[1:-1])
assert given["--target"] == "pulp-open" and sys.argv[-1] == "run"
assert Path(given["--work-dir"]).is_dir()
print(simulate(Path(given["--binary"]), SimConfig.load()).stdout)
"""
INSTALLED = gvsoc.find()
needs_gvsoc = pytest.mark.skipif(INSTALLED is None, reason="GVSoC is not installed here")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return device_project(model_graph("lenet"), tmp_path / "p")


def command(folder: Path, text: str) -> Path:
    path = folder / "bin" / "gvsoc"
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_losses_and_cycles_are_read_back(project: Project, tmp_path: Path) -> None:
    command(tmp_path, STAND_IN.format(python=sys.executable, source=str(SOURCE)))
    run = gvsoc.run(project, steps=5, gvsoc=tmp_path)
    assert run.loss == host.run(project, steps=5).loss
    assert len(run.cycles) == 5
    assert min(run.cycles) > 1000


def test_a_failed_golden_check_is_an_error(tmp_path: Path) -> None:
    plain = Options(variants={"conv2d": "ref"})
    project = device_project(model_graph("lenet"), tmp_path / "p", options=plain)
    command(tmp_path, STAND_IN.format(python=sys.executable, source=str(SOURCE)))
    (path,) = project.folder.glob("kernels/*conv2d_forward_relu__ref.c")
    path.write_text(path.read_text().replace("gl_relu(", "0.5f + gl_relu("))
    with pytest.raises(GradletError, match="golden check"):
        gvsoc.run(project, gvsoc=tmp_path)


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = command(tmp_path, "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(gvsoc.VARIABLE, raising=False)
    assert gvsoc.find() is None
    assert gvsoc.find(path) == gvsoc.find(tmp_path) == gvsoc.find(path.parent) == path
    monkeypatch.setenv(gvsoc.VARIABLE, str(tmp_path))
    assert gvsoc.find() == path
    monkeypatch.setenv(gvsoc.VARIABLE, "nowhere")
    assert gvsoc.find() is None
    monkeypatch.delenv(gvsoc.VARIABLE)
    monkeypatch.setenv("PATH", str(path.parent))
    assert gvsoc.find() == path


def test_what_it_cannot_run(project: Project, tmp_path: Path) -> None:
    with pytest.raises(GradletError, match="GVSoC is not here"):
        gvsoc.run(project, gvsoc=tmp_path / "nowhere")
    broken = command(tmp_path, "#!/bin/sh\necho no such module; exit 1\n")
    with pytest.raises(GradletError, match=r"(?s)status 1.*no such module"):
        gvsoc.run(project, gvsoc=broken)
    for number, (sizes, message) in enumerate(
        (({"L1": "128k"}, "65,536 bytes of L1"), ({"cores": 16}, "has 8 cores"))
    ):
        other = device_project(model_graph("lenet"), tmp_path / str(number), **sizes)  # type: ignore[arg-type]
        with pytest.raises(GradletError, match=message):
            gvsoc.run(other, gvsoc=broken)


@pytest.mark.thorough
def test_more_steps_than_the_program_has_samples(tmp_path: Path) -> None:
    project = device_project(zoo_graph("resnet8"), tmp_path / "p")
    with pytest.raises(GradletError, match=r"5 samples, enough for 5 steps; 6 were asked for"):
        gvsoc.run(project, steps=6)


@needs_gvsoc
@pytest.mark.parametrize("probes", [False, True])
@pytest.mark.parametrize(
    ("name", "cores"),
    [("tutorial-cnn", 8), ("deep-ae", 8), ("norms", 1), ("norms", 4), ("functions", 2)],
)
def test_the_simulator_agrees_with_gvsoc_to_the_cycle(
    name: str, cores: int, probes: bool, tmp_path: Path
) -> None:
    """Whole training steps, in GVSoC's own configuration: 4 FPUs, no contention for banks.

    Programs of less than 2.7 million cycles: there GVSoC takes a cycle more, as a tick of its
    reference clock meets one of the cluster's, and again every 15 million cycles.
    """
    graph = zoo_graph(name) if name in zoo.models() else model_graph(name)
    project = device_project(graph, tmp_path / "p", cores=cores)
    elf = device.build_golden(project, tmp_path / "golden.elf", probes=probes)
    config = SimConfig.load("pulp-open", {"fpus": 4, "contention": False})
    assert gvsoc.execute(elf).strip() == simulate(elf, config).stdout.strip()


@needs_gvsoc
@pytest.mark.parametrize("cores", [1, 8])
def test_copies_by_dma_take_as_long_as_on_gvsoc(cores: int, tmp_path: Path) -> None:
    target = targets.load("pulp-open", cores=cores)
    compile_c(PROGRAMS / "dma_cycles.c", target, tmp_path)
    elf = tmp_path / "dma_cycles.elf"
    config = SimConfig.load("pulp-open", {"fpus": 4, "contention": False})
    ours = simulate(elf, config).stdout.strip()
    assert ours.count("cycles") == 22
    assert gvsoc.execute(elf).strip() == ours


@needs_gvsoc
def test_the_engine_runs_on_gvsoc(project: Project) -> None:
    run = gvsoc.run(project, steps=2)
    assert run.loss == host.run(project, steps=2).loss
