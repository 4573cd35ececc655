"""Whole recordings with the real tiny networks of Parakeet, and fakes that fail."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
from local_models import LocalModels, Transcriber

from parley.asr.decoding.words import text_of
from parley.asr.messages import TranscribeRequest
from parley.asr.parakeet.reader import ParakeetReader
from parley.asr.reader import ReadOptions, RunLimits, Stretch
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.utterances.speech_search import LISTEN
from parley.asr.utterances.utterance import Window
from parley.errors import InferenceError, InvalidMessageError
from parley.protocol import VadOptions
from parley.runtime.onnx import Stop, StoppedError

CONVERSATION = Path(__file__).resolve().parents[2] / "data" / "conversation"
ROOM_MS = 20_000


class Watched:
    """The real networks; records the sizes of the calls, and fails where a test asks for it."""

    def __init__(self, models):
        self._models = models
        self.encoded: list[tuple[int, ...]] = []
        self.failing: set[str] = set()

    def detect(self, *arguments):
        self._maybe_fail("detect")
        return self._models.detect(*arguments)

    def encode(self, features, lengths):
        self._maybe_fail("encode")
        self.encoded.append(features.shape)
        return self._models.encode(features, lengths)

    def decode(self, encoded, lengths, boosting=None):
        self._maybe_fail("decode")
        return self._models.decode(encoded, lengths, boosting)

    def _maybe_fail(self, name):
        if name in self.failing:
            raise InferenceError(f"{name} broke")


@pytest.fixture
def watched(models: LocalModels):
    return Watched(models)


def open_reader(models, export, room_ms=ROOM_MS):
    limits = RunLimits(64, room_ms * 16, ratio=math.inf)
    return ParakeetReader(models, export, languages=("en",), longest_ms=10_000, limits=limits)


@pytest.fixture
def new_recording(export, models):
    reader = open_reader(models, export)

    def make(audio, *, window_ms=10_000, pause_ms=300, **request):
        vad = VadOptions(silence_ms=pause_ms) if pause_ms else None
        limits = SegmentRecordingLimits(vad, Window(window_ms, window_ms // 2), join_ms=0)
        return SegmentRecording(audio, TranscribeRequest(**request), reader, limits)

    return make


@pytest.fixture
def finish(export):
    def run(recordings, models, *, room_ms=ROOM_MS):
        rounds = SegmentRounds(open_reader(models, export, room_ms), models)
        left, order = list(recordings), []
        while left:
            rounds.run(left)
            order += [recordings.index(own) for own in left if own.done or own.error]
            left = [own for own in left if not (own.done or own.error)]
        return order

    return run


def texts(recordings):
    return [recording.reply().text for recording in recordings]


def test_recordings_read_together_have_the_texts_that_they_have_alone(watched, new_recording, spoken, finish):
    chosen = spoken[::4]
    together = [new_recording(clip.audio) for clip in chosen]
    alone = [new_recording(clip.audio) for clip in chosen]
    finish(together, watched)
    for recording in alone:
        finish([recording], watched)
    assert texts(together) == texts(alone)
    assert max(rows for rows, *_ in watched.encoded) > 1
    wrong = sum(text != clip.text for text, clip in zip(texts(together), chosen, strict=True))
    assert wrong <= len(chosen) // 5


def test_a_recording_without_pauses_has_the_text_of_the_plain_transcriber(
    export, watched, new_recording, spoken, finish
):
    clip = spoken[0]
    recording = new_recording(clip.audio, pause_ms=0)
    finish([recording], watched)
    assert recording.reply().text == text_of(Transcriber(export.folder).words(clip.audio))


def test_words_have_times_of_the_recording(watched, new_recording, spoken, finish):
    silence = np.zeros(40_000, np.int16)
    single = new_recording(spoken[0].audio)
    twice = new_recording(np.concatenate([silence, spoken[0].audio, silence, spoken[1].audio]))
    finish([single, twice], watched)
    reply = twice.reply()
    expected = single.reply().words
    shift = [
        word.start_ms - other.start_ms
        for word, other in zip(reply.words[: len(expected)], expected, strict=True)
    ]
    assert [word.text for word in reply.words[: len(expected)]] == [word.text for word in expected]
    assert all(abs(one - 2_500) <= 160 for one in shift)
    assert all(word.start_ms <= word.end_ms for word in reply.words)
    assert reply.segments == []
    assert 0 < reply.confidence <= 1
    assert reply.encoder_ms > 0 < reply.decoder_ms


def test_a_long_recording_alone_fills_a_run_within_its_room(watched, new_recording, spoken, finish):
    audio = np.concatenate([part for clip in spoken[:20] for part in (clip.audio, np.zeros(9_600, np.int16))])
    finish([new_recording(audio)], watched, room_ms=8_000)
    assert any(rows > 1 for rows, *_ in watched.encoded)
    assert all(rows == 1 or rows * frames <= 800 for rows, _, frames in watched.encoded)


def test_a_short_recording_does_not_wait_for_a_long_one(watched, new_recording, spoken, finish):
    long = new_recording(np.concatenate([clip.audio for clip in spoken]))
    short = new_recording(spoken[0].audio)
    assert finish([long, short], watched, room_ms=5_000) == [1, 0]


def test_silence_has_no_words_and_does_not_reach_the_encoder(watched, new_recording, finish):
    recording = new_recording(np.zeros(LISTEN + 5_000, np.int16))
    finish([recording], watched)
    reply = recording.reply()
    assert (reply.text, reply.confidence, reply.speech_ms) == ("", 0, 0)
    assert watched.encoded == []


@pytest.mark.parametrize("pause_ms", [0, 300])
@pytest.mark.parametrize("samples", [1, 159, 160, 511, 513])
def test_the_shortest_recordings_are_no_exception(watched, new_recording, samples, pause_ms, finish):
    recording = new_recording(np.full(samples, 9_000, np.int16), pause_ms=pause_ms)
    finish([recording], watched)
    assert recording.error is None
    assert recording.reply().duration_ms == samples // 16


@pytest.mark.parametrize("failing", ["detect", "encode", "decode"])
def test_a_failed_call_fails_its_recordings_only(watched, new_recording, spoken, failing, finish):
    first, second = new_recording(spoken[0].audio), new_recording(spoken[1].audio)
    watched.failing = {failing}
    finish([first], watched)
    assert isinstance(first.error, InferenceError)
    watched.failing = set()
    finish([second], watched)
    assert second.error is None
    assert second.reply().text


def test_phrases_are_favoured_in_their_own_recording_only(watched, new_recording, spoken, finish):
    clips = [clip for clip in spoken if "delhi" in clip.text]
    plain = [new_recording(clip.audio) for clip in clips]
    boosted = [new_recording(clip.audio, phrases=["delhi"], phrase_weight=6.0) for clip in clips]
    misled = [new_recording(clip.audio, phrases=["vienna"], phrase_weight=6.0) for clip in clips]
    finish([*plain, *boosted, *misled], watched)
    alone = [new_recording(clip.audio) for clip in clips]
    finish(alone, watched)
    assert texts(plain) == texts(alone)

    def found(recordings):
        return sum("delhi" in text for text in texts(recordings))

    assert found(boosted) == len(clips)
    assert found(misled) < len(clips)


def test_the_best_readings_come_on_request(export, new_recording, spoken, finish):
    searching = LocalModels.open(export, beam_size=4)
    clips = sorted(spoken, key=lambda clip: len(clip.audio))[-3:]
    audio = np.concatenate([part for clip in clips for part in (clip.audio, np.zeros(16_000, np.int16))])
    asked, plain = new_recording(audio, nbest=3), new_recording(audio)
    finish([asked, plain], searching)
    reply = asked.reply()
    assert len(reply.alternatives) == 3
    assert reply.alternatives[0].text == reply.text
    assert len({own.text for own in reply.alternatives}) == 3
    scores = [own.score for own in reply.alternatives]
    assert scores == sorted(scores, reverse=True)
    assert plain.reply().alternatives == []
    assert plain.reply().text == reply.text


def test_phrases_that_no_token_spells_are_refused(new_recording):
    with pytest.raises(InvalidMessageError):
        new_recording(np.zeros(100, np.int16), phrases=["\u4f60\u597d"])


def test_a_stopped_reader_calls_no_network(export, watched):
    stop = Stop()
    stop.request()
    with pytest.raises(StoppedError):
        open_reader(watched, export).read_together([Stretch(np.zeros(1_600, np.int16), ReadOptions())], stop)
    assert watched.encoded == []


def test_a_word_with_which_the_recording_begins_is_heard(watched, new_recording, finish):
    said = "no make it twelve minutes"
    audio, _ = soundfile.read(CONVERSATION / "05-correction.wav", dtype="int16")
    silence_ms = 500
    begun = new_recording(audio, words=True)
    later = new_recording(np.concatenate([np.zeros(16 * silence_ms, np.int16), audio]), words=True)
    finish([begun, later], watched)
    replies = begun.reply(), later.reply()
    assert [reply.text for reply in replies] == [said, said]
    assert replies[0].duration_ms == len(audio) // 16
    # Times are those of the recording, within two frames of the encoder.
    for word, other in zip(replies[0].words, replies[1].words, strict=True):
        assert word.start_ms >= 0
        assert other.start_ms - silence_ms == pytest.approx(word.start_ms, abs=160)
        assert other.end_ms - silence_ms == pytest.approx(word.end_ms, abs=160)
