"""Rules of the house that a reader would otherwise have to remember."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "gradlet"
ROOMS = (
    ("errors",),
    ("support",),
    ("sim", "stack_use", "zoo"),
    ("ir", "ops"),  # an op is described in terms of graphs, a graph is checked by its ops
    ("targets", "runtime"),
    ("oracle",),
    ("kernels",),
    ("frontends",),
    ("training",),
    ("planner",),
    ("codegen",),
    ("engines",),
    ("tuner",),
    ("verifier",),
    ("reports",),
)
"""In the order in which data flows; a room imports from those before it and from its neighbours."""
DOORS = ("__init__", "__main__", "api", "cli")
"""They may see every room."""


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def room_of(module: str) -> str:
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


def test_every_folder_is_a_room() -> None:
    rooms = {name for names in ROOMS for name in names}
    there = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix != ".typed"}
    assert there - {"__pycache__"} == rooms | set(DOORS)


def test_rooms_are_small() -> None:
    for folder in {path.parent for path in SOURCE.rglob("*.py")}:
        assert len(list(folder.glob("*.py"))) <= 30, folder


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_no_room_imports_from_a_later_one(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own in DOORS:
        return
    rank = next(n for n, names in enumerate(ROOMS) if own in names)
    allowed = {name for names in ROOMS[: rank + 1] for name in names} - {"", *DOORS}
    for name in imports(path):
        assert room_of(name) in {"", "__version__", *allowed}, f"imports {name}"


def sources(*without: str) -> list[Path]:
    """Code, templates and settings, but for these files and folders of the package."""
    kept = [SOURCE / name for name in without]
    found = [p for p in tracked("src") if p.suffix in (".py", ".toml", ".c", ".h", ".S", ".j2")]
    return [p for p in found if not any(p.is_relative_to(place) for place in kept)]


def test_nothing_names_a_device_or_a_port() -> None:
    """A device is its TOML and the folder of its port. The simulator is one of such a machine, and
    GVSoC is told which of its models to run."""
    devices = {path.stem for path in (SOURCE / "targets").glob("*.toml")}
    ports = {path.name for path in (SOURCE / "runtime" / "ports").iterdir()}
    names = "|".join(map(re.escape, sorted((devices | ports) - {"host"}, key=len, reverse=True)))
    naming = re.compile(rf"(?<![A-Za-z0-9])({names})(?![A-Za-z0-9])|port [!=]= \"")
    owners = ("targets", "runtime/ports", "sim/config.py", "sim/core", "engines/gvsoc.py")
    assert [path for path in sources(*owners) if naming.search(path.read_text())] == []


def test_guards_name_what_they_need() -> None:
    """As GL_XPULP or GL_DEVICE, not an architecture."""
    assert [path for path in sources() if "__riscv" in path.read_text()] == []


def test_temporary_files_are_where_the_next_run_finds_them() -> None:
    """In scratch folders of the cache: what is made elsewhere stays when the process is killed."""
    making = re.compile(r"tempfile\.(?!gettempdir)|from tempfile")
    users = [path.name for path in SOURCE.rglob("*.py") if making.search(path.read_text())]
    assert users == ["cache.py"]


def test_the_plan_checker_uses_nothing_of_the_planner() -> None:
    """Values, but nothing that makes or walks them."""
    files = sorted((SOURCE / "planner" / "check").glob("*.py"))
    modules = {path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("planner/**/*.py")}
    known = {"gradlet." + ".".join(path.parts).removesuffix(".__init__") for path in modules}
    used = {name for path in files for name in imports(path)} & known
    assert {name for name in used if not name.startswith("gradlet.planner.check")} == {
        "gradlet.planner.launch",
        "gradlet.planner.model",
        "gradlet.planner.tiling",
    }


def test_the_graph_checker_uses_nothing_of_the_builders() -> None:
    used = imports(SOURCE / "ir" / "check.py")
    assert not any(
        name.startswith(("gradlet.ir.builder", "gradlet.frontends", "gradlet.training"))
        for name in used
    )


def test_the_onnx_oracle_uses_nothing_of_capture() -> None:
    """It stands for the file: no op of ours, no walk over nodes that capture shares."""
    files = sorted((SOURCE / "frontends" / "onnx" / "oracle").glob("*.py"))
    used = {name for path in files for name in imports(path) if name.startswith("gradlet.")}
    foreign = {name for name in used if not name.startswith("gradlet.frontends.onnx.oracle")}
    assert files
    assert foreign <= {
        "gradlet.frontends.recording_modes",
        "gradlet.frontends.recording_modes.Refused",
        *(
            "gradlet.support.extras",
            "gradlet.support.extras.require_onnx",
            "gradlet.support.extras.require_torch",
        ),
        *("gradlet.ir.graph", "gradlet.ir.graph.Array"),
    }


def test_files_stay_short() -> None:
    for path in tracked("*.py", "*.c", "*.h", "*.j2"):
        assert len(path.read_text().splitlines()) <= 450, path


def complexity(node: ast.AST) -> int:
    """Cyclomatic complexity as radon counts it: every way on, boolean operators and the parts of
    comprehensions included; a function inside counts for itself."""
    match node:
        case ast.Assert():
            return 1
        case ast.If() | ast.IfExp() | ast.ExceptHandler():
            own = 1
        case ast.For() | ast.While() | ast.AsyncFor():
            own = 1 + bool(node.orelse)
        case ast.BoolOp():
            own = len(node.values) - 1
        case ast.comprehension():
            own = 1 + len(node.ifs)
        case ast.match_case():
            own = not (isinstance(node.pattern, ast.MatchAs) and node.pattern.pattern is None)
        case ast.Try():
            own = bool(node.orelse)
        case ast.FunctionDef():
            return 0
        case _:
            own = 0
    return own + sum(map(complexity, ast.iter_child_nodes(node)))


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield f"{path.relative_to(SOURCE)}: {node.name}", node


def test_functions_fit_a_screen() -> None:
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
    assert [name for name, lines in lengths.items() if lines > 60] == []


def test_functions_are_simple() -> None:
    counts = {name: 1 + sum(map(complexity, node.body)) for name, node in functions()}
    assert [name for name, count in counts.items() if count > 20] == []


def test_complexity_counts_every_way_on() -> None:
    text = """
if a and b or not a:
    c = [x for x in a if x]
for n in b:
    assert n or a
else:
    match a:
        case 1:
            c = lambda: 0
        case _:
            c = b if a else 0
def f(a):
    return a or 0
"""
    assert complexity(ast.parse(text)) == 10


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
