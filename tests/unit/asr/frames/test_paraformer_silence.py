"""Paraformer where the predictor finds no token, at which published exports fail."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from frame_fakes import FOLDERS, ROOT, changing

sys.path.insert(0, str(ROOT / "tests/unit/tts"))

from tiny_onnx import FLOAT, INT64, constant, field, model, node, value

from parley.asr.families import load_model, new_reader
from parley.asr.segments.reader import ReadOptions, Stretch
from parley.asr.segments.worker import Source, ThreadedReader
from parley.errors import InferenceError
from parley.runtime.onnx import open_session

NOTHING = ReadOptions()
LOUD = np.random.default_rng(0).integers(-9_000, 9_000, 16_000).astype(np.int16)
SILENCE = np.zeros(16_000, np.int16)
NOISE = (LOUD // 800).astype(np.int16)
TOKENS = 14
INT32 = 6


def folder_with(folder, *, scored=2):
    """An export whose predictor finds 0, 1 or 2 tokens by loudness, and whose decoder takes 2 alone.

    Args:
        folder: where it is written.
        scored: tokens that the decoder has scores of; with another number than 2 it always fails.
    """
    scores = np.full((scored, TOKENS), -9.0, np.float32)
    scores[:, 4] = 0.0
    graph = model(
        node("ReduceMean", "speech", "loudness", keepdims=0),
        node("Greater", "loudness soft", "heard"),
        node("Greater", "loudness loud", "spoken"),
        node("Cast", "heard", "one", to=INT64),
        node("Cast", "spoken", "other", to=INT64),
        node("Add", "one other", "tokens"),
        node("Unsqueeze", "tokens first", "count"),
        node("Cast", "count", "token_num", to=INT32),
        node("Mul", "count second", "length"),
        node("Add", "length others", "shape"),
        node("Reshape", "scores shape", "logits"),
        constant("soft", np.float32(-4.0)),
        constant("loud", np.float32(0.5)),
        constant("first", [0]),
        constant("second", [0, 1, 0]),
        constant("others", [1, 0, TOKENS]),
        constant("scores", scores.reshape(-1)),
        value(11, "speech", FLOAT, 1, "T", 560),
        value(11, "speech_lengths", INT32, 1),
        value(12, "logits", FLOAT, 1, "L", TOKENS),
        value(12, "token_num", INT32, 1),
    )
    published = open_session(FOLDERS / "paraformer/model.onnx").get_modelmeta().custom_metadata_map
    metadata = (field(14, field(1, key) + field(2, text)) for key, text in published.items())
    (folder / "model.onnx").write_bytes(graph + b"".join(metadata))
    for name in ("tokens.txt", "recognizer.json"):
        (folder / name).write_bytes((FOLDERS / "paraformer" / name).read_bytes())
    return folder


def reader_of(folder, open_network=open_session):
    return new_reader(load_model(folder, "paraformer", open_network))


def test_an_export_that_fails_without_a_token_has_no_text_however_often(tmp_path):
    reader = reader_of(folder_with(tmp_path))
    assert reader.read(LOUD, NOTHING).text
    for audio in (SILENCE, NOISE) * 10:
        assert reader.read(audio, NOTHING).text == ""
    assert reader.read(LOUD, NOTHING).text
    reader.warm_up()


def test_a_decoder_that_cannot_read_speech_is_a_failure_even_in_silence(tmp_path):
    reader = reader_of(folder_with(tmp_path, scored=3))
    for audio in (LOUD, NOISE, SILENCE):
        with pytest.raises(InferenceError, match="Reshape"):
            reader.read(audio, NOTHING)
    with pytest.raises(InferenceError, match="Reshape"):
        reader.warm_up()


def test_the_speech_that_a_network_must_read_is_as_long_as_what_it_failed_at(tmp_path):
    open_network = changing("model.onnx")
    reader = reader_of(folder_with(tmp_path), open_network)
    for seconds in (1, 20):
        reader.read(np.tile(SILENCE, seconds), NOTHING)
    failed, speech, longer, more_speech = (feed["speech"] for feed in open_network.changed.fed)
    assert failed.shape[1] <= speech.shape[1]
    assert longer.shape[1] <= more_speech.shape[1] < longer.shape[1] + speech.shape[1]


def test_noise_of_one_caller_does_not_stop_the_thread_that_reads_for_all(tmp_path):
    text_reader = ThreadedReader(reader_of(folder_with(tmp_path)), room=100)
    for utterance in range(15):
        asked = text_reader.ask(Stretch(NOISE, NOTHING), final=True, of=Source("caller", utterance))
        assert asked.future.result(10).text == ""
        text_reader.check()
    text_reader.close(10)
