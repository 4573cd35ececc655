"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal, TypeAlias
from uuid import uuid4

import msgspec
from fastapi import Request
from msgspec import Meta
from starlette.responses import JSONResponse, Response

from parley.chat import ChatMessage, ToolCall
from parley.llm.messages import Completed, Sampling
from parley.protocol import ANY_TOOL
from parley_gateway.apis.openai import rest
from parley_gateway.apis.openai.answers import (
    AnswerEnd,
    AnswerPart,
    AnswerRoute,
    FinishReason,
    WantedAnswer,
    arguments_of,
    call_wanted,
    make_tool,
    read_call,
)
from parley_gateway.settings_sections import StageSettings
from parley_gateway.streaming import while_connected

Tokens: TypeAlias = Annotated[int, Meta(ge=1)]
Stop: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_000)]
_MOST = 2_048
"""Messages, parts, calls and tools of a request, together: no context of a model has room for so many."""


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the model."""

    name: str
    arguments: str
    """JSON of an object."""


class MessageToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in an earlier response."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the conversation; OpenAI's other fields are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Meta(max_length=_MOST)] | None = None
    """Text, or parts that are text."""
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=_MOST)] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """Ignored: arguments follow the schema wherever the model can be guided."""


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call."""

    function: FunctionDefinition
    type: Literal["function"]


class NamedFunction(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    """The tool that must be called."""

    function: NamedFunction
    type: Literal["function"]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of a response that is JSON."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    """Ignored: the schema is kept to."""


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format of the response."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def read(self) -> dict[str, Any] | None:
        """The JSON schema; None: the response is text."""
        if self.type == "json_schema" and self.json_schema is None:
            raise rest.missing("response_format.json_schema")
        if self.type == "text":
            return None
        return (self.json_schema and self.json_schema.schema) or {"type": "object"}


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation to continue."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=_MOST)]
    model: str
    """`qwen3`, or the name of a model of OpenAI."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=_MOST)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    seed: Annotated[int, Meta(ge=0)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=4)] | None = None
    # Only the default values are supported.
    n: int | None = None
    """Only 1 is supported."""
    frequency_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=0)] | None = None
    logprobs: bool | None = None
    """Not supported."""
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Of vLLM; only `{"enable_thinking": false}`, as answers are spoken."""
    response_format: ResponseFormat | None = None
    # Without an effect on the response.
    metadata: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None
    verbosity: Any = None


def parse_chat_request(request: ChatRequest, settings: StageSettings) -> WantedAnswer:
    """Translate a request, or raise rest.RefusedRequestError."""
    if request.logprobs:
        raise rest.unsupported("logprobs")
    if request.chat_template_kwargs not in (None, {}, {"enable_thinking": False}):
        raise rest.unsupported("chat_template_kwargs", 'has to be {"enable_thinking": false}')
    _check_count(request)
    if request.n not in (None, 1):
        raise rest.unsupported("n", "is not supported: a request has one response; leave it at 1")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    wanted = [] if request.tool_choice == "none" else [tool.function for tool in request.tools or []]
    tools = [make_tool(one.name, one.description, one.parameters) for one in wanted]
    json_schema = request.response_format.read() if request.response_format is not None else None
    if json_schema is not None and tools:
        raise rest.unsupported("response_format", "is not supported together with 'tools'")
    limits = [tokens for tokens in (request.max_completion_tokens, request.max_tokens) if tokens is not None]
    return WantedAnswer(
        messages=[_message(index, message) for index, message in enumerate(request.messages)],
        tools=tools,
        must_call=call_wanted(_demanded(request.tool_choice), tools),
        json_schema=json_schema,
        sampling=Sampling(
            temperature=settings.temperature if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            max_tokens=min(limits, default=settings.answer_tokens),
            seed=request.seed,
        ),
        stops=stops,
        max_calls=1 if request.parallel_tool_calls is False else None,
    )


def _check_count(request: ChatRequest) -> None:
    parts = sum(
        len(message.tool_calls or ()) + (len(message.content) if isinstance(message.content, list) else 1)
        for message in request.messages
    )
    if parts + len(request.tools or ()) > _MOST:
        raise rest.RefusedRequestError(
            f"At most {_MOST} messages, parts, calls and tools are possible together", param="messages"
        )


def _demanded(choice: str | NamedTool | None) -> str | None:
    if isinstance(choice, NamedTool):
        return choice.function.name
    return ANY_TOOL if choice == "required" else None


def _message(index: int, message: Message) -> ChatMessage:
    where = f"messages[{index}]"
    content = message.content or ""
    if not isinstance(content, str):
        content = "".join(part.text for part in content)
    if message.role == "tool" and not message.tool_call_id:
        raise rest.missing(f"{where}.tool_call_id")
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content=content,
        tool_calls=[
            read_call(
                f"{where}.tool_calls[{number}].function", call.id, call.function.name, call.function.arguments
            )
            for number, call in enumerate(message.tool_calls or [])
        ],
        tool_call_id=message.tool_call_id or "",
    )


class ChatRoute(AnswerRoute):
    """Continues conversations."""

    async def create(self, request: Request) -> Response:
        """Generate the next message of a conversation, as a whole or as a stream."""
        principal = await self._gateway.guard.admit(request, "chat")
        wanted = await rest.read_json(request, ChatRequest)
        model = rest.choose_model(wanted.model, rest.LANGUAGE_MODELS, rest.LANGUAGE_MODELS[0])
        parsed = parse_chat_request(wanted, self._settings)
        parts = self._answer(principal, parsed, named=wanted.model, model=model)
        head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": model}
        if not wanted.stream:
            return JSONResponse(await while_connected(request, _whole(head, parts)))
        counted = wanted.stream_options is not None and bool(wanted.stream_options.include_usage)
        return await self._stream_response(
            request,
            rest.with_failures(_chunks(head, parts, counted=counted)),
            media_type=rest.MEDIA_TYPE,
        )


def _usage(event: Completed | None) -> dict[str, Any] | None:
    if event is None:
        return None
    return {
        "prompt_tokens": event.prompt_tokens,
        "completion_tokens": event.completion_tokens,
        "total_tokens": event.prompt_tokens + event.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": event.cached_tokens},
    }


def _tool_call_body(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments_of(call)}
    return {"id": call.id, "type": "function", "function": function}


async def _whole(head: dict[str, Any], parts: AsyncGenerator[AnswerPart, None]) -> dict[str, Any]:
    text: list[str] = []
    calls: list[dict[str, Any]] = []
    end = AnswerEnd("stop", None)
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, str):
                text.append(part)
            elif isinstance(part, ToolCall):
                calls.append(_tool_call_body(part))
            else:
                end = part
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text) or None, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.reason}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(end.usage)}


async def _chunks(
    head: dict[str, Any], parts: AsyncGenerator[AnswerPart, None], *, counted: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events with the fields ``head``; ``counted``: with the usage in a last chunk."""

    def chunk(delta: dict[str, Any], finish_reason: FinishReason | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if counted else {}
        return rest.event({**head, "object": "chat.completion.chunk", "choices": [choice], **usage})

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
                yield chunk({"tool_calls": [{"index": calls, **_tool_call_body(part)}]})
                calls += 1
            else:
                usage = _usage(part.usage)
                yield chunk({}, part.reason)
    if counted:
        yield rest.event({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    yield rest.DONE
