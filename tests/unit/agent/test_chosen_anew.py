"""Which recogniser a call has while a preferred one is loading, hangs, or has come back."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
from agent_fakes import now

from parley.agent.audio_recognition import AudioRecognition
from parley.agent.config import AgentConfig, AgentDeadlines
from parley.asr.messages import AsrOptions, AsrReply, SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.engines.recognizer_routing import RoutedRecognizer
from parley.errors import ModelUnavailableError

CONFIG = AgentConfig(asr=("moonshine", "whisper"), deadlines=AgentDeadlines(asr_s=5.0))
WINDOW = np.zeros(512, np.int16)


class Models:
    """Two recognisers; every stream begins with those events of ``script`` that no stream has reported."""

    def __init__(self):
        self.ready = {"whisper"}
        self.hanging = set()
        self.asked = []  # (time, model) of each check
        self.open = []  # models of the streams, in their order
        self.closed = []
        self.script = []

    def make(self, _name, preferred):
        recognizers = [Recognizer(self, model) for model in CONFIG.asr]
        return RoutedRecognizer(recognizers, limit_s=CONFIG.deadlines.asr_s, first=preferred)


class Recognizer:
    def __init__(self, models, model):
        self.models = models
        self.model = model

    async def check(self, options):
        self.models.asked.append((now(), self.model))
        if self.model in self.models.hanging:
            await asyncio.Event().wait()
        if self.model not in self.models.ready:
            raise ModelUnavailableError("being loaded")

    async def start(self, options):
        self.models.open.append(self.model)

    async def push(self, audio):
        if self.model not in self.models.ready:
            raise ModelUnavailableError("gone")
        events, self.models.script = self.models.script, []
        return AsrReply(events=events)

    def begin_turn(self):
        pass

    async def close(self):
        self.models.closed.append(self.model)


class Handler:
    """Ignores what is recognised."""

    def __getattr__(self, name):
        return lambda *_: None


@asynccontextmanager
async def listening(models):
    recognition = AudioRecognition(models.make, "call", AsrOptions(), Handler(), CONFIG)
    await recognition.open()
    running = asyncio.create_task(recognition.run())
    yield recognition
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def hear(recognition, models, events=()):
    models.script = list(events)
    recognition.push_audio(WINDOW)
    await asyncio.sleep(0.1)


async def test_a_recogniser_that_hangs_leaves_the_next_one_time_to_answer():
    models = Models()
    models.hanging = {"moonshine"}
    began = now()
    async with listening(models) as recognition:
        assert recognition.model == "whisper"
        assert now() - began < CONFIG.deadlines.asr_s


async def test_a_preferred_recogniser_that_is_loaded_meanwhile_has_the_next_turn():
    models = Models()
    async with listening(models) as recognition:
        assert recognition.model == "whisper"
        await asyncio.sleep(6)
        assert recognition.model == "whisper"
        models.ready.add("moonshine")
        await asyncio.sleep(20)
        assert models.open == ["whisper", "moonshine"]
        assert models.closed == ["whisper"]
        asked = len(models.asked)
        await asyncio.sleep(600)
        assert len(models.asked) == asked, "there is no better one to ask for"


async def test_nothing_changes_within_an_utterance_or_a_turn():
    models = Models()
    async with listening(models) as recognition:
        await hear(recognition, models, [SpeechStartedEvent(utterance=1, at_ms=0)])
        models.ready.add("moonshine")
        await asyncio.sleep(60)
        assert recognition.model == "whisper", "somebody speaks"
        ended = [
            SpeechStoppedEvent(utterance=1, at_ms=10, detected_at_ms=20),
            TranscriptEvent(utterance=1, text="set a timer", is_final=True),
        ]
        await hear(recognition, models, ended)
        await asyncio.sleep(60)
        assert recognition.model == "whisper", "the turn may go on"
        recognition.begin_turn()
        await asyncio.sleep(0.1)
        assert recognition.model == "moonshine"


async def test_one_that_stays_away_is_asked_ever_more_seldom():
    models = Models()
    async with listening(models):
        await asyncio.sleep(600)
    times = [at for at, model in models.asked if model == "moonshine"]
    gaps = np.diff(times)
    assert gaps[:4] == pytest.approx([5, 10, 20, 40], abs=0.1)
    assert gaps[4:] == pytest.approx([60] * len(gaps[4:]), abs=0.1)


async def test_after_a_failure_the_preferred_one_comes_back():
    models = Models()
    models.ready = {"moonshine", "whisper"}
    async with listening(models) as recognition:
        assert recognition.model == "moonshine"
        models.ready.discard("moonshine")
        await hear(recognition, models)
        await asyncio.sleep(5)
        assert recognition.model == "whisper"
        models.ready.add("moonshine")
        await asyncio.sleep(61)
        assert recognition.model == "moonshine"
