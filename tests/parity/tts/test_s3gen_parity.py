"""Our S3Gen modules against those of chatterbox-tts, with the same random weights."""

from __future__ import annotations

import contextlib
import importlib
import io
import types
from unittest import mock

import numpy as np
import pytest
import torch

from chatterbox_export.small_s3gen import small_s3gen
from parley.tts.s3gen import checkpoint
from parley.tts.s3gen.flow import FlowRow, Voice, pack
from parley.tts.s3gen.noise import flow_noise
from parley.tts.s3gen.schedule import ChunkSchedule
from parley.tts.s3gen.source import HARMONICS, HarmonicSource

WIDTH, LAYERS, CHANNELS = 64, 2, 64
HIFT = {
    "sampling_rate": 24000,
    "upsample_rates": [8, 5, 3],
    "upsample_kernel_sizes": [16, 11, 7],
    "source_resblock_kernel_sizes": [7, 7, 11],
    "source_resblock_dilation_sizes": [[1, 3, 5]] * 3,
}
ENCODER = {
    "normalize_before": True,
    "input_layer": "linear",
    "pos_enc_layer_type": "rel_pos_espnet",
    "selfattention_layer_type": "rel_selfattn",
    "use_cnn_module": False,
    "macaron_style": False,
}


def small_tensors(**options):
    return small_s3gen(width=WIDTH, layers=LAYERS, channels=CHANNELS, **options)


@pytest.fixture(scope="module")
def upstream():
    names = ("flow", "flow_matching", "decoder", "hifigan", "f0_predictor", "transformer.upsample_encoder")
    return types.SimpleNamespace(
        **{n.rpartition(".")[2]: importlib.import_module(f"chatterbox.models.s3gen.{n}") for n in names}
    )


def make_upstream(modules, *, meanflow, small=True):
    """Upstream's flow and vocoder, small or of the published size."""
    encoder_module = modules.upsample_encoder
    width = WIDTH if small else 512
    with contextlib.ExitStack() as stack:
        for name in ("PreLookaheadLayer", "Upsample1D"):  # 512 channels are written into the encoder
            kind = getattr(encoder_module, name)

            def resized(kind=kind, **options):
                widths = ("channels", "out_channels")
                return kind(**{key: width if key in widths else value for key, value in options.items()})

            stack.enter_context(mock.patch.object(encoder_module, name, resized))
        encoder = encoder_module.UpsampleConformerEncoder(
            output_size=width,
            input_size=width,
            attention_heads=4 if small else 8,
            linear_units=2 * width if small else 2048,
            num_blocks=LAYERS if small else 6,
            **ENCODER,
        )
    if small:
        encoder.up_encoders = encoder.up_encoders[:LAYERS]
    estimator = modules.decoder.ConditionalDecoder(
        channels=[WIDTH if small else 256],
        n_blocks=1 if small else 4,
        num_mid_blocks=LAYERS if small else 12,
        num_heads=2 if small else 8,
        meanflow=meanflow,
    )
    flow = modules.flow.CausalMaskedDiffWithXvec(
        input_size=width,
        encoder=encoder,
        decoder=modules.flow_matching.CausalConditionalCFM(spk_emb_dim=80, estimator=estimator),
    )
    pitch = modules.f0_predictor.ConvRNNF0Predictor(cond_channels=CHANNELS if small else 512)
    vocoder = modules.hifigan.HiFTGenerator(
        base_channels=CHANNELS if small else 512, f0_predictor=pitch, **HIFT
    )
    return flow.eval(), vocoder.eval()


@pytest.fixture(scope="module", params=[True, False], ids=["meanflow", "guided"])
def pair(request, upstream):
    """Upstream's networks and ours, with the same weights."""
    tensors = small_tensors(meanflow=request.param)
    flow, vocoder = make_upstream(upstream, meanflow=request.param)
    flow.load_state_dict({k.removeprefix("flow."): v for k, v in tensors.items() if k.startswith("flow.")})
    vocoder.load_state_dict(
        {k.removeprefix("mel2wav."): v for k, v in tensors.items() if k.startswith("mel2wav.")}
    )
    return flow, vocoder, checkpoint.build(tensors)


@pytest.mark.parametrize("meanflow", [True, False])
def test_the_published_checkpoint_fits(upstream, meanflow):
    with torch.device("meta"):
        flow, vocoder = make_upstream(upstream, meanflow=meanflow, small=False)
        tensors = {f"flow.{name}": tensor for name, tensor in flow.state_dict().items()}
        tensors |= {f"mel2wav.{name}": tensor for name, tensor in vocoder.state_dict().items()}
        ours = checkpoint.build({name: tensor.to("meta") for name, tensor in tensors.items()})
    assert ours.flow.meanflow == meanflow
    assert sum(p.numel() for p in ours.flow.parameters()) == sum(p.numel() for p in flow.parameters())
    assert 100e6 < sum(p.numel() for p in ours.flow.parameters()) < 120e6


