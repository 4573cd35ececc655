"""What ``espeak`` (and every other synthesizer) is asked and answers.

Tensors: in ``REQUEST`` TYPE_STRING [1] (:class:`SpeakRequest` or :class:`AbortSpeech`); out,
decoupled, ``CHUNK`` TYPE_STRING [1] (:class:`SpeechChunk`) and ``AUDIO`` INT16 [n]. A failed
request ends with a Triton error whose text is :meth:`parley.errors.ParleyError.to_wire`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class SpeakRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="speak"):
    """Speak one segment of text."""

    request_id: str
    text: str
    voice: str | None = None
    language: str = "en"


class AbortSpeech(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="abort"):
    """Stop a request, running or queued; unknown ids are not an error. Answered by nothing."""

    request_id: str


TtsRequest: TypeAlias = SpeakRequest | AbortSpeech


class WordMark(msgspec.Struct, frozen=True, kw_only=True):
    """Where a word of the request's text begins to be heard."""

    start_char: int
    end_char: int
    """Half-open span of characters in ``SpeakRequest.text``."""
    at_sample: int
    """Counted from the first sample of the request."""


class SpeechChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the samples that come with it."""

    sample_rate: int
    offset: int
    """Index of the first sample within the request's audio."""
    words: list[WordMark] = []
    """Words that begin in this chunk."""
