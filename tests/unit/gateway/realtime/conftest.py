"""Sessions of OpenAI's protocol: without a network, and with a gateway that listens."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "core"))
sys.path.append(str(Path(__file__).parents[2] / "client"))
sys.path.append(str(Path(__file__).parents[1] / "attacks"))

from listening_gateway import GatewayUnderTest
from openai_session import Session


@pytest.fixture
def make_session():
    """Makes sessions."""
    return Session


@pytest.fixture
def session():
    """A session that transcribes, opened with its defaults otherwise."""
    return Session(session={"audio": {"input": {"transcription": {"model": "whisper-1"}}}})


@pytest.fixture
async def gateway():
    """Starts gateways with settings by part, before agents that behave as told; stops them at the end."""
    started = []

    async def start(*behaviours, **parts):
        one = GatewayUnderTest(behaviours, parts)
        await one.start()
        started.append(one)
        return one

    yield start
    for one in reversed(started):
        await one.stop()
