"""What is recorded before a change is what a kill at that change leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interruptions.follow import GO_ON, Follower, Place, killed_at, run_alone
from tests.interruptions.states import Keeper, State

CHILD = "from pathlib import Path; Path('work/by a child').write_text('x')"


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    (tmp_path / "work" / "scratch").mkdir(parents=True)
    return Keeper(tmp_path, ("work",), tmp_path / "store")


def action(base: Path) -> None:
    """Every kind of change: new, cut, moved, linked and removed, by itself and by a child."""
    os.chdir(base)
    Path("work/one").write_text("1")
    os.link("work/one", "work/two")
    Path("work/link").symlink_to("one")
    Path("work/one").chmod(0o600)
    Path("work/scratch/drawn").mkdir()
    Path("work/scratch/drawn/part").write_text("part")
    os.replace("work/scratch/drawn/part", "work/one")
    os.truncate("work/two", 0)
    subprocess.run([sys.executable, "-c", CHILD], check=True)
    with Path("work/two").open("r+b") as file:
        os.pwrite(file.fileno(), b"in place", 3)
        os.ftruncate(file.fileno(), 5)
    Path("work/link").unlink()
    Path("work/scratch/drawn").rmdir()


def test_a_state_is_what_a_kill_leaves(keeper: Keeper, tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    start, states = keeper.look(), list[State]()

    def at(place: Place) -> int:
        states.append(keeper.look())
        return GO_ON

    assert follower.run(lambda: action(tmp_path), at).exit_code == 0
    assert len(states) > 15
    assert len({state.key for state in states}) > 10
    for number, state in enumerate(states, 1):
        keeper.lay(start)
        outcome = follower.run(lambda: action(tmp_path), killed_at(number))
        assert outcome.exit_code is None
        assert keeper.look().under("work") == state.under("work"), number
        assert keeper.look().key == state.key, number


def test_other_children_are_not_waited_for(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        outcome = Follower(tmp_path).run(lambda: subprocess.run(["true"]), lambda place: GO_ON)
        assert outcome.exit_code == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_state_is_laid_out_again(keeper: Keeper, tmp_path: Path) -> None:
    assert run_alone(lambda: action(tmp_path)) == 0
    os.link(tmp_path / "work/one", tmp_path / "work/three")
    state = keeper.look()
    keeper.lay(State({}))
    assert not (tmp_path / "work").exists()
    keeper.lay(state)
    assert keeper.look() == state
    assert (tmp_path / "work/one").samefile(tmp_path / "work/three")


def test_what_is_in_a_scratch_folder_does_not_tell_states_apart(
    keeper: Keeper, tmp_path: Path
) -> None:
    keys = []
    for name, text in (("a", "1"), ("b", "22")):
        (tmp_path / "work/scratch" / name).mkdir()
        (tmp_path / "work/scratch" / name / f"of {name}").write_text(text)
        keys.append(keeper.look().key)
        keeper.lay(
            State({key: e for key, e in keeper.look().entries.items() if e.kind == "folder"})
        )
        (tmp_path / "work/scratch" / name).rmdir()
    assert keys[0] == keys[1] != keeper.look().key
