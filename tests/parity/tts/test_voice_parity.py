"""Our networks that make voices against those of chatterbox-tts, with the same random weights."""

from __future__ import annotations

import importlib
import types
import warnings
from functools import partial

import librosa
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from chatterbox_export.small_listeners import small_listeners
from chatterbox_export.small_t3 import write_small_t3
from parley.tts.voice_messages import VoiceDetails
from parley_torch.tts.voices.enrollment import checkpoint, recordings, spectra
from parley_torch.tts.voices.enrollment.service import ReferenceRecording, VoiceMaker

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
    theirs = upstream_tokenizer(listeners, monkeypatch)
    audio = a_recording(seconds)
    with torch.no_grad():
        expected, _ = theirs.forward([audio])
        mel = theirs.log_mel_spectrogram(torch.from_numpy(audio))
        tokens = checkpoint.build_tokenizer(listeners | constants(theirs))(torch.from_numpy(audio))
    assert (spectra.tokenizer_mel(torch.from_numpy(audio), len(mel)) - mel).abs().max() < 1e-5
    assert len(set(tokens.tolist())) > len(tokens) / 8  # the comparison below means something
    assert tokens.tolist() == expected[0].tolist()


def upstream_tokenizer(listeners, monkeypatch):
    """Upstream's tokenizer of the listeners' size, with their weights."""
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
    result = theirs.load_state_dict(part(listeners, "tokenizer."), strict=False)
    assert set(result.missing_keys) <= {"_mel_filters", "window"}
    assert not result.unexpected_keys
    return theirs


def upstream_speaker_encoder(listeners):
    upstream = importlib.import_module("chatterbox.models.s3gen.xvector")
    growth = len(listeners["speaker_encoder.xvector.block1.tdnnd1.cam_layer.linear_local.weight"])
    theirs = upstream.CAMPPlus(growth_rate=growth, init_channels=4 * growth, memory_efficient=False).eval()
    theirs.load_state_dict(part(listeners, "speaker_encoder."))
    return theirs


def upstream_voice_encoder(tensors):
    theirs = importlib.import_module("chatterbox.models.voice_encoder").VoiceEncoder().eval()
    theirs.load_state_dict(tensors)
    return theirs


def part(tensors, prefix):
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def constants(theirs):
    """What upstream's checkpoints hold besides."""
    return {"tokenizer._mel_filters": theirs._mel_filters, "tokenizer.window": theirs.window}


@pytest.mark.parametrize("seconds", SECONDS)
def test_speaker_encoder(listeners, seconds):
    theirs = upstream_speaker_encoder(listeners)
    audio = torch.from_numpy(a_recording(seconds))
    with torch.no_grad():
        features, _, _ = importlib.import_module(type(theirs).__module__).extract_feature([audio])
        expected = theirs.inference([audio])[0]
        embedding = checkpoint.build_speaker_encoder(listeners)(audio)
    # Logarithms of energies near zero: libraries of other processors differ by 3e-4.
    assert (spectra.filter_bank(audio, 80) - features[0]).abs().max() < 1e-3
    assert embedding.shape == (192,)
    assert (embedding - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.fixture(scope="module")
def voice_encoder(tmp_path_factory):
    """The tensors of ``ve.safetensors``."""
    return load_file(write_small_t3(tmp_path_factory.mktemp("t3")) / "ve.safetensors")


@pytest.mark.parametrize("seconds", SECONDS)
def test_voice_encoder(voice_encoder, seconds):
    theirs = upstream_voice_encoder(voice_encoder)
    audio = np.concatenate([np.zeros(3_000, np.float32), a_recording(seconds), np.zeros(9_000, np.float32)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # librosa's
        expected = theirs.embeds_from_wavs([audio], sample_rate=16_000)[0]
    with torch.no_grad():
        embedding = checkpoint.build_voice_encoder(voice_encoder)(torch.from_numpy(spectra.trim(audio)))
    assert np.abs(embedding.numpy() - expected).max() < 2e-5


@pytest.mark.parametrize(("variant", "seconds"), [("original", 9.0), ("original", 12.5), ("turbo", 18.0)])
def test_a_whole_voice(listeners, voice_encoder, variant, seconds, monkeypatch):
    """As upstream's ``prepare_conditionals``, whose modules are called in its order."""
    tokenizer = upstream_tokenizer(listeners, monkeypatch)
    networks = checkpoint.EnrollmentNetworks(
        checkpoint.build_voice_encoder(voice_encoder),
        checkpoint.build_tokenizer(listeners),
        checkpoint.build_speaker_encoder(listeners),
        "",
    )
    full = a_recording(seconds, 24_000)
    if variant == "turbo":  # both start from the loudness that Turbo wants
        full = recordings.normalize_loudness(full, 24_000)
    heard = librosa.resample(full, orig_sr=24_000, target_sr=16_000)
    voice = VoiceMaker(networks, variant).make(ReferenceRecording.of(full, 24_000), "anna", VoiceDetails())

    s3gen = types.SimpleNamespace(
        device=torch.device("cpu"),
        dtype=torch.float32,
        tokenizer=tokenizer,
        speaker_encoder=upstream_speaker_encoder(listeners),
        mel_extractor=importlib.import_module("chatterbox.models.s3gen.utils.mel").mel_spectrogram,
    )
    s3gen_module = importlib.import_module("chatterbox.models.s3gen.s3gen")
    # Upstream's S3Gen hears its reference through torchaudio's resampler, its T3 through soxr. Ours
    # are both soxr, which is the only difference.
    monkeypatch.setattr(
        s3gen_module, "get_resampler", lambda rate, to, _: partial(resampled, rate=rate, to=to)
    )
    embed = s3gen_module.S3Token2Mel.embed_ref
    with torch.no_grad():
        reference = embed(s3gen, full[: 10 * 24_000], 24_000)
        seconds_heard, most = (15, 375) if variant == "turbo" else (6, 150)
        prompt, _ = tokenizer.forward([heard[: seconds_heard * 16_000]], max_len=most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # librosa's
        embedding = upstream_voice_encoder(voice_encoder).embeds_from_wavs([heard], sample_rate=16_000)[0]

    assert np.abs(voice.speaker_embedding - embedding).max() < 2e-5
    assert voice.t3_prompt_tokens.tolist() == prompt[0].tolist()
    assert np.abs(voice.prompt_mel - reference["prompt_feat"][0].numpy()).max() < 1e-4
    expected = reference["embedding"][0].numpy()
    assert np.abs(voice.speaker - expected).max() < 2e-3 * np.abs(expected).max()
    assert voice.prompt_tokens.tolist() == reference["prompt_token"][0].tolist()
    assert len(voice.prompt_tokens) == 25 * min(10, int(seconds))


def resampled(audio, rate, to):
    return torch.from_numpy(librosa.resample(audio.numpy(), orig_sr=rate, target_sr=to))


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
    audio = np.concatenate([np.zeros(quiet, np.float32), a_recording(2.0), 1e-4 * a_recording(1.0)])
    expected, _ = librosa.effects.trim(audio, top_db=20)
    np.testing.assert_array_equal(spectra.trim(audio), expected)
