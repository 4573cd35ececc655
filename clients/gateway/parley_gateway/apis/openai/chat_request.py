"""The form of a request for an answer, and what it means to the language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from parley.llm.messages import ChatMessage, Sampling, ToolCall
from parley.protocol import Tool
from parley_gateway.apis.openai.errors import RefusedRequestError, unsupported
from parley_gateway.stage_settings import StageSettings

Tokens: TypeAlias = Annotated[int, Meta(ge=1)]
Stop: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_000)]


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as the model made it."""

    name: str
    arguments: str
    """JSON of an object."""


class MessageToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that an earlier answer made."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the conversation; other fields of OpenAI's are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    """Text, or parts that are text."""
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """Ignored: arguments keep to the schema wherever the model can be made to."""


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call."""

    function: FunctionDefinition
    type: Literal["function"]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream tells besides."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Of the answer."""

    type: Literal["text"]


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation that is to be continued."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str
    """`qwen3`, or the name of a model of OpenAI's for it."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    """A call cannot be forced."""
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    seed: Annotated[int, Meta(ge=0)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=4)] | None = None
    # Only what they are without being given.
    n: int | None = None
    """Only 1 is supported."""
    frequency_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=0)] | None = None
    logprobs: bool | None = None
    """Not supported."""
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    modalities: list[Literal["text"]] | None = None
    response_format: ResponseFormat | None = None
    # Without an effect on what is answered.
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


@dataclass(frozen=True)
class ParsedChatRequest:
    """A request, as the language model takes it."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool]
    sampling: Sampling
    stops: Sequence[str]
    """Texts before which the answer ends."""
    most_calls: int | None
    """Of tools; None: any number."""


def parse_chat_request(request: ChatRequest, settings: StageSettings) -> ParsedChatRequest:
    """What a request means.

    Raises:
        RefusedRequestError: it cannot be fulfilled.
    """
    if request.logprobs:
        raise unsupported("logprobs")
    if request.n not in (None, 1):
        raise unsupported("n", "is not supported: a request has one answer; leave it at 1")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    tools = [] if request.tool_choice == "none" else request.tools or []
    limits = [tokens for tokens in (request.max_completion_tokens, request.max_tokens) if tokens is not None]
    return ParsedChatRequest(
        messages=[_message(index, message) for index, message in enumerate(request.messages)],
        tools=[_tool(tool.function) for tool in tools],
        sampling=Sampling(
            temperature=settings.temperature if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            max_tokens=min(limits, default=settings.answer_tokens),
            seed=request.seed,
        ),
        stops=stops,
        most_calls=1 if request.parallel_tool_calls is False else None,
    )


def _tool(function: FunctionDefinition) -> Tool:
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {"type": "object", "properties": {}},
    )


def _message(index: int, message: Message) -> ChatMessage:
    where = f"messages[{index}]"
    content = message.content or ""
    if not isinstance(content, str):
        content = "".join(part.text for part in content)
    if message.role == "tool" and not message.tool_call_id:
        raise RefusedRequestError(
            f"Missing required parameter: '{where}.tool_call_id'.",
            param=f"{where}.tool_call_id",
            reason="missing_required_parameter",
        )
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content=content,
        tool_calls=[
            _call(f"{where}.tool_calls[{number}]", call)
            for number, call in enumerate(message.tool_calls or [])
        ],
        tool_call_id=message.tool_call_id or "",
    )


def _call(where: str, call: MessageToolCall) -> ToolCall:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RefusedRequestError(
            f"The arguments of {where} are no JSON object: {error}", param=f"{where}.function.arguments"
        ) from error
    return ToolCall(id=call.id, name=call.function.name, arguments=arguments)


class StopFilter:
    """Lets through what certainly does not belong to a stop.

    Args:
        stops: the text ends before the first of them.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False
        """One of them was written."""

    def feed(self, text: str) -> str:
        """What may be shown now that ``text`` has followed."""
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
        """The rest: it was the beginning of a stop that did not come."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """How much of the text's end is a beginning of ``stop``."""
        longest = min(len(stop) - 1, len(self._held))
        return next((size for size in range(longest, 0, -1) if self._held.endswith(stop[:size])), 0)
