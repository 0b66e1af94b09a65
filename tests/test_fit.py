"""A model that does not fit: the message, and that every way out it names is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import Request
from gradlet.engines import host
from gradlet.errors import DoesNotFit
from gradlet.ir.recipe import Recipe
from gradlet.planner.planner import Options
from gradlet.reports.fit import explain
from gradlet.targets.target import parse_size
from tests.test_cli import gradlet as command


def deep() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)]
    return nn.Sequential(*layers, nn.Linear(16, 3))


def request(ram: int | str, batch: int = 8, **recipe: Any) -> Request:
    options = {"inputs": (torch.randn(8, 16),), "batch": batch}
    return Request(
        deep(), "host", memories={"RAM": ram}, recipe=Recipe(**recipe), capture_options=options
    )


def need(batch: int = 8, **recipe: Any) -> int:
    return request("1M", batch, **recipe).plan().used


def message(wish: Request) -> str:
    with pytest.raises(DoesNotFit) as caught:
        wish.plan()
    return str(caught.value)


def ways(text: str) -> dict[str, str]:
    return dict(re.findall(r"^  --(\S+?)[ =](\S+)", text, re.M))


def test_level_bytes_and_consumers_are_named() -> None:
    text = message(request("4k", optimizer="adam"))
    used = need(optimizer="adam")
    assert f"needs {used:,} bytes of RAM, the target 'host' has 4,096 of RAM for data" in text
    assert f"({used - 4096:,} missing in RAM)" in text
    consumers = re.findall(r"(\S+) \(([\d,]+) bytes, (\w+) of (\S+)\)", text)
    assert len(consumers) == 3
    assert all(size == "1,024" for _, size, _, _ in consumers)
    assert all(module in tensor for tensor, _, _, module in consumers)


@pytest.mark.parametrize("recipe", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_the_largest_number_of_layers_that_fits(recipe: Mapping[str, Any]) -> None:
    room = need(update="last:4", **recipe)
    text = message(request(room, **recipe))
    assert ways(text)["update"] == "last:4"
    assert re.search(rf"last:4 +{room:,} bytes of RAM, trains 4 of 7 layers$", text, re.M)
    assert need(update="last:5", **recipe) > room


def test_fewer_layers_than_were_asked_for() -> None:
    room = need(momentum=0.9, update="last:2")
    assert ways(message(request(room, momentum=0.9, update="last:3")))["update"] == "last:2"


@pytest.mark.parametrize("batch", [1, 5])
def test_the_largest_batch_that_fits(batch: int) -> None:
    room = need(batch)
    assert ways(message(request(room)))["batch"] == str(batch)
    assert need(batch + 1) > room


def test_both_together_if_neither_is_enough() -> None:
    room = need(1, optimizer="adam", update="last:1")
    found = re.search(r"--update last:1 --batch 1 ", message(request(room, optimizer="adam")))
    assert found


@pytest.mark.thorough
def test_a_larger_memory_is_large_enough_and_no_larger() -> None:
    for target, memory in (("host", "RAM"), ("pulp-open", "L2")):
        wish = request("4k" if target == "host" else "140k", optimizer="adam")
        wish = replace(wish, target=target, memories={memory: wish.memories["RAM"]})
        if target == "pulp-open":
            wish = replace(wish, memories={"L1": "8k", **wish.memories})
        text = message(wish)
        found = re.search(r"--(?:l2 |set RAM=)(\S+)", text)
        assert found, text
        replace(wish, memories={**wish.memories, memory: found[1]}).plan()
        smaller = parse_size(found[1]) - 1024
        with pytest.raises(DoesNotFit):
            replace(wish, memories={**wish.memories, memory: smaller}).plan()


def test_no_way_but_a_larger_memory() -> None:
    assert set(ways(message(request("1k", batch=1)))) == {"set"}


def test_the_search_ends_in_time() -> None:
    wish = request("4k")
    planned = wish.plan(fit=False)
    calls = []

    def again(**changes: Any) -> Any:
        calls.append(changes)
        raise DoesNotFit("never")

    text = explain(planned, again, seconds=-1.0)
    assert not calls
    assert "No smaller batch" in text


NET = """
from torch import nn
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1),
                    nn.Flatten(), nn.Linear(8, 3))
