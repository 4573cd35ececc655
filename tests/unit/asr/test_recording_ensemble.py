"""The ends of the ensemble for short recordings, with the real tiny networks between them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_parakeet_recordings import open_reader

from parley.asr.checkpoint import CONFIG_FILE, VOCABULARY_FILE
from parley.asr.features import LogMel
from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.asr.parakeet.ensemble import RecordingFeatures, RecordingTexts
from parley.asr.parakeet.networks import TOKEN_OUTPUTS, OnnxEncoder
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.utterances.transcription import TranscriptionLimits
from parley.asr.utterances.utterance import Window
from parley.errors import (
    InferenceError,
    InvalidAudioError,
    InvalidInputError,
    InvalidMessageError,
    UnsupportedLanguageError,
)
from parley.inference import struct_tensor, tensor_struct
from parley.models.parakeet_encoder import EncoderService
from parley.models.parakeet_ensemble import load_features
from parley.protocol import VadOptions
from parley.runtime.onnx import open_session
from parley.runtime.parameters import Parameters

PAUSE_MS = 300


@pytest.fixture
def limits():
    return SegmentRecordingLimits(VadOptions(silence_ms=PAUSE_MS), Window(10_000, 5_000), join_ms=0)


@pytest.fixture
def features(export, models, limits):
    taken = TranscriptionLimits(("en",), max_audio_ms=60_000, max_pending_ms=60_000)
    return RecordingFeatures(LogMel(export.config), models, limits, taken)


@pytest.fixture
def read(export, models, features):
    """What the ensemble makes of a request, step by step."""
    encoder = EncoderService(OnnxEncoder(open_session(export.encoder)), export.config.features_size)

    def read(*audios, **options):
        message = struct_tensor(TranscribeRequest(**options), batched=True)
        requests = [{"AUDIO": audio[None], "REQUEST": message} for audio in audios]
        first = features.serve(requests)
        spans = [step["SPAN"] for step in first]
        encoded = encoder.serve([{"FEATURES": step["FEATURES"], "LENGTH": step["LENGTH"]} for step in first])
        decoded = models._service.serve(encoded)
        last = [
            {**{name: step[name] for name in TOKEN_OUTPUTS}, "SPAN": span, "REQUEST": message}
            for step, span in zip(decoded, spans, strict=True)
        ]
        return [tensor_struct(step["REPLY"], TranscribeReply) for step in RecordingTexts(export).serve(last)]

    return read


@pytest.fixture
def transcribe(export, models, limits):
    """What ``parakeet_transcribe`` makes of it."""

    def transcribe(audio, **options):
        reader = open_reader(models, export)
        recording = SegmentRecording(audio, TranscribeRequest(**options), reader, limits)
        rounds = SegmentRounds(reader, models)
        while not recording.done:
            rounds.run([recording])
        reply = recording.reply()
        return len(recording.search.stretches), reply

    return transcribe


def times(reply):
    return [(word.text, word.start_ms, word.end_ms) for word in reply.words]


def test_recordings_without_pauses_equal_the_model_for_recordings(read, transcribe, spoken):
    quiet = np.zeros(8_000, np.int16)
    chosen = [np.concatenate([quiet, clip.audio, quiet]) for clip in spoken[::4]]
    single = 0
    for audio, reply in zip(chosen, read(*chosen), strict=True):
        stretches, expected = transcribe(audio)
        single += stretches == 1
        if stretches == 1:
            assert (reply.text, times(reply)) == (expected.text, times(expected))
            assert reply.confidence == pytest.approx(expected.confidence, abs=1e-3)
            assert reply.speech_ms == expected.speech_ms
        assert reply.duration_ms == expected.duration_ms == len(audio) // 16
    assert single > len(chosen) / 2


def test_a_recording_with_a_pause_is_read_in_one_piece(read, transcribe, spoken):
    pause = np.zeros(16 * 2 * PAUSE_MS, np.int16)
    audio = np.concatenate([spoken[0].audio, pause, spoken[1].audio])
    stretches, expected = transcribe(audio)
    (reply,) = read(audio)
    assert stretches > 1
    assert reply.words[0].text == expected.words[0].text
    assert reply.words[-1].end_ms == pytest.approx(expected.words[-1].end_ms, abs=200)


def test_silence_says_nothing(read):
    (reply,) = read(np.zeros(16_000, np.int16))
    assert reply == TranscribeReply(text="", duration_ms=1_000, speech_ms=0)


def test_words_may_be_left_out(read, spoken):
    (reply,) = read(spoken[0].audio, words=False)
    assert reply.text
    assert not reply.words


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"AUDIO": np.zeros((1, 0), np.int16)}, InvalidAudioError, "empty"),
        ({"AUDIO": np.zeros((1, 61 * 16_000), np.int16)}, InvalidAudioError, "lasts 61.0 s"),
        ({"AUDIO": np.zeros((2, 160), np.int16)}, InvalidInputError, r"\[2, 160\] for 1 REQUEST"),
        ({"REQUEST": np.array([[b"{"]], np.object_)}, InvalidMessageError, "cannot be read"),
        ({"REQUEST": np.array([[b'{"phrases": ["Ann"]}']], np.object_)}, InvalidMessageError, "no phrases"),
    ],
)
def test_unreadable_recording_fails_alone(features, spoken, change, error, said):
    good = {"AUDIO": spoken[0].audio[None], "REQUEST": struct_tensor(TranscribeRequest(), batched=True)}
    bad, answer = features.serve([{**good, **change}, good])
    with pytest.raises(error, match=said):
        raise bad
    assert answer["LENGTH"][0, 0] == answer["FEATURES"].shape[2]


def test_speech_beyond_the_window_is_refused_and_the_model_for_it_is_named(features, spoken):
    audio = np.concatenate([clip.audio for clip in spoken[:12]])[: 30 * 16_000]
    request = {"AUDIO": audio[None], "REQUEST": struct_tensor(TranscribeRequest(), batched=True)}
    (answer,) = features.serve([request])
    with pytest.raises(
        InvalidAudioError, match=r"the ensemble takes 10\.\d s, parakeet_transcribe any length"
    ):
        raise answer


def test_a_network_that_fails_is_an_error_of_its_requests(features, spoken, monkeypatch):
    class Broken:
        def detect(self, *_):
            raise InferenceError("detect broke")

    monkeypatch.setattr(features, "_detector", Broken())
    request = {"AUDIO": spoken[0].audio[None], "REQUEST": struct_tensor(TranscribeRequest(), batched=True)}
    (answer,) = features.serve([request])
    assert isinstance(answer, InferenceError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENS", np.array([[1_000_000]], np.int32)),
        ("TOKENS", np.array([[-1]], np.int32)),
        ("TOKEN_COUNT", np.array([[2]], np.int32)),
        ("FRAMES", np.array([[0, 1]], np.int32)),
        ("ALTERNATIVES", np.array([[[1_000_000]]], np.int32)),
        ("CONFIDENCES", np.array([[np.nan]], np.float32)),
        ("SPAN", np.array([[1, 2]], np.int64)),
        ("REQUEST", np.zeros((1, 0), np.object_)),
    ],
)
def test_tokens_that_no_decoder_gives_are_refused(export, name, value):
    one = np.array([[1]], np.int32)
    request = {
        "TOKENS": one,
        "FRAMES": one,
        "DURATIONS": one,
        "CONFIDENCES": np.ones((1, 1), np.float32),
        "TOKEN_COUNT": one,
        "ALTERNATIVES": one[None],
        "SCORES": np.zeros((1, 1), np.float32),
        "SPAN": np.array([[1_000, 0, 1_000]], np.int64),
        "REQUEST": np.array([[json.dumps({}).encode()]], np.object_),
    }
    texts = RecordingTexts(export)
    (good,) = texts.serve([request])
    assert tensor_struct(good["REPLY"], TranscribeReply).duration_ms == 1_000
    (bad,) = texts.serve([{**request, name: value}])
    assert isinstance(bad, InvalidInputError)
    (empty,) = texts.serve([{own: rows[:0] for own, rows in request.items()}])
    assert isinstance(empty, InvalidInputError)


def test_all_languages_are_those_that_the_weights_list(export, tmp_path):
    (tmp_path / VOCABULARY_FILE).write_bytes((export.folder / VOCABULARY_FILE).read_bytes())
    config = json.loads((export.folder / CONFIG_FILE).read_text())
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config | {"languages": ["de", "fr"]}))
    settings = {"languages": "all", "weights": str(tmp_path)}
    features = load_features(Parameters("parakeet_features", settings, environment={}))

    def begin(language):
        request = struct_tensor(TranscribeRequest(language=language), batched=True)
        return features.serve([{"AUDIO": np.zeros((1, 16_000), np.int16), "REQUEST": request}])[0]

    assert "FEATURES" in begin("fr")
    assert isinstance(begin("en"), UnsupportedLanguageError)
