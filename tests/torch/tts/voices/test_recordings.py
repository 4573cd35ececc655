"""Recordings: formats, limits and faults."""

import resource
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "unit" / "gateway" / "attacks"))

from media import media_corpus
from voice_samples import RATE, as_file, pcm, speech

from parley.errors import (
    ReferenceAudioError,
    ReferenceClippedError,
    ReferenceNotMonoError,
    ReferenceTooLongError,
    ReferenceTooQuietError,
    ReferenceTooShortError,
    UnsupportedSampleRateError,
)
from parley_torch.tts.voices.enrollment.recordings import EnrollmentLimits, examine, read_recording
from parley_torch.tts.voices.enrollment.service import resample


def read(data, sample_rate=None, **limits):
    return read_recording(data, sample_rate, **{"max_bytes": 1 << 20, "max_s": 30.0, **limits})


@pytest.mark.parametrize(
    ("kind", "subtype", "rate"),
    [
        ("WAV", "PCM_16", 8_000),
        ("WAV", "FLOAT", 48_000),
        ("WAV", "PCM_24", 44_100),
        ("FLAC", "PCM_16", 22_050),
        ("OGG", "VORBIS", 16_000),
        ("OGG", "OPUS", 48_000),
    ],
)
def test_files(kind, subtype, rate):
    original = speech(2.0, rate)
    audio, found = read(as_file(original, rate, kind, subtype))
    assert found == rate
    assert abs(len(audio) - len(original)) < 0.1 * rate
    if kind != "OGG":
        assert np.abs(audio - original).max() < 1e-4


def test_hostile_files_are_refused_or_short():
    before = peak_memory()
    for attack in media_corpus():
        try:
            audio, rate = read(attack.body, max_bytes=16 << 20)
        except (ReferenceAudioError, UnsupportedSampleRateError):
            continue
        assert 200 in attack.statuses
        assert len(audio) <= 31 * rate
    assert peak_memory() - before < 100_000_000


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def test_raw_samples():
    original = speech(2.0)
    audio, rate = read(pcm(original), 16_000)
    assert rate == 16_000
    assert np.abs(audio - original).max() < 1e-4


@pytest.mark.parametrize(
    ("data", "rate", "kind", "text"),
    [
        (b"", None, ReferenceAudioError, "no recording"),
        (b"\0\1\2", 16_000, ReferenceAudioError, "two bytes"),
        (b"MP3 or whatever", None, ReferenceAudioError, "neither"),
        (b"RIFF\xff\xff\xff\xffWAVEfmt ", None, ReferenceAudioError, "cannot be read"),
        (b"fLaC" + bytes(100), None, ReferenceAudioError, "cannot be read"),
        (b"OggS" + bytes(100), None, ReferenceAudioError, "cannot be read"),
        (bytes((1 << 20) + 2), 16_000, ReferenceAudioError, "bytes"),
        (bytes(1_000), 7_999, UnsupportedSampleRateError, "7999"),
        (bytes(1_000), 96_000, UnsupportedSampleRateError, "96000"),
        (as_file(np.zeros(9_600), 96_000), None, UnsupportedSampleRateError, "96000"),
        (as_file(np.zeros((1_000, 2))), None, ReferenceNotMonoError, "2 channels"),
        (as_file(np.zeros(0)), None, ReferenceAudioError, "empty"),
        (as_file(np.full(1_000, np.nan), subtype="FLOAT"), None, ReferenceAudioError, "not numbers"),
        (as_file(np.zeros(31 * 8_000), 8_000), None, ReferenceTooLongError, "30 s"),
        (bytes(2 * 31 * 8_000), 8_000, ReferenceTooLongError, "30 s"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
def test_unreadable_data(data, rate, kind, text):
    with pytest.raises(kind, match=text):
        read(data, rate)


def test_a_file_is_read_up_to_the_limit():
    # Ten minutes of silence in a few kilobytes.
    data = as_file(np.zeros(600 * 8_000), 8_000, "FLAC")
    assert len(data) < 100_000
    with pytest.raises(ReferenceTooLongError):
        read(data)


def look(audio, detect, rate=RATE, **limits):
    return examine(audio, resample(audio, rate, RATE), rate, detect, EnrollmentLimits(**limits))


def noise(seconds, level):
    return (level * np.random.default_rng(1).standard_normal(int(seconds * RATE))).astype(np.float32)


def test_a_good_recording(detect):
    found = look(speech(9.0), detect)
    assert found.warnings == []
    assert 5.0 < found.speech_s < 9.0
    assert found.snr_db > 40
    assert -30 < found.level_db < -15


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_its_rate_changes_little(detect, rate):
    found, original = look(speech(9.0, rate), detect, rate), look(speech(9.0), detect)
    assert found.speech_s == pytest.approx(original.speech_s, abs=0.5)
    assert list(found.warnings) == (["narrow band"] if rate < 16_000 else [])


@pytest.mark.parametrize(
    ("audio", "kind"),
    [
        (np.zeros(9 * RATE, np.float32), ReferenceTooQuietError),
        (0.003 * speech(9.0), ReferenceTooQuietError),
        (np.clip(8 * speech(9.0), -1, 1), ReferenceClippedError),
        (speech(4.0), ReferenceTooShortError),
        (noise(9.0, 0.1), ReferenceTooShortError),
        (np.zeros(0, np.float32), ReferenceTooQuietError),
    ],
    ids=["silent", "quiet", "clipped", "short", "noise", "nothing"],
)
def test_unsuitable_recordings(detect, audio, kind):
    with pytest.raises(kind):
        look(audio, detect)


def test_pauses_are_not_speech(detect):
    audio = np.concatenate([speech(4.0), np.zeros(8 * RATE, np.float32)])
    with pytest.raises(ReferenceTooShortError):
        look(audio, detect)
    assert look(audio, detect, min_speech_s=2.0).speech_s < 4.5


def test_noise_causes_a_warning(detect):
    assert list(look(speech(9.0) + noise(9.0, 0.03), detect).warnings) == ["noisy"]


def test_limits_are_settings(detect):
    quiet = 0.003 * speech(9.0)
    assert look(quiet, detect, min_level_db=-90.0, min_speech_s=1.0).level_db < -60
    loud = np.clip(8 * speech(9.0), -1, 1)
    assert look(loud, detect, max_clipped=0.5, min_snr_db=0.0).warnings == []
