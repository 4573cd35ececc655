"""Streams and the reader of their texts, with networks whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
from asr_fakes import LoudnessModels, sound
from attention_fakes import MS, HeldReader, LengthNetwork, broken, new_reader

from parley.asr.decoding.boosting import MAX_PHRASES
from parley.asr.messages import (
    AsrFallbackEvent,
    AsrOptions,
    OnsetEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.asr.service import ChunkRequest, ChunkResult
from parley.asr.utterances.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.utterances.utterance import Window
from parley.asr.utterances.worker import InlineReader
from parley.errors import InferenceError, InvalidMessageError, ModelUnavailableError, OverloadedError

CHUNK_MS = 80


class Call:
    """One stream, and its replies."""

    def __init__(self, pipeline, **options):
        self.pipeline = pipeline
        self.stream = pipeline.new_stream(AsrOptions(**options))
        self.replies = []

    def send(self, audio, **options):
        for at in range(0, max(len(audio), 1), CHUNK_MS * MS):
            (result,) = self.pipeline.step(
                [ChunkRequest(self.stream, audio[at : at + CHUNK_MS * MS], **options)]
            )
            if not isinstance(result, ChunkResult):
                raise result
            self.stream = result.stream
            self.replies.append(result.reply)
        return self

    def events(self, kind=object):
        return [event for reply in self.replies for event in reply.events if isinstance(event, kind)]

    @property
    def finals(self):
        return [event for event in self.events(TranscriptEvent) if event.is_final]

    @property
    def partials(self):
        return [event for event in self.events(TranscriptEvent) if not event.is_final]


NOTHING = np.zeros(0, np.int16)
UTTERANCE = sound((640, False), (960, True), (640, False))


def new_pipeline(text_reader=None, network=None, models=None, **limits):
    reader = new_reader(network)
    return SegmentPipeline(
        reader,
        text_reader or InlineReader(reader),
        models or LoudnessModels(),
        SegmentPipelineLimits(**limits),
        model="moonshine",
    )


@pytest.fixture
def text_reader():
    return HeldReader(new_reader())


def test_the_events_of_an_utterance_come_in_order():
    call = Call(new_pipeline()).send(UTTERANCE)
    events = call.events()
    assert events[:2] == [OnsetEvent(at_ms=640), SpeechStartedEvent(utterance=1, at_ms=640)]
    assert events[-2] == SpeechStoppedEvent(utterance=1, at_ms=1600, detected_at_ms=1920)
    assert events[-1] == call.finals[0]
    assert {event.utterance for event in events[1:]} == {1}
    assert not call.finals[0].words
    assert call.finals[0].confidence > 0.9
    assert call.finals[0].stable_words == 1
    assert sum(reply.decoder_ms > 0 for reply in call.replies) == len(call.partials) + 1


def test_partial_texts_are_of_what_has_been_said_so_far():
    call = Call(new_pipeline(), partial_interval_ms=240).send(UTTERANCE)
    lengths = [int(event.text.removeprefix("t")) for event in call.partials]
    assert len(lengths) >= 3
    assert lengths == sorted(set(lengths))
    assert Call(new_pipeline(), partial_interval_ms=0).send(UTTERANCE).partials == []


def test_the_final_text_is_begun_before_the_end_is_certain(text_reader):
    call = Call(new_pipeline(text_reader), partial_interval_ms=0)
    call.send(sound((640, False), (960, True), (120, False)))
    assert call.events(SpeechStoppedEvent) == []
    assert [asked.final for asked in text_reader.waiting] == [True]
    text_reader.read()
    call.send(sound((320, False)))
    (final,) = call.finals
    assert final.text == f"t{(320 + 960 + 96) // 10}"
    assert text_reader.waiting == []


def test_cancelled_utterance_is_not_decoded(text_reader):
    call = Call(new_pipeline(text_reader), partial_interval_ms=0)
    call.send(sound((640, False), (960, True), (160, False), (960, True), (640, False)))
    assert [asked.dropped for asked in text_reader.waiting] == [True, False]
    (read,) = text_reader.read()
    call.send(NOTHING)
    assert len(call.finals) == 1
    assert len(read.stretch.audio) > 2_000 * MS


def test_a_step_waits_for_no_text(text_reader):
    call = Call(new_pipeline(text_reader)).send(UTTERANCE)
    assert call.events(SpeechStoppedEvent)
    assert call.events(TranscriptEvent) == []
    call.send(UTTERANCE)
    assert len(call.events(SpeechStartedEvent)) == 1, "what follows waits behind the text"
    text_reader.read()
    call.send(NOTHING)
    assert [event.utterance for event in call.finals] == [1, 2]
    assert [type(event) for event in call.events()][-4:-2] == [OnsetEvent, SpeechStartedEvent]


def test_partial_texts_are_decoded_one_at_a_time(text_reader):
    call = Call(new_pipeline(text_reader), partial_interval_ms=80).send(sound((640, False), (4_000, True)))
    assert [asked.final for asked in text_reader.waiting] == [False]
    text_reader.read()
    call.send(sound((160, True)))
    assert len(call.partials) == 1
    assert len(text_reader.waiting) == 1


def test_a_partial_text_that_takes_long_makes_the_next_one_later():
    class SlowReader(InlineReader):
        def ask(self, stretch, *, final, of, beside=()):
            asked = super().ask(stretch, final=final, of=of)
            asked._done_at = asked._asked_at + 0.2
            return asked

    text_reader = SlowReader(new_reader())
    speech = sound((640, False), (6_000, True))
    slow, fast = Call(new_pipeline(text_reader)).send(speech), Call(new_pipeline()).send(speech)
    assert 8 <= len(slow.partials) <= 10, "one in 600 ms, three times what each takes"
    assert len(fast.partials) >= 2 * len(slow.partials)


def test_long_speech_is_cut_and_no_part_of_it_is_read_twice_or_lost():
    network = LengthNetwork()
    limits = {"window": Window(3_000, 1_500), "max_utterance_ms": 60_000}
    call = Call(new_pipeline(network=network, **limits), partial_interval_ms=0, join_ms=8_000)
    call.send(sound((640, False), (20_000, True), (640, False)))
    (final,) = call.finals
    lengths = [10 * int(word.removeprefix("t")) for word in final.text.split()]
    assert len(lengths) >= 7
    assert max(lengths) <= 3_000
    # With the pre-roll and the silence before the text was begun; each piece is rounded down.
    assert 0 <= 320 + 20_000 + 160 - sum(lengths) < 10 * len(lengths)


def test_partial_texts_go_on_over_a_cut():
    call = Call(new_pipeline(window=Window(3_000, 1_500)), partial_interval_ms=240)
    call.send(sound((640, False), (8_000, True), (640, False)))
    counts = [len(event.text.split()) for event in call.partials]
    assert counts == sorted(counts)
    assert counts[-1] >= 3
    stable = [event.stable_words for event in call.partials]
    assert max(stable) >= 2


def test_noise_has_no_text():
    class NoisyModels(LoudnessModels):
        def detect(self, windows, counts, state, context):
            return np.full(windows.shape[:2], 0.9, np.float32), state, context

    call = Call(new_pipeline(models=NoisyModels())).send(sound((960, False))).send(NOTHING, flush=True)
    assert call.partials == []
    assert [event.text for event in call.finals[:1]] == [""]
    assert call.finals[0].confidence == 0.0


def test_pieces_of_a_turn_are_read_together():
    call = Call(new_pipeline(), partial_interval_ms=0, join_ms=8_000).send(UTTERANCE).send(UTTERANCE)
    first, second = call.finals
    assert (first.first, first.before) == (0, "")
    assert second.first == 1
    # One word for both: it takes the place of the first one's.
    assert int((second.before + second.text).removeprefix("t")) > int(first.text.removeprefix("t")) + 90


def test_a_turn_that_is_over_is_not_read_with_the_next():
    call = Call(new_pipeline(), partial_interval_ms=0, join_ms=8_000).send(UTTERANCE)
    call.send(NOTHING, turn_over=True).send(UTTERANCE)
    assert [event.first for event in call.finals] == [0, 0]


def test_a_turn_that_is_too_long_is_read_from_a_later_piece_on():
    call = Call(new_pipeline(window=Window(3_000, 1_500)), partial_interval_ms=0, join_ms=8_000)
    for _ in range(4):
        call.send(UTTERANCE)
    assert [event.first for event in call.finals] == [0, 1, 2, 3]


def test_a_text_that_could_not_be_read_fails_once_and_is_read_again(text_reader):
    call = Call(new_pipeline(text_reader), partial_interval_ms=0).send(UTTERANCE)
    text_reader.reader.model.network.failure = broken()
    text_reader.read()
    before = call.stream
    with pytest.raises(InferenceError):
        call.send(NOTHING)
    assert call.stream is before
    text_reader.reader.model.network.failure = None
    call.send(NOTHING)
    assert call.finals == []
    assert len(text_reader.read()) == 1
    call.send(NOTHING)
    assert [event.utterance for event in call.finals] == [1]


def test_a_text_that_could_not_be_read_twice_is_given_up_for_its_stream_alone(text_reader):
    pipeline = new_pipeline(text_reader)
    call = Call(pipeline, partial_interval_ms=0).send(UTTERANCE)
    other = Call(pipeline, partial_interval_ms=0).send(UTTERANCE)
    (first,) = [asked for asked in text_reader.waiting if asked.of.stream is call.stream.identity]
    first.fail(broken())
    text_reader.waiting.remove(first)
    with pytest.raises(InferenceError):
        call.send(NOTHING)
    call.send(NOTHING)
    again = text_reader.waiting[-1]
    assert again.of == first.of
    again.fail(broken())
    text_reader.waiting.remove(again)
    for _ in range(3):
        with pytest.raises(InferenceError):
            call.send(NOTHING)
    assert len(text_reader.waiting) == 1
    text_reader.read()
    assert len(other.send(NOTHING).finals) == 1


def test_all_readings_of_an_utterance_and_what_it_is_joined_to_are_of_one(text_reader):
    call = Call(new_pipeline(text_reader), partial_interval_ms=240, join_ms=8_000)
    call.send(sound((640, False), (640, True)))
    partial = text_reader.waiting[-1]
    call.send(sound((160, False)))
    early = text_reader.waiting[-1]
    assert (partial.final, early.final) == (False, True)
    assert partial.of == early.of
    call.send(sound((320, False), *[(640, True), (640, False)]))
    assert text_reader.waiting[-1].of == early.of, "which it begins with"
    Call(new_pipeline(text_reader)).send(UTTERANCE)
    assert text_reader.waiting[-1].of != early.of


def test_a_partial_text_that_could_not_be_read_does_not_come_again(text_reader):
    call = Call(new_pipeline(text_reader), partial_interval_ms=240).send(sound((640, False), (640, True)))
    text_reader.reader.model.network.failure = broken()
    text_reader.read()
    with pytest.raises(InferenceError):
        call.send(NOTHING)
    text_reader.reader.model.network.failure = None
    call.send(sound((640, True)))
    text_reader.read()
    assert call.send(NOTHING).partials


def test_speech_that_finds_no_place_is_refused_and_may_come_again(text_reader):
    call = Call(new_pipeline(text_reader), partial_interval_ms=0).send(UTTERANCE[: 1_600 * MS])
    text_reader.room = 0
    with pytest.raises(OverloadedError):
        call.send(UTTERANCE[1_600 * MS :])
    text_reader.room = 100
    call.send(UTTERANCE[1_600 * MS :])
    text_reader.read()
    call.send(NOTHING)
    assert len(call.finals) == 1


def test_without_room_there_are_only_no_partial_texts(text_reader):
    text_reader.room = 0
    call = Call(new_pipeline(text_reader), partial_interval_ms=240).send(sound((640, False), (960, True)))
    assert call.events(SpeechStartedEvent)
    assert text_reader.waiting == []


def test_a_failed_voice_activity_network_fails_the_piece():
    models = LoudnessModels()
    call = Call(new_pipeline(models=models)).send(UTTERANCE[: 960 * MS])
    models.failure["detect"] = broken()
    with pytest.raises(InferenceError):
        call.send(UTTERANCE[960 * MS :])
    del models.failure["detect"]
    call.send(UTTERANCE[960 * MS :])
    assert len(call.finals) == 1


def test_closed_stream_is_not_decoded(text_reader):
    pipeline = new_pipeline(text_reader)
    call = Call(pipeline, partial_interval_ms=240).send(UTTERANCE).send(sound((960, True)))
    assert any(asked.final for asked in text_reader.waiting)
    pipeline.release(call.stream)
    assert text_reader.read() == []


def test_a_stream_that_ends_before_its_text_takes_the_last_partial_one(text_reader):
    call = Call(new_pipeline(text_reader), partial_interval_ms=240).send(sound((640, False), (640, True)))
    text_reader.read()
    call.send(sound((320, True), (320, False)))
    call.send(NOTHING, last=True)
    (fallback,) = call.events(AsrFallbackEvent)
    assert (fallback.utterance, fallback.reason) == (1, "stream_ended")
    assert call.finals[-1].text == call.partials[-1].text
    assert text_reader.read() == []


def test_a_text_that_is_there_when_the_stream_ends_is_sent(text_reader):
    call = Call(new_pipeline(text_reader), partial_interval_ms=0).send(UTTERANCE)
    text_reader.read()
    call.send(NOTHING, last=True)
    assert call.events(AsrFallbackEvent) == []
    assert len(call.finals) == 1


def test_a_reader_that_hangs_fails_all(text_reader):
    call = Call(new_pipeline(text_reader)).send(UTTERANCE)
    text_reader.failure = ModelUnavailableError("it hangs")
    with pytest.raises(ModelUnavailableError):
        call.send(NOTHING)


def test_names_are_favoured_beside_phrases_as_far_as_there_is_room():
    def favoured(**options):
        return len(Call(new_pipeline(), **options).stream.reading.boosting.bonus)

    assert favoured(names=["t5"]) == favoured(phrases=["t5"]) > 0
    assert favoured(names=["t5"], phrases=["t6"]) == favoured(phrases=["t6", "t5"])
    assert favoured(names=["t5"], phrases=["t6"] * MAX_PHRASES) == favoured(phrases=["t6"])
    assert favoured(names=["t5"], phrase_weight=0.0) == 0


@pytest.mark.parametrize(
    "options", [{"partial_interval_ms": -1}, {"phrases": ["x" * 100]}, {"phrases": ["\u4f60"]}]
)
def test_options_that_cannot_be_followed_are_refused(options):
    with pytest.raises(InvalidMessageError):
        new_pipeline().new_stream(AsrOptions(**options))
