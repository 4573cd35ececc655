"""All conversations of one instance of the agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import uuid4

from parley.agent.config import NO_GPU, AgentConfig
from parley.agent.defined_agents import AgentChoice, choose_agent
from parley.agent.headroom import Headroom
from parley.agent.metrics import UNMEASURED, AgentMetrics, SessionOutcome
from parley.agent.ports import Engines, Outlet
from parley.agent.replaced_tools import replace_tools
from parley.agent.resumption import check_resume
from parley.agent.session import AgentSession
from parley.agent.validation import check_start
from parley.agents.registry import ServedAgent
from parley.calls.following import FollowedCall
from parley.errors import (
    ModelLoadingError,
    ParleyError,
    SessionExistsError,
    SessionNotFoundError,
    ShuttingDownError,
    TooManySessionsError,
    WeightsNotFoundError,
)
from parley.protocol import CANARY_PREFIX, Closed, ErrorEvent, Start, decode_start
from parley.timeouts import best_effort, hold_task, log_failure

SessionId: TypeAlias = str | int
Release: TypeAlias = Callable[[SessionId, str], Awaitable[None]]
"""Ends a sequence by a request of the given id."""

# For a client to end its sequence itself after `closed`.
_GRACE_S = 2.0
_RELEASE_S = 2.0
_TIMER_S = 0.05
_RELEASE_MEMORY_S = 60.0
_LEAST_RETRY_S = 1.0
_MAX_CANARIES = 8
"""Health checks at once. They do not count towards the limit of sessions: a full server answers them."""
_SUMMARIES_AT_ONCE = 4
"""Of calls that are over. Many may end at once; the language model has those that go on to answer."""
_OUTCOMES: dict[type[ParleyError], SessionOutcome] = {
    TooManySessionsError: "full",
    ShuttingDownError: "stopping",
    WeightsNotFoundError: "failed",
    ParleyError: "failed",
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Incoming:
    """One request of a client."""

    session_id: SessionId
    message: bytes = b""
    """JSON; empty: none."""
    audio: bytes = b""
    start: bool = False
    end: bool = False
    request_id: str = ""


class Host:
    """Opens sessions, passes requests to them, and ends them. Runs on one event loop.

    ``release`` ends the sequence of a session whose client did not end it. Canaries are not measured, nor
    refused for want of ``headroom``. ``open_session`` takes the place of :class:`AgentSession`.
    """

    def __init__(
        self,
        engines: Engines,
        config: AgentConfig,
        release: Release,
        metrics: AgentMetrics,
        headroom: Headroom,
        *,
        open_session: Callable[..., AgentSession] | None = None,
    ) -> None:
        self._engines = engines
        self._config = config
        self._release = release
        self._metrics = metrics
        self._headroom = headroom
        self._open_session = open_session
        self._sessions: dict[SessionId, AgentSession] = {}
        self._running = {True: 0, False: 0}  # sessions that are open or being closed: canaries, others
        self._ended: dict[SessionId, asyncio.TimerHandle] = {}
        self._releases: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._draining = False
        self._grace_s = _GRACE_S
        self._refusal: ParleyError | None = None
        self._summaries = asyncio.Semaphore(_SUMMARIES_AT_ONCE)

    def __len__(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def _count(self) -> int:
        """Open sessions, without canaries; from any thread, as the copy is made in one step."""
        return sum(not _is_canary(session_id) for session_id in list(self._sessions))

    def _remove(self, session_id: SessionId) -> None:
        self._sessions.pop(session_id, None)
        self._headroom.set_open(self._count())

    def record_sessions(self) -> None:
        """Record how many sessions are open, and how many agents are served."""
        active = self._count()
        limit = self._headroom.limit(active, self._config.max_sessions)
        self._metrics.set_sessions(active, limit, draining=self._stopping or self._draining)
        if (agents := self._engines.agents) is not None:
            self._metrics.set_agents(len(agents), agents.wrong_files)

    def handle(self, request: Incoming, outlet: Outlet) -> None:
        """Handle one request; ``outlet`` answers it. Never waits."""
        session = self._sessions.get(request.session_id)
        if request.request_id in self._releases:
            self._handle_release(request, outlet, session)
        elif request.start:
            self._start(request, outlet, session)
        elif session is None or session.closed:
            self._handle_late(request, outlet, known=session is not None)
        else:
            _pass_on(request, session)
            if request.end:
                # The client may use the id again from now on.
                self._remove(request.session_id)
            outlet.finish()

    def drain(self, deadline_s: float) -> None:
        """Refuse new sessions, and ask the clients of the open ones to go on elsewhere.

        A session of a client that cannot do so goes on, also after the deadline.
        """
        self._draining = True
        for session in tuple(self._sessions.values()):
            session.go_away(round(deadline_s * 1000))

    def end_drain(self) -> None:
        """Accept sessions again."""
        self._draining = False

    def refuse(self, error: ParleyError | None) -> None:
        """Answer every new session with ``error``, canaries' too; None: accept them."""
        self._refusal = error

    async def shut_down(self, *, clients_can_end: bool = True) -> None:
        """End all sessions and refuse new ones; returns when they have ended.

        ``clients_can_end``: whether the server still takes requests of clients, such as the ends of their
        sequences.
        """
        self._stopping = True
        if not clients_can_end:
            self._grace_s = 0.0
            for session_id in tuple(self._ended):
                self._await_end(session_id)
            # Before their last responses: once these are sent, the server stops and refuses requests.
            if ends := [self._spawn_end(session_id) for session_id in self._sessions]:
                await asyncio.wait(ends)
        for session in self._sessions.values():
            session.end("shutdown")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * self._config.deadlines.close_s)

    async def wait_until_released(self) -> None:
        """After :meth:`shut_down`: wait until all sequences have ended, for a limited time."""
        await asyncio.sleep(self._grace_s + _TIMER_S)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_RELEASE_S)

    async def close(self) -> None:
        """Shut down without ending sequences: the server itself stops."""
        await self.shut_down()
        for session_id in tuple(self._ended):
            self._forget(session_id)
        for task in self._tasks:
            task.cancel()

    # --- opening ----------------------------------------------------------------------

    def _start(self, request: Incoming, outlet: Outlet, existing: AgentSession | None) -> None:
        if existing is not None and not existing.closed:
            # The open session belongs to another client.
            error = SessionExistsError(f"session {request.session_id} is open already")
            self._measure(request).on_error(error.stage, error.code)
            outlet.finish(ErrorEvent.of(error))
            return
        self._forget(request.session_id)
        followed: FollowedCall | None = None
        try:
            choice = self._admit(request.session_id, request.message)
            followed = _follow(str(request.session_id), choice)
            engines = choice.engines
            if followed is not None:
                engines = replace(engines, server_tools=followed.watch(engines.server_tools))
            session = (self._open_session or AgentSession)(
                str(request.session_id),
                choice.start,
                engines,
                outlet,
                choice.config,
                metrics=self._measure(request),
                followed=followed,
            )
        except BaseException as error:
            if followed is not None:
                followed.on_event(Closed(reason="failed"))
            # First: otherwise the sequence would keep its slot unused.
            if not request.end:
                self._await_end(request.session_id)
            if not isinstance(error, Exception):
                raise
            self._refuse(request, error, outlet)
            return
        self._running[_is_canary(request.session_id)] += 1
        self._sessions[request.session_id] = session
        self._headroom.set_open(self._count())
        if choice.agent is not None:
            choice.agent.begin_session()
        work = self._run(request.session_id, session, choice.agent, followed)
        self._spawn(work, f"session {request.session_id}")
        _pass_on(Incoming(request.session_id, audio=request.audio, end=request.end), session)
        if request.end:
            self._remove(request.session_id)

    def _measure(self, request: Incoming) -> AgentMetrics:
        return UNMEASURED if _is_canary(request.session_id) else self._metrics

    def _refuse(self, request: Incoming, error: Exception, outlet: Outlet) -> None:
        if not isinstance(error, ParleyError):
            _log.error("session %s was not started", request.session_id, exc_info=error)
            error = ParleyError("the session could not be started")
        metrics = self._measure(request)
        metrics.on_error(error.stage, error.code)
        metrics.on_session_requested(_OUTCOMES.get(type(error), "invalid"))
        outlet.send(ErrorEvent.of(error))
        outlet.finish(Closed(reason="shutdown" if isinstance(error, ShuttingDownError) else "failed"))

    def _admit(self, session_id: SessionId, message: bytes) -> AgentChoice:
        if self._stopping:
            raise ShuttingDownError("the server is stopping")
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # else each adds its frames, with the request
        is_canary = _is_canary(session_id)
        if self._draining and not is_canary:
            raise ShuttingDownError("the server takes no new sessions, because it will stop")
        limit = _MAX_CANARIES if is_canary else self._config.max_sessions
        used = sum(_is_canary(other) == is_canary for other in self._sessions)
        # END frees a slot at once, so sessions that are still closing have a bound of their own.
        if used >= limit or self._running[is_canary] >= 2 * limit:
            # One of so many calls ends every so often; health checks are shorter.
            wait_s = max(_LEAST_RETRY_S, self._config.typical_call_s / max(1, limit))
            raise TooManySessionsError(
                f"all {limit} sessions are in use", retry_after_s=None if is_canary else wait_s
            )
        start = decode_start(message) if message else Start()
        if not is_canary and start.resume is None:  # a call that has lost its server goes on
            self._headroom.check()
        choice = choose_agent(start, self._engines, self._config)
        if self._config.replaceable_tools:
            choice = replace_tools(choice)
        _check_models(choice.start, choice.config)
        check_start(choice.start, choice.engines.synthesizer, choice.config, choice.engines.server_tools)
        if start.resume is not None:
            check_resume(start.resume, choice.start, choice.config)
        return choice

    # --- ending ----------------------------------------------------------------------------

    async def _run(
        self,
        session_id: SessionId,
        session: AgentSession,
        agent: ServedAgent | None,
        followed: FollowedCall | None,
    ) -> None:
        try:
            await session.run()
        finally:
            if followed is not None and followed.wants_summary and not self._stopping:
                work = self._end_with_summary(session, agent, followed)
                self._spawn(work, f"summary of session {session_id}")
            else:
                if followed is not None:
                    followed.end()
                if agent is not None:
                    agent.end_session()
            self._running[_is_canary(session_id)] -= 1
            if self._sessions.get(session_id) is session:
                self._remove(session_id)
                self._await_end(session_id)

    async def _end_with_summary(
        self, session: AgentSession, agent: ServedAgent | None, followed: FollowedCall
    ) -> None:
        """The last of a call that is over; its place is free already."""
        summary, limit_s = "", self._config.deadlines.summary_s
        try:
            async with asyncio.timeout(limit_s), self._summaries:
                summary = await session.summarize()
        except (TimeoutError, ParleyError) as error:
            why = f"not made within {limit_s:g} s" if isinstance(error, TimeoutError) else error.to_log()
            _log.warning("session %s ends without a summary: %s", session.session_id, why)
        finally:
            followed.end(summary)
            if agent is not None:
                agent.end_session()

    def _handle_late(self, request: Incoming, outlet: Outlet, *, known: bool) -> None:
        """A request without an open session; it may have crossed the end of its session."""
        known = known or request.session_id in self._ended
        if request.end:
            self._forget(request.session_id)
            self._remove(request.session_id)
        elif not known:
            error = SessionNotFoundError(f"session {request.session_id} is not open")
            self._measure(request).on_error(error.stage, error.code)
            outlet.finish(ErrorEvent.of(error))
            return
        outlet.finish()

    def _handle_release(self, request: Incoming, outlet: Outlet, session: AgentSession | None) -> None:
        """The END of :meth:`_end_sequence`. A session that was opened meanwhile has lost its sequence."""
        if session is not None and not session.closed:
            self._remove(request.session_id)
            if self._stopping:
                session.end("shutdown")
            else:
                session.report_error(
                    TooManySessionsError("an earlier session of this id was still open; try again")
                )
                session.end("failed")
        outlet.finish()

    def _await_end(self, session_id: SessionId) -> None:
        """End the sequence here if the client does not do it in time."""
        self._forget(session_id)
        loop = asyncio.get_running_loop()
        self._ended[session_id] = loop.call_later(self._grace_s, self._release_sequence, session_id)

    def _forget(self, session_id: SessionId) -> bool:
        """Stop waiting for the end of a sequence; returns whether it was awaited."""
        timer = self._ended.pop(session_id, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _release_sequence(self, session_id: SessionId) -> None:
        del self._ended[session_id]
        self._spawn_end(session_id)

    def _spawn_end(self, session_id: SessionId) -> asyncio.Task[None]:
        return self._spawn(self._end_sequence(session_id), f"ending the sequence of session {session_id}")

    async def _end_sequence(self, session_id: SessionId) -> None:
        request_id = f"release-{uuid4().hex}"
        self._releases.add(request_id)
        try:
            what = f"ending the sequence of session {session_id}"
            await best_effort(self._release(session_id, request_id), _RELEASE_S, what)
        finally:
            # The request may still arrive.
            asyncio.get_running_loop().call_later(_RELEASE_MEMORY_S, self._releases.discard, request_id)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = hold_task(self._tasks, work, name)
        task.add_done_callback(log_failure)
        return task


def _check_models(start: Start, config: AgentConfig) -> None:
    needed = [config.asr, config.llm]
    if start.output == "audio":
        needed.append((*config.tts, *config.tts_fallback))
    for models in needed:
        if all(model in config.absent_models for model in models):
            if NO_GPU in {config.absent_models[model] for model in models}:
                raise ModelLoadingError(f"{', '.join(models)} cannot be used: {NO_GPU}")
            have = "has" if len(models) == 1 else "have"
            raise WeightsNotFoundError(
                f"{', '.join(models)} {have} no weights on this server, whose log has the remedy"
            )


def _follow(session_id: str, choice: AgentChoice) -> FollowedCall | None:
    if choice.agent is None or choice.start.test or _is_canary(session_id):
        return None
    definition, webhooks = choice.agent.file.definition, choice.agent.webhooks
    writer = choice.engines.calls if definition.record else None
    if writer is None and webhooks is None:
        return None
    return FollowedCall(session_id, choice.start, writer, definition.recording, webhooks)


def _is_canary(session_id: SessionId) -> bool:
    return isinstance(session_id, str) and session_id.startswith(CANARY_PREFIX)


def _pass_on(request: Incoming, session: AgentSession) -> None:
    if request.message:
        session.on_message(request.message)
    if request.audio:
        session.push_audio(request.audio)
    if request.end:
        session.end("ended")
