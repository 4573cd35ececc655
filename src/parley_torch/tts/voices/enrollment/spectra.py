"""Spectrograms as Chatterbox's networks were trained on them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the usual name

from parley.audio.fbank import KaldiFbank
from parley.audio.mel import mel_filters

RATE = 16_000
"""Hertz of the encoders' and the tokenizer's input."""
PROMPT_RATE = 24_000
"""Hertz of the audio that S3Gen makes, and of the prompt's spectrogram."""
_FFT = 400
_HOP = 160
_PROMPT_FFT, _PROMPT_HOP, _PROMPT_TOP = 1_920, 480, 8_000.0
_TRIM_FRAME, _TRIM_HOP = 2_048, 512


def encoder_mel(audio: Tensor, bands: int) -> Tensor:
    """The voice encoder's input: power, f32 ``[1 + n // 160, bands]``.

    ``audio`` is f32 ``[n]`` at 16 kHz, n above 200.
    """
    return (_filters(bands, _FFT, RATE) @ _power(audio)).T


def tokenizer_mel(audio: Tensor, bands: int) -> Tensor:
    """The tokenizer's input: the logarithm, at most 80 dB below the loudest, f32 ``[bands, n // 160]``.

    ``audio`` is f32 ``[n]`` at 16 kHz, n above 200.
    """
    mel = _filters(bands, _FFT, RATE) @ _power(audio)[:, :-1]
    logarithm = mel.clamp(min=1e-10).log10()
    return (torch.maximum(logarithm, logarithm.max() - 8.0) + 4.0) / 4.0


def prompt_mel(audio: Tensor, bands: int) -> Tensor:
    """S3Gen's prompt: a spectrogram like those that it makes, f32 ``[n // 480, bands]``.

    ``audio`` is f32 ``[n]`` at 24 kHz, n above 720.
    """
    edge = (_PROMPT_FFT - _PROMPT_HOP) // 2
    padded = F.pad(audio[None], (edge, edge), mode="reflect")[0]
    spectrum = torch.stft(
        padded,
        _PROMPT_FFT,
        _PROMPT_HOP,
        window=torch.hann_window(_PROMPT_FFT),
        center=False,
        return_complex=True,
    )
    magnitude = (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()
    mel = _filters(bands, _PROMPT_FFT, PROMPT_RATE, _PROMPT_TOP) @ magnitude
    rows: Tensor = mel.clamp(min=1e-5).log().T
    return rows


def filter_bank(audio: Tensor, bands: int) -> Tensor:
    """Kaldi's filter bank with its default settings and no dither, less each band's mean over time.

    f32 ``[1 + (n - 400) // 160, bands]`` of f32 ``[n]`` at 16 kHz within ±1, n at least 400.
    """
    features = torch.from_numpy(KaldiFbank(bands).compute(audio.numpy()))
    return features - features.mean(dim=0, keepdim=True)


def trim(audio: NDArray[np.float32], top_db: float = 20.0) -> NDArray[np.float32]:
    """Trim both ends that are ``top_db`` quieter than the maximum, as librosa does; not of silent audio."""
    padded = np.pad(audio, _TRIM_FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _TRIM_FRAME)[::_TRIM_HOP]
    power = np.maximum(1e-10, np.square(frames).mean(axis=1))
    loud = np.flatnonzero(10.0 * np.log10(power / power.max()) > -top_db)
    return audio[loud[0] * _TRIM_HOP : min(len(audio), (loud[-1] + 1) * _TRIM_HOP)]


def _power(audio: Tensor) -> Tensor:
    """Power of a centred Fourier transform with mirrored edges, ``[201, 1 + n // 160]``."""
    spectrum = torch.stft(audio, _FFT, _HOP, window=torch.hann_window(_FFT), return_complex=True)
    return spectrum.abs().square()


def _filters(bands: int, n_fft: int, rate: int, highest: float | None = None) -> Tensor:
    return torch.from_numpy(mel_filters(bands, n_fft, rate, highest))
