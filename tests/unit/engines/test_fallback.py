"""One synthesizer takes over from another in the middle of a text."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from virtual_loop import VirtualLoop

from parley.engines.speech_fallback import FallbackLimits, FallbackSynthesizer, JoinedSpeech
from parley.errors import (
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
)
from parley.tts.messages import SpeakRequest, SpeechChunk, WordMark

TEXT = "one two three four five six"
WORD_S = 0.5


class Engine:
    """Every word lasts half a second and is a piece of its own."""

    def __init__(self, rate=24_000, *, level=1, voices=("low", "high"), languages=("en",)):
        self.rate, self.level, self.voices, self.languages = rate, level, voices, languages
        self.requests, self.aborted, self.running = [], [], set()
        self.fail_after = None  # words
        self.error = InferenceError("boom")
        self.hang_after = None
        self.first_s = self.word_s = 0.01
        self.marks = True

    async def speak(self, request):
        self.requests.append(request)
        self.running.add(request.request_id)
        try:
            await asyncio.sleep(self.first_s)
            start = 0
            for number, word in enumerate(request.text.split()):
                if number == self.fail_after:
                    raise self.error
                if number == self.hang_after:
                    await asyncio.sleep(10_000)
                samples = int(self.rate * WORD_S)
                start = request.text.index(word, start)
                mark = WordMark(start_char=start, end_char=start + len(word), at_sample=number * samples)
                start += len(word)
                yield (
                    SpeechChunk(
                        sample_rate=self.rate,
                        offset=number * samples,
                        words=[mark] if self.marks else [],
                        start_char=mark.start_char,
                        end_char=mark.end_char,
                    ),
                    np.full(samples, self.level * 1000, np.int16),
                )
                await asyncio.sleep(self.word_s)
        finally:
            self.running.discard(request.request_id)

    async def check_voice(self, voice):
        if voice not in self.voices:
            raise UnsupportedVoiceError(voice)

    async def abort(self, request_id):
        self.aborted.append(request_id)


class Rig:
    def __init__(self, *engines):
        self.fallbacks = []
        self.engines = engines
        self.speaker = FallbackSynthesizer(
            [(f"engine-{number}", engine) for number, engine in enumerate(engines)],
            FallbackLimits(first_audio_s=1.0, next_audio_s=2.0, abort_s=0.5),
            self.fallbacks.append,
        )

    async def say(self, text=TEXT, **fields):
        request = SpeakRequest(**{"request_id": "a", "text": text, **fields})
        return check([piece async for piece in self.speaker.speak(request)])


def check(pieces):
    """The pieces, after checking that they are one stream."""
    offset = 0
    for chunk, audio in pieces:
        assert chunk.offset == offset
        assert chunk.fallback is None or not len(audio)
        offset += len(audio)
    at = [mark.at_sample for chunk, _ in pieces for mark in chunk.words]
    assert at == sorted(at)
    return pieces


def words(pieces, text=TEXT):
    return [text[mark.start_char : mark.end_char] for chunk, _ in pieces for mark in chunk.words]


def seconds(pieces):
    return sum(len(audio) / chunk.sample_rate for chunk, audio in pieces if len(audio))


@pytest.fixture
def run():
    def run(coroutine):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            result = runner.run(coroutine)
            assert not runner.get_loop().problems
            return result

    return run


def test_an_engine_that_works_is_left_alone(run):
    rig = Rig(Engine(), Engine(level=2))
    pieces = run(rig.say(voice="high"))
    assert words(pieces) == TEXT.split()
    assert (len(rig.engines[1].requests), rig.fallbacks) == (0, [])
    assert rig.engines[0].requests[0].voice == "high"
    assert seconds(pieces) == pytest.approx(6 * WORD_S)
    assert not rig.engines[0].aborted


@pytest.mark.parametrize("marks", [True, False])
def test_an_engine_that_makes_silence_of_words_is_replaced(run, marks):
    rig = Rig(Engine(level=0), Engine(level=2))
    rig.engines[0].marks = marks
    pieces = run(rig.say(utterance="u"))
    assert rig.engines[1].requests[0].text == TEXT
    assert words(pieces) == TEXT.split()
    assert [(event.from_engine, event.reason) for event in rig.fallbacks] == [
        ("engine-0", "inference_failed")
    ]
    run(rig.say(utterance="u"))
    assert len(rig.engines[0].requests) == 1


def test_the_silence_of_the_last_engine_is_taken_as_it_is(run):
    rig = Rig(Engine(), Engine(level=0))
    rig.engines[0].fail_after = 2
    assert words(run(rig.say())) == TEXT.split()[:2]
    assert len(rig.fallbacks) == 1


def test_silence_of_a_text_without_words_is_no_failure(run):
    rig = Rig(Engine(level=0), Engine(level=2))
    run(rig.say("... !"))
    assert rig.fallbacks == []


@pytest.mark.parametrize("after", range(6))
def test_fallback_does_not_repeat_spoken_text(run, after):
    rig = Rig(Engine(), Engine(16_000, level=2))
    rig.engines[0].fail_after = after
    pieces = run(rig.say())
    assert words(pieces) == TEXT.split()
    assert rig.engines[1].requests[0].text == " ".join(TEXT.split()[after:])
    assert seconds(pieces) == pytest.approx(6 * WORD_S, abs=0.001)
    (note,) = [chunk for chunk, _ in pieces if chunk.fallback]
    assert rig.fallbacks == [note.fallback]
    assert (note.fallback.from_engine, note.fallback.to_engine) == ("engine-0", "engine-1")
    assert note.fallback.reason == "inference_failed"
    spans = [TEXT[chunk.start_char : chunk.end_char] for chunk, audio in pieces if chunk.words]
    assert spans == TEXT.split()


def test_all_audio_has_the_rate_that_was_asked_for(run):
    rig = Rig(Engine(24_000), Engine(22_050, level=2))
    rig.engines[0].fail_after = 3
    pieces = run(rig.say(sample_rate=16_000))
    assert {chunk.sample_rate for chunk, _ in pieces} == {16_000}
    audio = np.concatenate([samples for _, samples in pieces])
    assert len(audio) == pytest.approx(6 * WORD_S * 16_000, abs=2)
    middle = 24_000
    assert np.abs(audio[2_000 : middle - 2_000].astype(int) - 1000).max() <= 2
    assert np.abs(audio[middle + 2_000 : -2_000].astype(int) - 2000).max() <= 2
    at = [mark.at_sample for chunk, _ in pieces for mark in chunk.words]
    assert at == pytest.approx([8_000 * number for number in range(6)], abs=2)


def test_without_a_rate_it_is_that_of_the_first_who_speaks(run):
    rig = Rig(Engine(24_000), Engine(22_050))
    rig.engines[0].fail_after = 0
    pieces = run(rig.say())
    assert {chunk.sample_rate for chunk, audio in pieces if len(audio)} == {22_050}


class Announcing(Engine):
    """Says at first that it is there, in a chunk without samples."""

    async def speak(self, request):
        yield SpeechChunk(sample_rate=self.rate, offset=0), np.zeros(0, np.int16)
        async for piece in super().speak(request):
            yield piece


def test_a_caller_that_reads_slowly_makes_no_engine_late(run):
    rig = Rig(Announcing(), Engine())

    async def say():
        pieces = []
        async for piece in rig.speaker.speak(SpeakRequest(request_id="a", text=TEXT)):
            pieces.append(piece)
            await asyncio.sleep(5.0)
        return check(pieces)

    assert words(run(say())) == TEXT.split()
    assert rig.fallbacks == []


@pytest.mark.parametrize("kind", [Engine, Announcing])
def test_a_late_first_audio_replaces_the_engine(run, kind):
    rig = Rig(kind(), Engine())
    rig.engines[0].first_s = 1.5
    assert words(run(rig.say())) == TEXT.split()
    assert rig.fallbacks[0].reason == "deadline_exceeded"
    assert rig.engines[0].aborted == ["a"]


def test_a_stall(run):
    rig = Rig(Engine(), Engine())
    rig.engines[0].hang_after = 2
    pieces = run(rig.say())
    assert words(pieces) == TEXT.split()
    assert rig.engines[1].requests[0].text == "three four five six"
    assert rig.engines[0].aborted == ["a"]


def test_slow_audio_is_not_late(run):
    rig = Rig(Engine(), Engine())
    rig.engines[0].word_s = 1.9
    assert words(run(rig.say())) == TEXT.split()
    assert rig.fallbacks == []


def test_an_engine_without_marks_goes_on_by_estimate(run):
    rig = Rig(Engine(), Engine())
    rig.engines[0].marks = False
    rig.engines[0].fail_after = 2  # a second: fifteen characters
    run(rig.say())
    assert rig.engines[1].requests[0].text == "five six"


def test_a_failure_after_the_last_word(run):
    rig = Rig(Engine(), Engine())

    class Late(Engine):
        async def speak(self, request):
            async for piece in super().speak(request):
                yield piece
            raise InferenceError("too late to matter")

    rig = Rig(Late(), Engine())
    pieces = run(rig.say())
    assert words(pieces) == TEXT.split()
    assert len(rig.fallbacks) == 1
    assert rig.engines[1].requests == []


def test_the_rest_of_the_utterance_too(run):
    rig = Rig(Engine(), Engine())
    rig.engines[0].fail_after = 0

    async def say():
        await rig.say(utterance="u")
        await rig.say(request_id="b", utterance="u")
        await rig.say(request_id="c", utterance="v")

    run(say())
    assert [request.request_id for request in rig.engines[0].requests] == ["a", "c"]
    assert [request.request_id for request in rig.engines[1].requests] == ["a", "b", "c"]
    assert len(rig.fallbacks) == 2


def test_the_last_error_is_raised(run):
    rig = Rig(Engine(), Engine(), Engine())
    for engine, error in zip(
        rig.engines, (OverloadedError("a"), InferenceError("b"), ModelUnavailableError("c")), strict=True
    ):
        engine.fail_after, engine.error = 0, error
    with pytest.raises(ModelUnavailableError):
        run(rig.say())
    assert [event.to_engine for event in rig.fallbacks] == ["engine-1", "engine-2"]


class Reloaded(Engine):
    """Its process ends after some words, and is there again after some requests that fail."""

    def __init__(self, after, failures, **fields):
        super().__init__(**fields)
        self.fail_after = after
        self.error = ModelUnavailableError("its process has ended")
        self._failures = failures

    async def speak(self, request):
        if self.requests:
            self.fail_after = 0 if self._failures else None
            self._failures -= 1
        async for piece in super().speak(request):
            yield piece


@pytest.mark.parametrize("failures", [0, 2])
def test_engine_without_replacement_says_the_rest_after_its_restart(run, failures):
    rig = Rig(Reloaded(3, failures))
    pieces = run(rig.say())
    assert words(pieces) == TEXT.split()
    assert [request.text for request in rig.engines[0].requests[1:]] == ["four five six"] * (1 + failures)
    assert (rig.fallbacks, rig.engines[0].aborted) == ([], [])


def test_engine_whose_process_stays_away_fails(run):
    rig = Rig(Reloaded(3, 100))
    with pytest.raises(ModelUnavailableError):
        run(rig.say())
    assert len(rig.engines[0].requests) == 4


def test_engine_whose_process_has_ended_is_replaced_without_being_stopped(run):
    rig = Rig(Reloaded(3, 100), Engine())
    assert words(run(rig.say())) == TEXT.split()
    assert (len(rig.fallbacks), len(rig.engines[0].requests), rig.engines[0].aborted) == (1, 1, [])


def test_engine_without_replacement_has_no_limit_of_its_own(run):
    engine = Engine()
    engine.first_s = 30.0
    assert words(run(Rig(engine).say())) == TEXT.split()


def test_nobody_replaces_an_engine_of_a_server_that_stops(run):
    rig = Rig(Engine(), Engine())
    rig.engines[0].fail_after, rig.engines[0].error = 1, ShuttingDownError("bye")
    with pytest.raises(ShuttingDownError):
        run(rig.say())
    assert rig.engines[1].requests == []


def test_mistakes_are_not_hidden(run):
    rig = Rig(Engine(), Engine())
    rig.engines[0].fail_after, rig.engines[0].error = 1, ZeroDivisionError("a mistake")
    with pytest.raises(ZeroDivisionError):
        run(rig.say())
    assert rig.fallbacks == []


def test_voice_and_language_are_those_that_the_engine_has(run):
    rig = Rig(Engine(voices=None, languages=("en", "de")), Engine(voices=("man",), languages=("en", "en-GB")))
    rig.engines[0].fail_after = 0
    run(rig.say(voice="anna", language="en-GB"))
    assert (rig.engines[0].requests[0].voice, rig.engines[0].requests[0].language) == ("anna", "en")
    assert (rig.engines[1].requests[0].voice, rig.engines[1].requests[0].language) == (None, "en-GB")
    assert (rig.speaker.voices, rig.speaker.languages) == (None, ("en", "de"))


@pytest.mark.parametrize("failure", [InferenceError("boom"), None])
def test_an_engine_that_does_not_speak_the_language_is_no_replacement(run, failure):
    """Be it that the one before fails, or is silent."""
    first, english, last = Engine(languages=("en", "es")), Engine(), Engine(languages=("es",))
    if failure is None:
        first.level = 0
    else:
        first.fail_after, first.error = 2, failure
    rig = Rig(first, english, last)
    run(rig.say(language="es-MX", utterance="u"))
    assert english.requests == []
    assert [(one.from_engine, one.to_engine) for one in rig.fallbacks] == [("engine-0", "engine-2")]
    assert [request.language for request in last.requests] == ["es"]
    run(rig.say(language="es", utterance="u"))
    assert (len(first.requests), len(last.requests)) == (1, 2)


def test_failure_without_a_fallback_for_the_language_is_reported(run):
    rig = Rig(Engine(languages=("es",)), Engine())
    rig.engines[0].fail_after = 0
    with pytest.raises(InferenceError):
        run(rig.say(language="es"))
    assert (rig.engines[1].requests, rig.fallbacks) == ([], [])
    # A text that it makes silence of is taken as it is.
    silent = Rig(Engine(languages=("es",), level=0), Engine())
    run(silent.say(language="es"))
    assert (silent.engines[1].requests, silent.fallbacks) == ([], [])


def test_a_language_that_no_engine_speaks_is_refused_by_the_first(run):
    rig = Rig(Engine(), Engine())
    rig.engines[0].fail_after, rig.engines[0].error = 0, UnsupportedLanguageError("not this one")
    with pytest.raises(UnsupportedLanguageError):
        run(rig.say(language="es"))
    assert rig.engines[1].requests == []


def test_an_engine_that_refuses_a_language_is_not_asked_for_it_again(run):
    """As Chatterbox with weights for English alone, which lists what its multilingual weights speak."""
    english = Engine(voices=None, languages=("en", "es"))
    rig = Rig(english, Engine(languages=("en", "es")))
    english.fail_after, english.error = 0, UnsupportedLanguageError("only en")
    for utterance, language in (("a", "es"), ("b", "es-MX"), ("c", "es")):
        run(rig.say(language=language, utterance=utterance))
    assert (len(english.requests), len(rig.engines[1].requests), len(rig.fallbacks)) == (1, 3, 1)
    english.fail_after = None
    run(rig.say(utterance="d"))
    assert len(english.requests) == 2


def test_a_language_that_a_voice_lacks_is_asked_for_with_others(run):
    rig = Rig(Engine(languages=("en", "es")), Engine(languages=("en", "es")))
    rig.engines[0].fail_after, rig.engines[0].error = 0, UnsupportedLanguageError("not by this voice")
    for utterance in ("a", "b"):
        run(rig.say(language="es", voice="low", utterance=utterance))
    assert len(rig.engines[0].requests) == 2


def test_the_first_engine_knows_the_voices(run):
    rig = Rig(Engine(voices=("anna",)), Engine(voices=("man",)))
    run(rig.speaker.check_voice("anna"))
    with pytest.raises(UnsupportedVoiceError):
        run(rig.speaker.check_voice("man"))
    assert rig.fallbacks == []


def test_abort_reaches_the_one_who_speaks(run):
    rig = Rig(Engine(), Engine())
    rig.engines[0].fail_after = 1

    async def say():
        request = SpeakRequest(request_id="a", text=TEXT)
        async with aclosing(rig.speaker.speak(request)) as stream:
            async for chunk, _ in stream:
                if chunk.words and chunk.words[0].start_char >= TEXT.index("three"):
                    break
            await rig.speaker.abort("a")
        assert not rig.engines[1].running
        await rig.speaker.abort("a")

    run(say())
    assert rig.engines[0].aborted == ["a"], "it failed"
    assert rig.engines[1].aborted == ["a", "a"], "aborted by the caller, and because it was left early"


@settings(deadline=None)
@given(
    st.lists(st.text(alphabet="ab.", min_size=1, max_size=5), min_size=1, max_size=8),
    st.lists(st.integers(0, 8), min_size=1, max_size=3),
    st.sampled_from([None, 8_000, 22_050]),
    st.sampled_from(["  ", " ", "\n"]),
)
def test_every_word_is_spoken_once(said, failures, rate, space):
    text = space.join(said)
    engines = [Engine(16_000), Engine(24_000), Engine(22_050), Engine(16_000)]
    for engine, after in zip(engines, failures, strict=False):
        engine.fail_after = after
    rig = Rig(*engines)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        pieces = runner.run(rig.say(text, sample_rate=rate))
        assert not runner.get_loop().problems
    spoken = words(pieces, text)
    assert spoken == text.split()[: len(spoken)]
    left = text.split()[len(spoken) :]
    assert not any(character.isalnum() for word in left for character in word)


def test_joining_nothing():
    speech = JoinedSpeech("", None)
    assert speech.finish_engine() is None
    assert speech.unspoken == ""
