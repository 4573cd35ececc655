"""Sessions of OpenAI's protocol without a network."""

import pytest
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
