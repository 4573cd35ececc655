"""The client's responses, their events, and the agent's turns that belong to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from parley import protocol
from parley_client.events import AgentAudio
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.function_calls import FunctionCalls, WaitingCall
from parley_gateway.apis.realtime.items import Items, SpokenPart, StoredItem, begin_item
from parley_gateway.apis.realtime.output_audio import AudioOutput, Part
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit, new_id, usage_of

_TRANSCRIPT = "response.output_audio_transcript"
_BATCH_S = 0.02
"""The calls of one round come at once; after this time without another the round is complete (seconds)."""
_SPOKEN_S = 0.3
"""Silence after the last words that are spoken before a call (seconds)."""
_STALLED_S = 1.5
"""The same if words are missing: the synthesizer may be late, or have omitted some (seconds)."""
_USAGE_S = 5.0
"""Wait for a turn's metrics, which come after its playback (seconds)."""
_CUT_USAGE_S = 0.2
"""The same after an interruption, where they come at once (seconds)."""

Content: TypeAlias = protocol.ResponseText | AgentAudio | protocol.ToolRequest | protocol.ResponseDone
Status: TypeAlias = Literal["completed", "cancelled", "failed", "incomplete"]


@dataclass(frozen=True)
class ResponseStyle:
    """The settings of a response, fixed when it is created."""

    writes_only: bool
    conversation_id: str | None
    """None: it is outside the conversation."""
    output: dict[str, Any]
    """OpenAI's ``audio.output``."""
    max_output_tokens: int | str
    metadata: dict[str, str] | None = None


class ResponseState(msgspec.Struct, frozen=True, kw_only=True):
    """A response that is not over, as it outlives the connection."""

    id: str
    turn: int | None
    agent_id: str
    calls: int
    ended: tuple[Status, str | None] | None
    style: ResponseStyle
    output: list[str]
    """Ids of its items."""
    open_id: str
    """The item of the open message; empty: there is none."""
    text: str
    """Of the open message."""


