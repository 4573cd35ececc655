"""A client for Parley voice agents.

::

    async with connect("127.0.0.1:8001", tools=[get_weather]) as call:
        await call.send_audio(pcm)
        async for event in call:
            ...
"""

from __future__ import annotations

from parley.tls import TlsOptions
from parley_client.call import Call
from parley_client.connection import DEFAULT_SERVER, connect
from parley_client.errors import (
    CallEndedError,
    CallLostError,
    CallRefusedError,
    ClientError,
    ConnectError,
    SlowConsumerError,
    ToolDefinitionError,
)
from parley_client.events import AgentAudio, CallEvent, Reconnected, Reconnecting
from parley_client.options import NO_RETRY, Backoff, Bounds, Deadlines, Keepalive
from parley_client.tools import ToolOptions, ToolTable, tool

__all__ = [
    "DEFAULT_SERVER",
    "NO_RETRY",
    "AgentAudio",
    "Backoff",
    "Bounds",
    "Call",
    "CallEndedError",
    "CallEvent",
    "CallLostError",
    "CallRefusedError",
    "ClientError",
    "ConnectError",
    "Deadlines",
    "Keepalive",
    "Reconnected",
    "Reconnecting",
    "SlowConsumerError",
    "TlsOptions",
    "ToolDefinitionError",
    "ToolOptions",
    "ToolTable",
    "connect",
    "tool",
]
