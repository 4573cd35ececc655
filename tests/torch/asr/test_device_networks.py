"""Encoders in torch against the same exports on ONNX Runtime, and where their weights come from."""

import numpy as np
import pytest
import torch
from device_fakes import CPU
from safetensors.torch import save_file

from parley.asr import checkpoint
from parley.asr.checkpoint import WEIGHTS_FILE
from parley.asr.features import SILENCE
from parley.asr.parakeet.networks import OnnxEncoder
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.encoder import HISTORY, CacheAwareEncoder
from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.launcher.options import ROOT
from parley.runtime.onnx import open_session
from parley_torch.asr.fastconformer import EncoderPool, EncoderSizes, FastConformer
from parley_torch.asr.transducer import Transducer
from parley_torch.asr.weights import read_weights

TOLERANCE = 1e-4
"""Both compute in single precision, in another order; values are within 10."""
STREAMING = streaming_checkpoint.load(ROOT / "models" / streaming_checkpoint.DEFAULT)
OFFLINE = checkpoint.load(ROOT / "models" / checkpoint.DEFAULT)


@pytest.fixture(scope="module")
def weights():
    common = STREAMING.checkpoint
    return read_weights(common.folder, STREAMING.encoder(1), common.decoder)


@pytest.fixture(scope="module")
def offline_weights():
    return read_weights(OFFLINE.folder, OFFLINE.encoder, OFFLINE.decoder)


def streaming_encoder(weights, dtype=torch.float32):
    return FastConformer.of(weights, EncoderSizes.of(weights, bands=80, causal=True), dtype, CPU)


def run_streams(encoder, features, look_ahead):
    """Chunks of some streams, f32 ``[steps, B, chunk, bands]``, in rows that are not in order."""
    rows = torch.tensor([4, 0, 2])
    pool = EncoderPool.allocate(
        encoder.sizes, rows=5, left=70, silence=float(SILENCE), dtype=encoder.dtype, device=CPU
    )
    positions = encoder.positions(70, look_ahead + 1)
    with torch.inference_mode():
        return [
            encoder.step(torch.from_numpy(chunk), pool, rows, rows, positions).float().numpy()
            for chunk in features
        ]


@pytest.mark.parametrize("look_ahead", STREAMING.streaming.look_aheads)
def test_a_stream_is_encoded_as_by_onnx(weights, look_ahead):
    config = STREAMING.streaming
    onnx = CacheAwareEncoder(
        open_session(STREAMING.encoder(look_ahead)),
        lookahead=look_ahead,
        channel=config.cache_last_channel,
        time=config.cache_last_time,
    )
    # Longer than the 70 frames of the past that are kept.
    steps = 90 // (look_ahead + 1)
    rng = np.random.default_rng(look_ahead)
    features = rng.normal(-9.0, 4.0, (steps, 3, onnx.chunk, 80)).astype(np.float32)
    found = run_streams(streaming_encoder(weights), features, look_ahead)
    caches = {name: np.repeat(values[None], 3, axis=0) for name, values in onnx.initial.items()}
    history = np.full((3, 80, HISTORY), SILENCE, np.float32)
    for chunk, own in zip(features, found, strict=True):
        seen = np.concatenate([history, chunk.transpose(0, 2, 1)], axis=2)
        history = seen[:, :, -HISTORY:]
        expected, _, caches = onnx.encode(seen, caches, np.zeros(3, np.int64))
        assert np.abs(own.transpose(0, 2, 1) - expected).max() < TOLERANCE


@pytest.mark.parametrize(("dtype", "near"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_a_stream_in_half_precision_stays_near(weights, dtype, near):
    features = np.random.default_rng(0).normal(-9.0, 4.0, (40, 3, 16, 80)).astype(np.float32)
    exact = np.stack(run_streams(streaming_encoder(weights), features, 1))
    rounded = np.stack(run_streams(streaming_encoder(weights, dtype), features, 1))
    assert 1e-5 < np.abs(exact - rounded).mean() / np.abs(exact).mean() < near


def test_padded_stretches_are_encoded_as_by_onnx(offline_weights):
    sizes = EncoderSizes.of(offline_weights, bands=80, causal=False)
    encoder = FastConformer.of(offline_weights, sizes, torch.float32, CPU)
    features = np.random.default_rng(1).standard_normal((4, 80, 333)).astype(np.float32)
    lengths = np.array([333, 100, 9, 1])
    expected, counts = OnnxEncoder(open_session(OFFLINE.encoder)).encode(features, lengths)
    with torch.inference_mode():
        found, found_counts = encoder(
            torch.from_numpy(features).transpose(1, 2),
            torch.from_numpy(lengths),
            encoder.positions(0, sizes.subsampled(333)),
        )
    assert found_counts.tolist() == counts.tolist()
    for row, count in enumerate(counts):
        assert np.abs(found[row, :count].numpy().T - expected[row, :, :count]).max() < TOLERANCE


def test_weights_in_one_file_are_the_same(weights, tmp_path):
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, tmp_path / WEIGHTS_FILE)
    found = read_weights(tmp_path, tmp_path / "none.onnx", tmp_path / "none.onnx")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_folder_without_a_model_is_refused(weights, tmp_path):
    with pytest.raises(WeightsNotFoundError, match=r"neither model\.safetensors nor encoder-r1\.onnx"):
        read_weights(tmp_path, tmp_path / "encoder-r1.onnx", tmp_path / "decoder.onnx")
    (tmp_path / WEIGHTS_FILE).write_bytes(b"none")
    with pytest.raises(ModelLoadingError, match="cannot be read"):
        read_weights(tmp_path, tmp_path / "encoder-r1.onnx", tmp_path / "decoder.onnx")
    with pytest.raises(ModelLoadingError, match="no FastConformer"):
        EncoderSizes.of({}, bands=80, causal=True)
    with pytest.raises(ModelLoadingError, match="no transducer"):
        Transducer({}, blank=3, durations=(), device=CPU)
    sizes = EncoderSizes.of(weights, bands=80, causal=True)
    fewer = {name: tensor for name, tensor in weights.items() if "layers.2.norm_out" not in name}
    with pytest.raises(ModelLoadingError, match=r"not of this FastConformer(.|\n)*layers\.2\.norm_out"):
        FastConformer.of(fewer, sizes, torch.float32, CPU)
    with pytest.raises(ModelLoadingError, match="129 classes; 128 tokens, a blank and 5 durations are 134"):
        Transducer(weights, blank=128, durations=(0, 1, 2, 3, 4), device=CPU)


def test_a_decoder_of_another_model_is_no_encoder():
    common = STREAMING.checkpoint
    with pytest.raises(ModelLoadingError, match="no FastConformer"):
        EncoderSizes.of(read_weights(common.folder, common.decoder, common.decoder), bands=80, causal=True)
