"""The catalogue's TOMLs: nothing depends on the order of their entries."""

from __future__ import annotations

import random
import tomllib
from typing import Any

import pytest

from gradlet.kernels import catalogue
from gradlet.kernels.arithmetic import expanded
from gradlet.kernels.family import family
from gradlet.ops import OPS
from tests.cases import CASES
from tests.helpers import op_training_graph

FILES = sorted(catalogue.FAMILIES.glob("*/*.toml"))
ISA = ("c", "simd", "xpulp")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_order_of_entries_means_nothing(path: Any) -> None:
    value = tomllib.loads(path.read_text())
    whole = family(path.stem, value)
    for seed in range(3):
        chance = random.Random(seed)
        for entry in value["variants"]:
            chance.shuffle(entry.get("cases", []))
            for item in (entry, *entry.get("cases", [])):
                chance.shuffle(item.get("space", []))
        chance.shuffle(value["variants"])
        assert family(path.stem, value).variants == whole.variants


def test_ranks_tell_all_variants_apart_that_fit_the_same_sizes() -> None:
    seen = 0
    for case in CASES:
        for site in op_training_graph(case).sites():
            call = OPS[site.node.op].lower(site)
            inputs = catalogue.families()[call.family].modes[call.mode].inputs
            for isa in ISA:
                found = catalogue.candidates(
                    *(call.family, call.mode, "", call.sizes, (isa,), "f32"),
                    streamed=[operand.name for operand in inputs],
                )
                ranks = [catalogue.variant_of(kernel).rank for kernel in found]
                assert ranks == sorted(set(ranks)), [kernel.name for kernel in found]
                seen += len(found) > 1
    assert seen > 100


def test_terms_are_written_out() -> None:
    terms = {"a": "x + 1", "b": "2 * a"}
    assert catalogue.evaluate(expanded("b == y", terms), {"x": 2, "y": 6})
    assert expanded("z", {}) == "z"


def test_a_parameter_is_no_size() -> None:
    text = """
doc = "d"
sizes = ["count"]
modes = {}
variants = [{ name = "ref", template = "t", space = [{ count = 1 }] }]
"""
    with pytest.raises(ValueError, match="sizes and parameters"):
        family("f", tomllib.loads(text))


def test_needs_see_parameters_and_hold_together() -> None:
    text = """
doc = "d"
sizes = ["count"]
modes = {}
[[variants]]
name = "by_{step}"
template = "t"
needs = "count % step == 0 or count == 1"
space = [{ step = 2 }, { rank = 1, step = 4 }]
[[variants.cases]]
needs = "count > 2"
"""
    two, four = family("f", tomllib.loads(text)).variants
    assert (two.name, four.name) == ("by_2", "by_4")
    assert dict(four.params) == {"step": 4}
    taken = [[n for n in range(1, 9) if catalogue.fits(v, {"count": n})] for v in (two, four)]
    assert taken == [[4, 6, 8], [4, 8]]
