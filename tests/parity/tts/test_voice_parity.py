"""Our networks that make voices against those of chatterbox-tts, with the same random weights."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import pytest
import torch

from chatterbox_export.small_listeners import small_listeners
from chatterbox_export.small_t3 import write_small_t3
from parley.tts.voices.enrollment import checkpoint, spectra

# Whole stretches and hundredths, and others.
SECONDS = [0.9, 2.0, 5.013, 10.0]


def a_recording(seconds, rate=16_000, seed=0):
    """Something with pitch, pauses and noise."""
    generator = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 40 * np.sin(2 * np.pi * 1.7 * time)
    tone = sum(np.sin(number * 2 * np.pi * np.cumsum(pitch) / rate) / number for number in range(1, 12))
    loudness = np.clip(np.sin(2 * np.pi * 2.3 * time), 0, 1)
    return (0.1 * tone * loudness + 0.002 * generator.standard_normal(len(time))).astype(np.float32)


@pytest.fixture(scope="module", params=[False, True], ids=["small", "published-size"])
def listeners(request):
    if request.param:
        return small_listeners(width=1280, layers=6, growth=32, dense_layers=(12, 24, 16))
    return small_listeners(growth=8, dense_layers=(12, 24, 16))


@pytest.mark.parametrize("seconds", SECONDS)
def test_tokenizer(listeners, seconds, monkeypatch):
    upstream = importlib.import_module("chatterbox.models.s3tokenizer.s3tokenizer")
    width, bands, _ = listeners["tokenizer.encoder.conv1.weight"].shape
    sizes = upstream.ModelConfig(
        n_mels=bands,
        n_audio_state=width,
        n_audio_head=width // 64,
        n_audio_layer=2 if width == 64 else 6,
    )
    # Its own class reads the sizes from a default argument of its parent.
    monkeypatch.setattr(upstream.S3TokenizerV2.__init__, "__defaults__", (sizes,))
    theirs = upstream.S3Tokenizer().eval()
    own = {
        name.removeprefix("tokenizer."): t for name, t in listeners.items() if name.startswith("tokenizer.")
    }
    missing = theirs.load_state_dict(own, strict=False)
    assert set(missing.missing_keys) <= {"_mel_filters", "window"}
    assert not missing.unexpected_keys
    audio = a_recording(seconds)
    with torch.no_grad():
        expected, _ = theirs.forward([audio])
        mel = theirs.log_mel_spectrogram(torch.from_numpy(audio))
        tokens = checkpoint.build_tokenizer(listeners | constants(theirs))(torch.from_numpy(audio))
    assert (spectra.tokenizer_mel(torch.from_numpy(audio), bands) - mel).abs().max() < 1e-5
    assert len(set(tokens.tolist())) > len(tokens) / 8  # the comparison below means something
    assert tokens.tolist() == expected[0].tolist()


def constants(theirs):
    """What upstream's checkpoints hold besides."""
    return {"tokenizer._mel_filters": theirs._mel_filters, "tokenizer.window": theirs.window}


@pytest.mark.parametrize("seconds", SECONDS)
def test_speaker_encoder(listeners, seconds):
    upstream = importlib.import_module("chatterbox.models.s3gen.xvector")
    growth = len(listeners["speaker_encoder.xvector.block1.tdnnd1.cam_layer.linear_local.weight"])
    theirs = upstream.CAMPPlus(growth_rate=growth, init_channels=4 * growth, memory_efficient=False).eval()
    prefix = "speaker_encoder."
    theirs.load_state_dict({n.removeprefix(prefix): t for n, t in listeners.items() if n.startswith(prefix)})
    audio = torch.from_numpy(a_recording(seconds))
    with torch.no_grad():
        features, _, _ = upstream.extract_feature([audio])
        expected = theirs.inference([audio])[0]
        embedding = checkpoint.build_speaker_encoder(listeners)(audio)
    assert (spectra.filter_bank(audio, 80) - features[0]).abs().max() < 2e-4
    assert embedding.shape == (192,)
    assert (embedding - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("seconds", SECONDS)
def test_voice_encoder(tmp_path, seconds):
    upstream = importlib.import_module("chatterbox.models.voice_encoder")
    from safetensors.torch import load_file

    tensors = load_file(write_small_t3(tmp_path) / "ve.safetensors")
    theirs = upstream.VoiceEncoder().eval()
    theirs.load_state_dict(tensors)
    audio = np.concatenate([np.zeros(3_000, np.float32), a_recording(seconds), np.zeros(9_000, np.float32)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # librosa's
        expected = theirs.embeds_from_wavs([audio], sample_rate=16_000)[0]
    with torch.no_grad():
        embedding = checkpoint.build_voice_encoder(tensors)(torch.from_numpy(spectra.trim(audio)))
    assert np.abs(embedding.numpy() - expected).max() < 2e-5


@pytest.mark.parametrize("seconds", SECONDS)
def test_prompt_mel(seconds):
    upstream = importlib.import_module("chatterbox.models.s3gen.utils.mel")
    audio = torch.from_numpy(a_recording(seconds, 24_000))
    expected = upstream.mel_spectrogram(audio)[0].T
    mel = spectra.prompt_mel(audio, 80)
    assert mel.shape == expected.shape
    assert (mel - expected).abs().max() < 1e-4


@pytest.mark.parametrize("quiet", [0, 1, 511, 20_000])
def test_trimming(quiet):
    import librosa

    audio = np.concatenate([np.zeros(quiet, np.float32), a_recording(2.0), 1e-4 * a_recording(1.0)])
    expected, _ = librosa.effects.trim(audio, top_db=20)
    np.testing.assert_array_equal(spectra.trim(audio), expected)
