"""Calls of the language model that never outlive their listener."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from parley.agent.config import Deadlines
from parley.engines.base import ChatModel
from parley.errors import ParleyError
from parley.llm.messages import ChatMessage, GenerateRequest, LlmEvent, Sampling
from parley.protocol import Tool
from parley.waiting import each_within, try_within

_log = logging.getLogger(__name__)


async def generate(
    chat: ChatModel, request: GenerateRequest, limits: Deadlines
) -> AsyncGenerator[LlmEvent, None]:
    """The answer's events; the model is told to stop if this ends before the answer does.

    Raises:
        ParleyError: the model failed or was silent for too long.
    """
    done = False
    try:
        async with aclosing(
            each_within(chat.generate(request), limits.llm_s, "the language model")
        ) as events:
            async for event in events:
                yield event
        done = True
    finally:
        if not done:
            what = f"stopping {request.request_id}"
            await try_within(chat.abort(request.request_id), limits.abort_s, what)


async def warm_up(
    chat: ChatModel, name: str, messages: Sequence[ChatMessage], tools: Sequence[Tool], limits: Deadlines
) -> None:
    """Let the model read what every prompt of a session begins with, while the user still listens.

    The model keeps it in its prefix cache, so that the first answer begins as quickly as all
    others. A failure only costs that time: it is logged, and the first turn will report its own.
    """
    if not messages and not tools:
        return
    request = GenerateRequest(
        request_id=f"{name}-warm-up",
        messages=[*messages, ChatMessage(role="user")],
        tools=list(tools),
        sampling=Sampling(max_tokens=1),
    )
    try:
        async with aclosing(generate(chat, request, limits)) as events:
            async for _ in events:
                pass
    except ParleyError as error:
        _log.warning("%s: %s", request.request_id, error.to_log())
