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
def speaking(session):
    """A session in which the agent tells a story; its events so far are dropped."""
    session.user_says("tell me a story")
    session.agent_says("Once upon a time.")
    session.take()
    return session


@pytest.fixture
def with_call(session):
    """A session in which the agent has called a function, and its response is over."""
    session.user_says("weather?")
    session.agent_calls(("call-1-1", "get_weather"))
    session.wait(0.03)
    return session


@pytest.fixture
async def gateway():
    """Starts gateways with settings by section, before agents with given behaviours."""
    started = []

    async def start(*behaviours, **parts):
        one = GatewayUnderTest(behaviours, parts)
        await one.start()
        started.append(one)
        return one

    yield start
    for one in reversed(started):
        await one.stop()
