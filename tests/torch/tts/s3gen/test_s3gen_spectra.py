"""The vocoder's short-time transform against torch's, and that it never waits for the device."""

import pytest
import torch
from s3gen_fakes import HostReads

from parley_torch.tts.s3gen.spectra import BINS, HOP, SIZE, ShortTimeTransform

WINDOW = torch.hann_window(SIZE)
LENGTHS = [120, 480, 24 * 480]


def signal(rows, length):
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(length))


def polar(rows, count):
    """Spectra of any magnitudes and phases, as the network predicts them: of no signal."""
    magnitude, phase = signal(rows, 2 * BINS * count).view(2, rows, BINS, count)
    return torch.polar(magnitude.exp(), phase)


def packed(spectra):
    return torch.cat([spectra.real, spectra.imag], dim=1).transpose(1, 2)


@pytest.mark.parametrize("length", LENGTHS)
def test_spectra_are_those_of_torch(length):
    samples = signal(3, length)
    expected = torch.stft(samples, SIZE, HOP, SIZE, WINDOW, return_complex=True)
    torch.testing.assert_close(ShortTimeTransform()(samples), packed(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_signals_are_those_of_torch(length):
    spectra = polar(3, length // HOP + 1)
    expected = torch.istft(spectra, SIZE, HOP, SIZE, WINDOW)
    assert expected.shape == (3, length)
    assert expected.abs().max() > 1
    found = ShortTimeTransform().inverse(packed(spectra))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    for edge in (slice(0, HOP), slice(-HOP, None)):  # whose samples lie in one window less
        assert expected[:, edge].std() > 0.1
        torch.testing.assert_close(found[:, edge], expected[:, edge], rtol=0, atol=1e-5)


def test_back_and_forth():
    samples = signal(2, 960)
    transform = ShortTimeTransform()
    torch.testing.assert_close(transform.inverse(transform(samples)), samples, rtol=0, atol=1e-5)


def test_no_value_is_read_by_the_host():
    transform, samples = ShortTimeTransform(), signal(1, 480)
    with HostReads() as reads:
        transform.inverse(transform(samples))
    assert reads.operations == []
    with HostReads() as reads:
        torch.istft(polar(1, 121), SIZE, HOP, SIZE, WINDOW)
    assert reads.operations, "torch's own is why; the test must be able to fail"
