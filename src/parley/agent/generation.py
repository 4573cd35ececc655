"""Requests to the language model: with deadlines, made again after a passing failure, and aborted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from parley.agent.config import AgentDeadlines
from parley.chance import random_between
from parley.chat import ChatMessage
from parley.engines.base import ChatModel, NamesModel
from parley.errors import InferenceError, ModelUnavailableError, ParleyError, ShuttingDownError
from parley.llm.messages import GenerateRequest, LlmEvent, Priority, Sampling, TurnEnd, new_cache_salt
from parley.protocol import Tool
from parley.timeouts import best_effort, iter_with_timeout, loop_time

_JITTER = (0.75, 1.25)
"""Factors of the pauses between attempts, so that requests that failed together are not repeated together."""
_PAUSE_GROWTH = 3.0
_LONGEST_PAUSE_S = 1.0
"""A failure that lasts longer, as of a model that is loaded again, is reported: the caller hears nothing
meanwhile.
"""
_log = logging.getLogger(__name__)


class SaltedChat:
    """:class:`parley.engines.base.ChatModel` with the prefix cache of a session or tenant."""

    def __init__(self, chat: ChatModel, salt: str) -> None:
        self._chat = chat
        self._salt = salt or new_cache_salt()

    @property
    def model(self) -> str:
        """See :class:`parley.engines.base.NamesModel`."""
        return self._chat.model if isinstance(self._chat, NamesModel) else ""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        """Stream the answer."""
        return self._chat.generate(msgspec.structs.replace(request, cache_salt=self._salt))

    async def abort(self, request_id: str) -> None:
        """Stop ``generate`` of this id."""
        await self._chat.abort(request_id)


async def generate(
    chat: ChatModel, request: GenerateRequest, limits: AgentDeadlines, *, retries: int | None = None
) -> AsyncGenerator[LlmEvent, None]:
    """The events of a request; leaving the iterator early aborts it.

    A retryable failure before the first event is retried, after a pause and under a new id, while there is
    time left for a first event; not one that says itself that it lasts for more than a second.

    ``request`` has the id of the first attempt. ``retries`` is ``limits.llm_retries`` unless given.

    Raises:
        ParleyError: the model failed or was silent for too long.
    """
    left = limits.llm_retries if retries is None else retries
    pause_s = limits.llm_retry_s
    overdue_at = loop_time() + limits.llm_s
    attempt = request
    for number in range(1, left + 2):
        begun = False
        try:
            async with aclosing(_attempt(chat, attempt, overdue_at, limits)) as events:
                async for event in events:
                    begun = not isinstance(event, TurnEnd)
                    yield event
            return  # noqa: TRY300 - in an else block it would be further away
        except ParleyError as error:
            pause = pause_s * random_between(*_JITTER)
            brief = (error.retry_after_s or 0.0) <= _LONGEST_PAUSE_S
            passing = error.retryable and brief and not isinstance(error, ShuttingDownError)
            if begun or not passing or number > left or loop_time() + pause >= overdue_at:
                raise
            _log.warning(
                "%s: again in %.2f s: %s", attempt.request_id, pause, error.to_log(), extra=error.log_extra()
            )
        await asyncio.sleep(pause)
        pause_s *= _PAUSE_GROWTH
        # An aborted id stays aborted.
        attempt = msgspec.structs.replace(request, request_id=f"{request.request_id}-again{number}")


async def _attempt(
    chat: ChatModel, request: GenerateRequest, overdue_at: float, limits: AgentDeadlines
) -> AsyncGenerator[LlmEvent, None]:
    done = False
    stream = iter_with_timeout(
        chat.generate(request), limits.llm_s, "the language model", first_s=overdue_at - loop_time()
    )
    try:
        async with aclosing(stream):
            async for event in stream:
                yield event
        done = True
    except ModelUnavailableError:
        done = True  # there is no process that could be stopped, and asking it to would take its time
        raise
    finally:
        if not done:
            what = f"stopping {request.request_id}"
            await best_effort(chat.abort(request.request_id), limits.abort_s, what)


async def warm_up(
    chat: ChatModel, name: str, messages: Sequence[ChatMessage], tools: Sequence[Tool], limits: AgentDeadlines
) -> None:
    """Prefill the model's prefix cache and its cache of tool grammars before the first turn.

    The first answer then begins as quickly as later ones. A failure is only logged.
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
        _log.warning("%s: %s", request.request_id, error.to_log(), extra=error.log_extra())


async def read_turn(
    chat: ChatModel, name: str, messages: Sequence[ChatMessage], tools: Sequence[Tool], limits: AgentDeadlines
) -> float:
    """How likely a sentence ends with the last of ``messages``, which is the user's (0-1).

    Raises:
        ParleyError: the model failed, or does not say it.
    """
    request = GenerateRequest(
        request_id=f"{name}-turn-end",
        messages=list(messages),
        tools=list(tools),
        turn_end=True,
        priority=Priority.SPECULATION,
    )
    found: float | None = None
    async with aclosing(generate(chat, request, limits, retries=0)) as events:
        async for event in events:
            if isinstance(event, TurnEnd):
                found = event.probability
    if found is None:
        raise InferenceError("the language model does not say whether a sentence ends")
    return found
