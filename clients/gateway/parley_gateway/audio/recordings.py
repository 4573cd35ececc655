"""Formats of the recordings that clients send, and a reader of plain PCM.

Short plain WAV and raw PCM is read here. FFmpeg's libraries read everything else, in a process of its own
for each recording (:mod:`parley_gateway.audio.decoders`).
The container is recognised by its first bytes and named to them, because left to themselves they also open
playlists and other forms that name further files and addresses.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from parley.audio.pcm import Resampler
from parley.errors import InvalidAudioError
from parley.protocol import INPUT_SAMPLE_RATE
from parley_gateway.audio.codecs import SAMPLE_RATES, AudioFormat, Encoding

FORMATS = ("wav", "flac", "ogg", "mp3", "mp4", "m4a", "webm", "aac")
"""Names of what can be read, for clients."""


@dataclass(frozen=True)
class Container:
    """The format as which FFmpeg opens a recording."""

    name: str
    """FFmpeg's name."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the demuxer."""


_MOV = Container("mov", MappingProxyType({"ignore_chapters": "1", "enable_drefs": "0"}))
# Offset, bytes there, container.
_SIGNATURES = (
    (8, b"WAVE", Container("wav")),
    (0, b"fLaC", Container("flac")),
    (0, b"OggS", Container("ogg")),
    (0, b"\x1a\x45\xdf\xa3", Container("matroska")),
    (4, b"ftyp", _MOV),
    (0, b"ID3", Container("mp3")),
)
_SYNC = 0xFFE0  # eleven bits, at the beginning of every frame of MPEG audio
_ADTS = 0xFFF0
_ADTS_BITS = 0xFFF6
_RAW: Mapping[Encoding, str] = MappingProxyType({"pcm16": "s16le", "ulaw": "mulaw", "alaw": "alaw"})


def container_of(head: bytes) -> Container:
    """The container of a recording.

    Args:
        head: the first 16 bytes.

    Raises:
        InvalidAudioError: it is none of :data:`FORMATS`.
    """
    for at, signature, container in _SIGNATURES:
        if head.startswith(signature, at):
            return container
    frame = int.from_bytes(head[:2], "big")
    if frame & _SYNC == _SYNC:
        return Container("aac" if frame & _ADTS_BITS == _ADTS else "mp3")
    raise InvalidAudioError(f"this is no audio file of a known form; known are {', '.join(FORMATS)}")


def raw_container(form: AudioFormat) -> Container:
    """The container of raw audio."""
    options = {"sample_rate": str(form.sample_rate), "ch_layout": "mono"}
    return Container(_RAW[form.encoding], MappingProxyType(options))


_LIVE: Mapping[str, str] = MappingProxyType({"probesize": "4096", "analyzeduration": "100000"})
"""By default FFmpeg reads seconds of a stream before it decodes."""
_HEAD = 16
_MAX_HEAD = 4_096


@dataclass(frozen=True)
class PlainStream:
    """Raw audio behind a header."""

    form: AudioFormat
    begins_at: int
    """Bytes of the header."""


def stream_of(head: bytes) -> PlainStream | Container | None:
    """How a stream is read that begins with ``head``; None: more of it must come first.

    Raises:
        InvalidAudioError: it is none of :data:`FORMATS`.
    """
    if len(head) < _HEAD:
        return None
    container = container_of(head)
    if container.name == "wav":
        at, _, form = _find_data(head)
        if not at and len(head) < _MAX_HEAD:
            return None
        channels, rate = _read_form(form) or (0, 0)
        if channels == 1 and rate in SAMPLE_RATES:
            return PlainStream(AudioFormat("pcm16", rate), at)
    return Container(container.name, MappingProxyType({**container.options, **_LIVE}))


MAX_BYTES = 2_097_152
"""Longest file that is read here: one minute of 16 kHz."""
PLAIN = ("wav", "s16le")
"""Containers that :func:`read_plain` may be able to read."""

_PCM, _EXTENSIBLE = 1, 0xFFFE
_PCM_GUID = bytes.fromhex("0100000000001000800000aa00389b71")
_FORM = struct.Struct("<HHIIHH")
_CHUNKS = 16
_RATES = (8_000, 48_000)
_CHANNELS = (1, 2)


def read_plain(container: Container, data: bytes) -> NDArray[np.int16] | None:
    """The samples of a short recording of plain 16-bit PCM, read without a decoder: most that clients send.

    Starting a decoder's process takes longer than all the rest of such a request. No native decoder sees the
    file, and every number of its header is compared with the bytes that are there.

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
    at, size, form = _find_data(data)
    plain = _read_form(form)
    # Writers of pipes claim any size: only the bytes that are there count.
    return _mono(data[at : at + size], *plain) if at and plain else None


def _find_data(data: bytes) -> tuple[int, int, bytes]:
    """Where the samples of a WAV file begin, how long they claim to be, and its format; 0: not found."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return 0, 0, b""
    at, form = 12, b""
    for _ in range(_CHUNKS):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        if kind == b"data" and at <= len(data):
            return at, size, form
        if at + size > len(data):
            break
        if kind == b"fmt ":
            form = data[at : at + size]
        at += size + size % 2
    return 0, 0, b""


def _read_form(form: bytes) -> tuple[int, int] | None:
    """Channels and rate of 16-bit PCM; None: it is something else."""
    if len(form) < _FORM.size:
        return None
    tag, channels, rate, _, align, bits = _FORM.unpack_from(form)
    is_pcm = tag == _PCM or (tag == _EXTENSIBLE and form[24:40] == _PCM_GUID)
    if not is_pcm or bits != 16 or channels not in _CHANNELS or align != 2 * channels:
        return None
    return (channels, rate) if _RATES[0] <= rate <= _RATES[1] else None


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
