"""A gateway that listens, in front of agents that are played by the tests."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "client"))
sys.path.append(str(Path(__file__).parent))

from listening_gateway import GatewayUnderTest


@pytest.fixture
async def gateway():
    """Starts gateways with settings by part; stops them at the end."""
    started = []

    async def start(*behaviours, **parts):
        one = GatewayUnderTest(behaviours, parts)
        await one.start()
        started.append(one)
        return one

    yield start
    for one in reversed(started):
        await one.stop()
