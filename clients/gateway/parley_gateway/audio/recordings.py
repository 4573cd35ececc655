"""Recordings that clients send, in whichever form, as 16 kHz mono PCM.

FFmpeg's libraries read them, in a process of their own for each (:mod:`parley_gateway.audio.decoders`).
The container is told from its first bytes and named to them, because left to themselves they also open
playlists and other forms that name further files and addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from parley.errors import InvalidAudioError
from parley_gateway.audio.codecs import AudioFormat, Encoding

FORMATS = ("wav", "flac", "ogg", "mp3", "mp4", "m4a", "webm", "aac")
"""Names of what can be read, for clients."""


@dataclass(frozen=True)
class Container:
    """What a recording is given to FFmpeg as."""

    name: str
    """FFmpeg's name."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the demuxer."""


_MOV = Container("mov", MappingProxyType({"ignore_chapters": "1", "enable_drefs": "0"}))
# Where it begins, with which bytes, and what it is.
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
    """The container that begins so.

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
    """What raw audio is read as."""
    options = {"sample_rate": str(form.sample_rate), "ch_layout": "mono"}
    return Container(_RAW[form.encoding], MappingProxyType(options))
