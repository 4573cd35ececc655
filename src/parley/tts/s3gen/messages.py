"""What ``s3gen`` is asked and answers.

An utterance is opened by one request, whose responses are its audio; its tokens may come with it
and in further requests, which are answered by nothing but an end. Tensors: in ``REQUEST``
TYPE_STRING [1] (:data:`S3GenRequest`) and, where the message says so, ``TOKENS`` INT32 [n],
``SPEAKER`` FP32 [192], ``PROMPT_TOKENS`` INT32 [P], ``PROMPT_MEL`` FP32 [2P, 80]; out, decoupled,
``CHUNK`` TYPE_STRING [1] (:class:`AudioChunk`) and ``AUDIO`` INT16 [n]. A failed request ends with
a Triton error whose text is :meth:`parley.errors.ParleyError.to_wire`; an error of an utterance
arrives at the request that opened it.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

OUTPUTS = ("CHUNK", "AUDIO")


class OpenUtterance(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="open"):
    """Begin an utterance. Needs SPEAKER, PROMPT_TOKENS and PROMPT_MEL; TOKENS may come along.

    Answered by the audio, and by FINAL after the last piece or when it is stopped.
    """

    utterance_id: str
    seed: int = 0
    """Not negative. Same seed, voice and tokens: same audio."""
    sample_rate: int = 24_000
    """Hertz of the audio, 8,000 to 48,000."""
    final: bool = False
    """Whether TOKENS are all there will be."""
    after_s: float = 0.0
    """Seconds of other audio that the listener has yet to hear before this: it is as urgent as if it
    were opened so much later. 0 to 60."""


class PushTokens(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="push"):
    """More tokens, in TOKENS; they may be missing if only the end is told."""

    utterance_id: str
    first: int
    """Number of the first of them in the utterance, to notice requests that overtook each other."""
    final: bool = False


class StopUtterance(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="stop"):
    """Make no more audio; unknown ids are not an error. Takes effect within one step."""

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
    first_token: int
    end_token: int
    """The tokens (40 ms each) of which something is heard, half-open."""
    final: bool
    """Whether it is the last one."""
