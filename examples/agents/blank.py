"""An agent to begin with: .venv/bin/parley run examples/agents/blank.py."""

from __future__ import annotations

import datetime as dt

from parley_client import Agent, tool
from parley_client.spoken import say_time

agent = Agent(
    instructions="You are a helpful assistant on the phone. Answer in one short sentence.",
    greeting="Hello! What can I do for you?",
)


@tool
def get_time() -> dict[str, str]:
    """Get the time of day."""
    return {"time": say_time(dt.datetime.now().astimezone().time())}
