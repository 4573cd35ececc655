"""Requests and events of the model ``t3``.

Tensors in: ``REQUEST`` TYPE_STRING [1] (:class:`SpeechTokensRequest` or :class:`AbortTokens`),
and with the former ``SPEAKER_EMBEDDING`` FP32 [256], ``PROMPT_TOKENS`` INT32 [n] (of the voice's
reference recording, may be left out) and ``TEXT_TOKENS`` INT32 [n] (in place of ``text``). Tensors out,
decoupled: ``EVENT`` TYPE_STRING [1] (:data:`SpeechTokensEvent`) and ``TOKENS`` INT32 [n], the
speech tokens of the event, 25 for a second of sound. A failed request ends with a Triton error
whose text is :meth:`parley.errors.ParleyError.to_wire`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from parley.errors import InvalidMessageError
from parley.protocol import Language


class SpeechSampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are sampled; None stands for the value that the checkpoint was published with."""

    temperature: float | None = None
    """0 to 2; 0 is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    """0: all."""
    min_p: float | None = None
    """Turbo has none."""
    repetition_penalty: float | None = None
    """1 to 4; 1 is none."""
    seed: int | None = None


class SpeechTokensRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="generate"):
    """Ask for the speech tokens of one utterance."""

    request_id: str = ""
    """For an abort. Empty: the model chooses one."""
    text: str = ""
    """Empty if ``TEXT_TOKENS`` are sent."""
    language: Language = "en"
    exaggeration: float = 0.5
    """Strength of emotion, 0 to 2; 0.5 is neutral. Turbo has none."""
    guidance_weight: float = 0.5
    """0 to 1 in hundredths; lower is slower and freer. Turbo has none."""
    sampling: SpeechSampling = SpeechSampling()
    max_tokens: int = 1000
    background: bool = False
    """Whether no call waits for it: other requests are before it where not all fit."""
    chunk_tokens: int = 1
    """At least as many tokens in each event, but for the last."""
    traceparent: str = ""
    """Span of the caller (W3C Trace Context): those of the model are below it. Empty: there is none."""


class AbortTokens(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="abort"):
    """Stop a request, running or waiting; unknown ids are not an error. No event answers it."""

    request_id: str


T3Request: TypeAlias = SpeechTokensRequest | AbortTokens


class TokensDrawn(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tokens"):
    """More of the utterance."""

    offset: int
    """Index of the first of ``TOKENS`` within the utterance."""


class TokensCompleted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="completed"):
    """The end of the utterance; ``TOKENS`` is empty."""

    finish_reason: Literal["stop", "length", "abort"]
    generated_tokens: int = 0
    """Marks included."""
    spoken_tokens: int = 0
    """Sent, without marks."""


SpeechTokensEvent: TypeAlias = TokensDrawn | TokensCompleted


def check_range(name: str, value: float, least: float, most: float) -> None:
    """Refuse a value of a request that is out of range or NaN.

    Raises:
        InvalidMessageError: it is.
    """
    if not least <= value <= most:
        raise InvalidMessageError(f"{name} {value} is not between {least:g} and {most:g}")
