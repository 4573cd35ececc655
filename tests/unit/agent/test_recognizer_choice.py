"""Which recogniser a call has where one is loading, hangs, is full, or fails."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
from agent_fakes import now

from parley.agent.audio_recognition import AudioRecognition
from parley.agent.config import AgentConfig, AgentDeadlines
from parley.asr.messages import AsrOptions, AsrReply, SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.checkpoint import Resume, SessionState
from parley.engines.recognizers import RoutedRecognizer
from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    ModelUnavailableError,
    TooManySessionsError,
    UnsupportedLanguageError,
)

CONFIG = AgentConfig(asr=("moonshine", "whisper"), deadlines=AgentDeadlines(asr_s=5.0))
WINDOW = np.zeros(512, np.int16)
SOUND = np.ones(512, np.int16)
ENDED = [
    SpeechStoppedEvent(utterance=1, at_ms=10, detected_at_ms=20),
    TranscriptEvent(utterance=1, text="set a timer", is_final=True),
]
SPOKEN = [SpeechStartedEvent(utterance=1, at_ms=0), *ENDED]


class Models:
    """Recognisers by name; a stream begins with those events of ``script`` that no stream has reported."""

    def __init__(self, *names):
        self.names = names or CONFIG.asr
        self.ready = {"whisper"}
        self.hanging = set()
        self.english = set()
        """Models that understand nothing else."""
        self.delays = {}
        """Seconds until a model answers a check."""
        self.start_failures = {}
        self.start_hanging = set()
        self.places = {}
        """Streams that a model holds at most."""
        self.push_failures = {}
        self.push_hanging = set()
        self.failing_once = set()
        self.deaf = set()
        """Models that take silence only."""
        self.close_s = 0.0
        self.asked = []  # (time, model) of each check
        self.open = []  # models of the streams, in their order
        self.closed = []
        self.streams = []  # models of those that are open now, or whose START hangs
        self.pushed = []  # (time, model) of each piece
        self.script = []

    def make(self, _name, first, last):
        recognizers = [Recognizer(self, model) for model in self.names]
        return RoutedRecognizer(recognizers, limit_s=CONFIG.deadlines.asr_s, first=first, last=last)

    def check_place(self, model):
        if self.streams.count(model) >= self.places.get(model, 100):
            raise TooManySessionsError("all are open")


def both_ready():
    """The preferred recogniser and the other one, which both work."""
    models = Models()
    models.ready.add("moonshine")
    return models


class Recognizer:
    def __init__(self, models, model):
        self.models = models
        self.model = model
        self.has_place = False

    async def check(self, options):
        models = self.models
        models.asked.append((now(), self.model))
        await asyncio.sleep(models.delays.get(self.model, 0.0))
        if self.model in models.hanging:
            await asyncio.Event().wait()
        if self.model not in models.ready:
            raise ModelUnavailableError("being loaded")
        if options.language != "en" and self.model in models.english:
            raise UnsupportedLanguageError("not this one")
        models.check_place(self.model)

    async def start(self, options):
        models = self.models
        models.check_place(self.model)
        models.streams.append(self.model)
        self.has_place = True
        if self.model in models.start_hanging:
            await asyncio.Event().wait()
        if self.model in models.start_failures:
            raise models.start_failures[self.model]
        models.open.append(self.model)

    async def push(self, audio):
        assert self.has_place
        self.models.pushed.append((now(), self.model))
        if self.model not in self.models.ready:
            raise ModelUnavailableError("gone")
        if self.model in self.models.push_failures:
            raise self.models.push_failures[self.model]
        if self.model in self.models.failing_once:
            self.models.failing_once.discard(self.model)
            raise InferenceError("a moment")
        if self.model in self.models.push_hanging:
            await asyncio.Event().wait()
        if self.model in self.models.deaf and audio.any():
            raise InferenceError("the encoder is gone")
        events, self.models.script = self.models.script, []
        return AsrReply(events=events)

    def begin_turn(self):
        pass

    async def flush(self):
        return await self.push(np.zeros(0, np.int16))

    async def close(self):
        if self.has_place:
            self.has_place = False
            await asyncio.sleep(self.models.close_s)
            self.models.streams.remove(self.model)
            self.models.closed.append(self.model)


class Handler:
    """Records errors and transcripts; ignores what else is recognised."""

    def __init__(self):
        self.errors = []
        self.transcripts = []

    def on_error(self, error):
        self.errors.append(error)

    def on_transcript(self, event):
        self.transcripts.append(event)

    def __getattr__(self, name):
        return lambda *_: None


@asynccontextmanager
async def listening(models, *, name="call", handler=None, resume=None, language="en"):
    handler = handler or Handler()
    options = AsrOptions(language=language)
    recognition = AudioRecognition(models.make, name, options, handler, CONFIG, resume=resume)
    await recognition.open()
    running = asyncio.create_task(recognition.run())
    yield recognition
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in left if f"{name} " in task.get_name()]
    await recognition.close()


async def hear(recognition, models, events=(), *, audio=WINDOW):
    models.script = list(events)
    recognition.push_audio(audio)
    await asyncio.sleep(0.1)


async def test_a_recogniser_that_hangs_leaves_the_next_one_time_to_answer():
    models = Models()
    models.hanging = {"moonshine"}
    began = now()
    async with listening(models) as recognition:
        assert recognition.model == "whisper"
        assert now() - began < CONFIG.deadlines.asr_s


def start_fails(models):
    models.start_failures["moonshine"] = InferenceError("out of memory")


def start_hangs(models):
    models.start_hanging.add("moonshine")


async def hear_for(recognition, models, seconds):
    """Audio all the time; returns the longest time between two pieces that a model has got."""
    before = len(models.pushed)
    for _ in range(int(seconds / 0.032)):
        recognition.push_audio(WINDOW)
        await asyncio.sleep(0.032)
    return max(np.diff([at for at, _ in models.pushed[before:]]))


@pytest.mark.parametrize("fails", [start_fails, start_hangs])
async def test_a_model_that_fails_and_then_opens_no_stream_is_replaced_at_once(fails):
    models, handler = both_ready(), Handler()
    async with listening(models, handler=handler) as recognition:
        await hear(recognition, models)
        assert recognition.model == "moonshine"
        fails(models)
        models.push_failures["moonshine"] = InferenceError("out of memory")
        await hear_for(recognition, models, 20)
        assert (recognition.model, models.streams.count("whisper")) == ("whisper", 1)
        assert [error.code for error in handler.errors] == ["inference_failed"]
    assert models.streams == []


async def test_model_whose_streams_take_no_audio_is_left_out_after_the_second():
    models, handler = both_ready(), Handler()
    models.push_failures["moonshine"] = InferenceError("out of memory")
    async with listening(models, handler=handler) as recognition:
        await hear_for(recognition, models, 3)
        assert models.open == ["moonshine", "moonshine", "whisper"]
        assert (recognition.model, models.streams) == ("whisper", ["whisper"])
        assert [error.code for error in handler.errors] == ["inference_failed"] * 2
    assert models.streams == []


def takes_no_audio(models):
    models.push_failures["moonshine"] = InferenceError("out of memory")


def answers_no_audio(models):
    models.push_hanging.add("moonshine")


def takes_silence_only(models):
    models.deaf.add("moonshine")


async def speak(recognition, models):
    """An utterance of the user, which is the whole turn."""
    await hear(recognition, models, [SpeechStartedEvent(utterance=1, at_ms=0)], audio=SOUND)
    await hear(recognition, models, ENDED, audio=SOUND)
    recognition.begin_turn()


async def test_call_stays_at_its_model_when_a_preferred_one_becomes_ready():
    models, handler = Models(), Handler()
    async with listening(models, handler=handler) as recognition:
        models.ready.add("moonshine")
        for _ in range(3):
            await speak(recognition, models)
            await hear_for(recognition, models, 70)
        assert (recognition.model, models.open) == ("whisper", ["whisper"])
        assert [model for _, model in models.asked] == ["moonshine", "whisper"]
        assert not handler.errors


async def test_call_whose_model_fails_once_goes_on_with_a_new_stream_of_it():
    models, handler = both_ready(), Handler()
    async with listening(models, handler=handler) as recognition:
        for _ in range(3):
            models.failing_once.add("moonshine")
            await hear_for(recognition, models, 4)
            await speak(recognition, models)
        assert models.open == ["moonshine"] * 4
        assert [error.code for error in handler.errors] == ["inference_failed"] * 3


async def test_call_that_left_a_failing_model_does_not_go_back_when_that_works():
    models, handler = both_ready(), Handler()
    takes_silence_only(models)
    async with listening(models, handler=handler) as recognition:
        await speak(recognition, models)
        await hear_for(recognition, models, 12)
        models.deaf.clear()
        models.failing_once.add("whisper")
        await speak(recognition, models)
        await hear_for(recognition, models, 70)
        assert models.open == ["moonshine", "moonshine", "whisper", "whisper"]
        assert [error.code for error in handler.errors] == ["inference_failed"] * 3


async def test_call_whose_second_model_fails_too_asks_the_others_again():
    models = both_ready()
    takes_no_audio(models)
    async with listening(models) as recognition:
        await hear_for(recognition, models, 3)
        assert recognition.model == "whisper"
        models.push_failures = {"whisper": InferenceError("out of memory")}
        await hear_for(recognition, models, 3)
        assert (recognition.model, models.streams) == ("moonshine", ["moonshine"])


@pytest.mark.parametrize("places", [0, 1])
async def test_model_that_fails_twice_is_opened_again_where_the_other_one_is_full(places):
    models, handler = both_ready(), Handler()
    models.places["whisper"] = places
    takes_no_audio(models)
    async with listening(models, handler=handler) as recognition:
        await hear_for(recognition, models, 3)
        assert recognition.model == ("whisper" if places else "moonshine")
        assert {error.code for error in handler.errors} == {"inference_failed"}


async def test_call_that_changes_its_language_has_the_first_model_that_understands_it():
    models = both_ready()
    models.english = {"moonshine"}
    async with listening(models, language="es") as recognition:
        for language, model in (("en", "moonshine"), ("es", "whisper"), ("en", "moonshine")):
            recognition.change(AsrOptions(language=language))
            await asyncio.sleep(1)
            assert (recognition.model, models.streams) == (model, [model])


async def test_call_that_left_a_failing_model_and_changes_its_language_does_not_go_back():
    models, handler = both_ready(), Handler()
    takes_no_audio(models)
    async with listening(models, handler=handler) as recognition:
        await hear_for(recognition, models, 3)
        recognition.change(AsrOptions(language="es"))
        await hear_for(recognition, models, 3)
        assert (recognition.model, models.open) == (
            "whisper",
            ["moonshine", "moonshine", "whisper", "whisper"],
        )
        assert [error.code for error in handler.errors] == ["inference_failed"] * 2


@pytest.mark.parametrize("fails", [start_fails, start_hangs])
async def test_model_that_opens_no_stream_is_left_out_when_a_call_begins(fails):
    models, handler = both_ready(), Handler()
    fails(models)
    async with listening(models, handler=handler) as recognition:
        await hear(recognition, models, SPOKEN)
        assert (recognition.model, models.open) == ("whisper", ["whisper"])
        assert [each.text for each in handler.transcripts] == ["set a timer"]
        assert not handler.errors
    assert models.streams == []


async def test_moved_call_goes_on_with_its_numbers_and_times_on_another_model():
    models, handler = both_ready(), Handler()
    takes_silence_only(models)
    state = SessionState(version=1, utterances=4, audio_ms=10_000)
    async with listening(models, handler=handler, resume=Resume(state=state, audio_ms=10_000)) as recognition:
        await hear(recognition, models, SPOKEN)
        recognition.begin_turn()
        await hear(recognition, models, audio=SOUND)
        await asyncio.sleep(12)
        assert recognition.model == "whisper"
        await hear(recognition, models, SPOKEN)
        assert [each.utterance for each in handler.transcripts] == [5, 6]
        assert recognition.processed_ms == 10_096


async def test_model_that_takes_no_audio_is_retried_without_an_alternative():
    models = Models()
    models.ready = {"moonshine"}
    async with listening(models) as recognition:
        models.push_failures["moonshine"] = InferenceError("out of memory")
        await hear_for(recognition, models, 5)
        assert models.open == ["moonshine"] * len(models.open)
        assert len(models.open) > 3
        models.push_failures.clear()
        await hear_for(recognition, models, 5)
        assert (recognition.model, models.streams) == ("moonshine", ["moonshine"])


@pytest.mark.parametrize("fails", [start_fails, start_hangs])
async def test_a_stream_that_was_not_opened_is_ended_while_the_call_goes_on(fails):
    models = both_ready()
    fails(models)
    models.close_s = 1.0
    async with listening(models):
        assert models.streams == ["moonshine", "whisper"]
        await asyncio.sleep(1.1)
        assert models.streams == ["whisper"]
        assert models.closed == ["moonshine"]


async def test_all_streams_of_a_call_are_ended_at_once():
    models = Models("moonshine", "parakeet", "whisper")
    models.ready = set(models.names)
    models.start_failures = {"moonshine": InferenceError("one"), "parakeet": InferenceError("two")}
    models.close_s = 2.0  # of the three that all have
    async with listening(models) as recognition:
        assert recognition.model == "whisper"
    assert models.streams == []


async def test_failure_without_an_open_stream_is_that_of_the_last_model():
    models = both_ready()
    models.start_failures = {"moonshine": InferenceError("one"), "whisper": InferenceError("the other")}
    recognition = AudioRecognition(models.make, "call", AsrOptions(), Handler(), CONFIG)
    with pytest.raises(InferenceError, match="the other"):
        await recognition.open()
    await recognition.close()
    assert models.streams == []


async def test_a_model_that_is_full_when_the_stream_opens_is_not_replaced():
    models = both_ready()
    models.start_failures["moonshine"] = TooManySessionsError("all are open")
    recognition = AudioRecognition(models.make, "call", AsrOptions(), Handler(), CONFIG)
    with pytest.raises(TooManySessionsError):
        await recognition.open()
    await recognition.close()
    assert (models.open, models.streams) == ([], [])


@pytest.mark.parametrize(
    "names", [("moonshine", "whisper"), ("moonshine", "parakeet", "nemotron", "whisper")]
)
async def test_a_model_under_load_is_not_replaced_by_one_that_needs_more(names):
    models = Models(*names)
    models.ready = set(names)
    models.delays["moonshine"] = 2.6
    async with listening(models) as recognition:
        assert recognition.model == "moonshine"


@pytest.mark.parametrize("hanging", [1, 2, 3])
async def test_hanging_models_leave_time_for_the_last_one(hanging):
    names = ("moonshine", "parakeet", "nemotron", "whisper")
    models = Models(*names)
    models.ready, models.hanging = set(names), set(names[:hanging])
    models.delays = dict.fromkeys(names, 0.5)
    began = now()
    async with listening(models) as recognition:
        assert recognition.model == names[hanging]
        assert now() - began <= CONFIG.deadlines.asr_s


@pytest.mark.parametrize("hanging", [1, 2, 3])
@pytest.mark.parametrize("in_check", [0, 1])
async def test_models_whose_streams_do_not_open_leave_the_last_one_time(hanging, in_check):
    names = ("moonshine", "parakeet", "nemotron", "whisper")
    models = Models(*names)
    models.ready = set(names)
    models.hanging, models.start_hanging = set(names[:in_check]), set(names[in_check:hanging])
    models.delays = dict.fromkeys(names, 0.2)
    began = now()
    async with listening(models) as recognition:
        assert now() - began <= CONFIG.deadlines.asr_s
        await asyncio.sleep(0.1)
        assert (recognition.model, models.streams) == (names[hanging], [names[hanging]])
        assert models.closed == list(names[in_check:hanging])
    assert models.streams == []


async def test_hanging_streams_refuse_the_call_within_one_reply():
    models = Models("moonshine", "parakeet", "whisper")
    models.ready = models.start_hanging = set(models.names)
    recognition = AudioRecognition(models.make, "call", AsrOptions(), Handler(), CONFIG)
    began = now()
    with pytest.raises(DeadlineExceededError):
        await recognition.open()
    assert now() - began == pytest.approx(CONFIG.deadlines.asr_s)
    await recognition.close()
    assert models.streams == []


async def test_a_call_that_ends_while_its_stream_opens_frees_the_places_of_all():
    models = Models("moonshine", "parakeet", "whisper")
    models.ready = models.start_hanging = set(models.names)
    models.close_s = 1.0
    recognition = AudioRecognition(models.make, "call", AsrOptions(), Handler(), CONFIG)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.5):
            await recognition.open()
    assert models.streams == ["moonshine", "parakeet"]
    await recognition.close()
    assert models.streams == []
