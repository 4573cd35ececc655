"""Speech as a file that is written while it is being spoken."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias

import av
import numpy as np
from av.audio.stream import AudioStream
from numpy.typing import NDArray

from parley_gateway.audio.codecs import AudioFormat
from parley_gateway.audio.codecs import Encoder as PcmEncoder
from parley_stages import SpeechPiece

SpeechFormat: TypeAlias = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


class Encoder(Protocol):
    """Turns samples into the bytes of a file, in order."""

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        """The next bytes; i16 ``[n]``, mono."""
        ...

    def finish(self) -> bytes:
        """The last bytes."""
        ...


MEDIA_TYPES: Mapping[SpeechFormat, str] = MappingProxyType(
    {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "wav": "audio/wav",
        "pcm": "audio/pcm",
    }
)


def make_encoder(form: SpeechFormat, sample_rate: int) -> Encoder:
    """An encoder of mono speech.

    Args:
        form: of the file; ``opus`` is in Ogg, ``aac`` in ADTS, ``pcm`` is raw 16 bit little endian.
        sample_rate: hertz; ``opus`` takes 8,000, 12,000, 16,000, 24,000 and 48,000.
    """
    if form == "pcm":
        return PcmEncoder(AudioFormat("pcm16", sample_rate), sample_rate)
    if form == "wav":
        return _Wav(sample_rate)
    return _Compressed(_CODECS[form], sample_rate)


async def encode_all(encoder: Encoder, speech: AsyncIterable[SpeechPiece]) -> AsyncGenerator[bytes, None]:
    """The bytes of a file, as its speech comes.

    They are encoded in a thread of its own: in the loop they would delay all audio, and in the common
    threads they would wait behind recordings that take seconds to decode.
    """
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, "encoder")
    try:
        async for piece in speech:
            if encoded := await loop.run_in_executor(thread, encoder.encode, piece.samples):
                yield encoded
        if rest := await loop.run_in_executor(thread, encoder.finish):
            yield rest
    finally:
        thread.shutdown(wait=False)


class _Wav:
    """Its length is not known when it begins: the header says that it goes on to the end of the file."""

    def __init__(self, sample_rate: int) -> None:
        unknown = 0xFFFFFFFF
        form = struct.pack("<HHIIHH", 1, 1, sample_rate, 2 * sample_rate, 2, 16)
        self._header = b"RIFF" + struct.pack("<I", unknown) + b"WAVE"
        self._header += b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", unknown)

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        header, self._header = self._header, b""
        return header + samples.astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        return self.encode(np.zeros(0, np.int16))


@dataclass(frozen=True)
class _Codec:
    container: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict)


_CODECS: Mapping[SpeechFormat, _Codec] = MappingProxyType(
    {
        # Without the length frame, which would need a seek.
        "mp3": _Codec("mp3", "libmp3lame", {"write_xing": "0", "id3v2_version": "0"}),
        # A page of Ogg would otherwise wait for a second of speech.
        "opus": _Codec("ogg", "libopus", {"page_duration": "20000"}),
        "aac": _Codec("adts", "aac"),
        "flac": _Codec("flac", "flac"),
    }
)


class _Sink:
    """What FFmpeg writes to; it cannot go back."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data


class _Compressed:
    def __init__(self, codec: _Codec, sample_rate: int) -> None:
        self._sink = _Sink()
        self._rate = sample_rate
        self._file = av.open(
            self._sink, "w", format=codec.container, options={"flush_packets": "1", **codec.options}
        )
        stream = self._file.add_stream(codec.name, rate=sample_rate, layout="mono")
        assert isinstance(stream, AudioStream)
        self._stream = stream
        self._resampler = av.AudioResampler(
            format=stream.codec_context.format, layout="mono", rate=sample_rate
        )

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        if not len(samples):  # FFmpeg takes no empty frame
            return b""
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = self._rate
        for converted in self._resampler.resample(frame):
            self._file.mux(self._stream.encode(converted))
        return self._sink.take()

    def finish(self) -> bytes:
        for converted in self._resampler.resample(None):
            self._file.mux(self._stream.encode(converted))
        self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._sink.take()
