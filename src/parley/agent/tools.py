"""Tool calls of one session: checked, run by the client or the server, and always answered."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.memory import NO_RESULT, cut_after
from parley.chance import random_hex
from parley.chat import ToolCall
from parley.checkpoint import BackgroundCall, SessionState
from parley.errors import (
    InvalidMessageError,
    InvalidToolCallError,
    ParleyError,
    ToolTimeoutError,
    UnknownToolCallError,
)
from parley.protocol import (
    MAX_PROGRESS_CHARACTERS,
    MAX_TOOL_PROGRESS,
    ErrorEvent,
    ServerEvent,
    Tool,
    ToolCancelled,
    ToolProgress,
    ToolRequest,
    ToolResponse,
    ToolRun,
)
from parley.timeouts import hold_task, loop_time
from parley.tools.base import ServerTools, ToolOutcome, is_deep, read_value
from parley.tools.schema import argument_schema

DropReason: TypeAlias = Literal["interrupted", "timeout", "closed"]

STARTED = '{"status":"started; its result will come later"}'
"""For the language model: the result, for now, of a call that goes on beside the conversation."""
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
_INTERRUPTED = "cancelled because the user interrupted; it may have been done"
_log = logging.getLogger(__name__)


def make_call_id(turn: int, number: int) -> str:
    """The id of a call, unique among all sessions; ``number`` counts the calls of the turn."""
    return f"call-{turn}-{number}-{random_hex(8)}"


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
    announce: bool
    stays: bool
    """Whether it goes on when the user interrupts the agent."""
    dropped: bool = False
    """Whether its result is no longer awaited."""
    reports: int = 0
    """Of its progress."""
    watch: asyncio.Task[None] | None = None
    """Waits for a call that goes on beside the conversation; None: the turn waits for it."""


def _state_of(running: _Running) -> BackgroundCall:
    return BackgroundCall(
        turn=running.turn,
        call=running.call,
        announce=running.announce,
        cancel_on_interruption=not running.stays,
    )


class ToolExecutor:
    """Runs tools, at the client or on the server, and returns their results to the turn.

    A call waits only as long as its turn does. A call that its turn no longer waits for is cancelled, at the
    client too; a response that the client had sent by then is dropped. One that comes twice, or for a call
    that was never made, is refused. A failure is a result too, so that the language model can apologise or
    try something else.

    A call in the background has :data:`STARTED` as its result at once; its own one goes to ``on_result``,
    exactly once unless the session ends before. A blocking call that an interruption does not cancel becomes
    one.

    Args:
        tools: the client's, with schemas that :func:`parley.tools.schema.argument_schema` accepts.
        server_tools: the server's own; the session has those that are available when it begins.
        built_in: those that the session's options ask for. They act only on the session itself: after a move
            a call without a result is run again. Which of them can be called may change:
            :meth:`change` reads it again.
        on_result: called with the result of a call in the background.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        emit: Callable[[ServerEvent], None],
        config: AgentConfig,
        server_tools: ServerTools | None = None,
        built_in: ServerTools | None = None,
        *,
        on_result: Callable[[BackgroundCall], None] = lambda _: None,
    ) -> None:
        self._on_result = on_result
        self._watches: set[asyncio.Task[None]] = set()
        self.built_in: Collection[str] = built_in.names if built_in else ()
        """Names of the tools that the session's options ask for."""
        self._built_in = built_in
        self._server_tools = tuple(server_tools.tools) if server_tools else ()
        self._own: dict[str, ServerTools] = {}
        if server_tools is not None:
            self._own.update(dict.fromkeys((tool.name for tool in self._server_tools), server_tools))
        if built_in is not None:
            self._own.update(dict.fromkeys(built_in.names, built_in))
        self._own_schemas = {tool.name: argument_schema(tool.parameters) for tool in self._server_tools}
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

    def change(self, tools: Sequence[Tool], only: Collection[str] | None = None) -> None:
        """Use other tools of the client from now on, and what is built in now; running calls go on.

        ``only``: names of the tools that can be called; None: all.
        """
        built_in = self._built_in.tools if self._built_in else ()
        known = (*tools, *built_in, *self._server_tools)
        self._tools = {tool.name: tool for tool in known}
        self._schemas = self._own_schemas | {
            tool.name: argument_schema(tool.parameters) for tool in (*tools, *built_in)
        }
        self.offered: Sequence[Tool] = [tool for tool in known if only is None or tool.name in only]
        """What the language model can call: the client's tools, those built in, and the server's."""
        self._offered = frozenset(tool.name for tool in self.offered)

    @property
    def background(self) -> list[BackgroundCall]:
        """The calls that go on beside the conversation."""
        return [_state_of(running) for running in self._running.values() if running.watch is not None]

    @property
    def serving(self) -> bool:
        """Whether a tool of the server runs in the background."""
        return any(one.watch is not None and one.on_server for one in self._running.values())

    def resolve(self, response: ToolResponse) -> None:
        """Set the client's response as the result of its call, or report its progress.

        A response to a call that was cancelled is dropped: it may have been sent before the client had
        ToolCancelled.

        Raises:
            UnknownToolCallError: the call awaits no response; the message has the reason.
            InvalidMessageError: there were too many reports of progress, or it is too long.
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
        if not response.final:
            self._report_progress(running, response.output)
            return
        output = read_value(response.output) if isinstance(response.output, str) else response.output
        outcome = ToolOutcome(output, response.is_error)
        running.work.set_result(outcome)
        self._forget(running, _ANSWERED)
        if running.watch is None:
            self._results[call_id] = self._write(outcome)
        else:
            self._deliver(running, outcome)

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

    def restore(self, state: SessionState) -> list[BackgroundCall]:
        """Go on with the calls of a session of another server.

        The client still runs those of its tools that have no result: they get no other request, and their
        time begins anew. What happened to a call of a server's tool without a result is unknown: it counts as
        run, and is not run again. The state does not contain which of the calls that are over were cancelled.

        Returns:
            The calls in the background that have a result.
        """
        agent = state.agent
        self._restored_turns = state.turns if agent is None else agent.turn - 1
        done = []
        for one in state.background:
            if one.result is None and one.call.name not in self._own:
                tool = Tool(
                    name=one.call.name,
                    mode="background",
                    announce=one.announce,
                    cancel_on_interruption=one.cancel_on_interruption,
                )
                self._await(one.turn, one.call, tool)
                continue
            self._end_call(one.call.id, _RUN_BY_SERVER if one.result is None else _ENDED_ELSEWHERE)
            self._results[one.call.id] = STARTED
            done.append(msgspec.structs.replace(one, result=one.result or NO_RESULT))
        for answer in agent.rounds if agent is not None else ():
            for call in answer.calls:
                if self.has_run(call.id) or call.name in self.built_in:
                    continue
                if call.name in self._own:
                    self._end_call(call.id, _RUN_BY_SERVER)
                elif call.id in answer.results:
                    self._end_call(call.id, _ENDED_ELSEWHERE)
                elif call.name in self._schemas:
                    self._await(state.turns, call, self._tools[call.name])
        return done

    def _await(self, turn: int, call: ToolCall, tool: Tool) -> None:
        running = self._add(turn, call, asyncio.get_running_loop().create_future(), tool)
        if running.watch is not None:
            self._results[call.id] = STARTED

    def drop(self, turn: int) -> None:
        """Cancel the calls of a turn that is over, and refuse further ones."""
        self._over = turn
        for running in tuple(self._running.values()):
            self._leave(running)

    def forget_results(self) -> None:
        """Forget the results that the turn has not taken."""
        self._results.clear()

    def on_interrupted(self) -> None:
        """The user has interrupted the agent: cancel the calls in the background that are to be."""
        for running in tuple(self._running.values()):
            if running.watch is not None and not running.stays and self._cancel(running, "interrupted"):
                running.announce = False  # the user has just begun with something else
                self._deliver(running, ToolOutcome.failed(_INTERRUPTED))

    def close(self) -> set[asyncio.Task[None]]:
        """Cancel all calls and refuse new ones: the session is over.

        Returns:
            The tasks that are still ending.
        """
        self._closed = True
        self._results.clear()
        for running in tuple(self._running.values()):
            self._cancel(running, "closed")
        return set(self._watches)

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
        return STARTED if running.watch is not None else await self._wait(running)

    async def _wait(self, running: _Running) -> str:
        try:
            # Not awaited directly: a task that is cancelled twice cannot clean up.
            done, _ = await asyncio.wait({running.work}, timeout=running.limit_s)
            if running.watch is not None:  # it was left meanwhile
                return STARTED
            late = not done and not running.dropped
            if late:
                self._time_out(running)
            await self._end(running)
        except asyncio.CancelledError:
            self._leave(running)
            if running.watch is None:
                self._finish_unseen(running)
                await self._end(running)
            raise
        if running.dropped:
            return self._write(ToolOutcome.failed("timeout" if late else "cancelled"))
        self._results.pop(running.call.id, None)
        return self._write(self._finish(running))

    # --- beginning ------------------------------------------------------------------------

    def _refuse(self, turn: int, call: ToolCall) -> str | None:
        """Why a call cannot be run; None: it can."""
        schema = self._schemas.get(call.name)
        if schema is None or call.name not in self._offered:
            what = f"there is no tool {call.name}"
        elif problems := schema.problems(call.arguments):
            what = f"invalid arguments for {call.name}: {'; '.join(problems)}"
        else:
            return self._refuse_beside(call) if self._tools[call.name].mode == "background" else None
        if self._refused_in != turn:
            self._refused_in = turn
            return f"{what}. Correct the call, or do without it."
        self._report(InvalidToolCallError(f"the language model made invalid tool calls again: {what}"))
        return f"{what}. Do not call it again."

    def _begin(self, turn: int, call: ToolCall, traceparent: str) -> _Running:
        own = self._own.get(call.name)
        work: asyncio.Future[ToolOutcome]
        if own is not None:
            work = asyncio.create_task(self._serve(own, call, traceparent), name=f"{call.id} {call.name}")
        else:
            work = asyncio.get_running_loop().create_future()
        running = self._add(turn, call, work, self._tools[call.name])
        if own is None:
            self._emit(ToolRequest(turn=turn, call_id=call.id, name=call.name, arguments=call.arguments))
        return running

    def _add(
        self,
        turn: int,
        call: ToolCall,
        work: asyncio.Future[ToolOutcome],
        tool: Tool,
    ) -> _Running:
        deadlines, background = self._config.deadlines, tool.mode == "background"
        limit_s = deadlines.background_tool_s if background else deadlines.tool_s
        own = self._own.get(call.name)
        if own is not None:
            limit_s = own.timeout_s(call.name) or limit_s
        stays = background if tool.cancel_on_interruption is None else not tool.cancel_on_interruption
        running = _Running(turn, call, work, limit_s, own is not None, loop_time(), tool.announce, stays)
        self._running[call.id] = running
        if background:
            self._watch(running)
        return running

    async def _serve(self, tools: ServerTools, call: ToolCall, traceparent: str) -> ToolOutcome:
        on_progress = partial(self._on_progress, call.id)
        try:
            return await tools.call(
                call.name, call.arguments, traceparent=traceparent, on_progress=on_progress
            )
        except Exception as error:  # noqa: BLE001 - the turn goes on
            # Neither message nor trace: they may hold what the user said.
            _log.error("tool %s failed unexpectedly: %s", call.name, type(error).__name__)
            return ToolOutcome.failed("the tool failed")

    # --- beside the conversation ----------------------------------------------------------

    def _refuse_beside(self, call: ToolCall) -> str | None:
        """Why a call cannot be run in the background now; None: it can."""
        running, limit = [one.call for one in self.background], self._config.max_background_tools
        if any((one.name, one.arguments) == (call.name, call.arguments) for one in running):
            return "this call is running already; its result will come later"
        if len(running) >= limit:
            return f"{limit} tools are running already. Call it when one of them has returned."
        return None

    def _leave(self, running: _Running) -> None:
        """The turn no longer waits for a call: it is cancelled, or goes on beside the conversation."""
        if running.watch is not None or running.call.id not in self._running:
            return
        if running.stays and self._refuse_beside(running.call) is None:
            self._watch(running)
            self._results[running.call.id] = STARTED
        else:
            self._cancel(running, "interrupted")

    def _watch(self, running: _Running) -> None:
        running.watch = hold_task(
            self._watches, self._settle(running), f"{running.call.id} in the background"
        )

    async def _settle(self, running: _Running) -> None:
        left_s = running.started + running.limit_s - loop_time()
        await asyncio.wait({running.work}, timeout=max(0.0, left_s))
        if running.call.id in self._running:  # it was neither answered nor cancelled
            if running.work.done():
                outcome = self._finish(running)
            else:
                self._time_out(running)
                outcome = ToolOutcome.failed("timeout")
            self._deliver(running, outcome)
        await self._end(running)

    def _deliver(self, running: _Running, outcome: ToolOutcome) -> None:
        self._on_result(msgspec.structs.replace(_state_of(running), result=self._write(outcome)))

    # --- ending ---------------------------------------------------------------------------

    def _time_out(self, running: _Running) -> None:
        self._cancel(running, "timeout")
        error = ToolTimeoutError(f"tool {running.call.name} did not answer within {running.limit_s:g} s")
        _log.warning("%s", error)
        self._report(error)

    def _finish(self, running: _Running) -> ToolOutcome:
        cancelled = running.work.cancelled()  # by itself
        outcome = ToolOutcome.failed("the tool failed") if cancelled else running.work.result()
        if running.on_server:
            self._forget(running, _RUN_BY_SERVER)
            self._report_run(running, is_error=outcome.is_error)
        return outcome

    def _finish_unseen(self, running: _Running) -> None:
        """Report a call that had ended by itself when its turn was cancelled."""
        ended = running.work.done() and not running.work.cancelled()
        if ended and running.call.id in self._running:
            self._finish(running)

    def _cancel(self, running: _Running, reason: DropReason) -> bool:
        """Stop a call, unless it has ended by itself; the client gets an event in both cases.

        Returns:
            Whether it was stopped now.
        """
        if running.dropped or not running.work.cancel():
            return False
        running.dropped = True
        if running.on_server:
            self._forget(running, _RUN_BY_SERVER)
            self._report_run(running, is_error=True)
        else:
            self._forget(running, _TIMED_OUT if reason == "timeout" else _CANCELLED)
            self._emit(ToolCancelled(turn=running.turn, call_id=running.call.id, reason=reason))
        return True

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

    def _on_progress(self, call_id: str, output: Any) -> None:
        """A tool of the server has said something about its progress."""
        with suppress(KeyError, InvalidMessageError):  # it has ended, or reports too much
            self._report_progress(self._running[call_id], output)

    def _report_progress(self, running: _Running, output: Any) -> None:
        if running.reports >= MAX_TOOL_PROGRESS:
            raise InvalidMessageError(f"a tool call may report its progress {MAX_TOOL_PROGRESS} times")
        if is_deep(output) or len(msgspec.json.encode(output).decode()) > MAX_PROGRESS_CHARACTERS:
            raise InvalidMessageError(
                f"a report of a tool's progress may have {MAX_PROGRESS_CHARACTERS} characters of JSON"
            )
        running.reports += 1
        call = running.call
        self._emit(ToolProgress(turn=running.turn, call_id=call.id, name=call.name, output=output))

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
        output = {"error": "the result is nested too deep"} if is_deep(outcome.output) else outcome.output
        if outcome.is_error and not (isinstance(output, dict) and "error" in output):
            output = {"error": output}
        text = msgspec.json.encode(output).decode()
        limit = self._config.max_tool_output
        return text if len(text) <= limit else cut_after(text, limit)
