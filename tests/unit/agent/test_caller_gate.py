"""Only the voice that opened a call has turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from agent_fakes import CHUNK_MS, FakeCall

from parley.agent.caller_gate import CallerGate
from parley.agent.config import AgentConfig
from parley.agent.ports import SpeakerScoring
from parley.audio.buffer import AudioPiece
from parley.errors import InferenceError
from parley.protocol import (
    SpeechIgnored,
    SpeechStarted,
    SpeechStopped,
    Start,
    Transcript,
    TurnMetrics,
    TurnOptions,
)

ONE_CALLER = Start(turn=TurnOptions(one_caller=True))
LOUD, SOFT = 4_000, 1_000
OWN, OTHER = np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)
Room = Callable[[int], int]
"""Amplitude at a time (ms): below 0 the voice is another person's."""


class FakeSpeaker:
    """Knows a voice by the sign of its samples; may fail."""

    def __init__(self):
        self.error: Exception | None = None
        self.asked = 0

    async def embed(self, speech):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return OTHER if np.median(speech[speech != 0]) < 0 else OWN


def sound(room: Room):
    return lambda at_ms: np.full(CHUNK_MS * 16, room(at_ms), np.int16).tobytes()


def calls(room: Room, *hears: tuple[int, int, str], config: AgentConfig | None = None):
    speaker = FakeSpeaker()
    call = FakeCall(config, hears=hears, speaker=speaker)
    call.room = sound(room)
    return call, speaker


TWO = ((200, 2_000, "hello"), (6_000, 8_000, "turn left"))


async def test_words_of_another_voice_are_no_turn():
    call, _ = calls(lambda at_ms: -LOUD if at_ms > 4_000 else LOUD, *TWO)
    await call.start(ONE_CALLER)
    event = await call.end(SpeechIgnored)
    assert event == SpeechIgnored(reason="other_speaker", text="turn left")
    assert [text for role, text in call.chat.prompt() if role == "user"] == ["hello"]
    assert call.unjudged == []


@pytest.mark.parametrize(
    ("start", "config"),
    [
        (Start(), AgentConfig()),
        (Start(turn=TurnOptions(one_caller=False)), AgentConfig(one_caller=True)),
        (Start(turn=TurnOptions(one_caller=True, detection="manual")), AgentConfig()),
    ],
)
async def test_all_voices_have_turns_unless_it_is_asked_for(start, config):
    call, speaker = calls(lambda at_ms: -LOUD if at_ms > 4_000 else LOUD, *TWO, config=config)
    await call.start(start)
    await call.until(9_000)
    await call.end()
    assert speaker.asked == 0
    assert call.outlet.finals == ["hello", "turn left"]


async def test_the_servers_setting_counts_where_the_session_says_nothing():
    call, _ = calls(lambda at_ms: -LOUD if at_ms > 4_000 else LOUD, *TWO, config=AgentConfig(one_caller=True))
    await call.start(Start())
    assert (await call.end(SpeechIgnored)).text == "turn left"


async def test_the_next_voice_is_the_callers_after_handing_over():
    call, _ = calls(
        lambda at_ms: -LOUD if at_ms > 4_000 else LOUD,
        (200, 2_000, "Here is my wife."),
        (6_000, 8_000, "turn left"),
    )
    await call.start(ONE_CALLER)
    await call.end(TurnMetrics, 2)
    assert call.outlet.of(SpeechIgnored) == []


@pytest.mark.parametrize("error", [InferenceError("broken"), RuntimeError("broken")])
async def test_speech_that_is_not_judged_is_the_callers(error):
    call, speaker = calls(lambda at_ms: -LOUD if at_ms > 4_000 else LOUD, *TWO)
    await call.start(ONE_CALLER)
    await call.until(4_500)
    speaker.error = error
    await call.end(TurnMetrics, 2)
    assert call.outlet.finals == ["hello", "turn left"]
    assert call.unjudged != []