"""


@pytest.mark.thorough
def test_a_smaller_input_where_the_command_line_names_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    build = ("build", "net.py:net", "-o", "d", "--target", "host")
    small = ("--set", "RAM=100k")
    done = command(*build, *small, "--input", "1x40x40", folder=tmp_path)
    assert done.returncode == 2
    found = re.search(r"--input (\S+)", done.stderr)
    assert found, done.stderr
    assert found[1] in ("1x20x20", "1x10x10")
    assert not (tmp_path / "d").exists()
    done = command(*build, *small, "--input", found[1], folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_build_in_python_says_the_same(tmp_path: Path) -> None:
    inputs, small = (torch.randn(8, 16),), {"RAM": "4k"}
    with pytest.raises(DoesNotFit, match="It would fit with"):
        gradlet.build(deep(), tmp_path / "p", target="host", memories=small, inputs=inputs)
    assert not (tmp_path / "p").exists()


def test_micro_batches_make_the_same_update(tmp_path: Path) -> None:
    """Where the activations of a batch are what does not fit."""

    def wish(batch: int, room: int | str, accumulate: int = 1) -> Request:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
        options = {"inputs": (torch.randn(64, 4),), "batch": batch}
        recipe = Recipe(loss="mse", momentum=0.9, accumulate=accumulate)
        memories = {"RAM": room}
        return Request(
            nn.Sequential(*layers), "host", None, memories, "chw", "net", recipe, options
        )

    room = wish(16, "1M", 4).plan().used
    assert wish(32, "1M", 2).plan().used > room
    text = message(wish(64, room))
    assert f"--batch 16 --accumulate 4  {room:,} bytes of RAM, the same update as with" in text
    assert 16 <= int(ways(text)["batch"]) < 32  # and without accumulation
    whole, parts = wish(64, "1M").plan(), wish(16, room, 4).plan()
    samples = {name: value[:1] for name, value in whole.graph.samples.items()}
    cut = {name: value.reshape(4, 16, *value.shape[2:]) for name, value in samples.items()}
    runs = [
        host.run(gradlet.emit(p, tmp_path / f"p{n}"), states=True, samples=fed)
        for n, (p, fed) in enumerate(((whole, samples), (parts, cut)))
    ]
    for name in whole.graph.trained:
        np.testing.assert_allclose(runs[0].states[0][name], runs[1].states[0][name], rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "recipe"),
    [
        (nn.BatchNorm1d(16), {}),
        (nn.Dropout(0.5), {}),
        (nn.Tanh(), {"reduction": "sum"}),
        (nn.Tanh(), {"class_weights": (1.0, 2.0, 3.0)}),
    ],
    ids=["batch statistics", "chance", "sums", "weighted means"],
)
def test_no_micro_batches_where_they_are_not_the_same(
    layer: nn.Module, recipe: Mapping[str, Any]
) -> None:
    module = nn.Sequential(nn.Linear(16, 16), layer, nn.Linear(16, 3))
    few, many = (replace(request("1M", n, **recipe), model=module) for n in (2, 8))
    text = message(replace(many, memories={"RAM": few.plan().used}))
    assert "--batch" in text
    assert "--accumulate" not in text


def test_a_third_memory_where_there_can_be_one() -> None:
    wish = replace(request("4k", optimizer="adam"), target="pulp-open")
    text = message(replace(wish, memories={"L1": "16k", "L2": "140k"}))
    assert re.search(r"--l3 8M +[\d,]+ bytes of L[23], an L3$", text, re.M), text


def test_tiles_where_all_was_to_be_near() -> None:
    wish = replace(request("4k"), target="pulp-open", planning=Options(buffers="l1"))
    text = message(replace(wish, memories={"L1": "12k"}))
    assert re.search(r"--buffers auto +[\d,]+ bytes of L2, the rest in tiles$", text, re.M), text
