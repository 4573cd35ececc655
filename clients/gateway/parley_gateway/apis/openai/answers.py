"""Answers of the language model to requests of OpenAI's interface, whatever their format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from parley.chat import ChatMessage, ToolCall
from parley.errors import ContextTooLongError, ParleyError
from parley.llm.messages import Completed, Sampling, TextDelta, ToolCalled
from parley.protocol import ANY_TOOL, Tool
from parley_gateway.apis.openai import rest
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import StageRoute
from parley_gateway.tracing import caller_trace
from parley_stages import Answer, Generation

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
_STOP_S = 5.0
"""For a model that is stopped to report its usage."""


@dataclass(frozen=True)
class WantedAnswer:
    """A request in the format of the language model."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool]
    must_call: str
    """As in :class:`parley.llm.messages.GenerateRequest`."""
    json_schema: dict[str, Any] | None
    sampling: Sampling
    stops: Sequence[str]
    """The response ends before the first of these texts."""
    max_calls: int | None
    """Limit of tool calls; None: no limit."""
    drops_oldest: bool = False
    """Whether the oldest turns are left out of a conversation that is too long."""


def make_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> Tool:
    """A function of the client; without ``parameters`` it takes none."""
    schema = parameters or {"type": "object", "properties": {}}
    return Tool(name=name, description=description or "", parameters=schema)


def call_wanted(name: str | None, tools: Sequence[Tool]) -> str:
    """``must_call`` for the name that a request demands, or ``ANY_TOOL``; None: the model chooses."""
    if name is None:
        return ""
    if not any(name in (ANY_TOOL, tool.name) for tool in tools):
        raise rest.RefusedRequestError("'tool_choice' needs a tool of 'tools'", param="tool_choice")
    return name


def read_call(where: str, call_id: str, name: str, arguments: str) -> ToolCall:
    """A call in an earlier response; ``where`` names it in the error."""
    try:
        given = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise rest.RefusedRequestError(
            f"The arguments of {where} are not a JSON object: {error}", param=f"{where}.arguments"
        ) from error
    return ToolCall(id=call_id, name=name, arguments=given)


def arguments_of(call: ToolCall) -> str:
    """The arguments of a call as JSON."""
    return msgspec.json.encode(call.arguments).decode()


class StopFilter:
    """Ends a text before the first of ``stops``, and withholds what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False
        """Whether the text has reached one."""

    def feed(self, text: str) -> str:
        """Append text; returns the text that is certainly before a stop."""
        self._held += text
        ends = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            self.stopped = True
            shown, self._held = self._held[: min(ends)], ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """The withheld rest, at the end of the text."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the beginning of ``stop`` at the end of the text."""
        longest = min(len(stop) - 1, len(self._held))
        return next((size for size in range(longest, 0, -1) if self._held.endswith(stop[:size])), 0)


@dataclass(frozen=True)
class AnswerEnd:
    """The end of an answer."""

    reason: FinishReason
    usage: Completed | None
    """None: the model was stopped and did not report its usage."""


AnswerPart: TypeAlias = str | ToolCall | AnswerEnd


class AnswerRoute(StageRoute):
    """A route that continues conversations."""

    async def _answer(
        self, principal: Principal, wanted: WantedAnswer, *, named: str, model: str
    ) -> AsyncGenerator[AnswerPart, None]:
        """Text and calls, at last an end."""
        with rest.serving(named, model), self._limiter.lease(principal) as server:
            async with Generation(server, model=model, cache_salt=principal.cache_salt) as generation:
                messages = wanted.messages
                while True:
                    answer = generation.answer(
                        messages,
                        tools=wanted.tools,
                        must_call=wanted.must_call,
                        json_schema=wanted.json_schema,
                        sampling=wanted.sampling,
                        traceparent=caller_trace(),
                    )
                    try:
                        async with answer:
                            async for part in _parts(answer, wanted):
                                yield part
                    except ContextTooLongError:  # before anything was written
                        messages = _newer_half(messages) if wanted.drops_oldest else []
                        if not messages:
                            raise
                    else:
                        return


def _newer_half(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Instructions, and about half of the turns behind them; empty: a turn cannot be halved."""
    first = next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))
    turns = [at for at in range(first, len(messages)) if messages[at].role == "user"]
    newer = [at for at in turns if at > first]
    if not newer:
        return []
    return [*messages[:first], *messages[newer[len(newer) // 2] :]]


async def _parts(answer: Answer, wanted: WantedAnswer) -> AsyncGenerator[AnswerPart, None]:
    stops = StopFilter(wanted.stops)
    calls = 0
    async for event in answer:
        if isinstance(event, TextDelta):
            if shown := stops.feed(event.text):
                yield shown
            if stops.stopped:
                yield AnswerEnd("stop", await _stop(answer))
                return
        elif isinstance(event, ToolCalled):
            calls += 1
            yield event.call
            if calls == wanted.max_calls:
                yield AnswerEnd("tool_calls", await _stop(answer))
                return
        elif isinstance(event, Completed):
            if remaining := stops.finish():
                yield remaining
            # Only the client of this request can have aborted it.
            yield AnswerEnd("stop" if event.finish_reason == "abort" else event.finish_reason, event)


async def _stop(answer: Answer) -> Completed | None:
    """Stop the model, and return the usage that it reports then."""
    try:
        async with asyncio.timeout(_STOP_S):
            await answer.abort()
            async for event in answer:
                if isinstance(event, Completed):
                    return event
    except (ParleyError, TimeoutError):
        pass  # the text is complete
    return None
