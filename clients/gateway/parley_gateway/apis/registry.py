"""The APIs, one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fastapi import APIRouter

from parley_gateway.apis import agent, deepgram, openai, operations, page, sessions, tokens
from parley_gateway.apis.realtime import routes as realtime
from parley_gateway.apis.twilio import routes as twilio
from parley_gateway.gateway import Gateway

Api: TypeAlias = Callable[[Gateway], APIRouter]

APIS: tuple[Api, ...] = (
    operations.routes,
    agent.routes,
    sessions.routes,
    realtime.routes,
    openai.routes,
    deepgram.routes,
    tokens.routes,
    twilio.routes,
    page.routes,
)
