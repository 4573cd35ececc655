"""Translates between OpenAI's Realtime protocol and the agent's, without network and clock."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import ParleyError
from parley.llm.history import estimate_tokens
from parley.llm.messages import LlmEvent
from parley_client.events import AgentAudio, CallEvent
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.input_audio import UserTurns
from parley_gateway.apis.realtime.item_commands import ItemCreation, ItemTruncation
from parley_gateway.apis.realtime.items import Items
from parley_gateway.apis.realtime.mcp_servers import McpServers
from parley_gateway.apis.realtime.output_audio import AudioDecoder, AudioOutput
from parley_gateway.apis.realtime.responses import Response, Responses, ResponseStyle
from parley_gateway.apis.realtime.resumption import RealtimeState, ResumedSession
from parley_gateway.apis.realtime.server_events import (
    HARMLESS,
    INVALID,
    REFUSED,
    REFUSED_CHANGES,
    SERVER,
    ClientEventError,
    Emit,
    client_event_error,
    new_id,
    unsupported,
)
from parley_gateway.apis.realtime.session_config import SessionConfig, read_tool_choice
from parley_gateway.apis.realtime.side_responses import SideRequest, SideResponses

_log = logging.getLogger("parley.gateway")
_MAX_PENDING = 64
_TEXT_S = 10.0
"""Wait for the text of a turn that the client has committed, before its response is requested (seconds)."""


@dataclass(frozen=True)
class _Pending:
    event: client.SessionUpdate | list[protocol.Tool]
    """Of the client, or the tools of its MCP servers."""
    before: SessionConfig
    echo: dict[str, Any]
    started: protocol.Start | None
    """The agent's options before the update; None: the agent is not updated."""


