"""Tool calls of one session: checked, run by the client or the server, and always answered."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.memory import NO_RESULT, cut_after
from parley.chat import ToolCall
from parley.checkpoint import SessionState
from parley.errors import InvalidToolCallError, ParleyError, ToolTimeoutError, UnknownToolCallError
from parley.protocol import ErrorEvent, ServerEvent, Tool, ToolCancelled, ToolRequest, ToolResponse, ToolRun
from parley.timeouts import loop_time
from parley.tools.base import ServerTools, ToolOutcome
from parley.tools.schema import argument_schema

DropReason: TypeAlias = Literal["interrupted", "timeout", "closed"]

# Calls that are over, for a response that comes later.
_MAX_ENDED = 256
_CALL_ID = re.compile(r"call-([0-9]{1,9})-[0-9]{1,9}(?:-[0-9a-f]{16})?")
"""Of :func:`make_call_id`, now or in an older version; the group is the turn."""
# What became of a call, for log and error.
_ANSWERED = "has been answered"
_RUN_BY_SERVER = "was run by the server"
_CANCELLED = "was cancelled"
_TIMED_OUT = "took too long"
_ENDED_ELSEWHERE = "ended at another server"
# The client may have sent a response before ToolCancelled reached it.
_MAY_CROSS = frozenset((_CANCELLED, _TIMED_OUT, _ENDED_ELSEWHERE))
_log = logging.getLogger(__name__)


def make_call_id(turn: int, number: int) -> str:
    """The id of a call, unique among all sessions; ``number`` counts the calls of the turn."""
    return f"call-{turn}-{number}-{secrets.token_hex(8)}"


@dataclass
class _Running:
    """A call without a result."""

    turn: int
    call: ToolCall
    work: asyncio.Future[ToolOutcome]
    """The client's response, or the task that runs a tool of the server."""
    limit_s: float
    on_server: bool
    started: float
    dropped: bool = False
    """Whether its result is no longer awaited."""