class ResponsesState(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives the connection."""

    turn: int
    turn_id: str
    ended_turn: int
    active: ResponseState | None
    calls: list[WaitingCall]


@dataclass
class _Message:
    stored: StoredItem
    part: Part
    text: str = ""
    spoken: str = ""
    """The text of the audio so far."""
    open: bool = True


@dataclass
class Response:
    """Sends the events of a turn of the agent, or of its part before or after function calls."""

    emit: Emit
    items: Items
    speaker: AudioOutput
    style: ResponseStyle
    id: str = field(default_factory=lambda: new_id("resp"))
    turn: int | None = None
    """The agent's turn; None: it has not begun."""
    agent_id: str = ""
    """The agent's id of the response."""
    calls: int = 0
    """Number of function calls."""
    failure: protocol.ErrorEvent | None = None
    """The error of the turn."""
    ended: tuple[Status, str | None] | None = None
    """Status and reason of a response that only waits for its usage."""
    _output: list[StoredItem] = field(default_factory=list)
    _message: _Message | None = None

    def state(self) -> ResponseState:
        """What outlives the connection."""
        message = self._message if self._message is not None and self._message.open else None
        return ResponseState(
            id=self.id,
            turn=self.turn,
            agent_id=self.agent_id,
            calls=self.calls,
            ended=self.ended,
            style=self.style,
            output=[stored.id for stored in self._output],
            open_id=message.stored.id if message else "",
            text=message.text if message else "",
        )

    def restore(self, state: ResponseState) -> None:
        """Go on with a response of another connection, whose items are stored."""
        self.id, self.turn, self.agent_id, self.calls = state.id, state.turn, state.agent_id, state.calls
        self.style, self.ended = state.style, state.ended
        self._output = [self.items.find(one, "retrieve") for one in state.output if one in self.items]
        for index, stored in enumerate(self._output):
            if stored.id == state.open_id:
                self._message = _Message(stored, Part(self.id, stored.id, index), state.text)

    def create(self) -> None:
        """Send the first event."""
        self.emit("response.created", response=self._body("in_progress"))

    def bind(self, turn: int, agent_id: str) -> None:
        """Assign a turn of the agent."""
        self.turn, self.agent_id = turn, agent_id

    def write(self, text: str) -> None:
        """Append text."""
        message = self._open_message()
        message.text += text
        kind = "response.output_text.delta" if self.style.writes_only else _TRANSCRIPT + ".delta"
        self._emit_part(kind, message, delta=text)

    def speak(self, audio: AgentAudio) -> None:
        """Append audio."""
        if self.style.writes_only:
            return
        message = self._open_message()
        if message.stored.spoken is None:
            message.stored.spoken = SpokenPart(self.agent_id, audio.offset_ms)
        message.spoken += audio.text
        if len(audio.samples):
            message.stored.spoken.length_ms += audio.duration_ms
            self.speaker.play(message.part, audio)

    def call(self, request: protocol.ToolRequest) -> None:
        """Append a function call."""
        self.calls += 1
        arguments = msgspec.json.encode(request.arguments).decode()
        index, stored = self._add_item(
            "function_call", call_id=request.call_id, name=request.name, arguments=""
        )
        place = {"response_id": self.id, "item_id": stored.id, "output_index": index}
        place["call_id"] = request.call_id
        self.emit("response.function_call_arguments.delta", **place, delta=arguments)
        stored.body |= {"status": "completed", "arguments": arguments}
        self.emit("response.function_call_arguments.done", **place, arguments=arguments, name=request.name)
        self._finish_item(index, stored)

    def call_server(self, request: protocol.ToolRequest, label: str) -> tuple[int, StoredItem]:
        """Append a call of an MCP server's tool, whose output comes later; returns its place and item."""
        self.calls += 1
        arguments = msgspec.json.encode(request.arguments).decode()
        fields = {"approval_request_id": None, "output": None, "error": None}
        index, stored = self._add_item(
            "mcp_call", server_label=label, name=request.name, arguments="", **fields
        )
        place = {"response_id": self.id, "item_id": stored.id, "output_index": index}
        self.emit("response.mcp_call_arguments.delta", **place, delta=arguments)
        stored.body["arguments"] = arguments
        self.emit("response.mcp_call_arguments.done", **place, arguments=arguments)
        self._emit_item("response.output_item.done", index, stored)
        return index, stored

    def ask_approval(self, request: protocol.ToolRequest, label: str) -> StoredItem:
        """Append the question whether a tool of an MCP server may be called."""
        self.calls += 1
        arguments = msgspec.json.encode(request.arguments).decode()
        index, stored = self._add_item(
            "mcp_approval_request", server_label=label, name=request.name, arguments=arguments
        )
        self._finish_item(index, stored)
        return stored

    @property
    def is_silent(self) -> bool:
        """Whether the response has no speech."""
        return self._message is None or self.style.writes_only

    @property
    def is_spoken(self) -> bool:
        """Whether the audio so far covers all of the text."""
        message = self._message
        if message is None or self.style.writes_only:
            return True
        return _letters(message.text) <= _letters(message.spoken)

    def finish_content(self, *, complete: bool, cut: bool = False) -> None:
        """End the open message; ``cut``: the limit of tokens ended it, and all of its audio was sent."""
        message = self._message
        if message is None or not message.open:
            return
        message.open = False
        body, text = message.stored.body, message.text
        body["status"] = "completed" if complete and not cut else "incomplete"
        if self.style.writes_only:
            body["content"] = [{"type": "output_text", "text": text}]
            self._emit_part("response.output_text.done", message, text=text)
            part = {"type": "text", "text": text}
        else:
            body["content"] = [{"type": "output_audio", "transcript": text}]
            if complete:
                self.speaker.finish()
            self._emit_part("response.output_audio.done", message)
            self._emit_part(_TRANSCRIPT + ".done", message, transcript=text)
            part = {"type": "audio", "transcript": text}
        self._emit_part("response.content_part.done", message, part=part)
        self._finish_item(message.part.output_index, message.stored)

    @property
    def message(self) -> StoredItem | None:
        """The item of the newest message; None: there is none."""
        return self._message.stored if self._message else None

    def on_interrupted(self, text: str) -> None:
        """Replace the transcript of an interrupted response by the text that was played."""
        message = self._message
        if message is not None and not self.style.writes_only and not self.calls:
            message.stored.body["content"] = [{"type": "output_audio", "transcript": text}]

    def finish(self, status: Status, *, reason: str | None, usage: dict[str, Any] | None) -> None:
        """Send the last event."""
        self.finish_content(complete=status == "completed")
        details: dict[str, Any] = {"type": status, **({} if reason is None else {"reason": reason})}
        if status == "failed" and self.failure is not None:
            failure = {"code": self.failure.code, "message": self.failure.message}
            details["error"] = {"type": "server_error", **failure}
        body = self._body(status)
        body.update(status_details=None if status == "completed" else details, usage=usage)
        self.emit("response.done", response=body)
        self.speaker.on_response_done(self.id)

    def _open_message(self) -> _Message:
        if self._message is not None and self._message.open:
            return self._message
        index, stored = self._add_item("message", role="assistant", content=[])
        stored.by_agent, stored.is_written = True, self.style.writes_only
        self._message = _Message(stored, Part(self.id, stored.id, index))
        part = {"type": "text", "text": ""} if self.style.writes_only else {"type": "audio", "transcript": ""}
        self._emit_part("response.content_part.added", self._message, part=part)
        return self._message

    def _add_item(self, kind: str, **fields: Any) -> tuple[int, StoredItem]:
        item = begin_item(new_id("item"), kind, "in_progress") | fields
        index, stored = len(self._output), StoredItem(item)
        self._output.append(stored)
        self._emit_item("response.output_item.added", index, stored)
        self.items.add(stored)
        return index, stored

    def _finish_item(self, index: int, stored: StoredItem) -> None:
        self.items.finish(stored)
        self._emit_item("response.output_item.done", index, stored)

    def _emit_item(self, kind: str, index: int, stored: StoredItem) -> None:
        self.emit(kind, response_id=self.id, output_index=index, item=dict(stored.body))

    def _emit_part(self, kind: str, message: _Message, **fields: Any) -> None:
        self.emit(kind, **message.part.place, **fields)

    def _body(self, status: str) -> dict[str, Any]:
        style = self.style
        output = {key: style.output[key] for key in ("format", "voice") if key in style.output}
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": None,
            "output": [dict(stored.body) for stored in self._output],
            "conversation_id": style.conversation_id,
            "output_modalities": ["text"] if style.writes_only else ["audio"],
            "max_output_tokens": style.max_output_tokens,
            "audio": {"output": output},
            "usage": None,
            "metadata": style.metadata,
        }