class AgentSettings:
    """Keeps the agent's options equal to the session's settings.

    The agent's session is opened with the first event that needs it, so that a first ``session.update``
    comes in time.
    """

    def __init__(self, config: SessionConfig, commands: AgentCommands, emit: Emit) -> None:
        self._config = config
        self._commands = commands
        self._emit = emit
        self._start: protocol.Start | None = None
        self._is_open = False
        self._answered = asyncio.Event()
        """Set while the agent's session is open, or was refused and is to be opened again."""
        self._text_tokens = 0
        self._pending: deque[_Pending] = deque()

    def open(self, resumed: protocol.Start | None = None) -> None:
        """Open the agent's session, if it is not open; ``resumed``: a session that goes on."""
        if self._start is None:
            self._answered.clear()
            self._start = self._config.start()
            self._commands.open(resumed or self._start)

    async def wait_until_open(self) -> None:
        """Open the agent's session, and wait until it is open."""
        while not self._is_open:
            self.open()
            await self._answered.wait()

    def on_opened(self, text_tokens: int) -> None:
        """Answer the update that has opened the session; ``text_tokens`` is the agent's limit of a text."""
        self._is_open, self._text_tokens = True, text_tokens
        self._answered.set()
        self._answer_unchanged()
        self.offer(self._config.mcp_functions)

    def check_text(self, what: str, text: str, *, code: str, param: str) -> None:
        """Raise ClientEventError for a text that the agent would refuse as too long."""
        tokens = estimate_tokens(text)
        if 0 < self._text_tokens < tokens:
            message = f"{what} takes about {tokens} tokens; at most {self._text_tokens} are allowed."
            raise ClientEventError(message, code=code, param=param)

    async def change(self, event: client.SessionUpdate) -> None:
        """Change the settings, and request a change of the agent's options; or raise ClientEventError.

        Waits for the answer to the update that opens the agent's session: it may be refused.
        """
        while self._start is not None and not self._is_open:
            await self._answered.wait()
        if len(self._pending) >= _MAX_PENDING:
            raise ClientEventError("Too many updates at once.", code="too_many_updates")
        before = copy.copy(self._config)
        self._config.change(event.session)
        if self._start is not None and self._config.agent != self._start.agent:
            self._config.restore(before)
            message = "The prompt of a session that has begun cannot be changed."
            raise ClientEventError(message, code="prompt_not_changeable", param="session.prompt")
        echo = self._config.body
        started, update = self._start, None
        if started is None:
            self.open()
        else:
            self._start, update = self._config.update_since(started)
        self._pending.append(_Pending(event, before, echo, None if update is None else started))
        if update is not None:
            self._commands.update(update)
        elif self._is_open:
            self._answer_unchanged()

    def offer(self, functions: list[protocol.Tool]) -> None:
        """Give the agent these tools of MCP servers, once its session is open."""
        before, started = copy.copy(self._config), self._start
        self._config.mcp_functions = functions
        if started is not None and self._is_open:
            self._start, update = self._config.update_since(started)
            if update is not None:
                self._pending.append(_Pending(functions, before, {}, started))
                self._commands.update(update)

    def on_updated(self) -> None:
        """Answer an update that the agent has applied."""
        if self._pending:
            pending = self._pending.popleft()
            if isinstance(pending.event, client.SessionUpdate):
                self._emit("session.updated", session=pending.echo)
        self._answer_unchanged()

    def on_refused(self, code: str | None = None) -> tuple[bool, str | None]:
        """Handle a refusal of the agent; ``code`` None: the session has failed.

        Returns:
            Whether an update was refused, and the id of the client's event.
        """
        if not self._pending or not (code is None or code in REFUSED_CHANGES):
            return False, None
        pending = self._pending.popleft()
        self._config.restore(pending.before)
        self._start = pending.started or self._start
        self._reapply()
        self._answer_unchanged()
        return True, pending.event.event_id if isinstance(pending.event, client.SessionUpdate) else None

    def _reapply(self) -> None:
        """Apply the updates behind a refused one to the settings without it."""
        later, self._pending = self._pending, deque()
        for pending in later:
            before, started = copy.copy(self._config), self._start
            if not isinstance(pending.event, client.SessionUpdate):
                self._config.mcp_functions = pending.event
            else:
                with suppress(ClientEventError):  # it is valid only together with the refused one
                    self._config.change(pending.event.session)
            if pending.started is None or started is None:
                started = None
            else:
                self._start, _ = self._config.update_since(started)
            self._pending.append(_Pending(pending.event, before, self._config.body, started))

    def on_start_refused(self, code: str) -> tuple[bool, str | None]:
        """Handle a refusal of the options that open the agent's session; the next event opens it anew.

        Returns:
            As :meth:`on_refused`.
        """
        refused = self.on_refused(code)
        if refused[0]:
            self._start = None
            if self._commands.is_full:
                self.open()  # the client's next event is not read before a call takes commands
            else:
                self._answered.set()
        return refused

    def _answer_unchanged(self) -> None:
        """Answer updates that do not concern the agent, in the order of all updates."""
        while self._pending and self._pending[0].started is None:
            self._emit("session.updated", session=self._pending.popleft().echo)


def check_options(options: client.ResponseOptions, config: SessionConfig) -> None:
    """Raise ClientEventError for options of a single response that differ from the session's settings."""
    session = config.body
    if options.conversation not in (None, "auto"):
        raise unsupported("Another conversation is", "response.conversation")
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
    if options.tool_choice is not None:
        read_tool_choice(options.tool_choice, "response.tool_choice")


