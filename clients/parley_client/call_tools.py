"""The tools that run for one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.errors import ParleyError
from parley.protocol import ToolCancelled, ToolRequest, ToolResponse
from parley_client.tools import CANCEL_GRACE_S, ToolTable

_MAX_RUNNING = 64


class CallTools:
    """Runs what the agent asks for, answers for it, and stops what nobody waits for any more.

    Args:
        call_id: Names the tasks.
        table: The functions.
        respond: Sends an answer.
        failed: Told of an answer that could not be sent.
    """

    def __init__(
        self,
        call_id: str,
        table: ToolTable,
        respond: Callable[[ToolResponse], None],
        failed: Callable[[ToolRequest, ParleyError], None],
    ) -> None:
        self._call_id = call_id
        self._table = table
        self._respond = respond
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[str, asyncio.Task[None]] = {}
        """Those that somebody waits for, by the id of the call."""

    def note(self, event: ToolRequest | ToolCancelled) -> None:
        """Begin a tool, or stop one; never waits. A request repeated while it runs changes nothing."""
        if isinstance(event, ToolCancelled):
            task = self._asked.pop(event.call_id, None)
            if task is not None:
                task.cancel()
        elif event.call_id not in self._asked:
            self._begin(event)

    def _begin(self, request: ToolRequest) -> None:
        if len(self._tasks) >= _MAX_RUNNING:
            busy = {"error": "too many tools are running"}
            self._send(request, ToolResponse(call_id=request.call_id, output=busy, is_error=True))
            return
        name = f"call-{self._call_id}-{request.call_id}"
        task = asyncio.get_running_loop().create_task(self._answer(request), name=name)
        self._asked[request.call_id] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: ToolRequest) -> None:
        response = await self._table.answer(request)
        if self._asked.pop(request.call_id, None) is not None:
            self._send(request, response)

    def _send(self, request: ToolRequest, response: ToolResponse) -> None:
        try:
            self._respond(response)
        except ParleyError as error:
            self._failed(request, error)

    async def close(self) -> None:
        """Stop all; a tool that does not let itself be stopped is left to its own."""
        self._asked.clear()
        for task in self._tasks:
            if not task.cancelling():
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * CANCEL_GRACE_S)