def _letters(text: str) -> int:
    return sum(character.isalnum() for character in text)


class Responses:
    """Holds at most one response, which is a turn of the agent or a part of one.

    A turn of the agent waits for its functions. OpenAI's response ends with the calls; what the agent says
    afterwards is the next response, which the client requests after it has sent all outputs.

    ``make`` makes a response with the client's metadata; ``on_unrequested_turn`` is called when a turn of the
    agent begins without a request. ``call_server`` takes calls of MCP servers' tools, and returns False for
    the client's functions.
    """

    def __init__(
        self,
        commands: AgentCommands,
        make: Callable[[dict[str, str] | None], Response],
        clock: Callable[[], float],
        on_unrequested_turn: Callable[[], None],
        call_server: Callable[[protocol.ToolRequest, Response], bool],
    ) -> None:
        self.calls = FunctionCalls(commands, clock)
        self._commands = commands
        self._make = make
        self._clock = clock
        self._on_unrequested_turn = on_unrequested_turn
        self._call_server = call_server
        self.active: Response | None = None
        """The response that is not over."""
        self._turn = 0
        self._turn_id = ""
        """The agent's id of the current or last turn."""
        self._ended_turn = 0
        """The content of turns up to this one is not sent to the client any more."""
        self._cancelled_requests = 0
        """Cancelled requests of which the agent's turn has not been seen yet: it is dropped."""
        self._stopped_turn = 0
        """The last turn that was cancelled, or dropped, for itself."""
        self._due: float | None = None

    @property
    def due(self) -> float | None:
        """The time of the next :meth:`tick`; None: none is needed."""
        return min((time for time in (self._due, self.calls.due) if time is not None), default=None)

    # --- another connection -------------------------------------------------------------------

    def state(self) -> ResponsesState:
        """What outlives the connection."""
        return ResponsesState(
            turn=self._turn,
            turn_id=self._turn_id,
            ended_turn=self._ended_turn,
            active=self.active.state() if self.active is not None else None,
            calls=self.calls.state(),
        )

    def restore(self, state: ResponsesState, waiting: set[str]) -> None:
        """Begin where another connection ended; ``waiting``: ids of the calls that the agent waits for."""
        self._turn, self._turn_id, self._ended_turn = state.turn, state.turn_id, state.ended_turn
        self.calls.restore([call for call in state.calls if call.request.call_id in waiting])
        if state.active is not None:
            self.active = self._make(None)
            self.active.restore(state.active)

    def cut(self) -> None:
        """End the restored response, which lacks what the lost connection had of it."""
        active = self.active
        if active is None:
            return
        if active.ended is not None:
            self._due = self._clock() + _USAGE_S
        elif active.calls:
            self._wait_for_rest(active)
        else:
            if active.message is not None:
                active.message.spoken = None  # what is truncated later is the response that begins anew
            self.close()

    # --- requests of the client --------------------------------------------------------------

    def check_idle(self) -> None:
        """Raise ClientEventError while there is a response."""
        active = self.active
        if active is not None and active.ended is not None:
            self._finish(None)  # only its usage is missing
        elif active is not None and active.calls and self.calls.complete:
            self._end("completed", None, None)  # after the events of all calls
        elif active is not None:
            message = (
                f"Conversation already has an active response in progress: {active.id}. "
                "Wait until the response is finished before creating a new one."
            )
            raise ClientEventError(message, code="conversation_already_has_active_response")

    def create(self, metadata: dict[str, str] | None) -> bool:
        """Begin a response; returns False if the agent's turn only waits for functions, else True."""
        self.calls.silence_agent()
        continues = self.calls.waiting
        response = self._begin(metadata)
        if continues:
            response.bind(self._turn, self._turn_id)
            self.send_outputs()
        return not continues

    def send_outputs(self) -> None:
        """Send the outputs of all function calls as soon as they are complete and a response is requested."""
        if not self.calls.waiting or not self.calls.complete:
            return
        active = self.active
        if active is not None and not active.calls:
            self.calls.send_outputs()
        else:
            self.calls.defer_outputs()

    def give_output(self, call_id: str, output: str) -> None:
        """Take the output of an MCP server's tool; the agent goes on by itself when it was the last one."""
        if self.calls.set_output(call_id, output):
            self.go_on()

    def go_on(self) -> None:
        """Begin the response to outputs, if all are there."""
        if not self.calls.waiting or not self.calls.complete:
            return
        active = self.active
        if active is not None and active.ended is None and active.calls:
            self._end("completed", None, None)
        if self.active is not None and self.active.ended is not None:
            self._finish(None)
        if self.active is None:
            self.create(None)
        else:
            self.send_outputs()

    def cancel(self, response_id: str | None, *, asked: bool) -> None:
        """Stop the response, or raise ClientEventError. ``asked``: it was requested from the agent."""
        active = self.active
        if active is None or response_id not in (None, active.id):
            message = "Cancellation failed: no active response found"
            raise ClientEventError(message, code="response_cancel_not_active")
        if active.turn is not None:
            # What the agent sends until it is interrupted belongs to no later response.
            self._ended_turn = self._stopped_turn = active.turn
            self._commands.interrupt(active.agent_id or None)
        elif asked:
            # The agent begins the turn before it handles the interruption, and then reports its usage.
            self._cancelled_requests += 1
            self._commands.interrupt(None)
        active.speaker.clear()
        self._end("cancelled", "client_cancelled", _CUT_USAGE_S if active.turn is not None else None)

    def stop_playback(self) -> None:
        """Stop the response that is played; one that is only requested goes on."""
        self._commands.interrupt(self._turn_id or None)

    def stop_item(self, item: StoredItem) -> None:
        """Stop the response that an item belongs to, if it is active."""
        active = self.active
        if active is not None and active.turn is not None and active.message is item:
            self._commands.interrupt(active.agent_id or None)

    # --- what the agent does ----------------------------------------------------------------

    def on_content(self, event: Content) -> None:
        """Add content of the agent's turn to its response."""
        if event.turn <= self._ended_turn:
            return
        is_new = event.turn != self._turn
        if is_new:
            self._turn, self._turn_id = event.turn, ""
            if self._cancelled_requests:
                self._cancelled_requests -= 1
                self._ended_turn = self._stopped_turn = event.turn
                return
        if not isinstance(event, protocol.ToolRequest):
            self._turn_id = event.response_id
        response = self._response_for(event, is_new)
        if response is not None and response.ended is None:
            self._add_content(response, event)

    def _add_content(self, response: Response, event: Content) -> None:
        match event:
            case protocol.ResponseText():
                response.write(event.text)
            case AgentAudio():
                response.speak(event)
            case protocol.ToolRequest():
                is_called = self._call_server(event, response)
                self.calls.add(event, by_server=is_called)
                if not is_called:
                    response.call(event)
            case protocol.ResponseDone():
                self._ended_turn = event.turn
                cut = event.finish_reason == "length"
                response.finish_content(complete=True, cut=cut)
                if cut and not response.failure:
                    self._end("incomplete", "max_output_tokens", _USAGE_S)
                else:
                    self._end("failed" if response.failure else "completed", None, _USAGE_S)
                return
        if response.calls:
            self._wait_for_rest(response)

    def on_interrupted(self, event: protocol.Interrupted) -> None:
        """End the response of an interrupted turn."""
        is_earlier = event.turn <= self._ended_turn
        self._ended_turn = max(self._ended_turn, event.turn)
        if self._cancelled_requests and event.turn != self._stopped_turn:
            self._cancelled_requests -= 1
            is_earlier = True
        response = self.active
        if response is None or response.turn not in (None, event.turn):
            return
        if response.turn is None and is_earlier:
            return
        response.bind(event.turn, event.response_id)
        response.on_interrupted(event.spoken_text)
        response.speaker.clear()
        if response.ended is None or response.ended[0] == "completed":
            reason = "client_cancelled" if event.reason == "client" else "turn_detected"
            self._end("cancelled", reason, _CUT_USAGE_S)

    def on_metrics(self, event: protocol.TurnMetrics) -> None:
        """Finish the response of an ended turn with its usage."""
        self._ended_turn = max(self._ended_turn, event.turn)
        active = self.active
        if active is not None and active.ended is not None and active.turn == event.turn:
            self._finish(event)

    def on_error(self, event: protocol.ErrorEvent) -> bool:
        """Record an error of the response; returns False if there is no response."""
        active = self.active
        if active is None or active.ended is not None:
            return False
        active.failure = event
        return True

    def on_turn_committed(self) -> None:
        """The user's turn is over: do not drop the agent's next one."""
        self._cancelled_requests = 0

    def close(self) -> None:
        """End the response, if there is one."""
        active = self.active
        if active is None:
            return
        if active.ended is None:
            self._end("cancelled", None, None)
        else:
            self._finish(None)

    def tick(self) -> None:
        """Act on timeouts that have expired."""
        if self.calls.tick(self._turn_id):
            self._ended_turn = self._turn
        if self._due is None or self._clock() < self._due:
            return
        self._due = None
        active = self.active
        if active is None:
            return
        if active.ended is not None:
            self._finish(None)
        elif active.calls:
            active.finish_content(complete=True)
            self._end("completed", None, None)

    # --- one response -----------------------------------------------------------------------

    def _response_for(self, event: Content, is_new: bool) -> Response | None:
        """The response that an event belongs to; None: the event is not sent to the client."""
        active = self.active
        if active is not None and active.turn not in (None, event.turn):
            self.close()
            active = None
        if active is None:
            if self.calls.waiting and not isinstance(event, protocol.ToolRequest):
                return None  # a filler while functions run: too late for the last response
            if isinstance(event, protocol.ResponseDone):
                return None  # a turn without content
            if is_new:
                self._on_unrequested_turn()
            active = self._begin(None)
        active.bind(event.turn, self._turn_id)
        return active

    def _begin(self, metadata: dict[str, str] | None) -> Response:
        response = self.active = self._make(metadata)
        self._due = None
        response.create()
        return response

    def _wait_for_rest(self, response: Response) -> None:
        """Wait for more calls of the round, and for the audio of the text before them."""
        wait_s = _BATCH_S if response.is_silent else _SPOKEN_S if response.is_spoken else _STALLED_S
        self._due = self._clock() + wait_s

    def _end(self, status: Status, reason: str | None, usage_within_s: float | None) -> None:
        active = self.active
        if active is None:
            return
        active.ended = (status, reason)
        active.finish_content(complete=status == "completed")
        if usage_within_s is None:
            self._finish(None)
        else:
            self._due = self._clock() + usage_within_s

    def _finish(self, metrics: protocol.TurnMetrics | None) -> None:
        active, self.active, self._due = self.active, None, None
        if active is not None and active.ended is not None:
            status, reason = active.ended
            active.finish(status, reason=reason, usage=usage_of(metrics))
