"""Several chat models as one that goes on answering when one of them fails."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from parley.engines.base import ChatModel, Closable
from parley.errors import (
    ContextTooLongError,
    DeadlineExceededError,
    InferenceError,
    ModelUnavailableError,
    NoAnswerError,
    OverloadedError,
    ParleyError,
)
from parley.llm.messages import Completed, GenerateRequest, LlmEvent, Priority, TextDelta, TurnEnd
from parley.timeouts import best_effort, loop_time, with_timeout

_MOST_DOUBLINGS = 4
_REMEMBERED = 1024
"""Requests whose model is kept for an abort."""
_OUTAGES = (ModelUnavailableError, DeadlineExceededError, OverloadedError)
"""Failures that the next request would meet too."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedChat:
    """A chat model with its name."""

    name: str
    """Of the weights, or of the model at the remote chat server."""
    chat: ChatModel


@dataclass(frozen=True)
class ChatFallbackLimits:
    """When a chat model is replaced (seconds)."""

    first_token_s: float = 5.0
    """Without the first text or tool call of an answer."""
    cooldown_s: float = 15.0
    """After an outage, until the model is asked again; twice as long after each further outage, at most 16
    times."""
    abort_s: float = 1.0
    """For a model that was replaced to confirm that it has stopped."""


@dataclass(frozen=True)
class ChatFallback:
    """One chat model has taken the place of another for an answer."""

    from_model: str
    to_model: str
    reason: str
    """Code of the failure."""


class FallbackChat:
    """:class:`parley.engines.base.ChatModel` over a list of others.

    A model that fails, is late, or writes neither text nor a tool call, is replaced by the next one in the
    list for that answer; not after its first text or tool call. After an outage it is passed over for a
    while, and then asked again with the next request. A warm-up goes to the first model only, and so do
    questions about a conversation and about the end of a turn.
    ``Completed.model`` names the model that answered, unless it is the first.

    Args:
        models: the best first; at least two. They are closed with this object.
        count: called for every replacement.
    """

    def __init__(
        self, models: Sequence[NamedChat], limits: ChatFallbackLimits, count: Callable[[ChatFallback], None]
    ) -> None:
        self._models = tuple(models)
        self._limits = limits
        self._count = count
        self._outages = [0] * len(models)
        self._asked_again_at = [-math.inf] * len(models)
        self._asked: OrderedDict[str, ChatModel] = OrderedDict()  # by request, until it is done or stopped

    @property
    def model(self) -> str:
        """Name of the model that the next request goes to."""
        return self._models[self._order()[0]].name

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        """Stream the answer; raises what the last model that was asked raised."""
        order = self._order()
        if request.priority == Priority.WARM_UP or request.questions or request.turn_end:
            order = order[:1]
        for index, following in zip(order, [*order[1:], None], strict=True):
            begun = False
            try:
                async with aclosing(self._ask(index, request, is_last=following is None)) as events:
                    async for event in events:
                        begun = not isinstance(event, TurnEnd)
                        yield event
                return  # noqa: TRY300 - in an else block it would be further away
            except InferenceError as error:
                if request.priority == Priority.ANSWER or isinstance(error, ModelUnavailableError):
                    self._note(index, error)  # others are refused first where a model is busy
                # A conversation that is too long for one model is shortened by the caller.
                if begun or following is None or isinstance(error, ContextTooLongError):
                    raise
                self._replace(index, following, error)

    async def abort(self, request_id: str) -> None:
        """Stop ``generate`` of this id; what was closed early has to be stopped too."""
        chat = self._asked.pop(request_id, None)
        if chat is not None:
            await chat.abort(request_id)

    async def close(self) -> None:
        """Close the models that hold something open."""
        for one in self._models:
            if isinstance(one.chat, Closable):
                await one.chat.close()

    async def _ask(
        self, index: int, request: GenerateRequest, *, is_last: bool
    ) -> AsyncGenerator[LlmEvent, None]:
        """The answer of one model, which is stopped where it fails before its beginning."""
        one = self._models[index]
        self._asked[request.request_id] = one.chat
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        begun = False
        # The last one has the time that the caller gives it, and its answer is taken as it is.
        limit_s = math.inf if is_last else self._limits.first_token_s
        try:
            async with aclosing(_answer(one, request, limit_s, may_be_empty=is_last)) as events:
                async for event in events:
                    begun = not isinstance(event, TurnEnd)
                    is_named = index > 0 and isinstance(event, Completed)
                    yield msgspec.structs.replace(event, model=one.name) if is_named else event
        except ModelUnavailableError:
            self._asked.pop(request.request_id, None)  # there is no process that could be stopped
            raise
        except ParleyError:
            if not begun:
                what = f"stopping {request.request_id} of {one.name}"
                await best_effort(self.abort(request.request_id), self._limits.abort_s, what)
            raise
        self._outages[index] = 0
        self._asked.pop(request.request_id, None)

    def _order(self) -> list[int]:
        """Indices of the models in the order in which they are asked: at last those that had an outage."""
        now = loop_time()
        return sorted(range(len(self._models)), key=lambda index: self._asked_again_at[index] > now)

    def _note(self, index: int, error: InferenceError) -> None:
        """Pass a model over for a while after an outage."""
        if isinstance(error, _OUTAGES):
            pause_s = self._limits.cooldown_s * 2 ** min(self._outages[index], _MOST_DOUBLINGS)
            self._outages[index] += 1
            self._asked_again_at[index] = loop_time() + max(pause_s, error.retry_after_s or 0.0)

    def _replace(self, index: int, following: int, failure: InferenceError) -> None:
        fallback = ChatFallback(self._models[index].name, self._models[following].name, failure.code)
        _log.warning(
            "%s is replaced by %s: %s",
            *(fallback.from_model, fallback.to_model, failure.to_log()),
            extra=failure.log_extra(),
        )
        self._count(fallback)


async def _answer(
    one: NamedChat, request: GenerateRequest, limit_s: float, *, may_be_empty: bool
) -> AsyncGenerator[LlmEvent, None]:
    """The events of an answer, the first of which has text that is more than white space, or a tool call.

    Raises:
        NoAnswerError: the answer has neither.
        DeadlineExceededError: neither came within ``limit_s``.
    """
    held_back: list[LlmEvent] = []
    overdue_at = loop_time() + limit_s
    begun = False
    async with aclosing(one.chat.generate(request)) as stream:
        while not begun:
            try:
                event = await with_timeout(anext(stream), overdue_at - loop_time(), one.name)
            except StopAsyncIteration:
                return
            if isinstance(event, TurnEnd):  # it is of no use later, and no answer
                yield event
                continue
            held_back.append(event)
            begun = not isinstance(event, TextDelta) or bool(event.text.strip())
            if isinstance(event, Completed) and not may_be_empty and _is_empty(event, request):
                raise NoAnswerError(f"{one.name} wrote neither text nor a tool call")
        for held in held_back:
            yield held
        async for later in stream:
            yield later


def _is_empty(completed: Completed, request: GenerateRequest) -> bool:
    """Whether an answer that has ended without text or a tool call should have had some."""
    ended = completed.finish_reason in ("stop", "length")
    return ended and not request.prefix and request.priority != Priority.WARM_UP


def join_chats(
    models: Sequence[NamedChat], limits: ChatFallbackLimits, count: Callable[[ChatFallback], None]
) -> ChatModel:
    """One chat model of one or more."""
    return models[0].chat if len(models) == 1 else FallbackChat(models, limits, count)
