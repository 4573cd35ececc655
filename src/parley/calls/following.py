"""Follows one call of an agent: for its recording, and for webhooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.calls.database import CallInfo
from parley.calls.folder import is_call_id, make_call_id, to_iso
from parley.calls.settings import RecordSettings
from parley.calls.writing import CallRecord, CallWriter
from parley.checkpoint import CHECKPOINT_VERSION, Resume, SessionState
from parley.protocol import ServerEvent, Start
from parley.timeouts import loop_time
from parley.tools.base import ServerTools, ToolOutcome
from parley.tools.combined import CombinedTools

if TYPE_CHECKING:
    from parley.calls.webhooks import Webhooks

_MAY_CONTINUE = frozenset({"disconnected", "shutdown", "failed"})
_MAX_OUTCOMES = 64
_Outcome: TypeAlias = tuple[str, Mapping[str, Any], ToolOutcome]


class FollowedCall:
    """Passes a call's events to its recording and webhooks. Made when its session begins.

    Args:
        start: its options; with ``resume`` the call has the id that it had before.
        writer: records it; None: nothing is kept.
        webhooks: get its events; None: there are none.
    """

    def __init__(
        self,
        session_id: str,
        start: Start,
        writer: CallWriter | None,
        settings: RecordSettings,
        webhooks: Webhooks | None,
    ) -> None:
        now = datetime.now(UTC)
        resume = start.resume or Resume(state=SessionState(version=CHECKPOINT_VERSION))
        state = resume.state
        goes_on = is_call_id(state.call)
        self._info = CallInfo(
            call=state.call if goes_on else make_call_id(now),
            part=state.call_part + 1 if goes_on else 1,
            agent=start.agent,
            owner=start.owner,
            session=session_id,
            language=start.language,
            started=to_iso(now),
            delete_at=to_iso(now + timedelta(days=settings.retention_days)) if writer else "",
            step=state.outcomes.step,
            collected=dict(state.outcomes.collected),
            decisions=dict(state.outcomes.decisions),
        )
        self._began = loop_time()
        self._checkpoints = start.checkpoints
        self._leaves = False
        self._opened = goes_on
        self._connected = False
        self._webhooks = webhooks
        self._record: CallRecord | None = None
        if writer is not None:
            self._record = CallRecord(writer, self._info, settings, self._began, resume.audio_ms)
        self._writer = writer
        self._said: dict[str, list[str]] = {}
        self._last_words = protocol.Transcript(utterance=0, text="", is_final=True, confidence=0.0)
        self._outcomes: deque[_Outcome] = deque(maxlen=_MAX_OUTCOMES)

    def mark(self, state: SessionState) -> SessionState:
        """The state of a session of this call: another one can go on with it."""
        info, seal = self._info, ""
        if self._writer is not None:
            seal = self._writer.folder.seal(info.call, info.agent)
        return msgspec.structs.replace(state, call=info.call, call_part=info.part, call_seal=seal)

    @property
    def wants_summary(self) -> bool:
        """Whether a summary of the call is asked for, and can be made now that it is over."""
        ended = self._info.ended and not self._info.may_continue and self._info.reason != "shutdown"
        wanted = self._webhooks is not None and self._webhooks.want_summary
        return ended and wanted and self._connected

    def watch(self, tools: ServerTools | None) -> ServerTools | None:
        """The server's tools, whose results are kept."""
        return tools if tools is None or self._record is None else _WatchedTools(tools, self._outcomes)

    def on_audio(self, audio: NDArray[np.int16], *, muted: bool) -> None:
        """The client has sent audio."""
        if self._record is not None:
            self._record.add_user(len(audio) if muted else audio, loop_time())

    def on_message(self, message: protocol.ClientMessage) -> None:
        """The client has sent a message."""
        if self._record is not None and not isinstance(message, protocol.Playback):
            self._record.add("message", message, loop_time(), more={})

    def on_event(self, event: ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        """The client was sent an event."""
        self._leaves |= isinstance(event, protocol.GoAway)
        match event:
            case protocol.Connected():
                if not self._opened:
                    self._post("call.started")
                self._opened = self._connected = True
            case protocol.StepChanged():
                self._change(step=event.step)
                self._post("step.changed", step=event.step, previous=event.previous)
            case protocol.DataCollected():
                others = {name: one for name, one in self._info.collected.items() if name != event.field}
                self._change(collected=others | ({event.field: event.value} if event.value else {}))
            case protocol.Decision():
                self._change(decisions={**self._info.decisions, event.name: event.state})
            case protocol.TurnMetrics():
                self._change(turns=event.turn)
            case protocol.Closed():
                self._on_closed(event)
            case _:
                pass
        if self._record is not None:
            self._record.add("event", event, loop_time(), audio, self._add_to_line(event))
            if isinstance(event, protocol.Closed):
                self._record.finish(self._info, loop_time())

    def end(self, summary: str = "") -> None:
        """Post that the call is over, after its event ``closed``, unless it never began."""
        if not self._opened:
            return
        if self._info.transfer is not None:
            self._post("call.transferred", transfer=msgspec.to_builtins(self._info.transfer))
        self._post("call.ended", **({"summary": summary} if summary else {}))

    def _on_closed(self, closed: protocol.Closed) -> None:
        if self._record is not None and not self._last_words.is_final:  # and they never will be
            self._record.add("event", self._last_words, loop_time(), more={})
        may_continue = self._checkpoints and (
            closed.reason in _MAY_CONTINUE or (self._leaves and closed.reason == "ended")
        )
        self._change(
            ended=True,
            reason=closed.reason,
            agent_reason=closed.agent_reason,
            transfer=closed.transfer,
            may_continue=may_continue,
            duration_ms=round((loop_time() - self._began) * 1000),
        )

    def _add_to_line(self, event: ServerEvent) -> dict[str, Any] | None:
        """What the recording says besides an event itself; None: the event is not written."""
        match event:
            case protocol.ResponseText():
                self._said.setdefault(event.response_id, []).append(event.text)
                return None
            case protocol.Audio() | protocol.Checkpoint() | protocol.Connected():
                return None
            case protocol.Transcript():
                self._last_words = event
                return {} if event.is_final else None
            case protocol.ResponseDone():
                return {"text": "".join(self._said.pop(event.response_id, ()))}
            case protocol.Interrupted():
                self._said.pop(event.response_id, None)
            case protocol.ToolRun():
                for one in self._outcomes:
                    if one[:2] == (event.name, event.arguments):
                        self._outcomes.remove(one)
                        return {"output": one[2].output}
            case _:
                pass
        return {}

    def _change(self, **values: Any) -> None:
        self._info = msgspec.structs.replace(self._info, **values)

    def _post(self, event: str, **more: Any) -> None:
        if self._webhooks is not None:
            info = msgspec.to_builtins(self._info)
            hidden = ("id", "owner", "delete_at", "transfer", "incomplete")
            data = {name: value for name, value in info.items() if name not in hidden}
            self._webhooks.post(event, data | {"recorded": self._record is not None} | more)


class _WatchedTools(CombinedTools):
    """Tools of the server whose outcomes are kept."""

    def __init__(self, tools: ServerTools, outcomes: deque[_Outcome]) -> None:
        super().__init__(tools)
        self._outcomes = outcomes

    async def call(self, name: str, arguments: Mapping[str, Any], **options: Any) -> ToolOutcome:
        outcome = await super().call(name, arguments, **options)
        self._outcomes.append((name, arguments, outcome))
        return outcome
