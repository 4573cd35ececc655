"""Encoders that keep keys and values, against the same encoders as NeMo exports them."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.encoder import CHANNEL, HISTORY, LENGTH, TIME, CacheAwareEncoder, with_keys
from parley.asr.streaming.keys import KEYS, VALUES
from parley.errors import ModelLoadingError
from parley.launcher.options import ROOT
from parley.models import nemotron_streaming
from parley.models.nemotron_streaming import load_recognizer
from parley.runtime.onnx import open_session
from parley.runtime.onnx_file import OnnxModel, PartInput, make_node

EXPORT = streaming_checkpoint.load(ROOT / "models" / "tiny-nemotron-streaming")
SHAPES = EXPORT.streaming


def open_encoder(look_ahead, *, keys):
    path = EXPORT.encoder(look_ahead)
    part = with_keys(path.read_bytes(), SHAPES.cache_last_channel) if keys else b""
    return CacheAwareEncoder(
        open_session(path, part=part),
        lookahead=look_ahead,
        channel=SHAPES.cache_last_channel,
        time=SHAPES.cache_last_time,
    )


@pytest.mark.parametrize(("look_ahead", "chunks"), [(0, 80), (1, 40), (6, 12)])
def test_the_results_are_those_of_the_export(look_ahead, chunks):
    """Over more frames than the cache holds, for streams that begin at different times."""
    plain, keeping = (open_encoder(look_ahead, keys=keys) for keys in (False, True))
    assert list(plain.initial) == [CHANNEL, TIME, LENGTH]
    assert list(keeping.initial) == [KEYS, VALUES, TIME, LENGTH]
    rng = np.random.default_rng(look_ahead)
    rows = [{name: np.stack([value] * 2) for name, value in one.initial.items()} for one in (plain, keeping)]
    for number in range(chunks):
        if number == 3:  # a stream more
            rows = [
                {name: np.concatenate([values, one.initial[name][None]]) for name, values in caches.items()}
                for one, caches in zip((plain, keeping), rows, strict=True)
            ]
        features = rng.normal(-9.0, 4.0, (len(rows[0][TIME]), 80, HISTORY + plain.chunk)).astype(np.float32)
        (expected, lengths, rows[0]), (found, kept_lengths, rows[1]) = (
            one.encode(features, caches, np.zeros(len(features), np.int64))
            for one, caches in zip((plain, keeping), rows, strict=True)
        )
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert lengths.tolist() == kept_lengths.tolist()
        assert rows[0][LENGTH].tolist() == rows[1][LENGTH].tolist()
        np.testing.assert_allclose(rows[0][TIME], rows[1][TIME], atol=1e-5)
    assert rows[0][LENGTH].max() == SHAPES.cache_last_channel[1]


def test_an_encoder_of_another_kind_is_refused():
    with pytest.raises(ModelLoadingError, match=r"no /layers\.0/self_attn/linear_k"):
        with_keys(EXPORT.checkpoint.decoder.read_bytes(), SHAPES.cache_last_channel)
    with pytest.raises(ModelLoadingError, match="not an ONNX model"):
        with_keys(b"no model", SHAPES.cache_last_channel)


def test_attention_without_a_past_is_refused():
    file = EXPORT.encoder(0).read_bytes()
    model = OnnxModel(file)
    nodes = [
        make_node("Identity", node.inputs[1:], node.outputs)
        if node.kind == "Concat" and "/layers.2/self_attn/Concat" in node.outputs[0]
        else node
        for node in model.nodes
    ]
    model.nodes = nodes
    changed = model.part(["audio_signal", "length", CHANNEL, TIME, LENGTH], ["outputs"])
    with pytest.raises(ModelLoadingError, match=r"layers\.2.* not computed of a past and a chunk"):
        with_keys(changed, SHAPES.cache_last_channel)


def test_network_that_cannot_be_changed_runs_unchanged(monkeypatch, caplog):
    def refuse(*_):
        raise ModelLoadingError("attention is another one")

    monkeypatch.setattr(nemotron_streaming, "with_keys", refuse)
    with caplog.at_level(logging.INFO):
        _, chunks = load_recognizer(EXPORT, [80], open_session, slots=2, audio=16_000)
    assert chunks == {80: 8}
    assert "attention is another one" in caplog.text


def test_a_part_needs_what_it_is_computed_of():
    model = OnnxModel(EXPORT.encoder(0).read_bytes())
    with pytest.raises(ModelLoadingError, match="cache_last_time, nothing"):
        model.part(["nothing"], ["outputs"])
    with pytest.raises(ModelLoadingError, match="cache_last_time"):
        model.part(["audio_signal", "length", CHANNEL, LENGTH], ["outputs"])
    session = open_session(
        EXPORT.encoder(0),
        part=model.part([PartInput("/pre_encode/out/Add_output_0", 3)], ["/Slice_output_0"]),
    )
    assert session.run(None, {"/pre_encode/out/Add_output_0": np.zeros((2, 3, 144), np.float32)})[
        0
    ].shape == (2, 1, 144)
