"""Calls of the language model that never outlive their listener."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from parley.agent.config import Deadlines
from parley.engines.base import ChatModel
from parley.errors import ParleyError, ShuttingDownError
from parley.llm.messages import ChatMessage, GenerateRequest, LlmEvent, Priority, Sampling
from parley.protocol import Tool
from parley.waiting import try_within, within

# Between attempts, so that all who failed together do not come back together.
_JITTER = (0.75, 1.25)
_PAUSE_GROWTH = 3.0
_log = logging.getLogger(__name__)


async def generate(
    chat: ChatModel, request: GenerateRequest, limits: Deadlines, *, retries: int | None = None
) -> AsyncGenerator[LlmEvent, None]:
    """The answer's events; the model is told to stop if this ends before the answer does.

    A request that fails before its first event, in a way that may pass, is made again: after a pause, under
    an id of its own, and only while there is time left for a first event.

    Args:
        chat: the model.
        request: its id is that of the first attempt.
        limits: deadlines and pauses.
        retries: how often the request is made again; None: as ``limits`` say.

    Raises:
        ParleyError: the model failed or was silent for too long.
    """
    left = limits.llm_retries if retries is None else retries
    pause_s = limits.llm_retry_s
    overdue_at = _now() + limits.llm_s
    attempt = request
    for number in range(1, left + 2):
        begun = False
        try:
            async with aclosing(_attempt(chat, attempt, overdue_at, limits)) as events:
                async for event in events:
                    begun = True
                    yield event
            return  # noqa: TRY300 - in an else block it would be further away
        except ParleyError as error:
            pause = pause_s * random.uniform(*_JITTER)
            passing = error.retryable and not isinstance(error, ShuttingDownError)
            if begun or not passing or number > left or _now() + pause >= overdue_at:
                raise
            _log.warning("%s: again in %.2f s: %s", attempt.request_id, pause, error.to_log())
        await asyncio.sleep(pause)
        pause_s *= _PAUSE_GROWTH
        # The model takes an id that was aborted for aborted for good.
        attempt = msgspec.structs.replace(request, request_id=f"{request.request_id}-again{number}")


async def _attempt(
    chat: ChatModel, request: GenerateRequest, overdue_at: float, limits: Deadlines
) -> AsyncGenerator[LlmEvent, None]:
    done = False
    limit_s = overdue_at - _now()
    try:
        async with aclosing(chat.generate(request)) as stream:
            while True:
                try:
                    event = await within(anext(stream), limit_s, "the language model")
                except StopAsyncIteration:
                    break
                limit_s = limits.llm_s
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

    The model keeps it in its prefix cache, and the grammar of the tools' arguments in another, so that the
    first answer begins as quickly as all others. A failure only costs that time: it is logged, and the first
    turn will report its own.
    """
    if not messages and not tools:
        return
    request = GenerateRequest(
        request_id=f"{name}-warm-up",
        messages=[*messages, ChatMessage(role="user")],
        tools=list(tools),
        sampling=Sampling(max_tokens=1),
        priority=Priority.WARM_UP,
    )
    try:
        async with aclosing(generate(chat, request, limits, retries=0)) as events:
            async for _ in events:
                pass
    except ParleyError as error:
        _log.warning("%s: %s", request.request_id, error.to_log())


def _now() -> float:
    return asyncio.get_running_loop().time()
