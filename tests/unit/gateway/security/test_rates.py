"""How often, counted here or in Redis."""

import asyncio
import contextlib
import logging
import ssl

import pytest

from parley_gateway.errors import GatewaySettingsError, RateLimitedError
from parley_gateway.security.rates import Rates, RatesUnavailableError
from parley_gateway.security.settings import RateSettings


async def hits(rates, who="a", limit=10):
    """How many times somebody is let through."""
    for count in range(limit):
        try:
            await rates.hit("key_requests", who)
        except RateLimitedError:
            return count
    return limit


@contextlib.asynccontextmanager
async def shared(redis, **settings):
    # A busy machine is slow to answer, and a store that does not answer counts otherwise.
    settings = {"store_timeout_s": 10.0, **settings}
    rates = Rates(RateSettings(store=redis.url, key_requests="3/minute", **settings), clock=redis)
    try:
        yield rates
    finally:
        await rates.aclose()


async def test_request_beyond_the_rate_is_refused_until_later(clock):
    rates = Rates(RateSettings(key_requests="3/minute"))
    assert await hits(rates) == 3
    assert await hits(rates, "b") == 3
    clock.advance(121)
    assert await hits(rates) == 3


async def test_retry_after_suffices_for_one_more_request(clock):
    rates = Rates(RateSettings(key_requests="1/minute"))
    await rates.hit("key_requests", "a")
    for _ in range(20):
        try:
            await rates.hit("key_requests", "a")
            break
        except RateLimitedError as error:
            clock.advance(error.retry_after_s)
    else:
        pytest.fail("no request is allowed again")


async def test_several_rates_hold_at_once(clock):
    rates = Rates(RateSettings(key_requests="2/second;3/minute"))
    assert await hits(rates) == 2
    clock.advance(2.5)
    assert await hits(rates) == 1


async def test_no_rate_is_no_limit():
    assert await hits(Rates(RateSettings(key_requests=""))) == 10


async def test_checking_does_not_count():
    rates = Rates(RateSettings(auth_failures="1/minute"))
    for _ in range(3):
        await rates.check("auth_failures", "a")
    await rates.hit("auth_failures", "a")
    with pytest.raises(RateLimitedError):
        await rates.check("auth_failures", "a")


@pytest.mark.parametrize(
    "settings",
    [
        {"key_requests": "many"},
        {"store": "memcached://somewhere"},
        {"store": "redis://:s3cret@host:port/x"},
        {"store": "rediss://:s3cret@[host"},
    ],
)
def test_settings_that_cannot_be_used_are_refused_at_the_start(settings):
    with pytest.raises(GatewaySettingsError) as caught:
        Rates(RateSettings(**settings))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "is_checked"), [("", True), ("/0?db=1", True), ("?ssl_check_hostname=false", False)]
)
async def test_the_certificate_of_redis_has_to_name_its_host(query, is_checked):
    rates = Rates(RateSettings(store=f"rediss://host:6379{query}"))
    context = rates._shared_store.bridge.storage.connection_pool.connection_kwargs["ssl_context"]
    assert context.check_hostname is is_checked
    assert context.verify_mode is not ssl.CERT_NONE
    await rates.aclose()


# --- Redis ------------------------------------------------------------------------------------


async def test_processes_count_together(redis):
    async with shared(redis) as one, shared(redis) as other:
        assert await hits(one) == 3
        assert await hits(other) == 0


async def test_a_single_use_token_is_used_once_by_all(redis):
    async with shared(redis) as one, shared(redis) as other:
        assert await one.first("token-1", 60)
        assert not await other.first("token-1", 60)
        assert await other.first("token-2", 60)


@pytest.mark.parametrize(("policy", "count"), [("memory", 3), ("allow", 10)])
async def test_without_redis_the_settings_say_what_happens(redis, caplog, policy, count):
    async with shared(redis, store_failure=policy) as rates:
        await redis.stop()
        with caplog.at_level(logging.WARNING):
            assert await hits(rates) == count
        # Once, and not once a request.
        assert caplog.text.count("does not answer") == 1


async def test_rate_store_refuse_without_redis_refuses_all(redis):
    async with shared(redis, store_failure="refuse") as rates:
        await redis.stop()
        with pytest.raises(RatesUnavailableError) as caught:
            await rates.hit("key_requests", "a")
        assert caught.value.status == 503


async def test_redis_is_used_again_when_it_answers_again(redis, caplog):
    async with shared(redis) as rates:
        await redis.stop()
        assert await hits(rates) == 3
        await redis.start()
        assert await hits(rates) == 0  # it is left alone for a while
        redis.now += 5
        with caplog.at_level(logging.INFO):
            assert await hits(rates) == 3
        assert "answers again" in caplog.text


async def test_redis_that_does_not_answer_in_time_counts_as_gone(redis):
    async with shared(redis, store_timeout_s=0.05) as rates:
        redis.freeze()
        assert await asyncio.wait_for(hits(rates), 5) == 3
