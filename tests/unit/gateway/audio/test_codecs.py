"""The audio of clients, in pieces as they come."""

import tracemalloc

import numpy as np
import pytest

from parley.errors import UnsupportedSampleRateError
from parley_gateway.audio.codecs import (
    SAMPLE_RATES,
    AudioFormat,
    AudioStreamDecoder,
    Encoder,
    decode_alaw,
    decode_ulaw,
    encode_ulaw,
)
from parley_gateway.audio.polyphase import LiveResampler

PAIRS = [(rate, 16_000) for rate in SAMPLE_RATES] + [(22_050, 8_000), (16_000, 24_000), (48_000, 44_100)]


def tone(frequency, rate, seconds=1.0, height=10_000):
    time = np.arange(int(rate * seconds)) / rate
    return np.round(height * np.sin(2 * np.pi * frequency * time)).astype(np.int16)


def in_pieces(push, samples, sizes):
    pieces, at = [], 0
    while at < len(samples):
        size = next(sizes)
        pieces.append(push(samples[at : at + size]))
        at += size
    return np.concatenate(pieces)


def power_db(signal, reference):
    return 10 * np.log10(
        np.mean(np.square(signal.astype(float))) / np.mean(np.square(reference.astype(float)))
    )


@pytest.mark.parametrize(("from_rate", "to_rate"), PAIRS)
def test_a_tone_stays_the_same_tone(from_rate, to_rate):
    resampler = LiveResampler(from_rate, to_rate)
    result = resampler.push(tone(1_000, from_rate)).astype(float)
    time = np.arange(len(result)) / to_rate - resampler.delay_ms / 1000
    expected = 10_000 * np.sin(2 * np.pi * 1_000 * time)
    settled = slice(to_rate // 20, None)
    assert power_db(result[settled] - expected[settled], expected[settled]) < -50


def assert_rounded_alike(found, expected):
    """The same int16 samples but for their rounding.

    A sample is a sum of some hundred float32 products, whose order may depend on the shape. It is less than 1
    off at full scale (200 x 2^-24 x 2^15 = 0.4), so the rounded one is its neighbour at worst.
    """
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize(("from_rate", "to_rate"), PAIRS)
def test_the_borders_of_pieces_cannot_be_heard(from_rate, to_rate):
    samples = tone(700, from_rate, 0.5)
    whole = LiveResampler(from_rate, to_rate).push(samples)
    sizes = iter(np.random.default_rng(1).integers(1, 400, 10_000).tolist())
    assert_rounded_alike(in_pieces(LiveResampler(from_rate, to_rate).push, samples, sizes), whole)


@pytest.mark.parametrize(("from_rate", "to_rate"), [(8_000, 16_000), (11_025, 16_000)])
def test_long_pieces_take_little_memory(from_rate, to_rate):
    resampler = LiveResampler(from_rate, to_rate)
    samples = np.ones(1 << 20, np.int16)
    tracemalloc.start()
    try:
        result = resampler.push(samples)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(result) == -(-len(samples) * to_rate // from_rate)
    assert peak < 3 * result.nbytes


def test_a_long_message_is_read_a_second_at_a_time():
    coded = encode_ulaw(tone(440, 8_000, 2.5))
    pieces = list(AudioStreamDecoder(AudioFormat("ulaw", 8_000)).pieces(coded))
    assert [len(piece) for piece in pieces] == [16_000, 16_000, 8_000]
    assert_rounded_alike(np.concatenate(pieces), AudioStreamDecoder(AudioFormat("ulaw", 8_000)).decode(coded))


def test_every_piece_is_answered_at_once():
    resampler = LiveResampler(8_000, 16_000)
    assert [len(resampler.push(np.zeros(160, np.int16))) for _ in range(5)] == [320] * 5
    assert resampler.delay_ms < 3


def test_downsampling_removes_frequencies_above_the_new_rate():
    loud = tone(6_000, 16_000)
    quiet = LiveResampler(16_000, 8_000).push(loud)
    assert np.abs(quiet[400:]).max() <= 10


def test_no_mirror_image_appears_above_the_band():
    result = LiveResampler(8_000, 16_000).push(tone(2_800, 8_000))[800:]
    spectrum = np.abs(np.fft.rfft(result * np.hanning(len(result))))
    hertz = np.fft.rfftfreq(len(result), 1 / 16_000)
    assert spectrum[hertz > 4_000].max() < spectrum.max() / 1_000


def test_full_scale_is_cut_and_does_not_wrap():
    square = np.repeat(np.array([32_767, -32_768] * 50, np.int16), 40)
    result = LiveResampler(8_000, 16_000).push(square).astype(int)
    assert result.max() == 32_767
    assert result.min() == -32_768
    assert np.sign(result[200:240]).tolist().count(0) == 0


def test_reset_forgets_what_was_before():
    encoder = Encoder(AudioFormat("pcm16", 8_000), 16_000)
    encoder.encode(tone(440, 16_000, 0.1))
    encoder.reset()
    assert set(encoder.encode(np.zeros(320, np.int16))) == {0}


def test_half_a_sample_waits_for_its_other_half():
    decoder = AudioStreamDecoder(AudioFormat("pcm16", 16_000))
    raw = np.array([1, -2, 3], "<i2").tobytes()
    assert decoder.decode(raw[:3]).tolist() == [1]
    assert decoder.decode(raw[3:]).tolist() == [-2, 3]


@pytest.mark.parametrize(("encoding", "decode"), [("ulaw", decode_ulaw), ("alaw", decode_alaw)])
def test_telephone_audio_comes_through_both_ways(encoding, decode):
    form = AudioFormat(encoding, 8_000)
    spoken = tone(1_000, 8_000)
    coded = Encoder(form, form.agent_rate).encode(spoken)
    assert form.agent_rate == 8_000
    assert len(coded) == len(spoken)
    assert power_db(decode(coded) - spoken.astype(int), spoken) < -35
    assert len(AudioStreamDecoder(form).decode(coded)) == 2 * len(spoken)


def test_ulaw_silence_decodes_to_silence():
    heard = AudioStreamDecoder(AudioFormat("ulaw", 8_000)).decode(encode_ulaw(np.zeros(800, np.int16)))
    assert not heard.any()


@pytest.mark.parametrize(
    ("rate", "agent"),
    [(8_000, 8_000), (24_000, 24_000), (44_100, 48_000), (11_025, 16_000), (32_000, 48_000)],
)
def test_the_agent_is_asked_for_a_rate_that_loses_nothing(rate, agent):
    assert AudioFormat("pcm16", rate).agent_rate == agent


def test_other_rates_are_refused():
    with pytest.raises(UnsupportedSampleRateError, match="7000 Hz"):
        AudioFormat("pcm16", 7_000)
