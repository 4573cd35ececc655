"""What the store has of a session, and what becomes of it at another gateway."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

import msgspec

from parley import protocol
from parley.checkpoint import (
    AgentTurnState,
    BackgroundCall,
    HistoryState,
    ResponseProgress,
    Resume,
    RoundState,
    SessionState,
)
from parley_client.resumption import waiting_calls
from parley_gateway.apis.sessions.messages import SessionResume
from parley_gateway.audio.codecs import Encoding
from parley_gateway.takeover.errors import NotResumableError

# The prefix is one that logs redact.
_TOKEN = re.compile(r"parley_resume_[\w-]{43}\.([a-z0-9-]{1,63}_[0-9a-f-]{36})")
_CHOSEN = re.compile(r"(?:sess_[A-Za-z0-9]{21}|twilio_[0-9a-f]{64})")
_SECRET_BYTES = 32


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the store has of a session, encrypted."""

    settings: protocol.Start
    history: HistoryState
    state: SessionState
    """Its messages are counted as the client counts them."""
    answers: list[protocol.Answer] = []
    """Events that answer what the state contains, and come behind the checkpoint."""
    encoding: Encoding
    tokens: list[str]
    """SHA-256 of the tokens that open it. The one that opened it last is valid until the client has shown
    that it got the next."""
    turns: int = 0
    """Answers, for the session's status."""
    api_state: msgspec.Raw = msgspec.Raw(b"null")
    """What an API that the gateway translates has beside the state, as JSON; null: ``/v1/sessions``."""
    changes: list[protocol.Remember | protocol.Update] = []
    """Of such a session what the state lacks of its client's items and settings."""
    progress: ResponseProgress | None = None
    """Of such a session what the gateway had of the response under way."""

    def is_opened_by(self, digest: str) -> bool:
        """Whether the token of this digest opens it."""
        # All are compared, so that the time says nothing.
        return bool(sum(hmac.compare_digest(digest, known) for known in self.tokens))


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """A session that belongs to this gateway, and is not open yet."""

    name: str
    """Of its entry in the store: see :func:`name_in`."""
    epoch: int
    token: str
    """The next one of its client."""
    tokens: list[str]
    """SHA-256 of those that open it."""
    record: SessionRecord

    def make_start(self, resume: SessionResume) -> protocol.Start:
        """How a server goes on with it, with what the client has.

        Raises:
            NotResumableError: it is too large.
        """
        record, agent = self.record, self.record.state.agent
        progress = resume.progress
        if progress is None or agent is None or progress.response_id != agent.response_id:
            progress = None
        start = msgspec.structs.replace(
            record.settings,
            traceparent="",
            checkpoints=True,
            resume=Resume(
                state=record.state,
                history=record.history,
                progress=progress,
                audio_ms=max(resume.audio_ms, record.state.audio_ms),
            ),
        )
        if len(protocol.encode(start)) > protocol.MAX_RESUME_BYTES:
            raise NotResumableError("the session's state is too large")
        return start

    def waiting_tools(self) -> list[protocol.ToolRequest]:
        """The tools whose answers the client owes."""
        calls = waiting_calls(shown(self.record, settled=False).state)
        return [
            protocol.ToolRequest(turn=turn, call_id=call.id, name=call.name, arguments=call.arguments)
            for turn, call in calls
        ]

    def checkpoint(self) -> protocol.Checkpoint:
        """What the client gets before ``connected``."""
        return shown(self.record, settled=False)


def shown(record: SessionRecord, *, settled: bool) -> protocol.Checkpoint:
    """Of a checkpoint, what a client needs in order to repeat what it does not contain."""
    state, agent = record.state, record.state.agent
    own = {tool.name for tool in record.settings.tools}
    if agent is not None:
        rounds = [
            RoundState(
                calls=[call for call in one.calls if call.name in own],
                results=dict.fromkeys(one.results, ""),
            )
            for one in agent.rounds
        ]
        agent = AgentTurnState(turn=agent.turn, response_id=agent.response_id, kind=agent.kind, rounds=rounds)
    return protocol.Checkpoint(
        state=SessionState(
            version=state.version,
            turns=state.turns,
            utterances=state.utterances,
            audio_ms=state.audio_ms,
            agent=agent,
            unanswered=state.unanswered,
            background=[
                BackgroundCall(turn=one.turn, call=one.call)
                for one in state.background
                if one.result is None and one.call.name in own
            ],
            muted=state.muted,
            handled=state.handled,
            unfinished=state.unfinished,
        ),
        settled=settled,
        answers=record.answers,
    )


def new_token(name: str) -> tuple[str, str]:
    """A token for the session ``name``, and its digest."""
    token = f"parley_resume_{secrets.token_urlsafe(_SECRET_BYTES)}.{name}"
    return token, digest_of(token)


def digest_of(token: str) -> str:
    """What a record has of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def name_in(token: str) -> str | None:
    """The name of the session that a token claims to open; None: it has not the form of one.

    The id of a session of OpenAI Realtime is its token, and a telephone call has one made of its id. The
    name, which the store and logs show, is no secret.
    """
    if _CHOSEN.fullmatch(token):
        return f"{'realtime' if token.startswith('sess') else 'twilio'}_{digest_of(token)}"
    form = _TOKEN.fullmatch(token)
    return form[1] if form is not None else None
