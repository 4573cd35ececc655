"""A session without a network: it checks every server event, and records the commands to the agent."""

from __future__ import annotations

import asyncio
import json

import numpy as np
from openai.types.realtime import RealtimeServerEvent
from openai.types.realtime.realtime_session_create_request import RealtimeSessionCreateRequest
from openai.types.realtime.realtime_transcription_session_create_request import (
    RealtimeTranscriptionSessionCreateRequest,
)
from pydantic import BaseModel, TypeAdapter

from parley import protocol
from parley_client.events import AgentAudio
from parley_gateway.apis.realtime.conversation import RealtimeConversation
from parley_gateway.apis.realtime.output_audio import EventSpeaker
from parley_gateway.apis.realtime.server_events import server_event
from parley_gateway.apis.realtime.session_config import SessionConfig

_EVENTS = TypeAdapter(RealtimeServerEvent)
TEXT_TOKENS = 100_000
"""The agent's limit."""
# The SDK's type of a requested session lacks fields of an existing one.
_MORE = {
    RealtimeSessionCreateRequest: {"id", "object", "expires_at"},
    RealtimeTranscriptionSessionCreateRequest: {"id", "object"},
}


def check_event(event):
    """Fail unless the SDK has a type for the event, with all its fields."""
    _check_fields(_EVENTS.validate_python(event))


def _check_fields(value):
    if isinstance(value, BaseModel):
        unknown = set(value.model_extra or ()) - _MORE.get(type(value), set())
        assert not unknown, f"{type(value).__name__} has no {unknown}"
        for name in type(value).model_fields:
            _check_fields(getattr(value, name))
    elif isinstance(value, list):
        for one in value:
            _check_fields(one)


def delta_text(events):
    """The text of the deltas of the user's transcript."""
    return "".join(event["delta"] for event in events if event["type"].endswith("transcription.delta"))


def run(work):
    """Run a coroutine that only yields to the event loop; returns how often."""
    turns = 0
    while True:
        try:
            work.send(None)
        except StopIteration:
            return turns
        turns += 1


class FakeCommands:
    """Records the commands to the agent."""

    def __init__(self):
        self.calls = []
        self.audio_samples = 0
        self.start = None
        self.opened = 0
        self.is_full = False

    def open(self, start):
        self.start = start
        self.opened += 1

    def send_audio(self, samples):
        self.audio_samples += len(samples)

    def __getattr__(self, name):
        return lambda *values: self.calls.append((name, *values))

    def take(self):
        """The commands since the last time."""
        calls, self.calls = self.calls, []
        return calls


class EventRecorder:
    """Checks and records server events."""

    def __init__(self):
        self.events = []

    def emit(self, kind, /, **fields):
        event = server_event(kind, fields)
        check_event(event)
        self.events.append(json.loads(json.dumps(event)))

    def take(self):
        """The server events since the last call."""
        events, self.events = self.events, []
        return events

    def kinds(self):
        """Their types."""
        return [event["type"] for event in self.take()]

    def one(self, kind):
        """The only event of this type since the last call; the others are dropped."""
        found = [event for event in self.take() if event["type"] == kind]
        assert len(found) == 1, found
        return found[0]

    def error(self, *fields):
        """Fields of the only ``error`` event since the last call, by default its code and the event's id."""
        error = self.one("error")["error"]
        return tuple(error[name] for name in fields or ("code", "event_id"))


class Session(EventRecorder):
    """A conversation with its client and its agent."""

    def __init__(self, *, session=None, opened=True, resumed=None, settings=None):
        super().__init__()
        self.now = 100.0
        self.commands = FakeCommands()
        self.answers, self.written = [], []
        self.config = (
            SessionConfig("sess_1", "gpt-realtime", settings=settings) if resumed is None else resumed.config
        )
        speaker = EventSpeaker(self.emit, lambda: self.config.output_format)
        self.conversation = RealtimeConversation(
            self.config,
            self.commands,
            self.emit,
            speaker,
            lambda: self.now,
            write=self._write,
            transcribe=self._transcribe,
        )
        if resumed is not None:
            self.conversation.resume(resumed)
            self.conversation.on_call_opened(TEXT_TOKENS)
            return
        self.conversation.begin()
        if session is not None:
            self.send("session.update", session={"type": "realtime", **session})
        if opened:
            self.conversation.on_call_opened(TEXT_TOKENS)
        self.take()

    async def _transcribe(self, samples):
        """The recogniser alone: it says how long the audio is."""
        return f"{len(samples)} samples"

    async def _write(self, request):
        """The language model alone; an answer of None waits for ever."""
        self.written.append(request)
        for event in self.answers:
            if event is None:
                await asyncio.Event().wait()
            elif isinstance(event, Exception):
                raise event
            yield event

    def send(self, kind, **fields):
        """Send an event of the client."""
        self.receive(json.dumps({"type": kind, **fields}))

    def receive(self, raw):
        """Send a message of the client."""
        run(self.conversation.on_client_event(raw))

    def on_agent(self, *events):
        """Handle events of the agent."""
        for event in events:
            self.conversation.on_agent_event(event)

    def wait(self, seconds):
        """Advance the clock."""
        self.now += seconds
        self.conversation.tick()

    # --- what the agent does ----------------------------------------------------------------

    def user_says(self, text, *, at_ms=1_000, utterance=1):
        """A complete turn of the user."""
        self.on_agent(
            protocol.SpeechStarted(at_ms=at_ms),
            protocol.SpeechStopped(at_ms=at_ms + 800, detected_at_ms=at_ms + 1_000),
            protocol.Transcript(utterance=utterance, text=text, is_final=True, confidence=0.9),
            protocol.TurnDecision(utterance=utterance, decision="commit", reason="waited", text=text),
            protocol.AgentState(state="processing"),
        )

    def agent_says(self, text, *, turn=1, offset_ms=0, ms=500):
        """Words and their audio."""
        self.on_agent(
            protocol.ResponseText(turn=turn, response_id=f"r-{turn}", text=text),
            protocol.AgentState(state="speaking"),
            audio(turn, offset_ms=offset_ms, ms=ms, text=text),
        )

    def agent_finishes(self, *, turn=1, audio_ms=500):
        """The turn is over, and was played."""
        self.on_agent(
            protocol.ResponseDone(turn=turn, response_id=f"r-{turn}", audio_ms=audio_ms),
            protocol.TurnMetrics(turn=turn, prompt_tokens=30, cached_tokens=20, completion_tokens=7),
            protocol.AgentState(state="listening"),
        )

    def agent_calls(self, *calls, turn=1):
        """Calls of functions: pairs of id and name."""
        for call_id, name in calls:
            self.on_agent(
                protocol.ToolRequest(turn=turn, call_id=call_id, name=name, arguments={"city": "Paris"})
            )

    def interrupted(self, *, turn=1, played_ms=200, reason="words", text="Once"):
        """The agent was interrupted."""
        self.on_agent(
            protocol.Interrupted(
                turn=turn, response_id=f"r-{turn}", played_ms=played_ms, spoken_text=text, reason=reason
            ),
            protocol.TurnMetrics(turn=turn, prompt_tokens=30, completion_tokens=7, interrupted=True),
            protocol.AgentState(state="listening"),
        )


def audio(turn, *, offset_ms=0, ms=100, text="", rate=24_000):
    """A piece of the agent's speech."""
    samples = np.full(rate * ms // 1000, 1_000, np.int16)
    return AgentAudio(
        turn=turn,
        response_id=f"r-{turn}",
        offset_ms=offset_ms,
        sample_rate=rate,
        samples=samples,
        text=text,
    )
