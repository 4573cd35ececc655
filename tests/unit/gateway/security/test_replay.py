"""Which single-use tokens were used."""

import pytest

from parley_gateway.errors import RateLimitedError
from parley_gateway.security.guard import UsedTokens


def test_used_tokens_are_bounded_and_kept_until_they_expire(clock):
    used = UsedTokens(2, clock)
    used.use("long", int(clock.now) + 600)
    used.use("short", int(clock.now) + 60)
    with pytest.raises(RateLimitedError) as caught:
        used.use("third", int(clock.now) + 60)
    assert caught.value.retry_after_s == pytest.approx(60, abs=1)
    clock.advance(61)
    assert used.use("third", int(clock.now) + 60)
    assert not used.use("long", int(clock.now) + 600)
