"""The page of what is supported says what the ops, the catalogue and the front ends say."""

from __future__ import annotations

import pytest

from gradlet.ops import ONNX, TOML, TORCH
from tests import support


def test_the_page_is_up_to_date() -> None:
    hint = "write it anew: python -m tests.support > docs/support.md"
    assert support.PAGE.read_text() == support.page(), hint


@pytest.mark.thorough
def test_the_page_is_made_of_facts() -> None:
    facts = support.facts()
    assert facts["conv2d"].gradients == {"x", "w", "b"}
    assert facts["conv2d"].by >= {"conv2d_input_grad", "conv2d_weight_grad"}
    assert facts["power"].gradients == {"a", "b"}
    assert facts["cross_entropy"].types == {"f32", "i32"}
    text = support.page()
    assert all(f"`{name}`" in text for table in (TORCH, ONNX, TOML) for name in table)
