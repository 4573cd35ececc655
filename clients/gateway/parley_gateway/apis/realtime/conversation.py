"""Translates between OpenAI's Realtime protocol and the agent's; knows no network and no clock of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import ParleyError
from parley_client.events import CallEvent
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.agent_session import AgentSession
from parley_gateway.apis.realtime.client_events import ResponseOptions
from parley_gateway.apis.realtime.input_audio import UserTurns
from parley_gateway.apis.realtime.item_creation import ItemCreation
from parley_gateway.apis.realtime.item_truncation import ItemTruncation
from parley_gateway.apis.realtime.items import Items
from parley_gateway.apis.realtime.output_audio import AudioDecoder, Speaker
from parley_gateway.apis.realtime.response import Response, Style
from parley_gateway.apis.realtime.responses import Content, Responses
from parley_gateway.apis.realtime.server_events import (
    HARMLESS,
    INVALID,
    REFUSED,
    SERVER,
    ClientEventError,
    Emit,
    client_event_error,
    new_id,
    unsupported,
)
from parley_gateway.apis.realtime.session_config import SessionConfig


def check_options(options: ResponseOptions, config: SessionConfig) -> None:
    """Refuse what a single response cannot have for itself; what the session has anyway may be said again.

    Raises:
        Refusal: something in it cannot be done.
    """
    session = config.body
    if options.conversation not in (None, "auto"):
        raise unsupported("Responses outside the conversation are", "response.conversation")
    for name in ("input", "prompt", "tools"):
        value = getattr(options, name)
        if value is not None and value != session.get(name):
            raise unsupported(f"'{name}' of a single response is", f"response.{name}")
    if options.max_output_tokens not in (None, "inf", session["max_output_tokens"]):
        raise unsupported("A limit of a single response is", "response.max_output_tokens")
    modalities = options.output_modalities
    if modalities is not None and (modalities == ["text"]) != config.writes_only:
        what = "A response in another modality than the session's is"
        raise unsupported(what, "response.output_modalities")
    output = options.audio.output or {} if options.audio is not None else {}
    known = session["audio"]["output"]
    if any(value is not None and value != known.get(name) for name, value in output.items()):
        raise unsupported("Audio of a single response that differs is", "response.audio.output")
    if options.tool_choice not in (None, "auto", "none"):
        raise unsupported("A tool choice other than 'auto' or 'none' is", "response.tool_choice")


_log = logging.getLogger("parley.gateway")
_TEXT_S = 10.0
"""Text of a turn that the client has ended, before an answer to it is asked for all the same (seconds)."""
_Owed: TypeAlias = tuple[str | None, bool]
UserEvent: TypeAlias = (
    protocol.SpeechStarted
    | protocol.SpeechStopped
    | protocol.Transcript
    | protocol.TurnDecision
    | protocol.AgentState
)
AnswerEvent: TypeAlias = (
    Content
    | protocol.TurnMetrics
    | protocol.Interrupted
    | protocol.ToolCancelled
    | protocol.Paused
    | protocol.Resumed
)


class RealtimeConversation:
    """One session.

    Args:
        config: The session's settings.
        port: To the agent.
        emit: Sends server events.
        speaker: Gets the agent's voice.
        clock: Seconds, monotonic.
        webrtc: Whether audio goes another way than the events.
    """

    def __init__(
        self,
        config: SessionConfig,
        port: AgentCommands,
        emit: Emit,
        speaker: Speaker,
        clock: Callable[[], float],
        *,
        webrtc: bool = False,
    ) -> None:
        self._config = config
        self._port = port
        self._emit = emit
        self._speaker = speaker
        self._clock = clock
        self._webrtc = webrtc
        self._conversation_id = new_id("conv")
        self._session = AgentSession(config, port, emit)
        self._items = Items(emit)
        self._user = UserTurns(config, emit, self._items, clock)
        self._responses = Responses(port, self._make_response, clock, self._unasked)
        self._added = ItemCreation(port, emit, self._items, self._responses)
        self._corrections = ItemTruncation(port, emit, self._items)
        self._listening = AudioDecoder(config.input_format)
        self._owed: _Owed | None = None
        self._owed_by: float | None = None
        self._answers_user = False

    # --- life -------------------------------------------------------------------------------

    def begin(self) -> None:
        """The client is connected."""
        self._emit("session.created", session=self._config.echo())

    def opened(self) -> None:
        """The agent's session is open."""
        self._session.opened()

    def refuse(self, error: ParleyError) -> None:
        """The agent's session is not, or no longer, to be had."""
        self._responses.close()
        _, event_id = self._session.refused()
        self._emit("error", error=client_event_error(error).body(event_id))

    @property
    def due(self) -> float | None:
        """When :meth:`tick` has to be called (seconds of the clock); None: there is no need."""
        times = [self._user.due, self._responses.due, self._owed_by]
        return min((time for time in times if time is not None), default=None)

    def tick(self) -> None:
        """Time has passed."""
        self._user.tick()
        self._responses.tick()
        if self._owed_by is not None and self._clock() >= self._owed_by:
            self._ask()

    # --- the client's events ----------------------------------------------------------------

    async def receive(self, raw: str | bytes) -> None:
        """Take an event of the client's."""
        event_id: str | None = None
        try:
            event = client.read_event(raw)
            event_id = event.event_id
            await self._obey(event)
        except ClientEventError as refusal:
            event_id = event_id or client.event_id_of(raw)
            self._emit("error", error=refusal.body(event_id))
        except ParleyError as error:
            self._emit("error", error=client_event_error(error).body(event_id))

    def hear_user(self, samples: NDArray[np.int16], length_ms: float) -> None:
        """Take the user's audio: mono, 16 kHz, int16 [n], which lasts ``length_ms``."""
        self._session.open()
        self._user.appended(length_ms)
        if len(samples):
            self._port.audio(samples)

    async def _obey(self, event: client.ClientEvent) -> None:
        if isinstance(event, client.SessionUpdate):
            self._update(event)
            return
        self._session.open()
        match event:
            case client.AudioAppend():
                await self._append(event.audio)
            case client.AudioCommit():
                self._user.commit()
                self._port.commit()
            case client.AudioClear():
                self._user.clear()
                self._port.discard()
            case client.OutputClear():
                self._clear_output()
            case client.ItemDelete() | client.ItemTruncate():
                self._corrections.obey(event)
            case client.ResponseCreate():
                self._create_response(event.response or client.ResponseOptions())
            case client.ResponseCancel():
                self._cancel(event.response_id)
            case client.ItemCreate() | client.ItemRetrieve():
                self._added.obey(event)

    def _update(self, event: client.SessionUpdate) -> None:
        self._session.change(event)
        if self._config.input_format != self._listening.name:
            self._listening = AudioDecoder(self._config.input_format)

    async def _append(self, audio: str) -> None:
        if self._webrtc:
            raise ClientEventError("Audio of a WebRTC session arrives by its track.", code="invalid_event")
        async for samples, length_ms in self._listening.read(audio):
            self.hear_user(samples, length_ms)

    # --- responses --------------------------------------------------------------------------

    def _create_response(self, options: client.ResponseOptions) -> None:
        check_options(options, self._config)
        self._responses.check_idle()
        if not self._responses.create(options.metadata):
            return
        self._owed = (options.instructions, options.tool_choice != "none")
        if self._user.awaits_text:
            self._owed_by = self._clock() + _TEXT_S
        else:
            self._ask()

    def _make_response(self, metadata: dict[str, str] | None) -> Response:
        body = self._config.body
        style = Style(
            writes_only=self._config.writes_only,
            conversation_id=self._conversation_id,
            output=dict(body["audio"]["output"]),
            max_output_tokens=body["max_output_tokens"],
            metadata=metadata,
        )
        return Response(self._emit, self._items, self._speaker, style)

    def _ask(self) -> None:
        owed, self._owed, self._owed_by = self._owed, None, None
        if owed is not None:
            self._port.respond(*owed)

    def _cancel(self, response_id: str | None) -> None:
        asked = self._owed is None
        self._responses.cancel(response_id, asked=asked)
        self._owed, self._owed_by = None, None

    def _clear_output(self) -> None:
        if not self._webrtc:
            raise ClientEventError(
                "There is an output audio buffer in WebRTC sessions only.", code="invalid_event"
            )
        self._port.interrupt(None)
        self._speaker.cut()

    def _unasked(self) -> None:
        """The agent begins to speak by itself: it answers the user, or has waited for long enough."""
        if not self._answers_user and self._config.idle_timeout_ms:
            self._user.idle()
        self._answers_user = False

    # --- the agent's events -----------------------------------------------------------------

    def hear(self, event: CallEvent) -> None:
        """Take an event of the agent's."""
        if isinstance(event, UserEvent):
            self._hear_user(event)
        elif isinstance(event, AnswerEvent):
            self._hear_answer(event)
        elif isinstance(event, protocol.Updated):
            self._session.updated()
        elif isinstance(event, protocol.Truncated):
            self._corrections.done(event)
        elif isinstance(event, protocol.ErrorEvent):
            self._failed(event)
        elif isinstance(event, protocol.Closed):
            self._responses.close()

    def _hear_answer(self, event: AnswerEvent) -> None:
        match event:
            case protocol.TurnMetrics():
                self._responses.metrics(event)
            case protocol.Interrupted():
                if event.reason in ("words", "speech", "command"):
                    self._user.interrupted()
                if self._webrtc:
                    self._corrections.cut(self._responses.active, event)
                self._responses.interrupted(event)
            case protocol.ToolCancelled():
                self._responses.tool_cancelled(event)
            case protocol.Paused():
                self._speaker.pause()
            case protocol.Resumed():
                self._speaker.resume()
            case _:
                self._responses.hear(event)

    def _hear_user(self, event: UserEvent) -> None:
        match event:
            case protocol.SpeechStarted():
                self._user.speech_started(event.at_ms)
            case protocol.SpeechStopped():
                self._user.speech_stopped(event.at_ms)
            case protocol.Transcript():
                self._user.transcript(event)
            case protocol.AgentState():
                self._user.agent_state(event.state)
            case protocol.TurnDecision():
                self._user.decided(event)
                if event.decision == "commit":
                    self._answers_user = True
                    self._responses.expect_turn()
                    if self._owed is not None and not self._user.awaits_text:
                        self._ask()

    def _failed(self, event: protocol.ErrorEvent) -> None:
        if event.code in HARMLESS:
            _log.info("a realtime session goes on after %s", event.code)
            return
        refused = event.code in REFUSED
        event_id: str | None = None
        if refused:
            was_update, event_id = self._session.refused(event.code)
            if not was_update:
                event_id = self._corrections.refused(event.code)
        elif self._responses.failed(event):
            return
        refusal = ClientEventError(event.message, code=event.code, kind=INVALID if refused else SERVER)
        self._emit("error", error=refusal.body(event_id))