class ToolExecutor:
    """Runs tools, at the client or on the server, and returns their results to the turn.

    A call waits only as long as its turn does. A call that its turn no longer waits for is cancelled, at the
    client too; a response that the client had sent by then is dropped. One that comes twice, or for a call
    that was never made, is refused. A failure is a result too, so that the language model can apologise or
    try something else.

    Args:
        tools: the client's, with schemas that :func:`parley.tools.schema.argument_schema` accepts.
        emit: sends an event to the client.
        config: limits and deadlines.
        server_tools: the server's own; the session has those that are available when it begins.
        built_in: those that the session's options ask for. They act only on the session itself: after a move
            a call without a result is run again.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        emit: Callable[[ServerEvent], None],
        config: AgentConfig,
        server_tools: ServerTools | None = None,
        built_in: ServerTools | None = None,
    ) -> None:
        self._built_in = built_in.names if built_in else ()
        own = [(tool, one) for one in (built_in, server_tools) if one is not None for tool in one.tools]
        self.own_tools = tuple(tool for tool, _ in own)
        """Those that are run here, and not by the client."""
        self._own = {tool.name: one for tool, one in own}
        self._own_schemas = {tool.name: argument_schema(tool.parameters) for tool in self.own_tools}
        self.change(tools)
        self._emit = emit
        self._config = config
        self._running: dict[str, _Running] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._results: dict[str, str] = {}  # of the client's tools, until the turn takes them
        self._refused_in = 0
        self._over = 0
        self._restored_turns = 0
        self._closed = False

    def change(self, tools: Sequence[Tool]) -> None:
        """Use other tools of the client from now on; running calls go on."""
        self._schemas = {tool.name: argument_schema(tool.parameters) for tool in tools} | self._own_schemas

    def resolve(self, response: ToolResponse) -> None:
        """Set the client's response as the result of its call.

        A response to a call that was cancelled is dropped: it may have been sent before the client had
        ToolCancelled.

        Raises:
            UnknownToolCallError: the call awaits no response; the message has the reason.
        """
        call_id = response.call_id
        running = self._running.get(call_id)
        if running is None or running.on_server:
            why = "is run by the server" if running else self._why_ended(call_id)
            if why not in _MAY_CROSS:
                raise UnknownToolCallError(
                    f"tool call {call_id[:80]!r} {why}: no response to it is waited for"
                )
            _log.debug("a response to tool call %s is dropped: the call %s", call_id, why)
            return
        outcome = ToolOutcome(response.output, response.is_error)
        running.work.set_result(outcome)
        self._forget(running, _ANSWERED)
        self._results[call_id] = self._write(outcome)

    def _why_ended(self, call_id: str) -> str:
        why = self._ended.get(call_id)
        if why is None:
            made = _CALL_ID.fullmatch(call_id)
            is_earlier = made is not None and 1 <= int(made[1]) <= self._restored_turns
            why = _ENDED_ELSEWHERE if is_earlier else "was never made"
        return why

    def result_of(self, call_id: str) -> str | None:
        """The result of a call that its turn has not taken yet; None: there is none."""
        return self._results.get(call_id)

    def restore(self, state: SessionState) -> None:
        """Go on with the calls of a session of another server.

        The client still runs those of its tools that have no result: they get no other request. What happened
        to a call of a server's tool without a result is unknown: it counts as run, and is not run again. The
        state does not contain which of the calls that are over were cancelled.
        """
        agent = state.agent
        self._restored_turns = state.turns if agent is None else agent.turn - 1
        if agent is None:
            return
        for answer in agent.rounds:
            for call in answer.calls:
                if call.name in self._built_in:
                    continue
                if call.name in self._own:
                    self._end_call(call.id, _RUN_BY_SERVER)
                elif call.id in answer.results:
                    self._end_call(call.id, _ENDED_ELSEWHERE)
                elif call.name in self._schemas:
                    self._await(agent.turn, call)

    def _await(self, turn: int, call: ToolCall) -> None:
        work: asyncio.Future[ToolOutcome] = asyncio.get_running_loop().create_future()
        limit_s, now = self._config.deadlines.tool_s, loop_time()
        self._running[call.id] = _Running(turn, call, work, limit_s, on_server=False, started=now)

    def drop(self, turn: int, reason: DropReason = "interrupted") -> None:
        """Cancel the calls of a turn that is over, and refuse further ones; forget results not taken."""
        self._over = turn
        self._results.clear()
        for running in tuple(self._running.values()):
            self._cancel(running, reason)

    def close(self) -> None:
        """Cancel all calls and refuse new ones: the session is over."""
        self._closed = True
        self.drop(self._over, "closed")

    def has_run(self, call_id: str) -> bool:
        """Whether a call was handed to its tool, with any outcome; not so for refused calls."""
        return call_id in self._running or call_id in self._ended

    async def call(self, turn: int, call: ToolCall, *, traceparent: str = "") -> str:
        """Run one call; returns its result for the language model, as JSON.

        ``traceparent``: its span, for a tool of the server; empty: there is none.
        """
        if turn <= self._over:  # interrupted a moment before its calls began
            return self._write(ToolOutcome.failed("cancelled"))
        running = self._running.get(call.id)
        if running is None:
            if call.id in self._ended:  # before this call was waited for, or by another session
                return self._results.pop(call.id, NO_RESULT)
            refusal = "the session is over" if self._closed else self._refuse(turn, call)
            if refusal is not None:
                return self._write(ToolOutcome.failed(refusal))
            running = self._begin(turn, call, traceparent)
        try:
            # Not awaited directly: a task that is cancelled twice cannot clean up.
            done, _ = await asyncio.wait({running.work}, timeout=running.limit_s)
            late = not done and not running.dropped
            if late:
                self._cancel(running, "timeout")
                error = ToolTimeoutError(f"tool {call.name} did not answer within {running.limit_s:g} s")
                _log.warning("%s", error)
                self._report(error)
            await self._end(running)
        except asyncio.CancelledError:
            self._cancel(running, "interrupted")
            self._finish_unseen(running)
            await self._end(running)
            raise
        if running.dropped:
            return self._write(ToolOutcome.failed("timeout" if late else "cancelled"))
        self._results.pop(call.id, None)
        return self._write(self._finish(running))

    # --- beginning ------------------------------------------------------------------------

    def _refuse(self, turn: int, call: ToolCall) -> str | None:
        """Why a call cannot be run; None: it can."""
        schema = self._schemas.get(call.name)
        if schema is None:
            what = f"there is no tool {call.name}"
        elif problems := schema.problems(call.arguments):
            what = f"invalid arguments for {call.name}: {'; '.join(problems)}"
        else:
            return None
        if self._refused_in != turn:
            self._refused_in = turn
            return f"{what}. Correct the call, or do without it."
        self._report(InvalidToolCallError(f"the language model made invalid tool calls again: {what}"))
        return f"{what}. Do not call it again."

    def _begin(self, turn: int, call: ToolCall, traceparent: str) -> _Running:
        loop = asyncio.get_running_loop()
        limit_s = self._config.deadlines.tool_s
        own = self._own.get(call.name)
        work: asyncio.Future[ToolOutcome]
        if own is not None:
            limit_s = own.timeout_s(call.name) or limit_s
            work = asyncio.create_task(self._serve(own, call, traceparent), name=f"{call.id} {call.name}")
        else:
            work = loop.create_future()
        running = _Running(turn, call, work, limit_s, own is not None, loop.time())
        self._running[call.id] = running
        if own is None:
            self._emit(ToolRequest(turn=turn, call_id=call.id, name=call.name, arguments=call.arguments))
        return running

    async def _serve(self, tools: ServerTools, call: ToolCall, traceparent: str) -> ToolOutcome:
        try:
            return await tools.call(call.name, call.arguments, traceparent=traceparent)
        except Exception as error:  # noqa: BLE001 - the turn goes on
            # Neither message nor trace: they may hold what the user said.
            _log.error("tool %s failed unexpectedly: %s", call.name, type(error).__name__)
            return ToolOutcome.failed("the tool failed")

    # --- ending ---------------------------------------------------------------------------

    def _finish(self, running: _Running) -> ToolOutcome:
        outcome = running.work.result()
        if running.on_server:
            self._forget(running, _RUN_BY_SERVER)
            self._report_run(running, is_error=outcome.is_error)
        return outcome

    def _finish_unseen(self, running: _Running) -> None:
        """Report a call that had ended by itself when its turn was cancelled."""
        ended = running.work.done() and not running.work.cancelled()
        if ended and running.call.id in self._running:
            self._finish(running)

    def _cancel(self, running: _Running, reason: DropReason) -> None:
        """Stop a call, unless it has ended by itself; the client gets an event in both cases."""
        if running.dropped or not running.work.cancel():
            return
        running.dropped = True
        if running.on_server:
            self._forget(running, _RUN_BY_SERVER)
            self._report_run(running, is_error=True)
        else:
            self._forget(running, _TIMED_OUT if reason == "timeout" else _CANCELLED)
            self._emit(ToolCancelled(turn=running.turn, call_id=running.call.id, reason=reason))

    async def _end(self, running: _Running) -> None:
        """Let a cancelled call clean up; one that has ended has done so.

        Being cancelled once more does not make this any shorter: nothing else would wait for the call.
        """
        limit_s = self._config.deadlines.abort_s
        loop = asyncio.get_running_loop()
        overdue_at = loop.time() + limit_s
        cancelled: asyncio.CancelledError | None = None
        while not running.work.done() and (left_s := overdue_at - loop.time()) > 0:
            try:
                await asyncio.wait({running.work}, timeout=left_s)
            except asyncio.CancelledError as error:
                cancelled = error
        if not running.work.done():
            _log.error("tool %s did not stop within %g s", running.call.name, limit_s)
        if cancelled is not None:
            raise cancelled

    def _forget(self, running: _Running, why: str) -> None:
        del self._running[running.call.id]
        self._end_call(running.call.id, why)

    def _end_call(self, call_id: str, why: str) -> None:
        self._ended[call_id] = why
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

    # --- events ---------------------------------------------------------------------------

    def _report_run(self, running: _Running, *, is_error: bool) -> None:
        passed_ms = (loop_time() - running.started) * 1000
        self._emit(
            ToolRun(
                turn=running.turn,
                call_id=running.call.id,
                name=running.call.name,
                arguments=running.call.arguments,
                is_error=is_error,
                duration_ms=round(passed_ms, 1),
            )
        )

    def _report(self, error: ParleyError) -> None:
        self._emit(ErrorEvent.of(error))

    def _write(self, outcome: ToolOutcome) -> str:
        output = outcome.output
        if outcome.is_error and not (isinstance(output, dict) and "error" in output):
            output = {"error": output}
        text = msgspec.json.encode(output).decode()
        limit = self._config.max_tool_output
        return text if len(text) <= limit else cut_after(text, limit)
