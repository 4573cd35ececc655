"""Tool calls that wait for the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import msgspec

from parley.agent.config import AgentConfig
from parley.errors import ParleyError, ToolTimeoutError, UnknownToolCallError
from parley.llm.messages import ToolCall
from parley.protocol import ErrorEvent, ServerEvent, ToolRequest, ToolResponse


class ToolDesk:
    """Hands tool calls to the client and its answers back to the turn that asked.

    A call waits only as long as its turn does: a response that comes later, twice, or for a call
    that was never made is refused.

    Args:
        names: tools that the session has.
        emit: sends an event to the client.
        config: limits and deadlines.
    """

    def __init__(
        self, names: Collection[str], emit: Callable[[ServerEvent], None], config: AgentConfig
    ) -> None:
        self._names = frozenset(names)
        self._emit = emit
        self._config = config
        self._waiting: dict[str, asyncio.Future[ToolResponse]] = {}

    def resolve(self, response: ToolResponse) -> None:
        """Take the client's answer.

        Raises:
            UnknownToolCallError: no call of this id is waiting.
        """
        future = self._waiting.pop(response.call_id, None)
        if future is None or future.done():
            raise UnknownToolCallError(f"no tool call {response.call_id!r} is waiting for a response")
        future.set_result(response)

    def drop(self) -> None:
        """Stop waiting: the turn that asked is over."""
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()

    async def call(self, turn: int, call: ToolCall) -> str:
        """Run one call; returns what the language model is told, as JSON.

        Failures are told to the model too: it can apologise or try something else.
        """
        if call.name not in self._names:
            return _error_text(f"unknown tool {call.name}")
        future: asyncio.Future[ToolResponse] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = future
        limit = self._config.deadlines.tool_s
        try:
            self._emit(ToolRequest(turn=turn, call_id=call.id, name=call.name, arguments=call.arguments))
            async with asyncio.timeout(limit):
                response = await future
        except TimeoutError:
            self._report(ToolTimeoutError(f"tool {call.name} did not answer within {limit:g} s"))
            return _error_text("timeout")
        finally:
            self._waiting.pop(call.id, None)
        return self._shorten(response)

    def _report(self, error: ParleyError) -> None:
        self._emit(ErrorEvent.of(error))

    def _shorten(self, response: ToolResponse) -> str:
        if response.is_error and not _is_error_object(response.output):
            text = msgspec.json.encode({"error": response.output}).decode()
        else:
            text = msgspec.json.encode(response.output).decode()
        limit = self._config.max_tool_output
        return text if len(text) <= limit else f"{text[:limit]}… (cut after {limit} characters)"


def _is_error_object(output: object) -> bool:
    return isinstance(output, dict) and "error" in output


def _error_text(reason: str) -> str:
    return msgspec.json.encode({"error": reason}).decode()
