"""Streams and the step that serves them, with networks whose answers are known."""

import time

import numpy as np
import pytest
from asr_fakes import LoudnessModels, sound

from parley.asr.checkpoint import Checkpoint, ParakeetConfig
from parley.asr.decoding.greedy import Tokens
from parley.asr.features import LogMel
from parley.asr.messages import (
    AsrOptions,
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.asr.parakeet.networks import DecodedPiece
from parley.asr.parakeet.pipeline import OfflinePipeline
from parley.asr.parakeet.stream import DecodeJob, OfflineStream, StreamLimits
from parley.asr.service import ChunkRequest, ChunkResult
from parley.errors import InferenceError, InvalidMessageError
from parley.protocol import VadOptions

CONFIG = ParakeetConfig(features_size=8)
CHECKPOINT = Checkpoint(None, CONFIG, tuple(f"▁t{number}" for number in range(10_000)), blank=9_999)
MEL = LogMel(CONFIG)
MS = 16


def new_stream(options=None, **limits):
    return OfflineStream(CHECKPOINT, MEL, options or AsrOptions(), StreamLimits(**limits))


def step(chunks, models, clock=time.perf_counter):
    return OfflinePipeline(CHECKPOINT, models, StreamLimits(), clock).step(chunks)


def feed(stream, audio, models=None, *, chunk_ms=80, flush=False):
    """Send audio in chunks; return the stream and all replies."""
    models = models or LoudnessModels()
    replies = []
    for start in range(0, max(len(audio), 1), chunk_ms * MS):
        piece = audio[start : start + chunk_ms * MS]
        last = start + chunk_ms * MS >= len(audio)
        (result,) = step([ChunkRequest(stream, piece, flush and last)], models)
        assert isinstance(result, ChunkResult)
        stream = result.stream
        replies.append(result.reply)
    return stream, replies


def events_of(replies, kind=object):
    return [event for reply in replies for event in reply.events if isinstance(event, kind)]


def finals(replies):
    return [event for event in events_of(replies, TranscriptEvent) if event.is_final]


UTTERANCE = ((640, False), (960, True), (640, False))


def test_an_utterance_is_reported_in_order():
    _, replies = feed(new_stream(), sound(*UTTERANCE))
    (reply,) = [reply for reply in replies if events_of([reply], SpeechStoppedEvent)]
    assert [type(event) for event in reply.events] == [SpeechStoppedEvent, TranscriptEvent]
    events = events_of(replies)
    assert events[:2] == [OnsetEvent(at_ms=640), SpeechStartedEvent(utterance=1, at_ms=640)]
    assert events[-2] == SpeechStoppedEvent(utterance=1, at_ms=1600, detected_at_ms=1920)
    assert events[-1].is_final
    assert all(isinstance(event, TranscriptEvent) and not event.is_final for event in events[2:-2])
    assert {event.utterance for event in events[1:]} == {1}
    # The final text is from 320 ms before the onset to the detection, in feature frames of 10 ms.
    assert events[-1].text == f"t{(320 + 960 + 320) // 10}"
    assert events[-1].words[0].start_ms == 640 - 320


@pytest.mark.parametrize("chunk_ms", [1, 20, 32, 100, 333, 1000, 10_000])
def test_chunk_sizes_change_only_the_partials(chunk_ms):
    audio = sound(*UTTERANCE, *UTTERANCE)
    _, replies = feed(new_stream(), audio, chunk_ms=chunk_ms)
    expected = [
        OnsetEvent(at_ms=640),
        SpeechStartedEvent(utterance=1, at_ms=640),
        SpeechStoppedEvent(utterance=1, at_ms=1600, detected_at_ms=1920),
        "t160",
        OnsetEvent(at_ms=2880),
        SpeechStartedEvent(utterance=2, at_ms=2880),
        SpeechStoppedEvent(utterance=2, at_ms=3840, detected_at_ms=4160),
        "t160",
    ]
    found = [
        event.text if isinstance(event, TranscriptEvent) else event
        for event in events_of(replies)
        if not isinstance(event, TranscriptEvent) or event.is_final
    ]
    assert found == expected
    assert replies[-1].stream_ms == 2 * 2240


@pytest.mark.parametrize(("interval", "count"), [(240, 4), (480, 2), (0, 0), (1200, 1)])
def test_partials_come_once_per_interval_of_new_audio(interval, count):
    _, replies = feed(new_stream(AsrOptions(partial_interval_ms=interval)), sound(*UTTERANCE), chunk_ms=20)
    partials = [event for event in events_of(replies, TranscriptEvent) if not event.is_final]
    assert len(partials) in (count, count + 1)  # one may fall into the silence that ends the speech


def test_a_partial_that_says_nothing_new_is_not_sent():
    class Constant(LoudnessModels):
        def encode(self, features, lengths):
            return features, np.full_like(lengths, 7)

    _, replies = feed(new_stream(), sound((320, False), (3200, True), (640, False)), Constant())
    assert [event.text for event in events_of(replies, TranscriptEvent)] == ["t7", "t7"]


def test_words_are_left_out_on_request():
    _, replies = feed(new_stream(AsrOptions(words=False)), sound(*UTTERANCE))
    assert finals(replies)[0].words == []
    assert finals(replies)[0].confidence == 0.5


def test_silence_needs_no_decoding():
    models = LoudnessModels()
    feed(new_stream(), sound((3200, False)), models)
    assert {name for name, _ in models.calls} == {"detect"}


def test_flush_ends_the_utterance_with_every_sample_that_was_sent():
    _, replies = feed(new_stream(), sound((640, False), (700, True)), flush=True)
    assert finals(replies)[0].text == f"t{(320 + 700) // 10}"
    assert events_of(replies, SpeechStoppedEvent)[0].at_ms == 1340


def test_an_onset_is_reported_at_once_and_lost_if_no_utterance_follows():
    stream, replies = feed(new_stream(), sound((640, False), (32, True)), chunk_ms=32)
    assert [reply.events for reply in replies[-2:]] == [[], [OnsetEvent(at_ms=640)]]
    stream, replies = feed(stream, sound((64, False), (32, True)), chunk_ms=32)
    assert [reply.events for reply in replies] == [[OnsetLostEvent()], [], [OnsetEvent(at_ms=736)]]
    _, replies = feed(stream, sound((8, True)), flush=True)
    assert events_of(replies) == [OnsetLostEvent()]


def test_flush_in_silence_has_no_events_and_the_stream_goes_on():
    stream, replies = feed(new_stream(), sound((105, False)), flush=True)
    assert events_of(replies) == []
    _, replies = feed(stream, sound(*UTTERANCE))
    assert events_of(replies)[1] == SpeechStartedEvent(utterance=1, at_ms=745)
    assert replies[-1].stream_ms == 105 + 2240


def test_a_new_utterance_does_not_repeat_the_end_of_the_last_one():
    options = AsrOptions(vad=VadOptions(silence_ms=96))
    audio = sound((640, False), (640, True), (128, False), (640, True), (640, False))
    _, replies = feed(new_stream(options), audio, chunk_ms=32)
    first, second = finals(replies)
    assert first.text == f"t{(320 + 640 + 96) // 10}"
    # Only half of the silence before it was detected as silence: 48 ms, and 32 ms came after.
    assert second.text == f"t{(48 + 32 + 640 + 96) // 10}"


def test_speech_without_a_pause_loses_nothing_at_the_forced_end():
    audio = sound((320, False), (2880, True), (640, False))
    _, replies = feed(new_stream(max_utterance_ms=1600), audio, chunk_ms=32)
    assert [event.text for event in finals(replies)] == ["t192", f"t{(2880 - 1600 + 320) // 10}"]
    assert [event.utterance for event in finals(replies)] == [1, 2]


def test_a_long_utterance_is_settled_at_its_quietest_place():
    pause = ((1600, True), (64, False))
    audio = sound((320, False), *pause, *pause, *pause, (640, False))
    models = LoudnessModels()
    stream = new_stream(window_ms=3000, cut_search_ms=1600)
    stream, replies = feed(stream, audio, models, chunk_ms=32)
    (final,) = finals(replies)
    lengths = [int(word.text[1:]) for word in final.words]
    assert len(lengths) == 3
    assert sum(lengths) == (320 + 3 * 1664 + 256) // 10
    cuts = [word.start_ms for word in final.words[1:]]
    for cut, (start, end) in zip(cuts, [(1920, 1984), (3584, 3648)], strict=True):
        assert start <= cut <= end
    assert max(int(event.words[-1].text[1:]) for event in events_of(replies, TranscriptEvent)) <= 310


def test_memory_of_a_stream_is_bounded():
    def size(stream):
        features = stream._features
        held = sum(frames.nbytes for frames in features._frames) if features else 0
        return stream.track._audio.nbytes + held + 16 * len(features._speech if features else ())

    stream = new_stream(window_ms=2000, max_utterance_ms=8000)
    largest = []
    for _ in range(6):
        stream, _ = feed(stream, sound((4000, True), (10_000, False)))
        largest.append(size(stream))
        stream, _ = feed(stream, sound((5000, True)))
        largest.append(size(stream))
    assert max(largest) < 60_000 + 2000 // 10 * 8 * 4
    assert largest[-2:] == largest[2:4]


def test_streams_together_get_what_each_gets_alone():
    sounds = [sound((100 * row, False), (500 + 300 * row, True), (900, False)) for row in range(5)]
    expected = [feed(new_stream(), audio)[1] for audio in sounds]
    streams = [new_stream() for _ in sounds]
    found = [[] for _ in sounds]
    models = LoudnessModels()
    for start in range(0, max(map(len, sounds)), 80 * MS):
        rows = [row for row, audio in enumerate(sounds) if start < len(audio)]
        results = step(
            [ChunkRequest(streams[row], sounds[row][start : start + 80 * MS]) for row in rows], models
        )
        for row, item in zip(rows, results, strict=True):
            streams[row] = item.stream
            found[row].append(item.reply)
    for own, together in zip(expected, found, strict=True):
        assert events_of(together) == events_of(own)


def test_step_calls_each_network_once():
    models = LoudnessModels()
    streams = [feed(new_stream(), sound((320, False), (700, True)), LoudnessModels())[0] for _ in range(4)]
    results = step([ChunkRequest(stream, sound((240, True))) for stream in streams], models)
    assert models.calls == [("detect", 4), ("encode", 4), ("decode", 4)]
    assert [item.reply.batch for item in results] == [4] * 4


def test_timings_are_those_of_the_calls_that_were_made():
    ticks = iter(range(100))
    stream, _ = feed(new_stream(), sound((320, False), (700, True)))
    speaking, silent, nothing = step(
        [
            ChunkRequest(stream, sound((240, True))),
            ChunkRequest(new_stream(), sound((160, False))),
            ChunkRequest(new_stream(), sound((1, False))),
        ],
        LoudnessModels(),
        clock=lambda: next(ticks),
    )
    assert (speaking.reply.vad_ms, speaking.reply.encoder_ms, speaking.reply.decoder_ms) == (1000,) * 3
    assert (silent.reply.vad_ms, silent.reply.encoder_ms, silent.reply.decoder_ms) == (1000, 0, 0)
    assert nothing.reply.vad_ms == 0


@pytest.mark.parametrize("broken", ["detect", "encode", "decode"])
def test_after_a_failure_the_same_piece_can_be_sent_again(broken):
    audio = sound(*UTTERANCE)
    expected = events_of(feed(new_stream(), audio)[1])
    models = LoudnessModels()
    stream, found, failures = new_stream(), [], 0
    for start in range(0, len(audio), 80 * MS):
        chunk = ChunkRequest(stream, audio[start : start + 80 * MS])
        models.failure = {broken: InferenceError("out of order")}
        (result,) = step([chunk], models)
        if isinstance(result, InferenceError):
            failures += 1
            models.failure = {}
            (result,) = step([chunk], models)
        stream = result.stream
        found += result.reply.events
    assert failures > 0
    assert found == expected


def test_a_failing_encoder_fails_only_the_streams_that_needed_it():
    models = LoudnessModels()
    models.failure = {"encode": InferenceError("out of order")}
    speaking, _ = feed(new_stream(), sound((320, False), (700, True)))
    failed, result = step(
        [ChunkRequest(speaking, sound((240, True))), ChunkRequest(new_stream(), sound((160, False)))], models
    )
    assert isinstance(failed, InferenceError)
    assert result.reply.stream_ms == 160


@pytest.mark.parametrize("interval", [-1, 60_001])
def test_an_interval_out_of_range_is_refused(interval):
    with pytest.raises(InvalidMessageError, match="partial_interval_ms"):
        new_stream(AsrOptions(partial_interval_ms=interval))


def test_a_partial_says_how_many_of_its_words_will_stay():
    stream = new_stream(AsrOptions(partial_interval_ms=80))
    texts = iter(["a", "a b c", "a b c", "a b d e", "a b d e"])
    vocabulary = CHECKPOINT.vocabulary

    def tokens(text):
        ids = [vocabulary.index("▁t" + str(ord(word))) for word in text.split()]
        count = len(ids)
        return Tokens(np.array(ids), np.arange(count), np.ones(count, int), np.ones(count, np.float32))

    def event(kind, text):
        job = DecodeJob(1, kind, 0, np.zeros((8, 1), np.float32))
        return stream.resolve([job], [DecodedPiece(tokens(text))])

    found = [event("partial", text) for text in texts]
    assert [len(events) for events in found] == [1, 1, 0, 1, 0]
    assert [events[0].stable_words for events in found if events] == [0, 1, 2]
    (final,) = event("final", "a b d")
    assert final.stable_words == 3
    assert final.alternatives == []
    assert event("partial", "a b c")[0].stable_words == 0


def test_a_final_text_comes_with_its_best_readings_on_request():
    stream = new_stream(AsrOptions(nbest=2))
    a, b, c = (CHECKPOINT.vocabulary.index("▁t" + str(ord(letter))) for letter in "abc")

    def decoded(*ids):
        column = np.array(ids, np.int32)
        tokens = Tokens(column, column * 0, column * 0, column.astype(np.float32))
        return DecodedPiece(tokens, [(list(ids), -0.5), ([b], -0.75), ([c], -1.0)])

    jobs = [DecodeJob(1, kind, 0, np.zeros((8, 1), np.float32)) for kind in ("settle", "partial", "final")]
    partial, final = stream.resolve(jobs, [decoded(a), decoded(b, c), decoded(c, c)])
    assert partial.alternatives == []
    assert [(own.text, own.score) for own in final.alternatives] == [
        ("t97 t99 t99", -0.5),
        ("t97 t98", -0.75),
    ]
    assert final.text == final.alternatives[0].text


# --- the pieces of a turn -----------------------------------------------------------------------

PIECES = (*UTTERANCE, (800, True), (640, False))


class BothEnds(LoudnessModels):
    """A stretch is a word at its beginning, named after its length, and one shortly before its end."""

    def decode(self, encoded, lengths, boosting=None):
        self.boosting = boosting
        return [
            DecodedPiece(
                Tokens(
                    np.array([length, 1], np.int32),
                    np.array([0, length // 8 - 6], np.int32),
                    np.ones(2, np.int32),
                    np.array([0.5, 0.9], np.float32),
                )
            )
            for length in lengths
        ]


def test_the_pieces_of_a_turn_are_read_together():
    _, replies = feed(new_stream(AsrOptions(join_ms=20_000)), sound(*PIECES), BothEnds())
    alone, joined = finals(replies)
    assert (alone.text, alone.first) == ("t160 t1", 0)
    # 320 ms before the first onset to 50 ms after its end, 50 ms before the second to its end.
    length = (320 + 960 + 50 + 50 + 800 + 320) // 10
    assert (joined.utterance, joined.text, joined.first, joined.before) == (2, "t1", 1, f"t{length}")
    assert joined.confidence == pytest.approx(0.9)
    (word,) = joined.words
    frame = length // 8 - 6
    assert word.start_ms == frame * 80 - (320 + 960 + 50) + (2240 - 50)


def test_after_a_turn_is_over_the_next_is_read_by_itself():
    audio = sound(*PIECES)
    stream, _ = feed(new_stream(AsrOptions(join_ms=20_000)), audio[: 2400 * MS], BothEnds())
    (result,) = step([ChunkRequest(stream, audio[2400 * MS : 2480 * MS], turn_over=True)], BothEnds())
    _, replies = feed(result.stream, audio[2480 * MS :], BothEnds())
    alone = finals(feed(new_stream(), audio, BothEnds())[1])
    assert finals(replies) == alone[1:]


def test_utterances_cut_for_their_length_are_not_joined():
    audio = sound((320, False), (4000, True), (640, False), (800, True), (640, False))
    limits = {"window_ms": 2000, "cut_search_ms": 500}
    _, replies = feed(new_stream(AsrOptions(join_ms=20_000), **limits), audio, BothEnds())
    assert [event.first for event in finals(replies)] == [0, 0]


def test_a_turn_that_begins_with_a_noise_is_read_from_its_first_words_on():
    class Silent(LoudnessModels):
        def decode(self, encoded, lengths, boosting=None):
            nothing = np.zeros(0, np.int32)
            return [DecodedPiece(Tokens(nothing, nothing, nothing, np.zeros(0, np.float32))) for _ in lengths]

    _, replies = feed(new_stream(AsrOptions(join_ms=20_000)), sound(*PIECES), Silent())
    assert [event.first for event in finals(replies)] == [0, 0]
