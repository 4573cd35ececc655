"""Transcription sessions: a recogniser's events as OpenAI's."""

import asyncio
import base64
import json

import pytest
from listening_gateway import closed, receive
from openai_session import EventRecorder, delta_text, run
from websockets.asyncio.client import connect

from parley.asr.messages import AsrOptions, SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.errors import DeadlineExceededError
from parley.protocol import Word
from parley_gateway.apis.realtime import transcription
from parley_gateway.apis.realtime.transcription import SessionTranscriber, TranscriptionConfig
from parley_gateway.security.keys import new_key
from parley_stages import FinalizedEvent

SECOND = base64.b64encode(bytes(48_000)).decode()


class FakeQueue:
    def __init__(self):
        self.samples = 0
        self.finalized = 0

    def put(self, samples, size_bytes=0):
        if samples is None:
            self.finalized += 1
        else:
            assert size_bytes == samples.nbytes > 0
            self.samples += len(samples)


class Session(EventRecorder):
    """A transcriber with its client and its recogniser."""

    def __init__(self, given=None):
        super().__init__()
        self.commands = FakeQueue()
        self.config = TranscriptionConfig(given or {})
        self.transcriber = SessionTranscriber(self.config, self.commands, self.emit)
        self.take()

    def send(self, kind, **fields):
        run(self.transcriber.on_client_event(json.dumps({"type": kind, **fields})))

    def on_recognizer(self, *events):
        for event in events:
            self.transcriber.on_recognition_event(event)


def spoken(text, *, final=True, utterance=1):
    return TranscriptEvent(utterance=utterance, text=text, is_final=final)


@pytest.mark.parametrize("detection", [{"type": "server_vad"}, None])
def test_words_have_log_probabilities_on_request(detection):
    wanted = ["item.input_audio_transcription.logprobs"]
    session = Session({"include": wanted, "audio": {"input": {"turn_detection": detection}}})
    assert session.config.options().words
    word = Word(text="hello", start_ms=0, end_ms=9, confidence=0.5)
    session.send("input_audio_buffer.append", audio=SECOND)
    if detection is None:
        session.send("input_audio_buffer.commit")
    session.on_recognizer(
        SpeechStartedEvent(utterance=1, at_ms=0),
        SpeechStoppedEvent(utterance=1, at_ms=500, detected_at_ms=600),
        TranscriptEvent(utterance=1, text="hello", is_final=True, words=[word]),
        *([] if detection else [FinalizedEvent(at_ms=1_000)]),
    )
    completed = session.one("conversation.item.input_audio_transcription.completed")
    assert [one["token"] for one in completed["logprobs"]] == ["hello"]


def test_every_utterance_is_an_item():
    session = Session()
    session.on_recognizer(
        SpeechStartedEvent(utterance=1, at_ms=1_000),
        spoken("good mor", final=False),
        spoken("good morning to", final=False),
        SpeechStoppedEvent(utterance=1, at_ms=2_000, detected_at_ms=2_500),
        SpeechStartedEvent(utterance=2, at_ms=3_000),
        spoken("good morning to you"),
    )
    events = session.take()
    assert delta_text(events) == "good morning to you"
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
    session.on_recognizer(SpeechStartedEvent(utterance=1, at_ms=0), spoken("one"))
    session.send("input_audio_buffer.commit")
    assert session.commands.finalized == 1
    assert session.kinds() == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    session.on_recognizer(spoken("two", utterance=2), FinalizedEvent(at_ms=1_000))
    delta, completed = session.take()
    assert delta["delta"] == completed["transcript"] == "one two"
    session.send("input_audio_buffer.commit")
    assert session.error("code")[0] == "input_audio_buffer_commit_empty"


def test_the_buffer_is_cleared_and_items_are_retrieved():
    session = Session({"audio": {"input": {"turn_detection": None}}})
    session.send("input_audio_buffer.append", audio=SECOND)
    session.send("input_audio_buffer.clear")
    assert session.kinds() == ["input_audio_buffer.cleared"]
    session.send("input_audio_buffer.commit", event_id="e")
    assert session.error() == ("input_audio_buffer_commit_empty", "e")
    session.send("input_audio_buffer.append", audio=SECOND)
    session.send("input_audio_buffer.commit")
    item_id = session.one("input_audio_buffer.committed")["item_id"]
    session.on_recognizer(spoken("one"), FinalizedEvent(at_ms=1_000))
    session.take()
    session.send("conversation.item.retrieve", item_id=item_id)
    item = session.one("conversation.item.retrieved")["item"]
    assert item["content"] == [{"type": "input_audio", "transcript": "one"}]


def test_a_refused_update_changes_nothing():
    session = Session()
    audio = {"input": {"format": {"type": "audio/pcmu"}, "transcription": {"language": "de"}}}
    session.send("input_audio_buffer.append", audio=SECOND)
    session.send("session.update", session={"type": "transcription", "audio": audio})
    assert session.error("code") == ("session_already_started",)
    assert session.config.input_format == "audio/pcm"
    assert session.config.options().language == "en"


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


def test_formats_cannot_change_after_audio():
    session = Session()
    session.send("input_audio_buffer.append", audio=SECOND)
    assert session.commands.samples == pytest.approx(16_000, abs=200)
    audio = {"input": {"transcription": {"language": "de"}}}
    session.send("session.update", session={"type": "transcription", "audio": audio})
    assert session.error("code")[0] == "session_already_started"
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
def test_unsupported_transcription_options_are_refused(event, code):
    session = Session()
    session.send(**{"kind": event.pop("type"), **event})
    assert session.error("code")[0] == code


class StalledRecognition:
    """A stream that takes no audio, and says nothing."""

    def __init__(self, server, options, *, model):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def __aiter__(self):
        return self

    async def __anext__(self):
        await asyncio.get_running_loop().create_future()

    async def send_all(self, audio):
        raise DeadlineExceededError("the recogniser took no audio")


@pytest.fixture
def stalled(monkeypatch):
    monkeypatch.setattr(transcription, "Recognition", StalledRecognition)


async def test_a_recogniser_that_takes_no_audio_ends_the_session(gateway, stalled):
    one = await gateway()
    async with connect(f"{one.ws_url}/v1/realtime?intent=transcription") as socket:
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": SECOND}))
        assert (await receive(socket, "error"))["error"]["code"] == "deadline_exceeded"
        assert await closed(socket) == (1013, "deadline_exceeded")


async def test_a_secret_needs_no_more_than_its_session_does(gateway, tmp_path):
    key = new_key("scribe", ["transcribe"])
    (tmp_path / "keys.toml").write_text(key.line)
    one = await gateway(security={"keys_file": str(tmp_path / "keys.toml")})
    brought = {"Authorization": f"Bearer {key.secret}"}
    audio = {"input": {"transcription": {"language": "de"}}}
    wanted = {"session": {"type": "transcription", "audio": audio}}
    answer = await one.http.post("/v1/realtime/client_secrets", json=wanted, headers=brought)
    assert answer.status_code == 200, answer.text
    shown = {"Authorization": f"Bearer {answer.json()['value']}"}
    async with connect(f"{one.ws_url}/v1/realtime", additional_headers=shown) as socket:
        created = (await receive(socket, "session.created"))["session"]
        assert created["type"] == "transcription"
        assert created["audio"]["input"]["transcription"]["language"] == "de"
    for more in ({}, {"session": {"type": "realtime"}}):
        answer = await one.http.post("/v1/realtime/client_secrets", json=more, headers=brought)
        assert answer.status_code == 403
