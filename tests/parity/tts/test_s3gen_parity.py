"""Our S3Gen modules against those of chatterbox-tts, with the same random weights."""

from __future__ import annotations

import importlib
import types
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn import functional

from chatterbox_export import upstream_models
from chatterbox_export.accuracy import served_mel, upstream_mel
from chatterbox_export.small_published import small_whole_s3gen
from parley_torch.tts.s3gen import checkpoint
from parley_torch.tts.s3gen.flow import AudioVoice
from parley_torch.tts.s3gen.scheduling import ChunkSchedule
from parley_torch.tts.s3gen.utterance import Plan
from parley_torch.tts.s3gen.vocoder import HARMONICS, HarmonicSource, extend_sources


@pytest.fixture(scope="module", params=[True, False], ids=["meanflow", "guided"])
def pair(request):
    """Upstream's networks and ours, with the same weights."""
    tensors = small_whole_s3gen(meanflow=request.param)
    theirs = upstream_models.fill(upstream_models.s3gen(tensors), tensors)
    parts = ("flow.", "mel2wav.")
    return theirs, checkpoint.build({name: t for name, t in tensors.items() if name.startswith(parts)})


@pytest.mark.parametrize("meanflow", [True, False])
def test_the_published_checkpoint_fits(meanflow):
    module = importlib.import_module("chatterbox.models.s3gen.s3gen")
    with torch.device("meta"):
        theirs = module.S3Token2Wav(meanflow=meanflow)
        tensors = {name: tensor.to("meta") for name, tensor in theirs.state_dict().items()}
        again = upstream_models.s3gen(tensors).state_dict()
        ours = checkpoint.build(
            {name: tensor for name, tensor in tensors.items() if name.startswith(("flow.", "mel2wav."))}
        )
    assert {name: t.shape for name, t in again.items()} == {name: t.shape for name, t in tensors.items()}
    assert ours.flow.meanflow == meanflow
    assert sum(p.numel() for p in ours.flow.parameters()) == sum(p.numel() for p in theirs.flow.parameters())
    assert 100e6 < sum(p.numel() for p in ours.flow.parameters()) < 120e6


def speech(tokens, prompt, seed=0):
    rng = np.random.default_rng(seed)
    voice = AudioVoice(
        rng.standard_normal(192).astype(np.float32),
        rng.integers(0, 6561, prompt),
        rng.standard_normal((2 * prompt, 80)).astype(np.float32),
    )
    return voice, rng.integers(0, 6561, tokens)


@pytest.mark.parametrize(("tokens", "prompt"), [(60, 40), (3, 1)])
def test_full_attention(pair, tokens, prompt):
    theirs, ours = pair
    voice, spoken = speech(tokens, prompt)
    result, noise = served_mel(ours, voice, spoken, Plan(full_attention=True))
    expected = upstream_mel(theirs.flow, voice, spoken, noise, meanflow=theirs.meanflow)
    assert expected.std() > 0.5
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)


def test_chunked_attention(pair, monkeypatch):
    theirs, ours = pair
    voice, spoken = speech(80, 30)
    numbers, _ = ChunkSchedule().chunks(80)
    of_token = torch.from_numpy(np.concatenate([np.zeros(30, np.int64), numbers]))

    def chunk_mask(x, masks, *_):
        chunk = of_token if x.shape[1] == len(of_token) else of_token.repeat_interleave(2)
        return masks & (chunk[None, :] <= chunk[:, None])[None]

    def look_ahead(self, inputs):
        """Upstream's, but for a prompt that does not look into the utterance."""
        x = inputs.transpose(1, 2)
        prompt, both = (self.conv1(functional.pad(part, (0, 3))) for part in (x[:, :, :30], x))
        ahead = functional.leaky_relu(torch.cat([prompt, both[:, :, 30:]], dim=2))
        return self.conv2(functional.pad(ahead, (2, 0))).transpose(1, 2) + inputs

    layer = theirs.flow.encoder.pre_lookahead_layer
    for name in ("decoder", "transformer.upsample_encoder"):
        module = importlib.import_module(f"chatterbox.models.s3gen.{name}")
        monkeypatch.setattr(module, "add_optional_chunk_mask", chunk_mask)
    monkeypatch.setattr(layer, "forward", types.MethodType(look_ahead, layer))
    result, noise = served_mel(ours, voice, spoken, Plan(recompute=True))
    expected = upstream_mel(theirs.flow, voice, spoken, noise, meanflow=theirs.meanflow)
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)
    full, _ = served_mel(ours, voice, spoken, Plan(full_attention=True))
    assert (full - result).abs().max() > 0.01, "the mask must make a difference"


@torch.inference_mode()
def test_pitch_and_waveform(pair):
    theirs, ours = pair
    mel = torch.randn(1, 80, 50, generator=torch.Generator().manual_seed(1))
    pitch = ours.vocoder.f0_predictor(mel)
    torch.testing.assert_close(pitch.float(), theirs.mel2wav.f0_predictor(mel), rtol=1e-5, atol=1e-3)
    assert pitch.std() > 1
    (source,) = extend_sources([HarmonicSource(1)], [pitch[0]], ours.vocoder.m_source.l_linear)
    expected = theirs.mel2wav.decode(mel, source[None, None])
    assert expected.std() > 0.01
    torch.testing.assert_close(ours.vocoder(mel, source[None]), expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_harmonic_source(pair, monkeypatch):
    theirs, ours = pair
    pitch = torch.tensor([100.0, 120.0, 5.0, 0.0, 140.0, 90.0], dtype=torch.float64)
    rng = np.random.default_rng((1, 3))  # as parley_torch.tts.s3gen.flow.source_noise(3)
    offsets = torch.from_numpy(rng.uniform(-np.pi, np.pi, HARMONICS)).float()
    noise = torch.from_numpy(rng.standard_normal(480 * len(pitch), np.float32))
    # Upstream draws for every harmonic and sums; these sum to what is drawn once here.
    mix = ours.vocoder.m_source.l_linear
    noises = mix.weight / torch.linalg.vector_norm(mix.weight) * noise[:, None]
    uniform = mock.Mock()
    uniform.return_value.sample.return_value = offsets[None, :, None].clone()
    module = importlib.import_module("chatterbox.models.s3gen.hifigan")
    monkeypatch.setattr(module, "Uniform", uniform)
    monkeypatch.setattr(module.torch, "randn_like", lambda like: noises.T[None].clone()[:, : like.shape[1]])
    expected, _, _ = theirs.mel2wav.m_source(pitch.float().repeat_interleave(480)[None, :, None])
    (result,) = extend_sources([HarmonicSource(3)], [pitch], mix)
    torch.testing.assert_close(result, expected[0, :, 0], rtol=0, atol=2e-4)  # upstream sums phases as floats
