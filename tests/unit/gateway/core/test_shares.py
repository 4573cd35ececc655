"""Places that are shared among owners."""

import asyncio
from contextlib import ExitStack

import pytest

from parley_gateway.shares import PER_FREE, ShareLimiter, Shares


def fill(places, held, owner):
    """Take what an owner gets; how much it holds then."""
    while places.has_room(owner):
        held.enter_context(places.take(owner))
    return places.held(owner)


def test_alone_an_owner_gets_most_and_not_all():
    with ExitStack() as held:
        assert fill(Shares(64), held, "one") == 48


@pytest.mark.parametrize("limit", [2, 3, 5, 16, 64, 256, 1_000])
def test_whatever_one_owner_holds_a_newcomer_gets_in(limit):
    places = Shares(limit)
    with ExitStack() as held:
        fill(places, held, "one")
        assert places.has_room("other")
        assert fill(places, held, "other") >= 1


def test_owners_that_come_at_the_same_time_get_the_same():
    places = Shares(64)
    owners = [f"key-{number}" for number in range(5)]
    with ExitStack() as held:
        while any(places.has_room(owner) for owner in owners):
            for owner in owners:
                if places.has_room(owner):
                    held.enter_context(places.take(owner))
        got = [places.held(owner) for owner in owners]
        assert max(got) - min(got) <= 1
        assert sum(got) < places.limit
        assert places.has_room("newcomer")
        assert min(got) >= PER_FREE * 64 // (1 + PER_FREE * 6)


def test_only_place_goes_to_any_owner():
    places = Shares(1)
    with places.take("one"):
        assert not places.has_room("one")
        assert not places.has_room("other")
    assert places.has_room("other")


def test_callers_without_an_identity_share_all():
    places = Shares(4)
    with ExitStack() as held:
        assert fill(places, held, None) == 4


def test_places_come_back():
    places = Shares(8)
    with ExitStack() as held:
        fill(places, held, "one")
    assert places.taken == places.held("one") == 0
    assert not places._owners


async def test_waits_for_bytes_are_served_in_order():
    limiter = ShareLimiter(10)
    served = []

    async def take(name, size):
        await limiter.acquire(size)
        served.append(name)

    await take("first", 8)
    large = asyncio.create_task(take("large", 9))
    gone = asyncio.create_task(take("gone", 10))
    small = asyncio.create_task(take("small", 1))
    await asyncio.sleep(0)
    assert served == ["first"]  # the small one would fit, and waits behind the large one
    gone.cancel()
    limiter.release(8)
    await asyncio.gather(large, small)
    assert served == ["first", "large", "small"]
    await asyncio.wait([gone])
    limiter.release(10)
    await asyncio.wait_for(limiter.acquire(10), 1)


async def test_bytes_that_come_as_their_waiter_leaves_are_not_lost():
    limiter = ShareLimiter(1)
    await limiter.acquire(1)
    waiting = asyncio.create_task(limiter.acquire(1))
    await asyncio.sleep(0)
    limiter.release(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.wait_for(limiter.acquire(1), 1)


async def test_waiting_owner_blocks_no_other():
    limiter = ShareLimiter(4)
    served = []

    async def take(name, size=1):
        await limiter.acquire(size, name)
        served.append(name)

    many = [asyncio.create_task(take("many")) for _ in range(20)]
    await asyncio.sleep(0)
    assert served == ["many"] * 3
    await asyncio.wait_for(take("few"), 1)
    few = [asyncio.create_task(take("few")) for _ in range(2)]
    late = asyncio.create_task(take("late"))
    await asyncio.sleep(0)
    assert served == ["many"] * 3 + ["few"]
    limiter.release(1, "many")
    await asyncio.wait_for(late, 1)
    for task in (*many, *few):
        task.cancel()
    await asyncio.wait([*many, *few])
    for owner in ("many", "many", "few", "late"):
        limiter.release(1, owner)
    await asyncio.wait_for(limiter.acquire(4, "all"), 1)


async def test_owners_that_wait_are_served_in_turn():
    limiter = ShareLimiter(1)
    await limiter.acquire(1, "first")
    served = []

    async def take(name):
        await limiter.acquire(1, name)
        served.append(name)
        limiter.release(1, name)

    tasks = [asyncio.create_task(take(name)) for name in ("one", "one", "one", "two", "three")]
    await asyncio.sleep(0)
    limiter.release(1, "first")
    await asyncio.gather(*tasks)
    assert served == ["one", "two", "three", "one", "one"]
