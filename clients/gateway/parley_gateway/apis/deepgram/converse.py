"""``/v1/agent/converse``: conversations in the protocol of Deepgram's Voice Agent."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from typing import Any

import msgspec
from starlette.websockets import WebSocket

from parley import protocol
from parley.errors import InvalidMessageError, OverloadedError, ParleyError
from parley.logs import current_ids
from parley.timeouts import loop_time
from parley_client.call import Call
from parley_client.events import AgentAudio, CallEvent
from parley_client.options import check_text
from parley_gateway.apis.deepgram import converse_messages, messages
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.session import run_with_helpers
from parley_gateway.audio.codecs import AudioStreamDecoder, Encoder
from parley_gateway.bodies import read_json
from parley_gateway.calls import hold_share
from parley_gateway.gateway import Gateway
from parley_gateway.security.principal import Principal
from parley_gateway.shares import Shares
from parley_gateway.websocket import IdleLimit, WebSocketSession, accept, refuse


async def serve_converse(websocket: WebSocket, gateway: Gateway, places: Shares) -> None:
    """Hold one conversation over one WebSocket."""
    with ExitStack() as stack:
        try:
            principal = await gateway.guard.admit(websocket, "agent")
            stack.enter_context(hold_share(places, principal, gateway.settings.calls, "connections"))
            gateway.calls.check_room(principal)
        except ParleyError as error:
            await refuse(websocket, error, gateway, messages.answer)
            return
        await accept(websocket, "token")
        await _ConverseSession(websocket, gateway, principal).run()


class _ConverseSession(WebSocketSession):
    """Translates between Deepgram's messages and the agent."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, principal: Principal) -> None:
        super().__init__(websocket, gateway)
        self._principal = principal
        self._commands = AgentCommands(gateway.settings.realtime, self._refuse_update)
        self._decoder: AudioStreamDecoder | None = None
        self._settings = converse_messages.ConverseSettings()
        self._encoder: Encoder | None = None
        self._updates: deque[str] = deque()
        """Types of the answers to those that the agent has not accepted yet."""
        self._has_opened = False
        self._user_speaking = False
        self._state = "listening"
        self._text = ""
        """Of the response that is written."""
        self._functions: dict[str, str] = {}
        """Names of those that are running, by the id of the call."""
        self._times_s: dict[str, float] = {}
        """When the user's turn ended, and the first text came (seconds)."""
        self._send("Welcome", request_id=current_ids().request)

    def _send(self, kind: str, **fields: Any) -> None:
        self.writer.send_json({"type": kind, **fields})

    @property
    def has_opened(self) -> bool:
        """See :class:`WebSocketSession`."""
        return self._has_opened

    def on_failed(self, error: ParleyError) -> None:
        """See :class:`WebSocketSession`."""
        self.writer.send_json(messages.message_of(error))
        self.writer.close(*messages.close_for(error))

    # --- the client ---------------------------------------------------------------------------

    async def on_message(self, message: str | bytes) -> None:
        """See :class:`WebSocketSession`."""
        if isinstance(message, bytes):
            if self._decoder is None:
                raise InvalidMessageError("audio comes after Settings")
            for samples in self._decoder.pieces(message):
                self._commands.send_audio(samples)
        else:
            content = read_json(message, converse_messages.ConverseMessage, "the message")
            if isinstance(content, converse_messages.ConverseSettings):
                self._open(content)
            elif self._decoder is not None:
                self._handle(content)
            elif not isinstance(content, messages.KeepAlive):
                raise InvalidMessageError("a conversation begins with Settings")
        await self._commands.wait_for_room()

    def _open(self, settings: converse_messages.ConverseSettings) -> None:
        if self._decoder is not None:
            raise InvalidMessageError("there were Settings already")
        start = settings.start()
        self._settings = settings
        self._decoder = AudioStreamDecoder(settings.audio.input.form)
        for message in settings.history:
            self._commands.remember(message.role, message.content)
        self._commands.open(start)

    def _handle(self, message: converse_messages.ConverseMessage) -> None:
        match message:
            case converse_messages.FunctionCallResponse():
                self._functions.pop(message.id, None)
                self._commands.answer_tool(message.id, message.content)
            case converse_messages.InjectAgentMessage():
                self._inject(message)
            case converse_messages.InjectUserMessage():
                check_text("content", message.content)
                self._send("ConversationText", role="user", content=message.content)
                self._commands.send_text(message.content)
            case converse_messages.UpdatePrompt():
                self._update("PromptUpdated", protocol.Update(system_prompt=message.prompt))
            case converse_messages.UpdateSpeak():
                self._update(
                    "SpeakUpdated", protocol.Update(voice=converse_messages.first_of(message.speak).voice)
                )
            case converse_messages.UpdateThink():
                self._update("ThinkUpdated", message.update)
            case converse_messages.UpdateListen():
                self._update("ListenUpdated", message.update)
            case messages.ForceEndTurn():
                self._commands.commit()
            case messages.KeepAlive():
                self._commands.keep_alive()

    def _inject(self, message: converse_messages.InjectAgentMessage) -> None:
        check_text("message", message.message)
        if message.behavior == "default" and (self._user_speaking or self._state != "listening"):
            self._send("InjectionRefused", message="a turn is in progress")
            return
        if message.behavior == "interrupt":
            self._commands.interrupt(None)
        self._commands.say(message.message)

    def _update(self, answer: str, update: protocol.Update) -> None:
        if len(self._updates) >= messages.MAX_UPDATES:
            self._warn(OverloadedError(f"{messages.MAX_UPDATES} updates wait already"))
            return
        self._updates.append(answer)
        self._commands.update(update)

    def _refuse_update(self, error: ParleyError) -> None:
        if self._updates:
            self._updates.popleft()
        self._warn(error)

    def _warn(self, error: ParleyError) -> None:
        self._send("Warning", code=error.code, description=str(error))

    # --- the agent ----------------------------------------------------------------------------

    async def send_events(self) -> None:
        """Open the call, and send its events until it is over."""
        first = IdleLimit(self.gateway.settings.realtime.first_event_s, "Settings")
        start = await first.wait_for(self._commands.wait_for_start())
        async with self.gateway.calls.open(start, principal=self._principal, api="deepgram") as call:
            self._has_opened = True
            self._send("SettingsApplied")
            await run_with_helpers(self._read(call), self._commands.run(call))
            closed = call.closed
        self.close_after(closed)

    async def _read(self, call: Call) -> None:
        async for event in call:
            self._on_event(event)

    def _on_event(self, event: CallEvent) -> None:
        match event:
            case AgentAudio():
                self._play(event)
            case protocol.ResponseText():
                self._times_s.setdefault("text", loop_time())
                self._text += event.text
            case protocol.ResponseDone():
                self._finish_text(self._text)
                self._send("AgentAudioDone")
            case protocol.Interrupted():
                if self._text:  # else it was complete
                    self._finish_text(event.spoken_text)
                if self._encoder is not None:
                    self._encoder.reset()
                self._send("UserStartedSpeaking")  # the client drops its audio
            case protocol.AgentState():
                self._enter(event.state)
            case _:
                self._on_user_event(event)

    def _on_call_event(self, event: CallEvent) -> None:
        match event:
            case protocol.ToolRequest():
                self._functions[event.call_id] = event.name
                arguments = msgspec.json.encode(event.arguments).decode()
                call = {"id": event.call_id, "name": event.name, "arguments": arguments, "client_side": True}
                self._send("FunctionCallRequest", functions=[call])
            case protocol.ToolCancelled():
                name = self._functions.pop(event.call_id, "")
                self._send("FunctionCallCancelled", functions=[{"id": event.call_id, "name": name}])
            case protocol.Updated() if self._updates:
                self._send(self._updates.popleft())
            case protocol.ErrorEvent():
                error = event.to_error()
                refused = self._updates and event.code in messages.REFUSED_UPDATES
                (self._refuse_update if refused else self._warn)(error)

    def _on_user_event(self, event: CallEvent) -> None:
        match event:
            case protocol.SpeechStarted():
                self._user_speaking = True
                if self._state != "speaking":  # else only if it interrupts
                    self._send("UserStartedSpeaking")
            case protocol.SpeechStopped():
                self._user_speaking = False
            case protocol.TurnDecision(decision="commit") if event.text:
                self._times_s = {"turn": loop_time()}
                self._send("ConversationText", role="user", content=event.text)
            case _:
                self._on_call_event(event)

    def _enter(self, state: str) -> None:
        self._state = state
        if state == "processing":
            self._send("AgentThinking", content="")
        elif state == "speaking":
            now_s = loop_time()
            text_s = self._times_s.get("text", now_s)
            turn_s = self._times_s.get("turn", text_s)
            latencies = {
                "total_latency": now_s - turn_s,
                "ttt_latency": text_s - turn_s,
                "tts_latency": now_s - text_s,
            }
            self._send("AgentStartedSpeaking", **latencies)

    def _play(self, audio: AgentAudio) -> None:
        if self._encoder is None:
            self._encoder = Encoder(self._settings.audio.output.form, audio.sample_rate)
        if coded := self._encoder.encode(audio.samples):
            self.writer.send_bytes(coded)

    def _finish_text(self, text: str) -> None:
        self._text = ""
        self._times_s.clear()
        if text.strip():
            self._send("ConversationText", role="assistant", content=text.strip())
