"""Rules of the house that a reader would otherwise have to remember."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "gradlet"
ROAD = (
    "capture",
    "train",
    "plan",
    "tune",
    "emit",
    "engines",
    "golden_data",
    "shipped",
    "torch_oracle",
    "in_float64",
    "verify",
    "report",
)
DOORS = (
    "__init__",
    "api",
    "cli",
    "doctor",
    "__main__",
    "cli_tune",
    "tuning",
    "tuning_layer",
)  # may see every stage


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def stage_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "gradlet" else ""


def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_no_stage_imports_from_a_later_one(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own in DOORS:
        return
    allowed = ROAD[: ROAD.index(own) + 1] if own in ROAD else ()
    for name in imports(path):
        stage = stage_of(name)
        if stage in (*ROAD, *DOORS[1:]):
            assert stage in allowed, f"{path.name} imports {name}"


def test_temporary_files_are_where_the_next_run_finds_them() -> None:
    """In scratch folders of the cache: what is made elsewhere stays when the process is killed."""
    making = re.compile(r"tempfile\.(?!gettempdir)|from tempfile")
    users = [path.name for path in SOURCE.rglob("*.py") if making.search(path.read_text())]
    assert users == ["cache.py"]


def test_the_plan_checker_uses_nothing_of_the_planner() -> None:
    """Values, but nothing that makes or walks them."""
    files = sorted((SOURCE / "plan").glob("check*.py"))
    used = {name for path in files for name in imports(path) if "gradlet.plan" in name}
    assert used <= {
        "gradlet.plan.check_tiles",
        *(f"gradlet.plan.check_tiles.{n}" for n in ("TileReplay", "early_faults")),
        "gradlet.plan.check_overlap",
        "gradlet.plan.check_overlap.overlap_faults",
        "gradlet.plan.check_ops",
        *(
            f"gradlet.plan.check_ops.{kind}_faults"
            for kind in ("back", "follow", "loss", "rider", "tiling")
        ),
        "gradlet.plan.model",
        *(f"gradlet.plan.model.{n}" for n in ("Buffer", "Call", "Plan")),
        "gradlet.plan.tiling",
        *(f"gradlet.plan.tiling.{n}" for n in ("Tiling", "Window")),
    }


def test_the_graph_checker_uses_nothing_of_the_builders() -> None:
    used = imports(SOURCE / "graph_check.py")
    assert not any(
        name.startswith(("gradlet.builder", "gradlet.capture", "gradlet.train")) for name in used
    )


def test_the_onnx_oracle_uses_nothing_of_capture() -> None:
    """It stands for the file: no op of ours, no walk over nodes that capture shares."""
    files = sorted((SOURCE / "capture" / "onnx_oracle").glob("*.py"))
    used = {name for path in files for name in imports(path) if name.startswith("gradlet.")}
    foreign = {name for name in used if not name.startswith("gradlet.capture.onnx_oracle")}
    assert files
    assert foreign <= {
        "gradlet.capture.record_modes",
        "gradlet.capture.record_modes.Refused",
        *("gradlet.extras", "gradlet.extras.require_onnx", "gradlet.extras.require_torch"),
        *("gradlet.graph", "gradlet.graph.Array"),
    }


def test_files_stay_short() -> None:
    for path in tracked("*.py", "*.c", "*.h", "*.j2"):
        assert len(path.read_text().splitlines()) <= 450, path


def test_the_repository_speaks_of_the_project_alone() -> None:
    """No index address, no path of one machine."""
    pattern = re.compile(r"(index-u[r]l|extra-i[n]dex|find-l[i]nks|/ho[m]e/|/ro[o]t/)")
    for path in tracked():
        if (
            path.suffix in (".py", ".toml", ".md", ".txt", ".h", ".j2", "")
            and path.name != "LICENSE"
        ):
            assert not pattern.search(path.read_text()), path


def test_generated_things_are_not_committed() -> None:
    names = {path.name for path in tracked()}
    assert not {"plan.json", "manifest.json", "golden.h"} & names
    assert not any(path.suffix in (".so", ".o", ".a", ".elf") for path in tracked())
