"""What ``parakeet_tdt`` (and every other ASR rail) is asked and answers.

Tensors of a rail: in ``AUDIO`` INT16 [1, n] (16 kHz mono PCM, n may be 0) and ``REQUEST``
TYPE_STRING [1, 1] (:class:`AsrRequest`); out ``REPLY`` TYPE_STRING [1, 1] (:class:`AsrReply`).
One Triton sequence is one stream of audio. Times are milliseconds since its START.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from parley.protocol import VadOptions, Word


class AsrOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Fixed for a stream by its START request."""

    vad: VadOptions = VadOptions()
    language: str = "en"
    partial_interval_ms: int = 240
    """New audio between two partial transcripts. 0: finals only."""
    words: bool = True
    """Whether transcripts carry word times and confidences."""


class AsrRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Goes with every piece of audio."""

    options: AsrOptions | None = None
    """Read with the START flag only; None: the defaults."""
    flush: bool = False
    """End the utterance now, as if enough silence had been heard."""


class SpeechStartedEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech_started"):
    """Speech has lasted for ``min_speech_ms``."""

    utterance: int
    at_ms: int


class SpeechStoppedEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech_stopped"):
    """Silence has lasted for ``silence_ms``; the utterance's final transcript follows."""

    utterance: int
    at_ms: int
    detected_at_ms: int


class TranscriptEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript"):
    """A partial or final text of the utterance that is being spoken."""

    utterance: int
    text: str
    is_final: bool
    confidence: float = 0.0
    """Mean of the words' confidences, 0-1."""
    words: list[Word] = []


AsrEvent: TypeAlias = SpeechStartedEvent | SpeechStoppedEvent | TranscriptEvent


class AsrReply(msgspec.Struct, frozen=True, kw_only=True):
    """What one piece of audio brought."""

    events: list[AsrEvent] = []
    """In the order in which they happened."""
    speech_probability: float = 0.0
    """The highest of this piece's 32 ms windows."""
    stream_ms: int = 0
    """Audio received so far."""
    vad_ms: float = 0.0
    encoder_ms: float = 0.0
    decoder_ms: float = 0.0
    """Wall time of the shared (batched) model calls that served this piece."""
    batch: int = 1
    """How many streams were served together."""
