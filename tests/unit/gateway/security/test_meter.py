"""How much one WebSocket may bring."""

import pytest

from parley_gateway.errors import MessageTooLargeError, RateLimitedError
from parley_gateway.security.rates import Meter
from parley_gateway.security.settings import RateSettings


class Ticks:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def ticks():
    return Ticks()


def test_a_message_that_is_too_large_is_refused(ticks):
    meter = Meter(RateSettings(message_bytes=100), ticks)
    meter.message(100)
    with pytest.raises(MessageTooLargeError, match="101 bytes"):
        meter.message(101)


def test_a_flood_of_messages_is_refused_and_passes(ticks):
    meter = Meter(RateSettings(messages_per_s=10, burst_s=2), ticks)
    for _ in range(20):
        meter.message(1)
    with pytest.raises(RateLimitedError, match="too many messages") as caught:
        meter.message(1)
    assert caught.value.retry_after_s == pytest.approx(0.1)
    ticks.now += caught.value.retry_after_s
    meter.message(1)
    with pytest.raises(RateLimitedError):
        meter.message(1)


def test_a_flood_of_bytes_is_refused(ticks):
    meter = Meter(RateSettings(bytes_per_s=1_000, burst_s=1), ticks)
    meter.message(1_000)
    with pytest.raises(RateLimitedError, match="too many bytes"):
        meter.message(500)
    ticks.now += 0.5
    meter.message(500)


def test_speech_is_never_too_much(ticks):
    meter = Meter(RateSettings(), ticks)
    for _ in range(50 * 600):  # ten minutes of 20 ms frames of 24 kHz, as base64
        ticks.now += 0.02
        meter.message(1_400)


def test_rest_is_saved_up_to_a_bound_only(ticks):
    meter = Meter(RateSettings(messages_per_s=1, burst_s=3), ticks)
    ticks.now += 1_000
    for _ in range(3):
        meter.message(1)
    with pytest.raises(RateLimitedError):
        meter.message(1)