class RealtimeConversation:
    """One session; ``clock`` is monotonic (seconds), ``webrtc``: audio is sent over RTP, not in events.

    ``write`` asks the language model for what is outside the conversation, ``transcribe`` the recogniser for
    the words of audio (mono, 16 kHz, int16 [n]) in items.
    """

    def __init__(
        self,
        config: SessionConfig,
        commands: AgentCommands,
        emit: Emit,
        speaker: AudioOutput,
        clock: Callable[[], float],
        *,
        write: Callable[[SideRequest], AsyncGenerator[LlmEvent, None]],
        transcribe: Callable[[NDArray[np.int16]], Awaitable[str]],
        webrtc: bool = False,
    ) -> None:
        self._config = config
        self._transcribe = transcribe
        self._commands = commands
        self._emit = emit
        self._speaker = speaker
        self._clock = clock
        self._webrtc = webrtc
        self._conversation_id = new_id("conv")
        self._session = AgentSettings(config, commands, emit)
        self._items = Items(emit)
        self._side = SideResponses(config, emit, self._items, write)
        self._user_turns = UserTurns(config, emit, self._items, clock)
        self._responses = Responses(
            commands, self._make_response, clock, self._on_unrequested_turn, self._call_server
        )
        self._mcp = McpServers(config.settings, emit, self._items, self._responses, self._session.offer)
        self._creation = ItemCreation(
            commands,
            self._items,
            self._responses,
            check_text=self._check_item,
            write_down=self._write_down,
            answer_approval=self._mcp.answer,
        )
        self._truncation = ItemTruncation(commands, emit, self._items, self._responses)
        self._decoder = AudioDecoder(config.input_format)
        self._requested: client.ResponseOptions | None = None
        """A response that is not requested from the agent yet."""
        self._request_by_s: float | None = None
        self._answers = False
        """Whether the agent thinks, or has thought of what it says: prompts of silence need no thought."""
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[type[CallEvent], Callable[[Any], None]]:
        """Handlers of the agent's events; the others have no counterpart in OpenAI's protocol."""
        turns, responses = self._user_turns, self._responses
        return {
            protocol.ResponseText: responses.on_content,
            AgentAudio: responses.on_content,
            protocol.ToolRequest: responses.on_content,
            protocol.ResponseDone: responses.on_content,
            protocol.TurnMetrics: responses.on_metrics,
            protocol.ToolCancelled: self._on_tool_cancelled,
            protocol.Interrupted: self._on_interrupted,
            protocol.SpeechStarted: turns.on_speech_started,
            protocol.SpeechStopped: turns.on_speech_stopped,
            protocol.Transcript: turns.on_transcript,
            protocol.TurnDecision: self._on_decision,
            protocol.AgentState: self._on_agent_state,
            protocol.Paused: lambda _: self._speaker.pause(),
            protocol.Resumed: lambda _: self._speaker.resume(),
            protocol.Updated: lambda _: self._session.on_updated(),
            protocol.Truncated: self._truncation.on_truncated,
            protocol.ErrorEvent: self._on_error,
            protocol.Closed: lambda _: responses.close(),
        }

    def begin(self) -> None:
        """Send the first event, when the client is connected."""
        self._emit("session.created", session=self._config.body)
        self._mcp.choose(self._config.mcp)

    async def close(self) -> None:
        """End what runs beside the agent's session, without an event."""
        await self._side.close()
        await self._mcp.close()

    def state(self) -> RealtimeState:
        """What outlives the connection."""
        body = self._config.body
        return RealtimeState(
            model=body["model"],
            agent=self._config.model_agent,
            settings=self._config.given(),
            expires_at=body["expires_at"],
            conversation_id=self._conversation_id,
            items=self._items.state(),
            input=self._user_turns.state(),
            responses=self._responses.state(),
            side_responses=self._side.state(),
        )

    def resume(self, resumed: ResumedSession) -> None:
        """Go on with a session of another connection, and send the first events, when the client is there."""
        state, record = resumed.state, resumed.claim.record
        requests = resumed.claim.waiting_tools()
        self._conversation_id = state.conversation_id
        self._items.restore(state.items)
        self._responses.restore(state.responses, {request.call_id for request in requests})
        self._session.open(resumed.start)
        for change in record.changes:
            if isinstance(change, protocol.Update):
                self._commands.update(change)
            else:
                self._commands.remember(change.role, change.text)
        self.begin()
        self._user_turns.restore(state.input, record.state.audio_ms)
        known = {call.request.call_id for call in state.responses.calls}
        for event in (*record.answers, *(one for one in requests if one.call_id not in known)):
            self.on_agent_event(event)
        self._responses.cut()
        if self._responses.calls.has_server_call:
            self._responses.go_on()
        self._side.end(state.side_responses)

    def on_call_opened(self, text_tokens: int) -> None:
        """The agent's session is open; ``text_tokens`` is its limit of a text (``Connected.text_tokens``)."""
        self._session.on_opened(text_tokens)

    def on_settings_refused(self, error: ParleyError) -> bool:
        """The agent's session was refused; returns whether the client can correct its settings."""
        was_update, event_id = self._session.on_start_refused(error.code)
        if was_update:
            self._emit("error", error=client_event_error(error).body(event_id))
        return was_update

    def on_call_failed(self, error: ParleyError) -> None:
        """The agent's session was refused or lost."""
        self._responses.close()
        _, event_id = self._session.on_refused()
        self._emit("error", error=client_event_error(error).body(event_id))

    @property
    def due(self) -> float | None:
        """The time of the next :meth:`tick` (seconds of the clock); None: none is needed."""
        times = [self._user_turns.due, self._responses.due, self._request_by_s]
        return min((time for time in times if time is not None), default=None)

    def tick(self) -> None:
        """Act on timeouts that have expired."""
        self._user_turns.tick()
        self._responses.tick()
        if self._request_by_s is not None and self._clock() >= self._request_by_s:
            self._request_response()

    # --- events of the client ---------------------------------------------------------------

    async def on_client_event(self, raw: str | bytes, emit: Emit | None = None) -> None:
        """Handle an event of the client; ``emit`` gets the error where it is refused."""
        await client.handle_event(raw, self._handle, emit or self._emit)

    def push_audio(self, samples: NDArray[np.int16], length_ms: float) -> None:
        """Send audio of the user (mono, 16 kHz, int16 [n], of this length) to the agent."""
        self._session.open()
        self._user_turns.on_audio(length_ms)
        if len(samples):
            self._commands.send_audio(samples)

    async def _handle(self, event: client.ClientEvent) -> None:
        if isinstance(event, client.SessionUpdate):
            await self._update(event)
            return
        self._session.open()
        match event:
            case client.AudioAppend():
                await self._on_audio_append(event.audio)
            case client.AudioCommit():
                self._user_turns.commit()
                self._commands.commit()
            case client.AudioClear():
                self._user_turns.clear()
                self._commands.discard()
            case client.OutputClear():
                self._clear_output()
            case client.ResponseCreate():
                await self._session.wait_until_open()
                self._create_response(event.response or client.ResponseOptions())
            case client.ResponseCancel():
                self._cancel_response(event.response_id)
            case client.ItemCreate():
                await self._session.wait_until_open()
                await self._creation.create(event)
            case client.ItemRetrieve():
                self._items.send(event.item_id)
            case _:
                self._truncation.truncate(event)

    async def _update(self, event: client.SessionUpdate) -> None:
        self._mcp.check_room()
        await self._session.change(event)
        self._mcp.choose(self._config.mcp)
        if self._config.input_format != self._decoder.name:
            self._decoder = AudioDecoder(self._config.input_format)

    async def _on_audio_append(self, audio: str) -> None:
        if self._webrtc:
            raise ClientEventError("Audio of a WebRTC session arrives by its track.", code="invalid_event")
        async with aclosing(self._decoder.read(audio)) as pieces:
            async for samples, length_ms in pieces:
                self.push_audio(samples, length_ms)

    async def _write_down(self, audio: str) -> str:
        """The words of an item's audio, in the session's format."""
        async with aclosing(AudioDecoder(self._config.input_format).read(audio)) as pieces:
            parts = [samples async for samples, _ in pieces]
        samples = np.concatenate(parts) if parts else np.zeros(0, np.int16)
        if not len(samples):
            raise ClientEventError("Invalid 'audio': it is empty.", param="item.content")
        return await self._transcribe(samples)

    def _check_item(self, text: str) -> None:
        self._session.check_text(
            "Error adding item: its text", text, code="item_create_too_large", param="item"
        )

    def _clear_output(self) -> None:
        if not self._webrtc:
            message = "There is an output audio buffer in WebRTC sessions only."
            raise ClientEventError(message, code="invalid_event")
        self._responses.stop_playback()
        self._speaker.clear()

    def _create_response(self, options: client.ResponseOptions) -> None:
        if options.conversation == "none":
            self._side.create(options)
            return
        check_options(options, self._config)
        self._session.check_text(
            "The prompt of the response",
            options.instructions or "",
            code="instructions_too_long",
            param="response.instructions",
        )
        if self._responses.calls.waiting and options.tool_choice not in (None, "auto", "none"):
            what = "A tool choice for the response to the outputs of functions is"
            raise unsupported(what, "response.tool_choice")
        self._responses.check_idle()
        if not self._responses.create(options.metadata):
            return
        self._requested = options
        if self._user_turns.awaits_text:
            self._request_by_s = self._clock() + _TEXT_S
        else:
            self._request_response()

    def _cancel_response(self, response_id: str | None) -> None:
        if not self._side.cancel(response_id):
            self._responses.cancel(response_id, asked=self._requested is None)
            self._requested, self._request_by_s = None, None

    def _request_response(self) -> None:
        options, self._requested, self._request_by_s = self._requested, None, None
        if options is not None:
            choice = options.tool_choice
            must_call = None if choice is None else read_tool_choice(choice, "response.tool_choice")
            self._commands.respond(options.instructions, choice != "none", must_call)

    def _call_server(self, request: protocol.ToolRequest, response: Response) -> bool:
        return not self._config.has_function(request.name) and self._mcp.call(request, response)

    def _on_tool_cancelled(self, event: protocol.ToolCancelled) -> None:
        self._mcp.on_cancelled(event)
        self._responses.calls.on_cancelled(event)

    def _make_response(self, metadata: dict[str, str] | None) -> Response:
        body = self._config.body
        style = ResponseStyle(
            writes_only=self._config.writes_only,
            conversation_id=self._conversation_id,
            output=dict(body["audio"]["output"]),
            max_output_tokens=body["max_output_tokens"],
            metadata=metadata,
        )
        return Response(self._emit, self._items, self._speaker, style)

    def _on_unrequested_turn(self) -> None:
        """The agent speaks without a request: it answers, or prompts the user after a long silence."""
        if not self._answers and self._config.idle_timeout_ms:
            self._user_turns.on_idle_timeout()

    # --- events of the agent ----------------------------------------------------------------

    def on_agent_event(self, event: CallEvent) -> None:
        """Handle an event of the agent."""
        handle = self._handlers.get(type(event))
        if handle is not None:
            handle(event)

    def _on_agent_state(self, event: protocol.AgentState) -> None:
        if event.state != "speaking":
            self._answers = event.state == "processing"
        self._user_turns.on_agent_state(event)

    def _on_interrupted(self, event: protocol.Interrupted) -> None:
        if event.reason in ("words", "speech", "command"):
            self._user_turns.on_interruption()
        if self._webrtc:
            self._truncation.on_interrupted(self._responses.active, event)
        self._responses.on_interrupted(event)

    def _on_decision(self, event: protocol.TurnDecision) -> None:
        self._user_turns.on_decision(event)
        if event.decision == "commit":
            self._responses.on_turn_committed()
            if self._requested is not None and not self._user_turns.awaits_text:
                self._request_response()

    def _on_error(self, event: protocol.ErrorEvent) -> None:
        if event.code in HARMLESS:
            _log.info("a realtime session continues after %s", event.code)
            return
        refused = event.code in REFUSED
        event_id: str | None = None
        if refused:
            was_update, event_id = self._session.on_refused(event.code)
            if was_update:
                self._mcp.choose(self._config.mcp)
            else:
                event_id = self._truncation.on_refused(event.code)
        elif self._responses.on_error(event):
            return
        refusal = ClientEventError(event.message, code=event.code, kind=INVALID if refused else SERVER)
        self._emit("error", error=refusal.body(event_id))
