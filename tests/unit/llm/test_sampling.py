"""How a session's wishes for sampling are met."""

from __future__ import annotations

import pytest

from parley.errors import InvalidMessageError
from parley.llm.messages import Sampling
from parley.llm.sampling import choose_sampling
from parley.protocol import SamplingOptions

DEFAULT = Sampling(temperature=0.7, top_p=0.8, max_tokens=256, seed=3)


def test_what_is_not_asked_for_is_the_servers_choice():
    assert choose_sampling(SamplingOptions(), DEFAULT) == DEFAULT


def test_every_option_replaces_the_servers_choice():
    options = SamplingOptions(temperature=0.0, top_p=1.0, max_tokens=1)
    assert choose_sampling(options, DEFAULT) == Sampling(temperature=0.0, top_p=1.0, max_tokens=1, seed=3)
    assert choose_sampling(SamplingOptions(max_tokens=256), DEFAULT).max_tokens == 256
    assert choose_sampling(SamplingOptions(temperature=2.0), DEFAULT).temperature == 2.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("max_tokens", 0),
        ("max_tokens", 257),
    ],
)
def test_values_out_of_range_are_named(field, value):
    with pytest.raises(InvalidMessageError, match=rf"^sampling\.{field} is {value}; it must be "):
        choose_sampling(SamplingOptions(**{field: value}), DEFAULT)
