"""The streaming step, at every look-ahead, against NeMo's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import EXACT, PROMPTS, entry_of
from msgspec.structs import asdict

from comparison import check
from nemo_export import accuracy, prompts
from parley.asr.features import LogMel
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.encoder import CHANNEL, HISTORY, LENGTH, TIME, CacheAwareEncoder, with_keys
from parley.runtime.onnx import open_session
from tiny.streaming_model import LOOK_AHEADS


@pytest.mark.parametrize("look_ahead", sorted(LOOK_AHEADS))
def test_encoder_and_tokens_are_nemos(streaming, clips, look_ahead):
    model, folder = streaming
    entry = entry_of("rnnt-streaming", look_aheads=(look_ahead,))
    expected = accuracy.by_nemo(model, entry, clips[:2])
    found = accuracy.by_export(folder, entry, clips[:2])
    check("small", "NeMo", accuracy.compare(found, expected), asdict(EXACT))
    assert sum(len(heard.tokens) for heard in expected) > 20
    assert len({token for heard in expected for token in heard.tokens}) > 5


@pytest.mark.parametrize("look_ahead", [0, 6])
def test_a_model_with_language_prompts_is_nemos_in_every_language(prompted_streaming, clips, look_ahead):
    model, folder = prompted_streaming
    entry = entry_of("rnnt-streaming", look_aheads=(look_ahead,))
    tags = prompts.compared(model)
    assert tags == ["en-US", "auto"]
    expected = accuracy.by_nemo(model, entry, clips[:2])
    found = accuracy.by_export(folder, entry, clips[:2], tags)
    check("small", "NeMo", accuracy.compare(found, expected), asdict(EXACT))
    assert sum(len(heard.tokens) for heard in expected) > 20
    # Another language, or none as in NeMo's own export, is something else.
    other = accuracy.compare(accuracy.by_export(folder, entry, clips[:2], ["es-ES"]), expected)
    assert other["encoder"] > 0.05


def test_the_prompts_of_an_export_are_those_of_the_checkpoint(prompted_streaming):
    _, folder = prompted_streaming
    export = streaming_checkpoint.load(folder)
    assert export.checkpoint.config.prompts == PROMPTS
    assert export.checkpoint.prompt("es-MX") == 2
    # What keeps keys keeps the prompt.
    path = export.encoder(0)
    part = with_keys(path.read_bytes(), export.streaming.cache_last_channel)
    assert "prompt_index" in {tensor.name for tensor in open_session(path, part=part).get_inputs()}


@pytest.mark.parametrize("look_ahead", sorted(LOOK_AHEADS))
def test_every_stream_gets_what_it_gets_alone(streaming, look_ahead):
    _, folder = streaming
    export = streaming_checkpoint.load(folder)
    channel, time = export.streaming.cache_last_channel, export.streaming.cache_last_time
    encoder = CacheAwareEncoder(
        open_session(export.encoder(look_ahead)), lookahead=look_ahead, channel=channel, time=time
    )
    rng = np.random.default_rng(look_ahead)
    features = rng.normal(-9.0, 4.0, (5, 80, HISTORY + encoder.chunk)).astype(np.float32)
    caches = {
        CHANNEL: rng.standard_normal((5, *channel)).astype(np.float32),
        TIME: rng.standard_normal((5, *time)).astype(np.float32),
        LENGTH: np.array([0, 1, 35, 69, 70]),
    }
    none = np.zeros(5, np.int64)
    together = encoder.encode(features, caches, none)
    for row in range(5):
        own = slice(row, row + 1)
        alone = encoder.encode(
            features[own], {name: values[own] for name, values in caches.items()}, none[own]
        )
        np.testing.assert_allclose(together[0][own], alone[0], atol=1e-5)
        assert together[1][row] == alone[1][0] == look_ahead + 1
        for name, values in alone[2].items():
            np.testing.assert_allclose(together[2][name][own], values, atol=1e-5)


def test_features_are_not_normalised(streaming, clips):
    model, folder = streaming
    model.preprocessor.featurizer.dither = 0.0
    mel = LogMel(streaming_checkpoint.load(folder).checkpoint.config)
    clip = clips[0]
    with torch.no_grad():
        features, lengths = model.preprocessor(
            input_signal=torch.tensor(clip)[None], length=torch.tensor([len(clip)])
        )
    ours = mel.normalized(mel.offline(clip))
    # Logarithms of energies near zero: libraries of other processors differ.
    np.testing.assert_allclose(ours, features[0, :, : int(lengths[0])].numpy(), atol=1e-3)
