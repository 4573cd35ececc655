"""Follows one call of an agent: for its recording, and for webhooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.calls.folder import CallInfo, is_call_id, make_call_id, to_iso
from parley.calls.mixing import CallMixer
from parley.calls.settings import RecordSettings
from parley.calls.writing import CallRecord, CallWriter
from parley.checkpoint import DecidedState
from parley.protocol import ServerEvent, Start
from parley.timeouts import loop_time
from parley.tools.base import ReportProgress, ServerTools, ToolOutcome
from parley.tools.combined import CombinedTools

if TYPE_CHECKING:
    from parley.calls.webhooks import Webhooks

_MAY_CONTINUE = frozenset({"disconnected", "shutdown", "failed"})
_LEFT_OUT = (protocol.Checkpoint, protocol.Audio, protocol.ResponseText, protocol.Connected)
"""Events that are kept in another form, or not: what was heard of them matters."""
_MAX_OUTPUTS = 64


class FollowedCall:
    """What becomes of a call, for those who are to learn of it. Made when its session begins.

    Args:
        session_id: of the session.
        start: its options; with ``resume`` the call has the id that it had before.
        writer: records it; None: nothing is kept.
        settings: of the recording.
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
        state = start.resume.state if start.resume is not None else None
        goes_on = state is not None and is_call_id(state.call)
        self._info = CallInfo(
            call=state.call if state is not None and goes_on else make_call_id(now),
            part=state.call_part + 1 if state is not None and goes_on else 1,
            agent=start.agent,
            session=session_id,
            language=start.language,
            started=to_iso(now),
            delete_at=to_iso(now + timedelta(days=settings.retention_days)) if writer else "",
            step=state.outcomes.step if state is not None else "",
            collected=dict(state.outcomes.collected) if state is not None else {},
            decisions=dict(state.outcomes.decisions) if state is not None else {},
        )
        self._began = loop_time()
        self._checkpoints = start.checkpoints
        self._leaves = False
        self._opened = self.part > 1
        self._connected = False
        self._webhooks = webhooks
        self._writer = writer
        self._record: CallRecord | None = None
        if writer is not None:
            sent_ms = start.resume.audio_ms if start.resume is not None else 0
            self._record = writer.open(self._info, settings, self._began, sent_ms)
        self._said: dict[str, list[str]] = {}
        self._last_words = protocol.Transcript(utterance=0, text="", is_final=True, confidence=0.0)
        self._outputs: deque[tuple[str, Mapping[str, Any], ToolOutcome]] = deque(maxlen=_MAX_OUTPUTS)

    @property
    def call(self) -> str:
        """The id of the call, the same after a move."""
        return self._info.call

    @property
    def part(self) -> int:
        """1, and more after moves."""
        return self._info.part

    @property
    def seal(self) -> str:
        """Proves to :meth:`parley.calls.folder.CallFolder.has_sealed` that the call is recorded."""
        return "" if self._writer is None else self._writer.folder.seal(self.call, self._info.agent)

    @property
    def wants_summary(self) -> bool:
        """Whether a summary of the call is asked for, and can be made now that it is over."""
        ended = self._info.ended and not self._info.may_continue and self._info.reason != "shutdown"
        wanted = self._webhooks is not None and self._webhooks.want_summary
        return ended and wanted and self._connected

    def watch(self, tools: ServerTools | None) -> ServerTools | None:
        """The server's tools, whose results are kept."""
        return tools if tools is None or self._record is None else _WatchedTools(tools, self._outputs.append)

    def on_audio(self, audio: NDArray[np.int16], *, muted: bool) -> None:
        """The client has sent audio."""
        if self._record is not None:
            self._record.add_user(len(audio) if muted else audio, loop_time())

    def on_message(self, message: protocol.ClientMessage) -> None:
        """The client has sent a message."""
        if self._record is not None and not isinstance(message, protocol.Playback):
            self._record.add_line("message", message, loop_time())

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
                decided = DecidedState(
                    value=event.value, probability=event.probabilities[event.value], turn=event.turn
                )
                self._change(decisions={**self._info.decisions, event.name: decided})
            case protocol.TurnMetrics():
                self._change(turns=event.turn)
            case protocol.Transcript():
                self._last_words = event
            case protocol.Closed():
                self._on_closed(event)
            case _:
                pass
        if self._record is not None:
            self._keep(self._record, event, audio)

    def end(self, summary: str = "") -> None:
        """Post that the call is over, after its event ``closed``, unless it never began."""
        if not self._opened:
            return
        if self._info.transfer is not None:
            self._post("call.transferred", transfer=msgspec.to_builtins(self._info.transfer))
        self._post("call.ended", **({"summary": summary} if summary else {}))

    def _on_closed(self, closed: protocol.Closed) -> None:
        if self._record is not None and not self._last_words.is_final:  # and they never will be
            self._record.add_line("event", self._last_words, loop_time())
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

    def _keep(self, record: CallRecord, event: ServerEvent, audio: NDArray[np.int16] | None) -> None:
        now = loop_time()
        more: dict[str, Any] = {}
        _play(record, event, audio, now)
        match event:
            case protocol.ResponseText():
                self._said.setdefault(event.response_id, []).append(event.text)
            case protocol.ResponseDone():
                more["text"] = "".join(self._said.pop(event.response_id, ()))
            case protocol.Interrupted():
                self._said.pop(event.response_id, None)
            case protocol.ToolRun():
                if (output := self._take_output(event)) is not None:
                    more["output"] = output.output
            case protocol.Transcript() if not event.is_final:
                return
            case _:
                pass
        if not isinstance(event, _LEFT_OUT):
            record.add_line("event", event, now, **more)
        if isinstance(event, protocol.Closed):
            record.finish(self._info, now)

    def _take_output(self, run: protocol.ToolRun) -> ToolOutcome | None:
        for one in self._outputs:
            if one[:2] == (run.name, run.arguments):
                self._outputs.remove(one)
                return one[2]
        return None

    def _change(self, **values: Any) -> None:
        self._info = msgspec.structs.replace(self._info, **values)

    def _post(self, event: str, **more: Any) -> None:
        if self._webhooks is not None:
            info = msgspec.to_builtins(self._info)
            recorded = self._record is not None
            hidden = ("id", "delete_at", "transfer", "incomplete")
            data = {name: value for name, value in info.items() if name not in hidden}
            self._webhooks.post(event, data | {"recorded": recorded} | more)


def _play(record: CallRecord, event: ServerEvent, audio: NDArray[np.int16] | None, now: float) -> None:
    """What an event does to the agent's audio."""
    match event:
        case protocol.Audio() if audio is not None:
            record.add_agent(event, audio, now)
        case protocol.ResponseDone():
            record.change(CallMixer.end_response, now)
        case protocol.Interrupted():
            record.change(lambda mixer: mixer.interrupt(event.response_id, event.played_ms), now)
        case protocol.Paused() | protocol.Resumed():
            paused = isinstance(event, protocol.Paused)
            record.change(lambda mixer: mixer.pause(paused=paused), now)
        case _:
            pass


class _WatchedTools(CombinedTools):
    """Tools of the server whose outcomes are passed on, too."""

    def __init__(
        self, tools: ServerTools, on_outcome: Callable[[tuple[str, Mapping[str, Any], ToolOutcome]], None]
    ) -> None:
        super().__init__(tools)
        self._on_outcome = on_outcome

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        traceparent: str = "",
        on_progress: ReportProgress | None = None,
    ) -> ToolOutcome:
        outcome = await super().call(name, arguments, traceparent=traceparent, on_progress=on_progress)
        self._on_outcome((name, arguments, outcome))
        return outcome
