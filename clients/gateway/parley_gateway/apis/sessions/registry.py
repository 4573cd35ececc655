"""The sessions of this process, until some time after their end."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict, deque
from datetime import UTC, datetime
from typing import Literal

from parley import protocol
from parley.errors import ParleyError, SessionNotFoundError, UnknownToolCallError
from parley_client.call import Call
from parley_gateway.apis.sessions.messages import PendingTool, SessionStatus
from parley_gateway.apis.sessions.record import SessionClaim
from parley_gateway.apis.settings import SessionSettings
from parley_gateway.audio.codecs import Encoding
from parley_gateway.errors import SessionExpiredError, SessionInUseError, TooManyCallsError
from parley_gateway.instances import check_instance, mark
from parley_gateway.security.principal import Principal

_EMPTY_START = protocol.Start()
# Tool calls of a session, newest, of which an error can say that they were cancelled.
_MAX_CANCELLED = 64


class RegisteredSession:
    """One session. The registry changes its state; its stream records its events."""

    def __init__(
        self,
        session_id: str,
        start: protocol.Start,
        principal: Principal,
        connect_s: float,
        encoding: Encoding = "pcm16",
    ) -> None:
        self.id = session_id
        self.start = start
        self.encoding = encoding
        self.owner = principal.id
        self.counted_with = principal.owner
        self.created = datetime.now(UTC)
        self.expires_s = time.monotonic() + connect_s
        self.state: Literal["waiting", "connecting", "open", "over"] = "waiting"
        self.reason = ""
        self.message = ""
        self.call: Call | None = None
        self.claim: SessionClaim | None = None
        """Of a session that goes on; None: it is new."""
        self._agent_state: Literal["listening", "processing", "speaking"] = "listening"
        self._turns = 0
        self._pending: dict[str, PendingTool] = {}
        self._cancelled: deque[str] = deque(maxlen=_MAX_CANCELLED)

    def go_on(self, claim: SessionClaim) -> None:
        """Go on with a session of another connection."""
        self.claim = claim
        self._turns = claim.record.turns
        for request in claim.waiting_tools():
            self.record(request)

    def record(self, event: object) -> None:
        """Record an event for the status."""
        match event:
            case protocol.AgentState(state=state):
                self._agent_state = state
            case protocol.ResponseDone():
                self._turns += 1
            case protocol.ToolRequest(call_id=call_id, name=name, arguments=arguments):
                self._pending[call_id] = PendingTool(call_id=call_id, name=name, arguments=arguments)
            case protocol.ToolCancelled(call_id=call_id):
                self._pending.pop(call_id, None)
                self._cancelled.append(call_id)

    def check_tool_call(self, call_id: str) -> None:
        """Raise UnknownToolCallError if no such tool request waits for an answer."""
        if call_id in self._pending:
            return
        if call_id in self._cancelled:
            raise UnknownToolCallError(f"tool request {call_id!r} was cancelled: it waits for no answer")
        raise UnknownToolCallError(f"no tool request {call_id[:80]!r} waits for an answer")

    def on_tool_answered(self, call_id: str) -> None:
        """An answer was sent to the agent, which refuses or drops one that it does not wait for."""
        self._pending.pop(call_id, None)

    @property
    def status(self) -> SessionStatus:
        """The status."""
        is_open = self.state == "open"
        wait_s = max(0.0, self.expires_s - time.monotonic()) if self.state == "waiting" else None
        return SessionStatus(
            session_id=self.id,
            state=self.state,
            created_at=self.created.isoformat(timespec="milliseconds"),
            expires_in_s=None if wait_s is None else round(wait_s, 3),
            agent_state=self._agent_state if is_open else None,
            turns=self._turns,
            pending_tools=list(self._pending.values()) if is_open else [],
            reason=self.reason,
            message=self.message,
        )


class SessionRegistry:
    """Owns all sessions."""

    def __init__(self, settings: SessionSettings, instance: str) -> None:
        self._settings = settings
        self._instance = instance
        self._alive: dict[str, RegisteredSession] = {}
        self._over: OrderedDict[str, tuple[RegisteredSession, asyncio.TimerHandle]] = OrderedDict()
        self._expiries: dict[str, asyncio.TimerHandle] = {}

    def create(
        self, start: protocol.Start, principal: Principal, encoding: Encoding = "pcm16"
    ) -> RegisteredSession:
        """Create a session that waits for its stream; raises TooManyCallsError if too many wait."""
        self.check_room(principal)
        settings = self._settings
        session_id = mark(self._instance, str(uuid.uuid4()))
        session = RegisteredSession(session_id, start, principal, settings.connect_s, encoding)
        self._alive[session.id] = session
        self._start_expiry(session)
        return session

    def check_room(self, principal: Principal) -> None:
        """Refuse now what :meth:`create` would refuse; raises TooManyCallsError."""
        settings = self._settings
        own = sum(self._alive[session_id].counted_with == principal.owner for session_id in self._expiries)
        for count, limit, whom in (
            (len(self._expiries), settings.waiting, "this gateway holds"),
            (own, settings.waiting_per_key, "one key, or address, may have"),
        ):
            if count >= limit:
                raise TooManyCallsError(
                    f"{limit} sessions wait for their streams, which is all that {whom}",
                    retry_after_s=settings.connect_s,
                )

    def find(self, session_id: str, principal: Principal) -> RegisteredSession:
        """A session of this principal, also one that has ended.

        Raises:
            WrongGatewayError: another gateway has made the id.
            SessionNotFoundError: there is no such session, or it belongs to another key.
        """
        session = self._alive.get(session_id)
        if session is None and session_id in self._over:
            session = self._over[session_id][0]
        is_claimed = principal.session_claimed and principal.session_id == session_id
        if session is None:
            check_instance(self._instance, session_id)
        # The error does not reveal that another key's session exists.
        if session is None or not (principal.id == session.owner or is_claimed):
            raise SessionNotFoundError(f"there is no session {session_id!r}")
        return session

    def claim(self, session_id: str, principal: Principal) -> RegisteredSession:
        """Reserve a session for its only stream; raises SessionExpiredError or SessionInUseError."""
        session = self.find(session_id, principal)
        if session.state == "over":
            raise SessionExpiredError(f"the session is over: {session.reason}")
        if session.state != "waiting":
            raise SessionInUseError("another connection carries this session")
        self._stop_expiry(session)
        session.state = "connecting"
        return session

    def release(self, session: RegisteredSession, error: ParleyError) -> bool:
        """Handle a stream that could not be opened: wait for another one if the error is retryable.

        Returns:
            Whether the session was released; False: its stream was opened.
        """
        if session.state != "connecting":
            return False
        session.reason, session.message = error.code, str(error)
        if error.retryable:
            session.state = "waiting"
            self._start_expiry(session)
        else:
            self.end(session, error.code)
        return True

    def open(self, session: RegisteredSession, call: Call) -> None:
        """Set the session's call; raises SessionExpiredError if the session was ended meanwhile."""
        if session.state == "over":
            raise SessionExpiredError(f"the session is over: {session.reason}")
        session.state, session.call = "open", call
        session.reason = session.message = ""

    def end(self, session: RegisteredSession, reason: str) -> None:
        """End a session; only the first reason counts."""
        if session.state == "over":
            return
        self._stop_expiry(session)
        session.state, session.call, session.reason = "over", None, reason
        # An ended session needs no prompts and tools.
        session.start, session.claim = _EMPTY_START, None
        self._alive.pop(session.id, None)
        while len(self._over) >= self._settings.remembered:
            self._over.popitem(last=False)[1][1].cancel()
        loop = asyncio.get_running_loop()
        forget = loop.call_later(self._settings.remembered_s, self._over.pop, session.id, None)
        self._over[session.id] = session, forget

    def close(self) -> None:
        """End and remove all sessions."""
        for session in list(self._alive.values()):
            self.end(session, "shutdown")
        for _, forget in self._over.values():
            forget.cancel()
        self._over.clear()

    def _start_expiry(self, session: RegisteredSession) -> None:
        left_s = max(0.0, session.expires_s - time.monotonic())
        loop = asyncio.get_running_loop()
        self._expiries[session.id] = loop.call_later(left_s, self.end, session, SessionExpiredError.code)

    def _stop_expiry(self, session: RegisteredSession) -> None:
        expiry = self._expiries.pop(session.id, None)
        if expiry is not None:
            expiry.cancel()
