"""``POST /v1/responses``. Nothing is stored: a request has the whole conversation."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Literal, TypeAlias
from uuid import uuid4

import msgspec
from fastapi import Request
from msgspec import Meta
from starlette.responses import JSONResponse, Response

from parley.chat import ChatMessage, ToolCall
from parley.errors import ParleyError
from parley.llm.messages import Completed, Sampling
from parley.protocol import ANY_TOOL, Tool
from parley_gateway.apis.openai import rest
from parley_gateway.apis.openai.answers import (
    AnswerEnd,
    AnswerPart,
    AnswerRoute,
    WantedAnswer,
    arguments_of,
    call_wanted,
    make_tool,
    read_call,
)
from parley_gateway.settings_sections import StageSettings
from parley_gateway.streaming import while_connected

_MOST = 2_048
"""Items, parts and tools of a request: no context of a model has room for so many."""
_TEXTS = ("input_text", "output_text", "text", "refusal")
_NOT_STORED = "is not supported: nothing is stored here, so 'input' has the whole conversation"


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message; only text is supported."""

    type: str
    text: str = ""
    refusal: str = ""


Content: TypeAlias = str | Annotated[list[ContentPart], Meta(max_length=_MOST)]


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message, a call, or its output; fields of OpenAI's that are not here are ignored."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None


class ResponseTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the client runs."""

    type: str
    name: Annotated[str, Meta(max_length=64)] = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Ignored: arguments follow the schema wherever the model can be guided."""


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A function by its name."""

    name: str


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Those of the tools that may be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Meta(min_length=1, max_length=_MOST)]


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format of the text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    """Ignored: the schema is kept to."""


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the text."""

    format: TextFormat | None = None
    verbosity: Any = None
    """Without effect."""


class ResponseStreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream."""

    include_obfuscation: bool | None = None
    """Without effect: nothing is added."""


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation to continue."""

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=_MOST)]
    model: str
    """`qwen3`, or the name of a model of OpenAI."""
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=_MOST)] | None = None
    tool_choice: Literal["none", "auto", "required"] | AllowedTools | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """`auto`: the oldest turns are left out of a conversation that is too long."""
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    """Comes back with the response."""
    # Not supported.
    background: bool | None = None
    conversation: Any = None
    previous_response_id: str | None = None
    prompt: Any = None
    include: list[str] | None = None
    """Only `reasoning.encrypted_content`, of which there is none."""
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    # Without an effect on the response.
    context_management: Any = None
    max_tool_calls: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None


def parse_responses_request(request: ResponsesRequest, settings: StageSettings) -> WantedAnswer:
    """Translate a request, or raise rest.RefusedRequestError."""
    _check_supported(request)
    tools, demanded = _choose_tools(request)
    form = request.text.format if request.text is not None else None
    json_schema = None
    if form is not None and form.type != "text":
        json_schema = form.schema or {"type": "object"}
        if form.type == "json_schema" and form.schema is None:
            raise rest.missing("text.format.schema")
        if tools:
            raise rest.unsupported("text.format", "is not supported together with 'tools'")
    return WantedAnswer(
        messages=_messages(request),
        tools=tools,
        must_call=call_wanted(demanded, tools),
        json_schema=json_schema,
        sampling=Sampling(
            temperature=settings.temperature if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            max_tokens=request.max_output_tokens or settings.answer_tokens,
        ),
        stops=(),
        max_calls=1 if request.parallel_tool_calls is False else None,
        drops_oldest=request.truncation == "auto",
    )


def _check_supported(request: ResponsesRequest) -> None:
    if request.previous_response_id is not None:
        raise rest.unsupported("previous_response_id", _NOT_STORED)
    if request.conversation is not None:
        raise rest.unsupported("conversation", _NOT_STORED)
    if request.background:
        raise rest.unsupported("background", "is not supported: nothing is stored here")
    if request.prompt is not None:
        raise rest.unsupported("prompt", "is not supported: agents with stored prompts hold conversations")
    for wanted in request.include or ():
        if wanted != "reasoning.encrypted_content":
            raise rest.unsupported("include", f"'{wanted[:64]}' is not supported")


