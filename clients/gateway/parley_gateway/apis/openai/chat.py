"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import msgspec
from fastapi import Request
from starlette.responses import JSONResponse, Response

from parley.llm.messages import Completed, TextDelta, ToolCall, ToolCalled
from parley_client.stages import Generation
from parley_gateway.apis.openai import events
from parley_gateway.apis.openai.bodies import read_json
from parley_gateway.apis.openai.chat_request import (
    ChatRequest,
    ParsedChatRequest,
    StopFilter,
    parse_chat_request,
)
from parley_gateway.apis.openai.names import LANGUAGE_MODELS, choose_model
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import stream, while_connected

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class _End:
    """Nothing follows."""

    reason: FinishReason
    usage: dict[str, Any] | None
    """None where the model was stopped before it could count."""


_Part: TypeAlias = str | ToolCall | _End


class ChatRoute:
    """Continues conversations."""

    def __init__(self, gateway: Gateway, desk: ModelLimiter) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.stages
        self._desk = desk

    async def create(self, request: Request) -> Response:
        """Write the next message of a conversation, at once or while it is being written."""
        principal = await self._gateway.guard.admit(request, "chat")
        wanted = await read_json(request, ChatRequest)
        model = choose_model(wanted.model, LANGUAGE_MODELS, LANGUAGE_MODELS[0])
        parts = self._answer(principal, parse_chat_request(wanted, self._settings), model)
        head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": model}
        if not wanted.stream:
            return JSONResponse(await while_connected(request, _whole(head, parts)))
        counted = wanted.stream_options is not None and bool(wanted.stream_options.include_usage)
        return await stream(
            request,
            events.with_failures(_chunks(head, parts, counted=counted)),
            media_type=events.MEDIA_TYPE,
            stall_s=self._settings.stall_s,
        )

    async def _answer(
        self, principal: Principal, wish: ParsedChatRequest, model: str
    ) -> AsyncGenerator[_Part, None]:
        """Text and calls, at last an end."""
        stops = StopFilter(wish.stops)
        calls = 0
        with self._desk.lease(principal) as server:
            async with Generation(server, model=model) as generation:
                answer = generation.answer(wish.messages, tools=wish.tools, sampling=wish.sampling)
                async with answer:
                    async for event in answer:
                        if isinstance(event, TextDelta):
                            if shown := stops.feed(event.text):
                                yield shown
                            if stops.stopped:
                                yield _End("stop", None)
                                return
                        elif isinstance(event, ToolCalled):
                            calls += 1
                            yield event.call
                            if calls == wish.most_calls:
                                yield _End("tool_calls", None)
                                return
                        else:
                            if rest := stops.finish():
                                yield rest
                            yield _end_of(event)


def _end_of(event: Completed) -> _End:
    usage = {
        "prompt_tokens": event.prompt_tokens,
        "completion_tokens": event.completion_tokens,
        "total_tokens": event.prompt_tokens + event.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": event.cached_tokens},
    }
    # Only this request's own client could have aborted it.
    return _End("stop" if event.finish_reason == "abort" else event.finish_reason, usage)


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = msgspec.json.encode(call.arguments).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


async def _whole(head: dict[str, Any], parts: AsyncGenerator[_Part, None]) -> dict[str, Any]:
    text: list[str] = []
    calls: list[dict[str, Any]] = []
    end = _End("stop", None)
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, str):
                text.append(part)
            elif isinstance(part, ToolCall):
                calls.append(_call(part))
            else:
                end = part
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text) or None, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.reason}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": end.usage}


async def _chunks(
    head: dict[str, Any], parts: AsyncGenerator[_Part, None], *, counted: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events.

    Args:
        head: what all chunks have in common.
        parts: of the answer.
        counted: whether one more chunk tells how many tokens there were.
    """

    def chunk(delta: dict[str, Any], finish_reason: FinishReason | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return events.event(
            {
                **head,
                "object": "chat.completion.chunk",
                "choices": [choice],
                **({"usage": None} if counted else {}),
            }
        )

    calls = 0
    usage = None
    begun = False
    async with aclosing(parts):
        async for part in parts:
            if not begun:
                begun = True
                yield chunk({"role": "assistant", "content": "", "refusal": None})
            if isinstance(part, str):
                yield chunk({"content": part})
            elif isinstance(part, ToolCall):
                yield chunk({"tool_calls": [{"index": calls, **_call(part)}]})
                calls += 1
            else:
                usage = part.usage
                yield chunk({}, part.reason)
    if counted:
        yield events.event({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    yield events.DONE
