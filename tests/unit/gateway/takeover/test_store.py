"""The store of sessions in Redis: owners, their epochs, and what happens without it."""

import asyncio
import logging
import ssl

import pytest

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.takeover.errors import TakeoverUnavailableError
from parley_gateway.takeover.store import Entry, RedisSessionStore

KEEP_S = 60.0


@pytest.fixture
async def stores(redis):
    """Makes stores of several gateways."""
    made = []

    def make(**options):
        store = RedisSessionStore(redis.url, **({"timeout_s": 10.0} | options))
        made.append(store)
        return store

    yield make
    for store in made:
        await store.aclose()


async def test_record_of_one_gateway_is_found_by_another(stores):
    one, other = stores(), stores()
    assert await other.find("a") is None
    assert await one.save("a", 1, b"x\0y", KEEP_S)
    assert await other.find("a") == Entry(1, b"x\0y")
    assert await one.save("a", 1, b"z", KEEP_S)
    assert await other.find("a") == Entry(1, b"z")
    assert await one.refresh("a", 1, KEEP_S) == "kept"
    assert await one.refresh("b", 1, KEEP_S) == "gone"


async def test_former_owner_cannot_write_a_session(stores):
    one, other = stores(), stores()
    await one.save("a", 1, b"old", KEEP_S)
    await one.save("a", 1, b"newest", KEEP_S)
    assert await other.claim("a", Entry(1, b"newest"), b"claimed", KEEP_S)
    assert not await one.save("a", 1, b"late", KEEP_S)
    assert await one.refresh("a", 1, KEEP_S) == "lost"
    await one.end("a", 1, is_over=True)
    assert await other.find("a") == Entry(2, b"claimed")
    assert await other.save("a", 2, b"mine", KEEP_S)


async def test_a_session_may_follow_one_that_is_over(stores):
    one = stores()
    assert await one.look("a") == (0, None)
    await one.save("a", 1, b"old", KEEP_S)
    await one.end("a", 1, is_over=True)
    assert await one.look("a") == (2, None)
    assert not await one.save("a", 1, b"late", KEEP_S)
    assert await one.save("a", 3, b"new", KEEP_S)
    assert await one.find("a") == Entry(3, b"new")


async def test_a_write_that_arrives_behind_the_next_one_replaces_nothing(stores, monkeypatch):
    now, late = 0.0, []
    one = stores(clock=lambda: now)

    async def delay(**command):
        late.append(command)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(one._save, "execute", delay)
        with pytest.raises(TakeoverUnavailableError):
            await one.save("a", 1, b"old", KEEP_S)
    now += 5
    assert await one.save("a", 1, b"new", KEEP_S)
    await one._save.execute(**late[0])
    assert await one.find("a") == Entry(1, b"new")
    other = stores()
    assert await other.claim("a", Entry(1, b"new"), b"claimed", KEEP_S)
    assert await other.save("a", 2, b"mine", KEEP_S)
    assert await other.find("a") == Entry(2, b"mine")


async def test_after_a_loss_of_data_the_newest_owner_writes_over_an_older_one(stores, redis):
    old, new = stores(), stores()
    await old.save("a", 1, b"old", KEEP_S)
    assert await new.claim("a", Entry(1, b"old"), b"claimed", KEEP_S)
    await redis.stop()
    await redis.start()
    assert await old.save("a", 1, b"late", KEEP_S)
    assert await new.refresh("a", 2, KEEP_S) == "gone"
    assert await new.save("a", 2, b"new", KEEP_S)
    assert await old.refresh("a", 1, KEEP_S) == "lost"
    assert await old.find("a") == Entry(2, b"new")
    assert await new.save("a", 10, b"newer", KEEP_S)
    assert not await new.save("a", 9, b"late", KEEP_S)


@pytest.mark.parametrize(
    ("query", "is_checked"),
    [
        ("", True),
        ("?db=1", True),
        ("/0#fragment", True),
        ("?ssl_check_hostname=", True),
        ("?ssl_check_hostname=false", False),
    ],
)
async def test_the_certificate_of_redis_has_to_name_its_host(query, is_checked):
    one = RedisSessionStore(f"rediss://host:6379{query}", timeout_s=1.0)
    context = one._redis.connection_pool.connection_kwargs["ssl_context"]
    assert context.check_hostname is is_checked
    assert context.verify_mode is not ssl.CERT_NONE
    await one.aclose()


