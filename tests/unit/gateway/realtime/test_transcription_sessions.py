"""Transcription sessions: a recogniser's events as OpenAI's."""

import base64
import json

import pytest
from openai_session import check_event, run

from parley.asr.messages import AsrOptions, SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley_client.stages import FinalizedEvent
from parley_gateway.apis.realtime.server_events import server_event
from parley_gateway.apis.realtime.transcription import SessionTranscriber
from parley_gateway.apis.realtime.transcription_config import TranscriptionConfig

SECOND = base64.b64encode(bytes(48_000)).decode()


class Ears:
    def __init__(self):
        self.samples = 0
        self.finalized = 0

    def hear(self, samples):
        self.samples += len(samples)

    def finalize(self):
        self.finalized += 1


class Session:
    """A transcriber, and both who talk to it."""

    def __init__(self, given=None):
        self.events = []
        self.ears = Ears()
        self.config = TranscriptionConfig(given or {})
        self.transcriber = SessionTranscriber(self.config, self.ears, self._emit)
        self.transcriber.begin()
        self.take()

    def _emit(self, kind, /, **fields):
        event = server_event(kind, fields)
        check_event(event)
        self.events.append(event)

    def send(self, kind, **fields):
        run(self.transcriber.receive(json.dumps({"type": kind, **fields})))

    def hear(self, *events):
        for event in events:
            self.transcriber.hear(event)

    def take(self):
        events, self.events = self.events, []
        return events


def spoken(text, *, final=True, utterance=1):
    return TranscriptEvent(utterance=utterance, text=text, is_final=final)


def test_every_utterance_is_an_item():
    session = Session()
    session.hear(
        SpeechStartedEvent(utterance=1, at_ms=1_000),
        spoken("good mor", final=False),
        spoken("good morning to", final=False),
        SpeechStoppedEvent(utterance=1, at_ms=2_000, detected_at_ms=2_500),
        SpeechStartedEvent(utterance=2, at_ms=3_000),
        spoken("good morning to you"),
    )
    events = session.take()
    deltas = [event["delta"] for event in events if event["type"].endswith("transcription.delta")]
    assert "".join(deltas) == "good morning to you"
    assert [event["type"] for event in events if not event["type"].endswith(".delta")] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "input_audio_buffer.speech_started",
        "conversation.item.input_audio_transcription.completed",
    ]
    completed = events[-1]
    assert completed["item_id"] == events[0]["item_id"]
    assert completed["usage"] == {"type": "duration", "seconds": 1.0}


def test_the_client_says_when_a_turn_is_over():
    session = Session({"audio": {"input": {"turn_detection": None}}})
    session.send("input_audio_buffer.append", audio=SECOND)
    session.hear(SpeechStartedEvent(utterance=1, at_ms=0), spoken("one"))
    session.send("input_audio_buffer.commit")
    assert session.ears.finalized == 1
    kinds = [event["type"] for event in session.take()]
    assert kinds == ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"]
    session.hear(spoken("two", utterance=2), FinalizedEvent(at_ms=1_000))
    delta, completed = session.take()
    assert delta["delta"] == completed["transcript"] == "one two"
    session.send("input_audio_buffer.commit")
    assert session.take()[0]["error"]["code"] == "input_audio_buffer_commit_empty"


def test_settings_reach_the_recogniser():
    detection = {"type": "server_vad", "threshold": 0.7, "silence_duration_ms": 900}
    session = Session()
    session.send(
        "session.update",
        session={
            "type": "transcription",
            "audio": {
                "input": {
                    "turn_detection": detection,
                    "transcription": {"model": "whisper-1", "language": "de", "keywords": ["Ada"]},
                }
            },
        },
    )
    updated = session.take()[0]
    assert updated["type"] == "session.updated"
    assert updated["session"]["audio"]["input"]["turn_detection"]["prefix_padding_ms"] == 300
    options = session.config.options()
    assert (options.language, options.phrases) == ("de", ["Ada"])
    assert (options.vad.threshold, options.vad.silence_ms) == (0.7, 900)


def test_they_cannot_change_once_audio_was_sent():
    session = Session()
    session.send("input_audio_buffer.append", audio=SECOND)
    assert session.ears.samples == pytest.approx(16_000, abs=200)
    audio = {"input": {"transcription": {"language": "de"}}}
    session.send("session.update", session={"type": "transcription", "audio": audio})
    assert session.take()[0]["error"]["code"] == "session_already_started"
    assert session.config.options() == AsrOptions(vad=session.config.options().vad, words=False)
    session.send("session.update", session={"type": "transcription", "include": None})
    assert session.take()[0]["type"] == "session.updated"


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "response.create"}, "invalid_event"),
        ({"type": "session.update", "session": {"type": "realtime"}}, "invalid_value"),
        ({"type": "session.update", "session": {"instructions": "x"}}, "unknown_parameter"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "invalid_value"),
    ],
)
def test_what_it_cannot_do_is_said(event, code):
    session = Session()
    session.send(**{"kind": event.pop("type"), **event})
    assert session.take()[0]["error"]["code"] == code
