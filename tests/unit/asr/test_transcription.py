"""Whole recordings: the windows of the encoder, the real tiny networks, and fakes that fail."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from local_models import LocalModels, Transcriber

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.decoding.words import text_of
from parley.asr.features.log_mel import LogMel
from parley.asr.files.recording import LISTEN, EncoderWindow, Recording, RecordingLimits, WindowPlan
from parley.asr.files.rounds import TranscriptionRounds
from parley.asr.messages import TranscribeRequest
from parley.errors import InferenceError, InvalidMessageError, ModelLoadingError
from parley.protocol import VadOptions

CONVERSATION = Path(__file__).resolve().parents[2] / "data" / "conversation"
ROOM = 2_000


class Watched:
    """The real networks; records the sizes of the calls, and fails where a test asks for it."""

    def __init__(self, models):
        self._models = models
        self.encoded: list[tuple[int, ...]] = []
        self.decoded: list[tuple[int, bool]] = []
        self.failing: set[str] = set()

    def detect(self, *arguments):
        self._maybe_fail("detect")
        return self._models.detect(*arguments)

    def encode(self, features, lengths):
        self._maybe_fail("encode")
        self.encoded.append(features.shape)
        return self._models.encode(features, lengths)

    def decode_pieces(self, encoded, lengths, states, **options):
        self._maybe_fail("decode")
        self.decoded.append((len(encoded), states is not None))
        return self._models.decode_pieces(encoded, lengths, states, **options)

    def _maybe_fail(self, name):
        if name in self.failing:
            raise InferenceError(f"{name} broke")


@pytest.fixture
def watched(models: LocalModels):
    return Watched(models)


@pytest.fixture
def new_recording(export):
    mel = LogMel(export.config)

    def make(audio, *, window_ms=10_000, left_ms=3_000, right_ms=2_000, pause_ms=300, **request):
        plan = WindowPlan.of(export.config, window_ms=window_ms, left_ms=left_ms, right_ms=right_ms)
        vad = VadOptions(silence_ms=pause_ms) if pause_ms else None
        limits = RecordingLimits(plan, vad)
        return Recording(audio, TranscribeRequest(**request), export, mel, limits)

    return make


def finish(recordings, models, *, room=ROOM):
    rounds = TranscriptionRounds(models, room=room)
    left = list(recordings)
    order = []
    while left:
        rounds.run(left)
        order += [recordings.index(recording) for recording in left if recording.done or recording.error]
        left = [recording for recording in left if not (recording.done or recording.error)]
    return order


def texts(recordings):
    return [recording.reply().text for recording in recordings]


def test_recordings_together_say_what_each_says_alone(watched, new_recording, spoken):
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


def test_a_recording_without_pauses_is_what_the_plain_transcriber_says(
    export, watched, new_recording, spoken
):
    clip = spoken[0]
    recording = new_recording(clip.audio, pause_ms=0)
    finish([recording], watched)
    assert recording.reply().text == text_of(Transcriber(export.folder).words(clip.audio))


def test_words_are_where_they_are_said(watched, new_recording, spoken):
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
    assert reply.duration_ms == (80_000 + len(spoken[0].audio) + len(spoken[1].audio)) // 16
    assert 0 < reply.confidence <= 1
    assert reply.encoder_ms > 0 < reply.decoder_ms


def test_words_are_left_out_on_request(watched, new_recording, spoken):
    recording = new_recording(spoken[0].audio, words=False)
    finish([recording], watched)
    reply = recording.reply()
    assert reply.text
    assert reply.confidence > 0
    assert reply.words == []


def test_speech_longer_than_a_window_carries_the_decoder_on(watched, new_recording, spoken):
    clips = sorted(spoken, key=lambda clip: len(clip.audio))[-6:]
    whole = [new_recording(clip.audio, pause_ms=0) for clip in clips]
    cut = [
        new_recording(clip.audio, pause_ms=0, window_ms=2_400, left_ms=960, right_ms=800) for clip in clips
    ]
    finish(whole, watched)
    watched.decoded.clear()
    finish(cut, watched, room=240)
    assert any(carried for _, carried in watched.decoded)
    assert max(shape[2] for shape in watched.encoded[-6:]) <= 240
    same = sum(a == b for a, b in zip(texts(whole), texts(cut), strict=True))
    assert same >= 4


def test_pieces_in_one_round_are_as_pieces_in_many(watched, new_recording, spoken):
    audio = np.concatenate([clip.audio for clip in spoken[:6]])
    sizes = {"pause_ms": 0, "window_ms": 2_400, "left_ms": 960, "right_ms": 800}
    many, one = new_recording(audio, **sizes), new_recording(audio, **sizes)
    finish([many], watched, room=240)
    finish([one], watched, room=100_000)
    assert many.reply().words == one.reply().words


def test_a_round_has_no_more_than_its_room(watched, new_recording, spoken):
    audio = np.concatenate([clip.audio for clip in spoken[:20]])
    finish([new_recording(audio, window_ms=2_400, left_ms=480, right_ms=480)], watched, room=500)
    assert len(watched.encoded) > 5
    assert all(rows * frames <= 500 for rows, _, frames in watched.encoded)


def test_a_short_recording_does_not_wait_for_a_long_one(watched, new_recording, spoken):
    long = new_recording(np.concatenate([clip.audio for clip in spoken]))
    short = new_recording(spoken[0].audio)
    assert finish([long, short], watched, room=500) == [1, 0]


def test_silence_has_no_words_and_does_not_reach_the_encoder(watched, new_recording):
    recording = new_recording(np.zeros(LISTEN + 5_000, np.int16))
    finish([recording], watched)
    assert recording.reply().text == ""
    assert recording.reply().confidence == 0
    assert recording.reply().speech_ms == 0
    assert watched.encoded == []


@pytest.mark.parametrize("pause_ms", [0, 300])
@pytest.mark.parametrize("samples", [1, 159, 160, 511, 513])
def test_the_shortest_recordings_are_no_exception(watched, new_recording, samples, pause_ms):
    recording = new_recording(np.full(samples, 9_000, np.int16), pause_ms=pause_ms)
    finish([recording], watched)
    assert recording.error is None
    assert recording.reply().duration_ms == samples // 16


@pytest.mark.parametrize("failing", ["detect", "encode", "decode"])
def test_a_failed_call_fails_those_that_took_part_only(watched, new_recording, spoken, failing):
    first, second = new_recording(spoken[0].audio), new_recording(spoken[1].audio)
    watched.failing = {failing}
    finish([first], watched)
    assert isinstance(first.error, InferenceError)
    watched.failing = set()
    finish([second], watched)
    assert second.error is None
    assert second.reply().text


def test_phrases_are_favoured_in_their_own_recording_only(watched, new_recording, spoken):
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


def test_the_best_readings_come_on_request(export, new_recording, spoken):
    searching = LocalModels.open(export, beam_size=4)
    clips = sorted(spoken, key=lambda clip: len(clip.audio))[-3:]
    audio = np.concatenate([part for clip in clips for part in (clip.audio, np.zeros(16_000, np.int16))])
    sizes = {"window_ms": 2_400, "left_ms": 960, "right_ms": 800}
    whole, cut, plain = (
        new_recording(audio, nbest=3),
        new_recording(audio, nbest=3, **sizes),
        new_recording(audio),
    )
    finish([whole, cut, plain], searching)
    for recording in (whole, cut):
        reply = recording.reply()
        assert len(reply.alternatives) == 3
        assert reply.alternatives[0].text == reply.text
        assert len({own.text for own in reply.alternatives}) == 3
        scores = [own.score for own in reply.alternatives]
        assert scores == sorted(scores, reverse=True)
    assert plain.reply().alternatives == []
    assert plain.reply().text == whole.reply().text


def test_phrases_that_no_token_spells_are_refused(new_recording):
    with pytest.raises(InvalidMessageError):
        new_recording(np.zeros(100, np.int16), phrases=["\u4f60\u597d"])


def test_a_word_with_which_the_recording_begins_is_heard(watched, new_recording):
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


PLAN = WindowPlan.of(ParakeetConfig(), window_ms=1_600, left_ms=400, right_ms=240)


def test_a_stretch_that_fits_is_one_window():
    assert PLAN.longest == 160
    assert PLAN.windows(160) == [EncoderWindow(0, 160, 0, None)]
    assert PLAN.windows(0) == [EncoderWindow(0, 0, 0, None)]


def test_a_longer_one_is_encoded_with_context_on_both_sides():
    assert PLAN.windows(300) == [
        EncoderWindow(0, 120, 0, 12),
        EncoderWindow(56, 216, 5, 12),
        EncoderWindow(152, 300, 5, None),
    ]


@given(st.integers(0, 5_000))
def test_what_is_kept_is_the_whole_and_nothing_twice(frames):
    kept = []
    for window in PLAN.windows(frames):
        assert window.start % 8 == 0
        assert window.end - window.start <= PLAN.longest
        encoded = list(range(window.start // 8, -(-window.end // 8)))
        last = len(encoded) if window.kept is None else window.first + window.kept
        kept += encoded[window.first : last]
    assert kept == list(range(-(-frames // 8)))


@given(st.integers(161, 5_000))
def test_every_inner_cut_has_its_whole_context(frames):
    windows = PLAN.windows(frames)
    for before, after in pairwise(windows):
        cut = before.start + (before.first + before.kept) * 8
        assert before.end - cut == PLAN.right
        assert cut - after.start == min(PLAN.left, cut)


def test_contexts_that_leave_nothing_are_refused():
    with pytest.raises(ModelLoadingError, match="window_ms"):
        WindowPlan.of(ParakeetConfig(), window_ms=600, left_ms=400, right_ms=200)
