"""Requests and responses of the model ``s3gen``.

One request opens an utterance, and its responses are the audio; the tokens may come with it and in
further requests, whose only response is their end. Tensors: in ``REQUEST``
TYPE_STRING [1] (:data:`S3GenRequest`) and, where the message says so, ``TOKENS`` INT32 [n],
``SPEAKER`` FP32 [192], ``PROMPT_TOKENS`` INT32 [P], ``PROMPT_MEL`` FP32 [2P, 80]; out, decoupled,
``CHUNK`` TYPE_STRING [1] (:class:`AudioChunk`) and ``AUDIO`` INT16 [n]. A failed request ends with
a Triton error whose text is :meth:`parley.errors.ParleyError.to_wire`; an error of an utterance
ends the request that opened it.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

OUTPUTS = ("CHUNK", "AUDIO")


class OpenUtterance(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="open"):
    """Begin an utterance. Needs SPEAKER, PROMPT_TOKENS and PROMPT_MEL; TOKENS may come along.

    The responses are the audio, then FINAL after the last piece or when it is stopped.
    """

    utterance_id: str = ""
    """For more tokens and a stop. Empty: the model chooses one."""
    seed: int = 0
    """Not negative. Same seed, voice and tokens: same audio."""
    sample_rate: int = 24_000
    """Hertz of the audio, 8,000 to 48,000."""
    final: bool = False
    """Whether no further tokens follow."""
    after_s: float = 0.0
    """Seconds of other audio that will be played before this: it is as urgent as if it
    were opened that much later. 0 to 60."""
    traceparent: str = ""
    """Span of the caller (W3C Trace Context): those of the model are below it. Empty: there is none."""


class PushTokens(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="push"):
    """More tokens, in TOKENS, which may be missing in the last message."""

    utterance_id: str
    first: int
    """Number of the first of them in the utterance, to detect reordered requests."""
    final: bool = False


class StopUtterance(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="stop"):
    """Stop an utterance within one step; unknown ids are not an error."""

    utterance_id: str


S3GenRequest: TypeAlias = OpenUtterance | PushTokens | StopUtterance


class AudioChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the samples that come with it."""

    sample_rate: int
    offset: int
    """Number of the first sample within the utterance."""
    start_ms: float
    end_ms: float
    """The time within the utterance that the samples cover."""
    final: bool
    """Whether it is the last one."""
