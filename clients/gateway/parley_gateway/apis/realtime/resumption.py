"""A session whose client comes back on another connection: what is kept of it, and how it goes on."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from parley import protocol
from parley.checkpoint import AgentTurnState, ResponseProgress
from parley.errors import ParleyError
from parley_gateway.apis.realtime.input_audio import InputState
from parley_gateway.apis.realtime.items import StoredItem
from parley_gateway.apis.realtime.responses import ResponsesState, ResponseState
from parley_gateway.apis.realtime.server_events import ClientEventError
from parley_gateway.apis.realtime.session_config import SessionConfig
from parley_gateway.apis.sessions.messages import SessionResume
from parley_gateway.apis.sessions.record import SessionClaim, SessionRecord
from parley_gateway.gateway import Gateway
from parley_gateway.security.audit import audit
from parley_gateway.security.principal import Principal
from parley_gateway.takeover.errors import NotResumableError

_OTHER_VERSION = "another version of the gateway has kept this session"


class RealtimeState(msgspec.Struct, frozen=True, kw_only=True):
    """What OpenAI's protocol has of a session beside the agent's state."""

    model: str
    agent: str
    """The agent that the model means; empty: the server's own."""
    settings: dict[str, Any]
    """As :meth:`SessionConfig.change` takes them."""
    expires_at: int
    conversation_id: str
    items: list[StoredItem]
    input: InputState
    responses: ResponsesState
    side_responses: list[ResponseState] = []


@dataclass(frozen=True)
class ResumedSession:
    """A session that goes on."""

    claim: SessionClaim
    state: RealtimeState
    config: SessionConfig
    start: protocol.Start
    """Opens the agent's session."""

    @property
    def left_s(self) -> float:
        """How long it may still last (seconds)."""
        return self.state.expires_at - time.time()


async def resume(
    gateway: Gateway, principal: Principal, session_id: str, *, webrtc: bool = False
) -> ResumedSession:
    """Become the owner of a session; ``webrtc``: its audio is sent over RTP.

    Raises:
        NotResumableError: it is unknown, over, too old, or of another principal.
        TakeoverUnavailableError: the store of the sessions does not answer.
    """
    try:
        claim = await gateway.kept.claim(session_id, principal, is_translated=True)
        try:
            state = msgspec.json.decode(claim.record.api_state, type=RealtimeState)
        except msgspec.MsgspecError as error:
            raise NotResumableError(_OTHER_VERSION) from error
        if state.expires_at <= time.time():
            raise NotResumableError("the session has lasted as long as it may")
        progress, agent = _find_progress(claim.record, state)
        kept = msgspec.structs.replace(claim.record.state, agent=agent)
        claim = dataclasses.replace(claim, record=msgspec.structs.replace(claim.record, state=kept))
        start = claim.make_start(SessionResume(token=session_id, progress=progress))
        config = SessionConfig(
            session_id,
            state.model,
            voices=gateway.settings.realtime.voices,
            expires_at=state.expires_at,
            agent=state.agent,
            webrtc=webrtc,
            settings=gateway.settings.realtime,
        )
        try:
            config.change(state.settings)
        except ClientEventError as error:
            raise NotResumableError(_OTHER_VERSION) from error
    except ParleyError as error:
        audit("session_not_resumed", principal, code=error.code)
        raise
    audit("session_resumed", principal, session=claim.name, epoch=claim.epoch)
    return ResumedSession(claim, state, config, start)


def _find_progress(
    record: SessionRecord, state: RealtimeState
) -> tuple[ResponseProgress | None, AgentTurnState | None]:
    """What the client has of the agent's turn under way, and the turn, as the agent goes on with it.

    A response that was cut begins anew: it is not known how much of it has come. What was said before it in
    the same turn, before calls of functions, is not said again.
    """
    agent, progress = record.state.agent, record.progress
    responses, active = state.responses, state.responses.active
    if agent is None or progress is None or agent.turn <= responses.ended_turn:
        return progress, agent
    has_begun = responses.turn == agent.turn
    if has_begun and (active is None or active.calls or active.ended is not None):
        return progress, agent
    called = [one for one in agent.rounds if one.calls]
    begins_ms = [
        item.spoken.from_ms
        for item in state.items
        if active is not None and item.id in active.output and item.spoken is not None
    ]
    begin_ms = begins_ms[0] if begins_ms else progress.audio_ms if has_begun else 0
    before = msgspec.structs.replace(
        progress,
        text=" ".join(one.text.strip() for one in called if one.said),
        words=[word for word in progress.words if word[0] < begin_ms],
        audio_ms=begin_ms,
        played_ms=min(progress.played_ms, begin_ms),
        done=False,
    )
    return before, msgspec.structs.replace(agent, rounds=called)
