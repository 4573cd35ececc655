"""Short recordings of 16 bit PCM, read without a decoder: most that clients send are such.

Starting a decoder takes longer than all the rest of such a request. Here no native decoder sees the file,
every number of its header is compared with the bytes that are there, and whatever is not plain is left to a
decoder.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from parley.audio.resample import Resampler
from parley.protocol import INPUT_SAMPLE_RATE
from parley_gateway.audio.recordings import Container

MAX_BYTES = 2_097_152
"""Longest file that is read here: one minute of 16 kHz."""
PLAIN = ("wav", "s16le")
"""Containers that may be so plain."""

_PCM, _EXTENSIBLE = 1, 0xFFFE
_PCM_GUID = bytes.fromhex("0100000000001000800000aa00389b71")
_FORM = struct.Struct("<HHIIHH")
_CHUNKS = 16
_RATES = (8_000, 48_000)
_CHANNELS = (1, 2)


def read_plain(container: Container, data: bytes) -> NDArray[np.int16] | None:
    """The samples of a plain recording.

    Args:
        container: one of :data:`PLAIN`.
        data: at most :data:`MAX_BYTES`.

    Returns:
        i16 ``[n]``, 16 kHz mono; None: it is not plain, or damaged.
    """
    if container.name == "wav":
        return _read_wav(data)
    return _mono(data, 1, int(container.options["sample_rate"]))


def _read_wav(data: bytes) -> NDArray[np.int16] | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    at, form = 12, b""
    for _ in range(_CHUNKS):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        if kind == b"data":
            # Writers that cannot go back claim any size: what is there counts.
            return _samples(form, data[at : at + size])
        if at + size > len(data):
            return None
        if kind == b"fmt ":
            form = data[at : at + size]
        at += size + size % 2
    return None


def _samples(form: bytes, data: bytes) -> NDArray[np.int16] | None:
    if len(form) < _FORM.size:
        return None
    tag, channels, rate, _, align, bits = _FORM.unpack_from(form)
    is_pcm = tag == _PCM or (tag == _EXTENSIBLE and form[24:40] == _PCM_GUID)
    if not is_pcm or bits != 16 or channels not in _CHANNELS or align != 2 * channels:
        return None
    if not _RATES[0] <= rate <= _RATES[1]:
        return None
    return _mono(data, channels, rate)


def _mono(data: bytes, channels: int, rate: int) -> NDArray[np.int16]:
    """i16 of one or two channels, without an incomplete sample at the end."""
    align = 2 * channels
    samples = np.frombuffer(data[: len(data) // align * align], "<i2")
    if channels == 2:
        left, right = samples[0::2].astype(np.int32), samples[1::2]
        samples = ((left + right) // 2).astype(np.int16)
    if rate == INPUT_SAMPLE_RATE:
        return samples
    resampler = Resampler(rate, INPUT_SAMPLE_RATE)
    return np.concatenate([resampler.push(samples), resampler.finish()])