def speech(tokens, prompt, seed=0):
    rng = np.random.default_rng(seed)
    voice = Voice(
        rng.standard_normal(192).astype(np.float32),
        rng.integers(0, 6561, prompt),
        rng.standard_normal((2 * prompt, 80)).astype(np.float32),
    )
    return voice, rng.integers(0, 6561, tokens)


def upstream_mel(modules, flow, voice, tokens, noise, *, steps, meanflow):
    with (
        mock.patch.object(
            modules.flow_matching.torch, "randn_like", lambda like: noise[: like.shape[2]].T[None].clone()
        ),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        mel, _ = flow.inference(
            torch.from_numpy(tokens)[None],
            torch.tensor([len(tokens)]),
            torch.from_numpy(voice.tokens)[None],
            torch.tensor([len(voice.tokens)]),
            torch.from_numpy(voice.mel)[None],
            None,
            torch.from_numpy(voice.embedding)[None],
            finalize=True,
            n_timesteps=steps,
            meanflow=meanflow,
        )
    return mel[0]


def our_mel(flow, voice, tokens, noise, chunks, *, steps):
    row = FlowRow(voice, tokens, chunks, final=True, noise=noise)
    with torch.inference_mode():
        return flow(pack([row], torch.device("cpu")), steps)[0, :, row.prompt_frames :]


@pytest.mark.parametrize(("tokens", "prompt"), [(60, 40), (3, 1)])
def test_full_attention(upstream, pair, tokens, prompt):
    theirs, _, ours = pair
    steps = 2 if ours.flow.meanflow else 10
    voice, spoken = speech(tokens, prompt)
    noise = flow_noise(7, 400)
    expected = upstream_mel(
        upstream, theirs, voice, spoken, torch.from_numpy(noise), steps=steps, meanflow=ours.flow.meanflow
    )
    result = our_mel(ours.flow, voice, spoken, noise, [0] * tokens, steps=steps)
    assert expected.std() > 0.5
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)


def test_chunked_attention(upstream, pair):
    theirs, _, ours = pair
    steps = 2 if ours.flow.meanflow else 10
    voice, spoken = speech(80, 30)
    noise, chunks = flow_noise(7, 400), ChunkSchedule().numbers(80)
    of_token = torch.tensor([0] * 30 + chunks)

    def chunk_mask(x, masks, *_):
        chunk = of_token if x.shape[1] == len(of_token) else of_token.repeat_interleave(2)
        return masks & (chunk[None, :] <= chunk[:, None])[None]

    with (
        mock.patch.object(upstream.decoder, "add_optional_chunk_mask", chunk_mask),
        mock.patch.object(upstream.upsample_encoder, "add_optional_chunk_mask", chunk_mask),
    ):
        expected = upstream_mel(
            upstream, theirs, voice, spoken, torch.from_numpy(noise), steps=steps, meanflow=ours.flow.meanflow
        )
    full = our_mel(ours.flow, voice, spoken, noise, [0] * 80, steps=steps)
    result = our_mel(ours.flow, voice, spoken, noise, chunks, steps=steps)
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)
    assert (full - result).abs().max() > 0.01, "the mask must make a difference"


@torch.inference_mode()
def test_pitch_and_waveform(pair):
    _, theirs, ours = pair
    mel = torch.randn(1, 80, 50, generator=torch.Generator().manual_seed(1))
    pitch = ours.vocoder.f0_predictor(mel)
    torch.testing.assert_close(pitch.float(), theirs.f0_predictor(mel), rtol=1e-5, atol=1e-3)
    assert pitch.std() > 1
    source = HarmonicSource(1).extend(pitch[0], ours.vocoder.m_source.l_linear)
    expected = theirs.decode(mel, source[None, None])
    assert expected.std() > 0.01
    torch.testing.assert_close(ours.vocoder(mel, source[None]), expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_harmonic_source(upstream, pair):
    _, theirs, ours = pair
    pitch = torch.tensor([100.0, 120.0, 5.0, 0.0, 140.0, 90.0], dtype=torch.float64)
    rng = np.random.default_rng((1, 3))  # as parley.tts.s3gen.noise.source_noise(3)
    offsets = torch.from_numpy(rng.uniform(-np.pi, np.pi, HARMONICS)).float()
    noise = torch.from_numpy(rng.standard_normal((480 * len(pitch), HARMONICS), np.float32))
    uniform = mock.Mock()
    uniform.return_value.sample.return_value = offsets[None, :, None].clone()
    with (
        mock.patch.object(upstream.hifigan, "Uniform", uniform),
        mock.patch.object(
            upstream.hifigan.torch, "randn_like", lambda like: noise.T[None].clone()[:, : like.shape[1]]
        ),
    ):
        expected, _, _ = theirs.m_source(pitch.float().repeat_interleave(480)[None, :, None])
    result = HarmonicSource(3).extend(pitch, ours.vocoder.m_source.l_linear)
    torch.testing.assert_close(result, expected[0, :, 0], rtol=0, atol=2e-4)  # upstream sums phases as floats
