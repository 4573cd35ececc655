"""Times of words, in streams, in turns of several utterances, and in recordings."""

from __future__ import annotations

import pytest
from asr_fakes import LoudnessModels, sound
from segment_fakes import MS, LoudReader

from parley.asr.messages import AsrOptions, TranscribeRequest, TranscriptEvent
from parley.asr.service import ChunkRequest, ChunkResult
from parley.asr.utterances.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.utterances.utterance import Window
from parley.asr.utterances.worker import InlineReader
from parley.protocol import VadOptions

CHUNK = 80 * MS


def transcripts(audio, window=None, **options):
    reader = LoudReader()
    limits = SegmentPipelineLimits(window=window or Window())
    pipeline = SegmentPipeline(reader, InlineReader(reader), LoudnessModels(), limits, model="sherpa_onnx")
    stream = pipeline.new_stream(AsrOptions(**options))
    events = []
    for at in range(0, len(audio), CHUNK):
        (result,) = pipeline.step([ChunkRequest(stream, audio[at : at + CHUNK])])
        assert isinstance(result, ChunkResult)
        stream = result.stream
        events += [event for event in result.reply.events if isinstance(event, TranscriptEvent)]
    return [event for event in events if event.is_final], [event for event in events if not event.is_final]


def spans(event):
    return [(word.text, word.start_ms, word.end_ms) for word in event.words]


def test_words_have_times_of_the_stream():
    audio = sound((640, False), (960, True), (640, False), (480, True), (640, False))
    finals, partials = transcripts(audio, words=True, partial_interval_ms=240)
    assert [spans(event) for event in finals] == [[("w96", 640, 1_600)], [("w48", 2_240, 2_720)]]
    assert partials
    assert all(word.start_ms in (640, 2_240) for event in partials for word in event.words)
    assert [event.confidence for event in finals] == [0.5, 0.5]


def test_words_are_left_out_unless_they_are_asked_for():
    audio = sound((640, False), (960, True), (640, False))
    finals, partials = transcripts(audio, words=False, partial_interval_ms=240)
    assert [event.text for event in finals] == ["w96"]
    assert not [event.words for event in finals + partials if event.words]


def test_the_utterances_of_a_turn_are_parted_by_the_times_of_their_words():
    audio = sound((640, False), (960, True), (640, False), (480, True), (640, False))
    (first, second), _ = transcripts(audio, words=True, join_ms=9_000, partial_interval_ms=0)
    assert spans(first) == [("w96", 640, 1_600)]
    assert (second.first, second.before, second.text) == (1, "w96", "w48")
    assert spans(second) == [("w48", 2_240, 2_720)]


def test_speech_that_is_cut_keeps_its_times():
    audio = sound((640, False), *[(704, True), (256, False)] * 6, (960, False))
    vad = VadOptions(silence_ms=640)
    (final,), _ = transcripts(audio, Window(2_000, 1_000), vad=vad, words=True, partial_interval_ms=0)
    assert [word.start_ms for word in final.words] == [640 + 960 * number for number in range(6)]
    assert all(one.end_ms <= other.start_ms for one, other in zip(final.words, final.words[1:], strict=False))


def recorded(audio, limits=None, **request):
    reader = LoudReader(limits)
    recording = SegmentRecording(
        audio, TranscribeRequest(**request), reader, SegmentRecordingLimits(VadOptions(silence_ms=320))
    )
    rounds = SegmentRounds(reader, LoudnessModels())
    while not recording.done:
        rounds.run([recording])
    return recording.reply()


def test_a_recording_has_words_or_segments():
    audio = sound((960, True), (2_000, False), (480, True), (960, False))
    reply = recorded(audio)
    assert [(word.text, word.start_ms, word.end_ms) for word in reply.words] == [
        ("w96", 0, 960),
        ("w48", 2_960, 3_440),
    ]
    assert reply.segments == []
    without = recorded(audio, words=False)
    assert (without.text, without.words) == (reply.text, [])


@pytest.mark.parametrize("silence", [0, 5_000])
def test_a_recording_of_nothing_has_neither(silence):
    reply = recorded(sound((silence + 40, False)))
    assert (reply.text, reply.words, reply.segments) == ("", [], [])


def test_readers_that_favour_no_names_ignore_them():
    reader = LoudReader()
    pipeline = SegmentPipeline(
        reader, InlineReader(reader), LoudnessModels(), SegmentPipelineLimits(), model="sherpa_onnx"
    )
    assert not len(pipeline.new_stream(AsrOptions(names=["w96"])).reading.boosting.bonus)
