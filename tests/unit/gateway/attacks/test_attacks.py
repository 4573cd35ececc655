"""A gateway under attack stays up, small and quiet."""

import asyncio
import random
import sys

import pytest
from attacked_gateway import AttackedGateway
from attacks import flood, heads, hold_partial_requests, send_head

# asyncio leaves the socket of a connection that is given up while it is made.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.timeout(240)
async def test_every_head_is_answered_or_dropped(tmp_path):
    async with AttackedGateway(tmp_path) as gateway:
        rng, every = random.Random(1), iter(list(heads()))

        async def attack():
            for head in every:
                await send_head(gateway, rng, head)

        await asyncio.gather(*(attack() for _ in range(16)))
    gateway.check()
    assert {200, 400, 414, 431} <= set(gateway.statuses)


@pytest.mark.timeout(240)
async def test_few_descriptors_are_enough_for_a_flood(tmp_path):
    async with AttackedGateway(tmp_path, descriptors=512) as gateway:
        before = len(gateway.log())
        rng = random.Random(1)
        await asyncio.gather(flood(gateway, rng, 900), hold_partial_requests(gateway, rng, 300))
    print(gateway.report(), file=sys.stderr)
    gateway.check()
    lines = gateway.log()[before:].splitlines()
    assert "limits.connections is" in gateway.log()
    assert 1 <= len([line for line in lines if "crowded" in line]) <= 20
