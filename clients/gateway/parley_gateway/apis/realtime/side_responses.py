"""Responses outside the conversation: texts of the language model alone, beside the agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec

from parley.chat import ChatMessage, ToolCall
from parley.errors import ParleyError
from parley.llm.messages import Completed, LlmEvent, TextDelta, ToolCalled
from parley.protocol import ErrorEvent, Tool, ToolRequest, TurnMetrics
from parley.timeouts import cancel_all
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.items import Items
from parley_gateway.apis.realtime.output_audio import AudioOutput
from parley_gateway.apis.realtime.responses import Response, ResponseState, ResponseStyle
from parley_gateway.apis.realtime.server_events import (
    ClientEventError,
    Emit,
    new_id,
    unsupported,
    usage_of,
)
from parley_gateway.apis.realtime.session_config import SessionConfig, read_tool_choice, read_tools

_log = logging.getLogger("parley.gateway")
_MAX_RUNNING = 4
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class SideRequest:
    """What the language model is asked for."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool]
    must_call: str
    max_tokens: int | None
    """None: the gateway's default."""


class SideResponses:
    """Runs at most 4 responses of one session. ``write`` asks the language model."""

    def __init__(
        self,
        config: SessionConfig,
        emit: Emit,
        items: Items,
        write: Callable[[SideRequest], AsyncGenerator[LlmEvent, None]],
    ) -> None:
        self._config = config
        self._emit = emit
        self._items = items
        self._write = write
        self._running: dict[str, tuple[Response, asyncio.Task[None]]] = {}

    def create(self, options: client.ResponseOptions) -> None:
        """Begin a response, or raise ClientEventError."""
        if len(self._running) >= _MAX_RUNNING:
            message = f"At most {_MAX_RUNNING} responses outside the conversation are possible at once."
            raise ClientEventError(message, code="too_many_responses")
        request = self._read(options)
        style = ResponseStyle(
            writes_only=True,
            conversation_id=None,
            output={},
            max_output_tokens=request.max_tokens or "inf",
            metadata=options.metadata,
        )
        response = self._make(style)
        response.create()
        task = asyncio.create_task(self._run(response, request), name=response.id)
        self._running[response.id] = response, task

    def _make(self, style: ResponseStyle) -> Response:
        # Its items are not the conversation's: they cause no events of items.
        return Response(self._emit, Items(_ignore), AudioOutput(), style)

    def state(self) -> list[ResponseState]:
        """What outlives the connection."""
        return [response.state() for response, _ in self._running.values()]

    def end(self, responses: list[ResponseState]) -> None:
        """End the responses of another connection."""
        for state in responses:
            response = self._make(state.style)
            response.restore(state)
            response.finish("cancelled", reason=None, usage=None)

    def cancel(self, response_id: str | None) -> bool:
        """Cancel a response; returns False if it is none of these."""
        response, task = self._running.pop(response_id or "", (None, None))
        if response is None or task is None:
            return False
        task.cancel()
        response.finish("cancelled", reason="client_cancelled", usage=None)
        return True

    async def close(self) -> None:
        """End all responses, without an event."""
        await cancel_all(task for _, task in self._running.values())

    async def _run(self, response: Response, request: SideRequest) -> None:
        completed: Completed | None = None
        try:
            async with aclosing(self._write(request)) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        response.write(event.text)
                    elif isinstance(event, ToolCalled):
                        name, arguments = event.call.name, event.call.arguments
                        call_id = new_id("call")
                        response.call(ToolRequest(turn=0, call_id=call_id, name=name, arguments=arguments))
                    elif isinstance(event, Completed):
                        completed = event
        except ParleyError as error:
            response.failure = ErrorEvent.of(error)
        except Exception:  # noqa: BLE001 - logged and reported; the session goes on
            _log.exception("a response outside the conversation failed")
            response.failure = ErrorEvent.of(ParleyError("the response failed unexpectedly"))
        self._running.pop(response.id, None)
        if completed is None:
            response.finish("failed", reason=None, usage=None)
            return
        usage = usage_of(
            TurnMetrics(
                turn=0,
                prompt_tokens=completed.prompt_tokens,
                cached_tokens=completed.cached_tokens,
                completion_tokens=completed.completion_tokens,
            )
        )
        if completed.finish_reason == "length":
            response.finish("incomplete", reason="max_output_tokens", usage=usage)
        else:
            response.finish("completed", reason=None, usage=usage)

    def _read(self, options: client.ResponseOptions) -> SideRequest:
        session = self._config.body
        if (options.output_modalities or session["output_modalities"]) != ["text"]:
            raise unsupported("Speech outside the conversation is", "response.output_modalities")
        if options.prompt is not None:
            raise unsupported("'prompt' of a single response is", "response.prompt")
        choice = session["tool_choice"] if options.tool_choice is None else options.tool_choice
        must_call = read_tool_choice(choice, "response.tool_choice")
        tools = read_tools(session["tools"] if options.tools is None else options.tools, "response.tools")
        given = options.max_output_tokens
        limit = session["max_output_tokens"] if given is None else given
        if limit != "inf" and (not isinstance(limit, int) or limit < 1):
            path = "response.max_output_tokens"
            raise ClientEventError(f"Invalid value for '{path}': {limit!r}.", param=path)
        instructions = session["instructions"] if options.instructions is None else options.instructions
        opening = [ChatMessage(role="system", content=instructions)] if instructions else []
        return SideRequest(
            messages=[*opening, *self._messages(options.input)],
            tools=[] if choice == "none" else tools,
            must_call=must_call,
            max_tokens=limit if isinstance(limit, int) else None,
        )

    def _messages(self, given: list[Any] | None) -> list[ChatMessage]:
        """The messages of items; None: of the conversation's."""
        if given is None:
            return [message for body in self._items.bodies for message in _read_item(body, "item")]
        found: list[ChatMessage] = []
        referenced: set[str] = set()
        for index, item in enumerate(given):
            path = f"response.input[{index}]"
            if isinstance(item, dict) and item.get("type") == "item_reference":
                stored = self._items.find(str(item.get("id")), "reference")
                if stored.id in referenced:  # a short event would become a prompt of gigabytes
                    raise ClientEventError(f"{stored.id!r} is referenced twice.", param=path)
                referenced.add(stored.id)
                found += _read_item(stored.body, path)
            else:
                found += _read_item(item, path)
        return found


