"""Which voice and which form of audio a client of ``/v1/speak`` means."""

from __future__ import annotations

from dataclasses import dataclass

from parley.errors import InvalidMessageError
from parley_gateway.audio.codecs import AudioFormat
from parley_gateway.audio.encoding import SpeechFormat
from parley_gateway.doors.deepgram.query import RAW, SpeakOptions

_DEFAULT_RATE = 24_000
_TELEPHONE_HZ = 8_000
# Clients that are switched over by their address alone name these; they get the default voice.
_DEEPGRAM = ("aura-", "aura2-")


def voice_of(options: SpeakOptions) -> str | None:
    """The name of a voice; None: the default."""
    name = options.model
    return None if not name or name.startswith(_DEEPGRAM) else name


def raw_format(options: SpeakOptions) -> AudioFormat:
    """Of a stream: audio without a container.

    Raises:
        InvalidMessageError: something else is wanted.
        UnsupportedSampleRateError: it cannot have this rate.
    """
    encoding = RAW.get(options.encoding or "linear16")
    if encoding is None or options.container not in (None, "none"):
        raise InvalidMessageError("a stream has no container, and is linear16, mulaw or alaw")
    telephone = encoding != "pcm16"
    return AudioFormat(encoding, options.sample_rate or (_TELEPHONE_HZ if telephone else _DEFAULT_RATE))


@dataclass(frozen=True)
class FileFormat:
    """Of an answer by REST.

    Raises:
        UnsupportedSampleRateError: it cannot have this rate.
    """

    form: SpeechFormat
    sample_rate: int

    def __post_init__(self) -> None:
        AudioFormat(sample_rate=self.sample_rate)  # what all of the codecs know


_RATES: dict[SpeechFormat, int] = {"mp3": 22_050, "opus": 48_000, "flac": _DEFAULT_RATE, "aac": 22_050}


def file_format(options: SpeakOptions) -> FileFormat | AudioFormat:
    """What a file is to be; G.711 and audio without a container are no file.

    Raises:
        InvalidMessageError: the encoding has no such container.
        UnsupportedSampleRateError: it cannot have this rate.
    """
    encoding = options.encoding or "mp3"
    container = options.container
    raw = SpeakOptions(encoding=options.encoding, sample_rate=options.sample_rate)
    match encoding:
        case "mulaw" | "alaw":
            if container == "wav":
                raise InvalidMessageError("G.711 comes without a container: container=none")
            return raw_format(raw)
        case "linear16":
            if container == "none":
                return raw_format(raw)
            if container == "ogg":
                raise InvalidMessageError("linear16 comes in WAV, or without a container")
            return FileFormat("wav", options.sample_rate or _DEFAULT_RATE)
    own = {"opus": "ogg"}.get(encoding, "none")
    if container not in (None, own):
        raise InvalidMessageError(f"{encoding} comes with container={own}")
    rate = options.sample_rate or _RATES[encoding]
    if encoding == "opus" and rate != _RATES["opus"]:
        raise InvalidMessageError("opus comes at 48000 Hz")
    return FileFormat(encoding, rate)