@pytest.mark.parametrize("one_caller", [True, False])
async def test_level_alone_does_not_silence_others_where_the_voice_is_known(one_caller):
    call, _ = calls(lambda _: LOUD, config=AgentConfig(ignore_background=True))
    await call.start(Start(turn=TurnOptions(one_caller=one_caller)))
    await call.end()
    assert call.recognition.streams[0].options.vad.ignore_background is not one_caller


class Passed:
    """Writes down what is passed on."""

    def __init__(self):
        self.events = []

    def __getattr__(self, name):
        return lambda *values: self.events.append((name, *values)) if name != "on_audio_processed" else None


class Line:
    """A gate whose caller has spoken for two seconds."""

    def __init__(self):
        self.passed, self.cuts, self.ignored = Passed(), 0, []
        self.speaker = FakeSpeaker()
        self.gate = CallerGate(
            SpeakerScoring(self.speaker, lambda _: None),
            self.passed,
            "en",
            enabled=True,
            deadline_s=1.0,
            name="call",
            cut=self._cut,
            ignored=self.ignored.append,
        )
        self.at_ms = 0
        self.number = 0

    def _cut(self):
        self.cuts += 1

    async def hear(self, amplitude, ms):
        """Audio in pieces of 80 ms."""
        for _ in range(ms // 80):
            piece = np.full(1_280, amplitude, np.int16)
            self.gate.on_audio_processed(AudioPiece(piece, self.at_ms * 16, 0.0))
            self.at_ms += 80
            for _ in range(8):
                await asyncio.sleep(0)

    def start(self, before_ms=0):
        self.gate.on_speech_started(SpeechStarted(at_ms=self.at_ms - before_ms))

    async def stop(self, text):
        self.number += 1
        self.gate.on_speech_stopped(SpeechStopped(at_ms=self.at_ms, detected_at_ms=self.at_ms), 0.0)
        self.gate.on_transcript(Transcript(utterance=self.number, text=text, is_final=True, confidence=1.0))
        for _ in range(8):
            await asyncio.sleep(0)

    @property
    def texts(self):
        return [values[0].text for name, *values in self.passed.events if name == "on_transcript"]


@pytest.fixture
async def line():
    made = Line()
    made.start()
    await made.hear(LOUD, 2_400)
    yield made
    made.gate.close()


async def test_talk_behind_the_caller_ends_the_utterance_where_the_caller_did(line):
    await line.hear(-SOFT, 3_200)
    assert line.cuts == 1
    await line.stop("words")
    (stopped,) = [values[0] for name, *values in line.passed.events if name == "on_speech_stopped"]
    assert 2_000 <= stopped.at_ms <= 3_000
    assert line.texts == ["words"]


async def test_speech_of_the_caller_is_not_cut_however_soft(line):
    await line.hear(SOFT, 4_000)
    assert line.cuts == 0


async def test_talk_behind_the_caller_does_not_begin_a_turn(line):
    await line.hear(-SOFT, 3_200)
    await line.stop("words")
    begun = len(line.passed.events)
    line.start()
    assert line.gate.held_from_ms == line.at_ms
    await line.hear(-SOFT, 3_200)
    await line.stop("other words")
    assert line.passed.events[begun:] == []
    assert line.ignored == ["other words"]
    assert line.gate.held_from_ms is None


@pytest.mark.parametrize("amplitude", [LOUD, SOFT])
async def test_caller_who_speaks_into_the_talk_is_passed_on(line, amplitude):
    await line.hear(-SOFT, 3_200)
    await line.stop("words")
    line.start()
    await line.hear(-SOFT, 1_600)
    await line.hear(amplitude, 2_400)
    assert line.passed.events[-1][0] == "on_speech_started"
    await line.stop("more words")
    assert line.texts == ["words", "more words"]


async def test_loud_speech_is_passed_on_at_once(line):
    await line.stop("words")
    await line.hear(LOUD, 160)
    line.start(before_ms=160)
    assert line.passed.events[-1][0] == "on_speech_started"


async def test_speech_under_way_is_not_asked_about_while_it_is_as_loud_as_before(line):
    asked = line.speaker.asked
    await line.hear(LOUD, 4_000)
    assert line.speaker.asked == asked