def _choose_tools(request: ResponsesRequest) -> tuple[list[Tool], str | None]:
    """The tools that may be called, and the one that must be; None: the model chooses."""
    tools = [_tool(index, tool) for index, tool in enumerate(request.tools or ())]
    match request.tool_choice:
        case "none":
            return [], None
        case "required":
            return tools, ANY_TOOL
        case NamedFunction(name=name):
            return tools, name
        case AllowedTools(mode=mode, tools=allowed):
            names = {one.name for one in allowed}
            if not names <= {tool.name for tool in tools}:
                raise rest.RefusedRequestError("'tool_choice' names no tool of 'tools'", param="tool_choice")
            kept = [tool for tool in tools if tool.name in names]
            return kept, ANY_TOOL if mode == "required" else None
    return tools, None


def _tool(index: int, tool: ResponseTool) -> Tool:
    if tool.type != "function":
        param = f"tools[{index}].type"
        raise rest.unsupported(
            param, f"{tool.type[:64]!r} is not supported: only functions of the client are"
        )
    if not tool.name:
        raise rest.missing(f"tools[{index}].name")
    return make_tool(tool.name, tool.description, tool.parameters)


def _messages(request: ResponsesRequest) -> list[ChatMessage]:
    messages = [ChatMessage(role="system", content=request.instructions)] if request.instructions else []
    if isinstance(request.input, str):
        return [*messages, ChatMessage(role="user", content=request.input)]
    parts = sum(len(one.content) for one in request.input if isinstance(one.content, list))
    if len(request.input) + parts + len(request.tools or ()) > _MOST:
        raise rest.RefusedRequestError(
            f"At most {_MOST} items, parts and tools are possible together", param="input"
        )
    for index, item in enumerate(request.input):
        where = f"input[{index}]"
        if item.type == "function_call":
            # Calls are part of the message before them, as the model has written it.
            if not messages or messages[-1].role != "assistant":
                messages.append(ChatMessage(role="assistant", content="", tool_calls=[]))
            messages[-1].tool_calls.append(_call(where, item))
        elif item.type != "reasoning":
            messages.append(_message(where, item))
    return messages


def _call(where: str, item: InputItem) -> ToolCall:
    if not item.call_id:
        raise rest.missing(f"{where}.call_id")
    if not item.name:
        raise rest.missing(f"{where}.name")
    return read_call(where, item.call_id, item.name, item.arguments or "")


def _message(where: str, item: InputItem) -> ChatMessage:
    match item.type:
        case "message":
            if item.role is None:
                raise rest.missing(f"{where}.role")
            role = "system" if item.role == "developer" else item.role
            return ChatMessage(role=role, content=_text(f"{where}.content", item.content), tool_calls=[])
        case "function_call_output":
            if not item.call_id:
                raise rest.missing(f"{where}.call_id")
            text = _text(f"{where}.output", item.output)
            return ChatMessage(role="tool", content=text, tool_call_id=item.call_id)
        case "item_reference":
            raise rest.unsupported(f"{where}.type", _NOT_STORED)
    raise rest.unsupported(f"{where}.type", f"{item.type[:64]!r} is not supported")


def _text(where: str, content: Content | None) -> str:
    if content is None:
        raise rest.missing(where)
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type not in _TEXTS:
            raise rest.unsupported(f"{where}[{index}].type", f"{part.type[:64]!r} is not supported")
    return "".join(part.text or part.refusal for part in content)


