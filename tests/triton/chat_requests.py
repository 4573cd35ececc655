"""Requests to the chat model of the tiny profile, and what came of them."""

from __future__ import annotations

import uuid

from parley.chat import ChatMessage
from parley.llm.messages import GenerateRequest, Sampling, TextDelta
from parley.protocol import Tool

SYSTEM = "You are Parley, a friendly voice assistant. Keep answers short."
SALT = "tests"
PROPERTIES = {
    "city": {"type": "string", "description": "The name of the city."},
    "day": {"type": "string", "description": "The day, if it is not now."},
    "minutes": {"type": "integer", "description": "How many minutes."},
    "label": {"type": "string", "description": "What the timer is for."},
}


def tool(name, description, required, *optional):
    properties = {key: PROPERTIES[key] for key in (required, *optional)}
    parameters = {"type": "object", "properties": properties, "required": [required]}
    return Tool(name=name, description=description, parameters=parameters)


TOOLS = (
    tool("get_weather", "Get the weather in a city.", "city", "day"),
    tool("get_time", "Get the time in a city.", "city"),
    tool("set_timer", "Start a timer.", "minutes", "label"),
)


def user(text):
    return ChatMessage(role="user", content=text)


def request(*messages, max_tokens=64, tools=TOOLS, **fields):
    system = ChatMessage(role="system", content=SYSTEM)
    return GenerateRequest(
        **{
            "request_id": uuid.uuid4().hex,
            "messages": [system, *(messages or [user("hello")])],
            "tools": list(tools),
            "sampling": Sampling(max_tokens=max_tokens),
            "cache_salt": SALT,
            **fields,
        }
    )


def story(**fields):
    """The request with the longest answer that the model knows."""
    return request(user("tell me a story"), max_tokens=200, **fields)


async def collect(chat, wanted):
    return [event async for event in chat.generate(wanted)]


def said(events):
    return "".join(event.text for event in events if isinstance(event, TextDelta))