async def test_simultaneous_claims_have_one_winner(stores):
    all_of_them = [stores() for _ in range(8)]
    await all_of_them[0].save("a", 1, b"x", KEEP_S)
    claims = [
        store.claim("a", Entry(1, b"x"), b"%d" % number, KEEP_S) for number, store in enumerate(all_of_them)
    ]
    claimed = await asyncio.gather(*claims)
    assert sorted(claimed) == [False] * 7 + [True]
    assert await all_of_them[0].find("a") == Entry(2, b"%d" % claimed.index(True))


async def test_a_session_that_was_written_since_it_was_found_is_not_claimed(stores):
    one, other = stores(), stores()
    await one.save("a", 1, b"x", KEEP_S)
    found = await other.find("a")
    await one.save("a", 1, b"y", KEEP_S)
    assert not await other.claim("a", found, b"claimed", KEEP_S)
    assert await other.find("a") == Entry(1, b"y")
    assert await one.save("a", 1, b"z", KEEP_S)
    assert await other.claim("a", await other.find("a"), b"claimed", KEEP_S)


async def test_a_session_that_is_over_cannot_be_found_or_written_again(stores):
    one, other = stores(), stores()
    await one.save("a", 1, b"x", KEEP_S)
    await one.end("a", 1, is_over=True)
    assert await other.find("a") is None
    for epoch in (1, 2):
        assert not await other.claim("a", Entry(epoch, b"x"), b"claimed", KEEP_S)
    assert not await one.save("a", 1, b"late", KEEP_S)


async def test_data_that_was_dropped_can_be_written_again_by_its_owner(stores):
    one = stores()
    await one.save("a", 1, b"x", KEEP_S)
    await one.end("a", 1, is_over=False)
    assert await one.find("a") is None
    assert await one.refresh("a", 1, KEEP_S) == "gone"
    assert await one.save("a", 1, b"y", KEEP_S)


async def test_an_entry_lasts_for_its_time(stores):
    one = stores()
    await one.save("a", 1, b"x", 0.05)
    await one.save("b", 1, b"x", KEEP_S)
    async with asyncio.timeout(10):
        while await one.find("a") is not None:  # noqa: ASYNC110 - Redis says nothing
            await asyncio.sleep(0.02)
    assert await one.find("b") is not None
    assert await one.save("a", 1, b"y", KEEP_S)


async def test_without_redis_nothing_waits_and_the_log_says_it_once(stores, redis, caplog):
    now, seen = 0.0, []
    one = stores(clock=lambda: now, on_change=seen.append)
    await one.save("a", 1, b"x", KEEP_S)
    await redis.stop()
    with caplog.at_level(logging.INFO, "parley.gateway"):
        for _ in range(3):
            with pytest.raises(TakeoverUnavailableError):
                await one.save("a", 1, b"y", KEEP_S)
            now += 5
        assert (one.is_available, seen) == (False, [False])
        await redis.start()
        assert await one.save("a", 1, b"z", KEEP_S)
    assert (one.is_available, seen) == (True, [False, True])
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert redis.url not in caplog.text


@pytest.mark.parametrize(
    "address", ["memory://", "http://host", "redis://:s3cret@host:port/x", "rediss://:s3cret@[host"]
)
async def test_addresses_that_cannot_be_used(address):
    with pytest.raises(GatewaySettingsError) as refused:
        RedisSessionStore(address, timeout_s=1.0)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("epoch", [b"x", b"", b"-1", b"1_0", b" 1", b"9" * 5_000])
async def test_entry_whose_epoch_is_no_number_is_not_found(monkeypatch, caplog, epoch):
    store = RedisSessionStore("redis://127.0.0.1:1/0", timeout_s=1.0)

    async def hmget(key, fields):
        return epoch, b"data"

    monkeypatch.setattr(store._redis, "hmget", hmget)
    with caplog.at_level(logging.WARNING):
        assert await store.find("a") is None
    assert "damaged entry: a" in caplog.text
    assert store.is_available


async def test_owner_replaces_an_epoch_that_is_no_number(stores, redis):
    one = stores()
    assert await one.save("a", 1, b"mine", KEEP_S)
    await one._redis.hset("parley:session:a", {"epoch": "x", "number": "x"})
    assert await one.refresh("a", 1, KEEP_S) == "gone"
    assert await one.save("a", 1, b"mine", KEEP_S)
    assert await one.find("a") == Entry(1, b"mine")
    await one._redis.hset("parley:session:a", {"epoch": "x"})
    await one.end("a", 1, is_over=True)
    assert await one.find("a") is None
    assert one.is_available