class _ResponseWriter:
    """Builds a response, and the events that tell a client of its growth."""

    def __init__(self, request: ResponsesRequest, wanted: WantedAnswer, model: str) -> None:
        self._events = 0
        self._output: list[dict[str, Any]] = []
        self._text: list[str] | None = None
        """Of the message that is being written; None: there is none."""
        form = request.text.format if request.text and request.text.format else TextFormat()
        self.body: dict[str, Any] = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": model,
            "output": self._output,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": wanted.sampling.temperature,
            "text": {"format": {name: value for name, value in _plain(form).items() if value is not None}},
            "tool_choice": _plain(request.tool_choice or "auto"),
            "tools": _plain(request.tools or []),
            "top_logprobs": 0,
            "top_p": wanted.sampling.top_p,
            "truncation": request.truncation or "disabled",
            "usage": None,
        }

    def add(self, part: AnswerPart) -> Iterator[dict[str, Any]]:
        """Events for the next part of the answer."""
        if not self._events:
            yield self._event("response.created", response=self.body)
            yield self._event("response.in_progress", response=self.body)
        if isinstance(part, str):
            yield from self._add_text(part)
            return
        if isinstance(part, ToolCall):
            yield from self._finish_text("completed")
            yield from self._add_call(part)
        else:
            yield from self._finish_text("incomplete" if part.reason == "length" else "completed")
            yield self._finish(part)

    def fail(self, error: ParleyError) -> dict[str, Any]:
        """The last event of a response that has failed."""
        code = rest.body_of(error)["error"]["code"]
        self.body |= {"status": "failed", "error": {"code": code, "message": str(error) or code}}
        return self._event("response.failed", response=self.body)

    def _event(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        return event

    def _add_text(self, text: str) -> Iterator[dict[str, Any]]:
        if self._text is None:
            self._text = []
            item = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant"}
            self._output.append({**item, "status": "in_progress", "content": []})
            yield self._event("response.output_item.added", **self._at(), item=self._output[-1])
            yield self._event("response.content_part.added", **self._in(), part=_text_part(""))
        self._text.append(text)
        yield self._event("response.output_text.delta", **self._in(), delta=text, logprobs=[])

    def _finish_text(self, status: str) -> Iterator[dict[str, Any]]:
        if self._text is None:
            return
        text, self._text = "".join(self._text), None
        item = self._output[-1]
        item["content"].append(_text_part(text))
        item["status"] = status
        yield self._event("response.output_text.done", **self._in(), text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._in(), part=item["content"][0])
        yield self._event("response.output_item.done", **self._at(), item=item)

    def _add_call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        arguments = arguments_of(call)
        item = {"id": f"fc_{uuid4().hex}", "type": "function_call", "call_id": call.id, "name": call.name}
        self._output.append({**item, "status": "in_progress", "arguments": ""})
        yield self._event("response.output_item.added", **self._at(), item=self._output[-1])
        self._output[-1] |= {"status": "completed", "arguments": arguments}
        at = self._at() | {"item_id": item["id"]}
        yield self._event("response.function_call_arguments.delta", **at, delta=arguments)
        name = {"name": call.name, "arguments": arguments}
        yield self._event("response.function_call_arguments.done", **at, **name)
        yield self._event("response.output_item.done", **self._at(), item=self._output[-1])

    def _finish(self, end: AnswerEnd) -> dict[str, Any]:
        self.body["usage"] = _usage(end.usage)
        if end.reason == "length":
            self.body |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
            return self._event("response.incomplete", response=self.body)
        self.body |= {"status": "completed", "completed_at": int(time.time())}
        return self._event("response.completed", response=self.body)

    def _at(self) -> dict[str, Any]:
        return {"output_index": len(self._output) - 1}

    def _in(self) -> dict[str, Any]:
        return {**self._at(), "item_id": self._output[-1]["id"], "content_index": 0}


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(event: Completed | None) -> dict[str, Any] | None:
    if event is None:
        return None
    return {
        "input_tokens": event.prompt_tokens,
        "input_tokens_details": {"cached_tokens": event.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": event.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": event.prompt_tokens + event.completion_tokens,
    }


class ResponsesRoute(AnswerRoute):
    """Continues conversations, in the format of Responses."""

    async def create(self, request: Request) -> Response:
        """Generate the next message of a conversation, as a whole or as a stream."""
        principal = await self._gateway.guard.admit(request, "chat")
        given = await rest.read_json(request, ResponsesRequest)
        model = rest.choose_model(given.model, rest.LANGUAGE_MODELS, rest.LANGUAGE_MODELS[0])
        wanted = parse_responses_request(given, self._settings)
        parts = self._answer(principal, wanted, named=given.model, model=model)
        writer = _ResponseWriter(given, wanted, model)
        if not given.stream:
            return JSONResponse(await while_connected(request, _whole(writer, parts)))
        events = rest.with_failures(_events(writer, parts), lambda error: _encode(writer.fail(error)))
        return await self._stream_response(request, events, media_type=rest.MEDIA_TYPE)


async def _whole(writer: _ResponseWriter, parts: AsyncGenerator[AnswerPart, None]) -> dict[str, Any]:
    async with aclosing(parts):
        async for part in parts:
            for _ in writer.add(part):
                pass
    return writer.body


async def _events(
    writer: _ResponseWriter, parts: AsyncGenerator[AnswerPart, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        async for part in parts:
            for event in writer.add(part):
                yield _encode(event)


def _encode(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\n".encode() + rest.event(event)
