"""MCP servers that the client of a session names: their tools, approvals by the client, and calls."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from parley import protocol
from parley.timeouts import cancel_all, hold_task, log_failure
from parley.tools.base import ToolOutcome
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.items import Items, StoredItem
from parley_gateway.apis.realtime.mcp_tools import McpTool, settings_of
from parley_gateway.apis.realtime.responses import Response, Responses
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit, new_id
from parley_gateway.apis.settings import RealtimeSettings

_MAX_OUTPUT_BYTES = protocol.MAX_MESSAGE_BYTES - 1_024
"""The agent's message has other fields besides the output."""
_MOST_TASKS = 64
"""Connections that are made, held or ended, and calls."""
_BATCH_S = 0.03
"""The calls of one round come at once; outputs are not given before (seconds)."""


class McpServers:
    """The servers of one session.

    Args:
        settings: which hosts may be asked.
        offer: Takes the tools that the agent has besides the client's functions.
    """

    def __init__(
        self,
        settings: RealtimeSettings,
        emit: Emit,
        items: Items,
        responses: Responses,
        offer: Callable[[list[protocol.Tool]], None],
    ) -> None:
        self._settings = settings
        self._emit = emit
        self._items = items
        self._responses = responses
        self._offer = offer
        self._connections: dict[str, tuple[McpTool, asyncio.Task[None]]] = {}
        """By label; and so are the next."""
        self._servers: dict[str, Any] = {}
        """Those that were reached; of type ``McpServer``, which is imported where it is needed."""
        self._listed: dict[str, tuple[protocol.Tool, ...]] = {}
        self._names: dict[str, McpTool] = {}
        """The server of each tool."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._approvals: dict[str, tuple[McpTool, protocol.ToolRequest]] = {}
        self._is_closed = False

    def choose(self, wanted: Sequence[McpTool]) -> None:
        """Connect with new servers, and leave those that are not wanted any more."""
        for label, (entry, task) in list(self._connections.items()):
            if entry not in wanted:
                task.cancel()
                del self._connections[label]
                self._servers.pop(label, None)
                self._listed.pop(label, None)
        for entry in wanted:
            if entry.server_label not in self._connections:
                task = self._hold(self._connect(entry), entry.server_label)
                self._connections[entry.server_label] = entry, task
        self._offer_tools()

    def check_room(self) -> None:
        """Raise ClientEventError while too many connections are made or end."""
        if len(self._tasks) >= _MOST_TASKS:
            message = "Too many connections with MCP servers are made or ended at once."
            raise ClientEventError(message, code="too_many_updates")

    async def close(self) -> None:
        """Leave all servers; their calls end without an event."""
        self._is_closed = True
        await cancel_all(self._tasks)

    def call(self, request: protocol.ToolRequest, response: Response) -> bool:
        """Call a tool, or ask whether it may be called; returns False if no server has it."""
        entry = self._names.get(request.name)
        if entry is None:
            return False
        if entry.needs_approval(request.name):
            item = response.ask_approval(request, entry.server_label)
            self._approvals[item.id] = (entry, request)
        else:
            index, item = response.call_server(request, entry.server_label)
            self._begin(entry, request, item, index)
        return True

    def answer(self, approval: client.Item) -> None:
        """Take the client's approval of a call; raises ClientEventError."""
        found = self._approvals.pop(approval.approval_request_id or "", None)
        if found is None:
            message = f"Approval request '{approval.approval_request_id}' not found."
            raise ClientEventError(message, param="item.approval_request_id")
        entry, request = found
        if not approval.approve:
            self._responses.give_output(request.call_id, '{"error": "the user does not approve this call"}')
            return
        item = StoredItem(
            {
                "id": new_id("mcp"),
                "type": "mcp_call",
                "server_label": entry.server_label,
                "name": request.name,
                "arguments": msgspec.json.encode(request.arguments).decode(),
                "approval_request_id": approval.approval_request_id,
                "output": None,
                "error": None,
            }
        )
        self._items.add(item)
        self._begin(entry, request, item, 0)

    def on_cancelled(self, event: protocol.ToolCancelled) -> None:
        """The agent does not wait for a call any more."""
        if (task := self._calls.pop(event.call_id, None)) is not None:
            task.cancel()
        for name in [name for name, (_, one) in self._approvals.items() if one.call_id == event.call_id]:
            del self._approvals[name]

    def _offer_tools(self) -> None:
        found: dict[str, protocol.Tool] = {}
        self._names.clear()
        for label, tools in self._listed.items():
            for tool in tools:
                if found.setdefault(tool.name, tool) is tool:
                    self._names[tool.name] = self._connections[label][0]
        self._offer(list(found.values()))

    async def _connect(self, entry: McpTool) -> None:
        """List the tools of a server, and stay connected."""
        head = {"id": new_id("mcpl"), "type": "mcp_list_tools"}
        item = StoredItem(head | {"server_label": entry.server_label, "tools": []})
        self._items.add(item)
        self._emit("mcp_list_tools.in_progress", item_id=item.id)
        module = await asyncio.to_thread(importlib.import_module, "parley.tools.mcp")
        server = module.McpServer(*settings_of(entry, self._settings))
        server.start()
        try:
            await server.wait_until_tried()
            if not server.tools:
                self._emit("mcp_list_tools.failed", item_id=item.id)
                self._items.finish(item)
                self._connections.pop(entry.server_label, None)  # the next update tries again
                return
            item.body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in server.tools
            ]
            self._servers[entry.server_label], self._listed[entry.server_label] = server, server.tools
            self._emit("mcp_list_tools.completed", item_id=item.id)
            self._items.finish(item)
            self._offer_tools()
            await asyncio.Event().wait()
        finally:
            await server.close()

    def _begin(self, entry: McpTool, request: protocol.ToolRequest, item: StoredItem, index: int) -> None:
        self._calls[request.call_id] = self._hold(self._run(entry, request, item, index), request.name)

    def _hold(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = hold_task(self._tasks, work, f"mcp-{name}")
        task.add_done_callback(log_failure)
        return task

    async def _run(self, entry: McpTool, request: protocol.ToolRequest, item: StoredItem, index: int) -> None:
        place = {"item_id": item.id, "output_index": index}
        outcome = ToolOutcome.failed("the call was cancelled")
        server = self._servers.get(entry.server_label)
        try:
            self._emit("response.mcp_call.in_progress", **place)
            if server is not None:  # else the client has left it meanwhile
                async with asyncio.timeout(server.timeout_s(request.name)):
                    outcome, _ = await asyncio.gather(
                        server.call(request.name, request.arguments), asyncio.sleep(_BATCH_S)
                    )
        except TimeoutError:
            outcome = ToolOutcome.failed("the tool did not answer in time")
        finally:
            self._calls.pop(request.call_id, None)
            text = _text_of(outcome)
            if len(text.encode()) > _MAX_OUTPUT_BYTES:
                outcome = ToolOutcome.failed("the output is too long")
                text = _text_of(outcome)
            failure = {"type": "tool_execution_error", "message": text} if outcome.is_error else None
            item.body |= {"output": text, "error": failure}
            if not self._is_closed:
                self._emit(f"response.mcp_call.{'failed' if failure else 'completed'}", **place)
                self._items.finish(item)
        self._responses.give_output(request.call_id, text)


def _text_of(outcome: ToolOutcome) -> str:
    output = outcome.output
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()
