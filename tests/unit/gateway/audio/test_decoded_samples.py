"""The samples of a recording are those that the Python client makes of the same file, with every decoder."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
import soxr
from recordings_for_tests import read as decoded

from parley.launcher.options import ROOT
from parley_client.audio.files import read_speech
from parley_gateway.audio.decoder_process import LEAST_MS, RefusedError
from parley_gateway.audio.decoder_process import RATES as READ_RATES
from parley_gateway.audio.recordings import PLAIN, container_of, read_plain

CLIP = ROOT / "tests/data/open_conversation/02-weather.wav"
RATES = (8_000, 22_050, 24_000, 44_100, 48_000)
FORMS = [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III"), ("OGG", "OPUS")]
OPUS_RATES = (8_000, 24_000, 48_000)
# FFmpeg's decoder of Opus delays the band of speech by half a sample less than libopus, which libsndfile has.
LEAST_CORRELATION = {"OPUS": 0.99}


@pytest.fixture(scope="module")
def speech():
    return soundfile.read(CLIP, dtype="float32")[0]


def encode(samples, rate, form, subtype):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def band(samples, low_hz, high_hz):
    """Power between two frequencies."""
    spectrum = np.abs(np.fft.rfft(samples.astype(float))) ** 2
    frequency = np.fft.rfftfreq(len(samples), 1 / 16_000)
    return spectrum[(frequency >= low_hz) & (frequency < high_hz)].sum()


def delay(samples, reference):
    """Samples by which one is later than the other."""
    size = len(samples) + len(reference)
    product = np.fft.rfft(samples.astype(float), size) * np.conj(np.fft.rfft(reference.astype(float), size))
    found = int(np.fft.irfft(product, size).argmax())
    return found if found < size // 2 else found - size


def assert_the_same(found, expected, least_correlation=1.0):
    """The same length and place, and below 7 kHz, where every filter passes, the same samples."""
    assert abs(len(found) - len(expected)) <= 1
    length = min(len(found), len(expected))
    if least_correlation < 1:
        assert abs(delay(found, expected)) <= 1
        assert np.corrcoef(found[:length], expected[:length])[0, 1] > least_correlation
        return
    assert delay(found, expected) == 0
    difference = found[:length].astype(float) - expected[:length]
    assert 10 * np.log10(band(difference, 0, 7_000) / band(expected, 0, 7_000)) < -40


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    ("form", "rate"),
    [(form, rate) for form in FORMS for rate in (OPUS_RATES if form[1] == "OPUS" else RATES)],
)
def test_a_file_becomes_the_samples_that_the_client_sends_of_it(tmp_path, speech, form, rate, channels):
    samples = soxr.resample(speech, 16_000, rate)
    # Of different loudness: a channel that is lost, or counted twice, is a difference.
    sound = samples if channels == 1 else np.stack([samples, 0.3 * samples], axis=1)
    data = encode(sound, rate, *form)
    file = tmp_path / f"speech.{form[0].lower()}"
    file.write_bytes(data)
    expected = read_speech(file)
    assert_the_same(decoded(data), expected, LEAST_CORRELATION.get(form[1], 1.0))
    container = container_of(data[:16])
    if container.name in PLAIN and (plain := read_plain(container, data)) is not None:
        assert_the_same(plain, expected)


@pytest.mark.parametrize("rate", RATES[1:])
@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_downsampling_to_16_khz_does_not_alias(rate, subtype):
    time = np.arange(2 * rate) / rate
    data = encode(0.5 * np.sin(2 * np.pi * 8_300 * time), rate, "WAV", subtype)
    container = container_of(data[:16])
    for samples in (decoded(data), read_plain(container, data)):
        if samples is not None:
            loudest = np.abs(samples[1_600:-1_600].astype(int)).max()
            assert loudest < 0.5 * 32_768 / 1_000  # 60 dB below the tone


@pytest.mark.parametrize("rate", RATES[1:])
def test_the_highest_frequencies_of_speech_are_kept(rate):
    time = np.arange(2 * rate) / rate
    samples = decoded(encode(0.5 * np.sin(2 * np.pi * 7_400 * time), rate, "WAV", "FLOAT"))
    assert np.std(samples[1_600:-1_600]) == pytest.approx(0.5 * 32_768 / np.sqrt(2), rel=0.1)


def test_loud_samples_are_clipped_and_do_not_wrap(tmp_path):
    time = np.arange(48_000) / 24_000
    data = encode((1.5 * np.sin(2 * np.pi * 200 * time)).astype(np.float32), 24_000, "WAV", "FLOAT")
    samples = decoded(data)
    assert samples.max() == 32_767
    assert samples.min() == -32_768
    assert np.abs(np.diff(samples.astype(int))).max() < 5_000


@pytest.mark.parametrize("rate", [READ_RATES[0], 11_025, 44_100, 96_000, READ_RATES[1]])
def test_a_recording_that_is_too_short_is_refused_with_the_least_length(rate):
    assert len(decoded(encode(np.full(rate * LEAST_MS // 1_000, 0.1), rate, "WAV", "PCM_24"))) > 0
    with pytest.raises(RefusedError, match=f"too short: .* ms; it must have {LEAST_MS} ms"):
        decoded(encode(np.full(8, 0.1), rate, "WAV", "PCM_24"))
    with pytest.raises(RefusedError, match="empty"):
        decoded(encode(np.zeros(0), rate, "WAV", "PCM_24"))


@pytest.mark.parametrize("second", [(24_000, "VORBIS"), (16_000, "OPUS")])
def test_a_chain_whose_parts_differ_is_refused_in_words_about_the_file(second):
    tone = 0.3 * np.sin(np.arange(16_000) / 20)
    chain = encode(tone, 16_000, "OGG", "VORBIS") + encode(tone, second[0], "OGG", second[1])
    with pytest.raises(RefusedError, match="rate or a codec that changes within the file; send it as WAV"):
        decoded(chain)


def test_a_chain_of_one_form_is_read_to_its_end():
    part = encode(0.3 * np.sin(np.arange(16_000) / 20), 16_000, "OGG", "VORBIS")
    assert len(decoded(part + part)) == pytest.approx(32_000, abs=400)


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG"])
def test_damaged_file_is_reported_without_the_librarys_text(form):
    head = encode(np.zeros(8_000), 16_000, form, None)[:20]
    with pytest.raises(RefusedError, match="its data is damaged, or not of this form"):
        decoded(head + b"\x07" * 200)
