"""How much is run: `pytest` a sample of the long tables, `pytest --all` every case, `pytest --rest`
what the sample leaves out.

Two marks say what that is:

    sampled(n)   of a test with many parameters: n of them, drawn by a seed, and besides one for
                 each first word of a parameter's name, such as every op or every family of kernels
    drawn(n)     of a test with many parameters: n of them, drawn by a seed, and no more
    thorough     a test that repeats at length what others try in short

A test that goes through very many cases takes the fixture `part_of`, which says how many of them: a
fifth, and all of them with --all or --rest.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

SEED = 1
SWEEP = "part_of"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="every case of the long tables")
    parser.addoption("--rest", action="store_true", help="only what is left out without --all")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sampled(n): of many parameters n are drawn, see conftest")
    config.addinivalue_line("markers", "drawn(n): of many parameters n are drawn, no more")
    config.addinivalue_line("markers", "thorough: runs with --all or --rest alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if whole(config):
        return
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark_of(item):
            tables[item.nodeid.partition("[")[0]].append(item)
    drawn = {item for table in tables.values() for item in sample(table)}
    left_out = {
        item
        for item in items
        if item.get_closest_marker("thorough") or (mark_of(item) and item not in drawn)
    }
    dropped = left_out
    if config.getoption("--rest"):
        dropped = {i for i in items if i not in left_out and SWEEP not in fixtures_of(i)}
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def whole(config: pytest.Config) -> bool:
    """Who names a test wants all of it."""
    return bool(config.getoption("--all")) or any("::" in argument for argument in config.args)


@pytest.fixture
def part_of(pytestconfig: pytest.Config) -> Callable[[int], int]:
    """Of so many cases, how many are to be run."""
    everything = whole(pytestconfig) or pytestconfig.getoption("--rest")
    return lambda count: count if everything else -(-count // 5)


def fixtures_of(item: pytest.Item) -> Sequence[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else ()


def mark_of(item: pytest.Item) -> pytest.Mark | None:
    return item.get_closest_marker("sampled") or item.get_closest_marker("drawn")


def sample(table: list[pytest.Item]) -> set[pytest.Item]:
    mark = mark_of(table[0])
    assert mark is not None
    chance = random.Random(SEED)
    if mark.name == "drawn":
        return set(chance.sample(table, min(mark.args[0], len(table))))
    kinds: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in table:
        kinds[kind_of(item)].append(item)
    chosen = {chance.choice(rows) for rows in kinds.values()}
    return chosen | set(chance.sample(table, min(mark.args[0], len(table))))


def kind_of(item: pytest.Item) -> str:
    """The first word of the parameter's name; of a kernel all but its mode and its block, and of
    its element type only whether it is narrow."""
    name = item.nodeid.partition("[")[2]
    kernel = re.match(r"gl_([a-z0-9]+)_([a-z0-9]+).*__([a-z]+)", name)
    if kernel:
        return " ".join((str(kernel[1] == "f32"), *kernel.groups()[1:]))
    return re.split(r"[-\]]", name)[0]
