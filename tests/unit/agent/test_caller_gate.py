"""Only the voice that opened a call has turns."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from agent_fakes import CHUNK_MS, FakeCall, all_of_utterance

from parley.agent.caller_gate import CallerGate
from parley.agent.config import AgentConfig
from parley.agent.ports import Scoring
from parley.audio.buffer import AudioPiece
from parley.errors import InferenceError
from parley.protocol import (
    SpeechIgnored,
    SpeechStarted,
    SpeechStopped,
    Start,
    Transcript,
    TurnDecision,
    TurnMetrics,
    TurnOptions,
)
from parley.speakers.embedding import LEAST

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
        self.vector = None
        """Of every voice; None: by the sign."""
        self.vectors = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def embed(self, speech):
        assert len(speech) >= LEAST
        self.asked += 1
        if self.error is not None:
            raise self.error
        await self.answers.wait()
        if self.vector is not None:
            return self.vector
        vector = (OTHER if np.median(speech[speech != 0]) < 0 else OWN).copy()
        self.vectors.append(weakref.ref(vector))
        return vector


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
    """What a gate hears; ``echo``: amplitude of what the agent has said."""

    def __init__(self, *, enabled=True, echo=None):
        self.passed, self.cuts, self.ignored, self.failed = Passed(), 0, [], set()
        self.pieces = []
        self.speaker = FakeSpeaker()
        self.gate = CallerGate(
            Scoring(self.speaker, self.failed.add),
            self.passed,
            "en",
            enabled=enabled,
            deadline_s=1.0,
            name="call",
            cut=self._cut,
            ignored=self.ignored.append,
            is_echo=lambda speech: echo is not None and bool((speech == echo).all()),
        )
        self.at_ms = 0
        self.number = 0

    def _cut(self):
        self.cuts += 1

    async def hear(self, amplitude, ms):
        """Audio in pieces of 80 ms."""
        for _ in range(ms // 80):
            self.pieces.append(np.full(1_280, amplitude, np.int16))
            self.gate.on_audio_processed(AudioPiece(self.pieces[-1], self.at_ms * 16, 0.0))
            self.at_ms += 80
            await self.settle()

    async def settle(self):
        for _ in range(8):
            await asyncio.sleep(0)

    async def say(self, amplitude, text):
        """An utterance of 1.6 seconds."""
        self.start()
        await self.hear(amplitude, 1_600)
        await self.stop(text)

    def start(self, before_ms=0):
        self.gate.on_speech_started(SpeechStarted(at_ms=self.at_ms - before_ms))

    async def stop(self, text):
        self.number += 1
        self.gate.on_speech_stopped(SpeechStopped(at_ms=self.at_ms, detected_at_ms=self.at_ms), 0.0)
        self.gate.on_transcript(Transcript(utterance=self.number, text=text, is_final=True, confidence=1.0))
        await self.settle()

    @property
    def texts(self):
        return [values[0].text for name, *values in self.passed.events if name == "on_transcript"]


@pytest.fixture
async def line():
    """A gate whose caller has spoken for two seconds."""
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


async def test_onset_of_another_voice_ends_when_its_speech_is_not_passed_on(line):
    await line.stop("words")
    line.gate.on_onset(line.at_ms)
    line.start()
    await line.hear(-SOFT, 1_600)
    assert [name for name, *_ in line.passed.events][-2:] == ["on_onset", "on_onset_cancelled"]
    begun = len(line.passed.events)
    await line.stop("other words")
    assert line.passed.events[begun:] == []


@pytest.mark.parametrize("vector", [OWN * np.float32(np.nan), OWN * 0])
async def test_broken_vector_is_not_learned(vector):
    line = Line()
    line.speaker.vector = vector
    line.start()
    await line.hear(LOUD, 2_400)
    await line.stop("words")
    assert line.failed == {"inference_failed"}
    line.speaker.vector = None
    await line.say(LOUD, "more words")
    await line.say(-LOUD, "other words")
    assert line.ignored == ["other words"]


async def test_texts_keep_their_order_when_a_voice_is_judged_late(line):
    line.speaker.answers.clear()
    await line.stop("words")
    await line.say(LOUD, "more words")
    assert line.texts == []
    line.speaker.answers.set()
    await line.settle()
    assert line.texts == ["words", "more words"]
    assert line.gate.held_from_ms is None


async def test_speech_that_waits_is_passed_on_before_later_speech(line):
    await line.stop("words")
    line.speaker.answers.clear()
    line.start()
    await line.hear(SOFT, 1_600)
    await line.stop("soft words")
    await line.hear(LOUD, 160)
    line.start(before_ms=160)
    heard = ["on_speech_started", "on_speech_stopped", "on_speech_started"]
    assert [name for name, *_ in line.passed.events][-3:] == heard
    line.speaker.answers.set()
    await line.hear(LOUD, 1_600)
    await line.stop("loud words")
    assert line.texts == ["words", "soft words", "loud words"]


async def test_closed_gate_asks_no_more_and_keeps_neither_voice_nor_audio(line):
    pieces = [weakref.ref(one) for one in line.pieces]
    line.pieces.clear()
    line.gate.close()
    asked = line.speaker.asked
    await line.hear(-SOFT, 3_200)
    await line.stop("words")
    assert line.speaker.asked == asked
    assert not any(one() for one in pieces)
    assert not any(one() for one in line.speaker.vectors)


async def test_gate_that_is_off_keeps_no_audio():
    line = Line(enabled=False)
    await line.say(LOUD, "words")
    pieces = [weakref.ref(one) for one in line.pieces]
    line.pieces.clear()
    assert not any(one() for one in pieces)
    assert line.speaker.asked == 0
    line.gate.change(enabled=True)
    await line.say(LOUD, "words")
    await line.say(-LOUD, "other words")
    assert line.ignored == ["other words"]


async def test_speech_that_waits_is_passed_on_when_the_gate_is_switched_off(line):
    await line.stop("words")
    line.start()
    await line.hear(-SOFT, 1_600)
    line.gate.change(enabled=False)
    assert line.passed.events[-1][0] == "on_speech_started"
    await line.stop("other words")
    assert line.texts == ["words", "other words"]


async def test_gate_that_is_switched_on_during_speech_judges_what_follows():
    line = Line(enabled=False)
    line.start()
    await line.hear(LOUD, 4_000)
    line.gate.change(enabled=True)
    await line.hear(LOUD, 320)
    assert line.speaker.asked == 0
    await line.hear(LOUD, 1_600)
    await line.stop("words")
    await line.say(-LOUD, "other words")
    assert line.ignored == ["other words"]


async def test_speech_with_a_gap_is_judged_from_behind_the_gap():
    line = Line()
    line.start()
    await line.hear(LOUD, 1_280)
    line.at_ms += 400
    await line.hear(LOUD, 800)
    assert line.speaker.asked == 0
    await line.hear(LOUD, 1_120)
    assert line.speaker.asked == 1


async def test_echo_of_the_agent_is_not_the_callers_voice():
    line = Line(echo=-LOUD)
    await line.say(-LOUD, "good morning")
    await line.say(LOUD, "words")
    for _ in range(4):
        await line.say(-LOUD, "how are you")
    assert [*filter(None, line.texts)] == ["good morning", "words"]
    await line.say(LOUD, "more words")
    assert line.texts[-1] == "more words"


async def test_sound_without_words_is_not_the_callers_voice():
    line = Line()
    await line.say(-LOUD, "")
    await line.say(LOUD, "words")
    for _ in range(3):  # the third takes over
        await line.say(-LOUD, "")
    await line.say(LOUD, "more words")
    await line.say(-LOUD, "other words")
    assert line.ignored[-1] == "other words"
    assert [*filter(None, line.texts)] == ["words", "more words"]


async def test_turn_ends_although_another_voice_begins_to_speak_in_its_pause():
    call, _ = calls(lambda at_ms: -SOFT if at_ms > 2_300 else LOUD, (200, 2_000, "set a timer for"))
    call.recognition.script.extend(all_of_utterance(2, 2_600, 5_000, "turn left"))
    await call.start(Start(turn=TurnOptions(one_caller=True, eagerness="normal")))
    await call.until(9_000)
    await call.end()
    assert [one.text for one in call.outlet.of(TurnDecision) if one.decision == "commit"] == [
        "set a timer for"
    ]
    assert [one.text for one in call.outlet.of(SpeechIgnored)] == ["turn left"]
