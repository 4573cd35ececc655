"""Whatever a client sends to a WebSocket: no crash, no hang, nothing left, stable codes."""

import math

import pytest
from fuzz_messages import MESSAGES, TEMPLATES, messages_of
from hypothesis import given, settings
from hypothesis import strategies as st

AT_ONCE = 40
OF_EACH = math.ceil(MESSAGES / len(TEMPLATES))
EXAMPLES = math.ceil(OF_EACH / AT_ONCE)
MOST_GROWTH = 48 * 1024 * 1024
"""Bytes; what allocators keep. A leak of one frame's buffers per connection would be far more."""


@pytest.mark.parametrize("api", list(TEMPLATES))
def test_a_api_bears_whatever_comes(fuzzed, api):
    @settings(settings.get_profile("gateway"), max_examples=EXAMPLES)
    @given(st.lists(messages_of(api), min_size=AT_ONCE, max_size=AT_ONCE))
    def drive(messages):
        fuzzed.drive(api, messages)

    before = fuzzed.received
    drive()
    fuzzed.settle()
    assert fuzzed.received - before >= OF_EACH


@pytest.mark.parametrize("api", list(TEMPLATES))
def test_a_api_bears_it_all_at_once(fuzzed, api):
    @settings(settings.get_profile("gateway"), max_examples=5)
    @given(st.lists(messages_of(api), min_size=AT_ONCE, max_size=AT_ONCE))
    def drive(messages):
        fuzzed.drive(api, messages, flood=True)

    drive()
    fuzzed.settle()


def test_nothing_grows(fuzzed):
    def drive(count):
        @settings(settings.get_profile("gateway"), max_examples=count)
        @given(st.lists(messages_of("sessions"), min_size=AT_ONCE, max_size=AT_ONCE))
        def drive(messages):
            fuzzed.drive("sessions", messages)

        drive()
        fuzzed.settle()
        return fuzzed.memory()

    before = drive(10)
    assert drive(20) - before < MOST_GROWTH
