"""A gateway under attack stays up, small and quiet: `make fuzz` attacks it with 100,000 messages."""

import asyncio
import os
import random
import sys

import pytest
from attacked_gateway import AttackedGateway
from attacks import AT_ONCE, SHARES, flood, heads, hold_partial_requests, send_head, upload_media

MESSAGES = int(os.environ.get("PARLEY_FUZZ_MESSAGES", "400"))
# asyncio leaves the socket of a connection that is given up while it is made.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SEED = int(
    os.environ.get(
        "PARLEY_FUZZ_SEED",
        random.SystemRandom().randrange(2**32) if "PARLEY_FUZZ_MESSAGES" in os.environ else 1,
    )
)


@pytest.mark.timeout(120 + MESSAGES // 20)
async def test_gateway_survives_hostile_requests(tmp_path):
    async with AttackedGateway(tmp_path) as gateway:

        async def attack(number):
            rng = random.Random(SEED + number)
            for kind, share in SHARES.items():
                await kind(gateway, rng, max(1, round(MESSAGES * share / AT_ONCE)))

        await asyncio.gather(*(attack(number) for number in range(AT_ONCE)))
        await upload_media(gateway, random.Random(SEED), 1)
    print(f"seed {SEED}: {gateway.report()}", file=sys.stderr)
    gateway.check()
    assert sum(gateway.statuses.values()) >= MESSAGES // 10


@pytest.mark.timeout(240)
async def test_every_head_is_answered_or_dropped(tmp_path):
    async with AttackedGateway(tmp_path) as gateway:
        rng, every = random.Random(SEED), iter(list(heads()))

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
