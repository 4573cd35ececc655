"""The small networks that the unit tests read, read by sherpa-onnx: what is noted of it is what it says."""

from __future__ import annotations

import json

import pytest

import make_small_sherpa

EXPECTED = json.loads((make_small_sherpa.OUT / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", make_small_sherpa.FAMILIES)
def test_sherpa_onnx_says_what_is_noted_of_it(family):
    assert make_small_sherpa.expect(family, make_small_sherpa.OUT / family) == EXPECTED[family]