def _ignore(kind: str, /, **fields: Any) -> None:
    """Send no event."""


def _read_item(body: Any, path: str) -> list[ChatMessage]:
    """The message of an item; none if it has no text. Raises ClientEventError."""
    try:
        item = msgspec.convert(body, client.Item)
    except msgspec.ValidationError as error:
        raise client.refusal_of_field(error, client.Item, path) from error
    match item.type:
        case "message":
            return _read_message(item, path)
        case "function_call":
            try:
                arguments = msgspec.json.decode(item.arguments or "{}", type=dict[str, Any])
            except (msgspec.MsgspecError, RecursionError) as error:
                message = f"Invalid value for '{path}.arguments': it is no JSON object."
                raise ClientEventError(message, param=f"{path}.arguments") from error
            call = ToolCall(id=item.call_id or "", name=item.name or "", arguments=arguments)
            return [ChatMessage(role="assistant", tool_calls=[call])]
        case "function_call_output":
            return [ChatMessage(role="tool", content=item.output or "", tool_call_id=item.call_id or "")]
    raise unsupported(f"Items of type {item.type!r} are", f"{path}.type")


def _read_message(item: client.Item, path: str) -> list[ChatMessage]:
    if item.role not in _ROLES:
        raise ClientEventError(f"Invalid value for '{path}.role': {item.role!r}.", param=f"{path}.role")
    texts = []
    for index, part in enumerate(item.content or ()):
        if part.type == "input_image" or (part.type == "input_audio" and part.audio is not None):
            raise unsupported(f"Content of type {part.type!r} is", f"{path}.content[{index}].type")
        texts.append(part.text or part.transcript or "")
    role = cast('Literal["system", "user", "assistant"]', item.role)
    text = "\n".join(filter(None, texts))
    return [ChatMessage(role=role, content=text)] if text.strip() else []
