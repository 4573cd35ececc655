"""Networks and VoiceMaker: from a recording to a voice."""

import shutil
from itertools import pairwise

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from voice_samples import RATE, speech

from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.tts.voice_messages import VoiceDetails
from parley_torch.tts.voices.enrollment import checkpoint, recordings
from parley_torch.tts.voices.enrollment.networks import _stretches
from parley_torch.tts.voices.enrollment.service import ReferenceRecording, VoiceMaker
from parley_torch.tts.voices.voice import read_voice, write_voice


def make(networks, audio, rate=RATE, variant="original", **options):
    details = VoiceDetails(name="Anna", consent="Yes.")
    return VoiceMaker(networks, variant, **options).make(ReferenceRecording.of(audio, rate), "anna", details)


def distance(one, other):
    return float(np.linalg.norm(one - other) / np.linalg.norm(one))


@pytest.mark.parametrize(
    ("seconds", "variant", "options", "lengths"),
    [
        (12.0, "original", {}, (150, 250)),
        (12.0, "turbo", {}, (300, 250)),
        (20.0, "turbo", {}, (375, 250)),
        (7.013, "original", {}, (150, 175)),
        (5.0, "multilingual", {}, (125, 125)),
        (12.0, "original", {"prompt_s": 4.0}, (150, 100)),
    ],
)
def test_lengths(networks, seconds, variant, options, lengths):
    voice = make(networks, speech(seconds), variant=variant, **options)
    assert (len(voice.t3_prompt_tokens), len(voice.prompt_tokens)) == lengths
    assert voice.prompt_mel.shape == (2 * lengths[1], 80)
    assert (voice.details.name, voice.details.variant) == ("Anna", variant)
    assert voice.details.reference_s == pytest.approx(seconds, abs=0.01)
    assert len(voice.details.checkpoint) == 16
    read = read_voice(write_voice(voice), "anna")
    np.testing.assert_array_equal(read.prompt_mel, voice.prompt_mel)


def test_the_same_recording_gives_the_same_voice(networks):
    # MKL's sums may depend on where an array lies in memory: the same values, not the same bytes.
    one, other = make(networks, speech()), make(networks, speech())
    for name in ("t3_prompt_tokens", "prompt_tokens"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("speaker", "speaker_embedding", "prompt_mel"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=0, atol=1e-5)
    assert one.details == other.details


def test_other_recordings_give_other_voices(networks):
    one, other = make(networks, speech(6.0)), make(networks, speech(12.0)[6 * RATE :])
    assert distance(one.speaker, other.speaker) > 0.01
    assert (one.prompt_tokens != other.prompt_tokens).mean() > 0.3
    assert distance(one.prompt_mel, other.prompt_mel) > 0.1


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_the_rate_of_the_recording_matters_little(networks, rate):
    one, other = make(networks, speech(8.0, 24_000), 24_000), make(networks, speech(8.0, rate), rate)
    # Below 8 kHz, a narrow recording lacks what the others have.
    assert distance(one.speaker, other.speaker) < (0.3 if rate == 8_000 else 0.02)
    bands = slice(0, 30)
    assert np.abs(one.prompt_mel[:, bands] - other.prompt_mel[:, bands]).mean() < 0.15


def test_turbo_ignores_the_level(networks):
    loud, quiet = (make(networks, gain * speech(), variant="turbo") for gain in (1.0, 0.2))
    assert distance(loud.prompt_mel, quiet.prompt_mel) < 0.01
    loud, quiet = (make(networks, gain * speech()) for gain in (1.0, 0.2))
    assert distance(loud.prompt_mel, quiet.prompt_mel) > 0.05


def test_silence_around_the_speech_is_trimmed(networks):
    plain = make(networks, speech())
    silence = np.zeros(8_192, np.float32)  # whole steps of the search for the speech
    padded = make(networks, np.concatenate([silence, speech(), silence]))
    assert distance(plain.speaker_embedding, padded.speaker_embedding) < 0.01


@pytest.mark.parametrize(
    ("hertz", "amplitude", "expected"), [(997, 1.0, -3.01), (997, 0.1, -23.01), (100, 1.0, -4.87)]
)
def test_loudness_of_tones(hertz, amplitude, expected):
    # The first is the standard's own definition. At 100 Hz the shelf adds nothing to the offset of
    # -0.69, and the high pass at 38 Hz takes 20 * log10(100² / (100² + 38²)) = -1.17.
    time = np.arange(5 * 48_000) / 48_000
    tone = (amplitude * np.sin(2 * np.pi * hertz * time)).astype(np.float32)
    assert recordings.loudness_lufs(tone, 48_000) == pytest.approx(expected, abs=0.15)


def test_pauses_do_not_count_for_loudness():
    audio = speech(9.0, 24_000)
    padded = np.concatenate([audio, np.zeros(9 * 24_000, np.float32)])
    assert recordings.loudness_lufs(padded, 24_000) == pytest.approx(
        recordings.loudness_lufs(audio, 24_000), abs=0.1
    )
    normalized = recordings.normalize_loudness(audio, 24_000)
    assert recordings.loudness_lufs(normalized, 24_000) == pytest.approx(recordings.TARGET_LUFS, abs=0.01)


def test_stretches_of_the_voice_encoder():
    counts = [_stretches(frames) for frames in range(1, 1_000)]
    assert counts[0] == 1
    assert counts[159] == 1
    assert all(after - before in (0, 1) for before, after in pairwise(counts))
    assert counts[-1] == 12


@pytest.fixture
def broken(weights, tmp_path):
    for path in weights.glob("*.safetensors"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_missing_files(broken):
    (broken / "ve.safetensors").unlink()
    with pytest.raises(WeightsNotFoundError, match=r"ve\.safetensors"):
        checkpoint.load(broken)
    (broken / "s3gen.safetensors").unlink()
    with pytest.raises(WeightsNotFoundError, match="s3gen"):
        checkpoint.load(broken)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("ve.safetensors", lambda tensors: tensors.pop("proj.bias")),
        ("ve.safetensors", lambda tensors: tensors.update(extra=tensors["proj.bias"].clone())),
        ("s3gen.safetensors", lambda tensors: tensors.pop("tokenizer.encoder.blocks.1.attn.key.weight")),
        ("s3gen.safetensors", lambda tensors: tensors.pop("speaker_encoder.head.bn1.bias")),
        (
            "s3gen.safetensors",
            lambda tensors: tensors.pop("speaker_encoder.xvector.block2.tdnnd1.linear1.weight"),
        ),
    ],
)
def test_other_tensors_are_refused(broken, file, change):
    tensors = load_file(broken / file)
    change(tensors)
    save_file(tensors, broken / file)
    with pytest.raises(ModelLoadingError, match=file):
        checkpoint.load(broken)


def test_a_damaged_file(broken):
    (broken / "ve.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelLoadingError, match="cannot be read"):
        checkpoint.load(broken)
