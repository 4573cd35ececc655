"""What ``espeak`` (and every other synthesizer) is asked and answers.

Tensors: in ``REQUEST`` TYPE_STRING [1] (one of :data:`SpeechRequest`); out, decoupled, ``CHUNK``
TYPE_STRING [1] (:class:`SpeechChunk`) and ``AUDIO`` INT16 [n]. A failed request ends with a Triton
error whose text is :meth:`parley.errors.ParleyError.to_wire`.

Every synthesizer speaks a text that it gets at once. Some (``chatterbox``) also take it as it is
being written: a :class:`SpeakRequest` that is not final, answered by a chunk without samples as
soon as it may be followed by any number of :class:`MoreText`, the last of which is final. All
audio comes as responses of the first request.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class SpeakRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="speak"):
    """Speak a text. What is None is the model's choice; what a model does not have, it ignores."""

    request_id: str
    text: str = ""
    final: bool = True
    """False: more text follows, which not every synthesizer accepts."""
    voice: str | None = None
    language: str = "en"
    sample_rate: int | None = None
    """Hertz. Audio may come at another rate: its chunks tell."""
    exaggeration: float | None = None
    """Of emotion, 0 to 2. None: the model's default; models without it ignore it."""
    guidance_weight: float | None = None
    """0 to 1. None: the model's default; models without it ignore it."""
    seed: int | None = None
    """0 to 2**31 - 1: the same text is then spoken in the same way."""
    utterance: str = ""
    """Requests that belong together share it: an engine that was replaced for one of them is not
    tried again for the others."""


class MoreText(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="more"):
    """More of a text that is being spoken. Answered by nothing but the end, or an error."""

    request_id: str
    text: str = ""
    """Whole words, best whole clauses: what comes together is spoken together."""
    first: int
    """Number of the first of its characters in all of the text, to notice requests that overtook
    each other."""
    final: bool = False


class AbortSpeech(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="abort"):
    """Stop a request, running or queued; unknown ids are not an error. Answered by nothing."""

    request_id: str


TtsRequest: TypeAlias = SpeakRequest | AbortSpeech
"""What every synthesizer understands."""
SpeechRequest: TypeAlias = SpeakRequest | MoreText | AbortSpeech
"""What synthesizers understand that speak while a text is being written."""


class WordMark(msgspec.Struct, frozen=True, kw_only=True):
    """Where a word of the text begins to be heard."""

    start_char: int
    end_char: int
    """Half-open span of characters in the whole text."""
    at_sample: int
    """Counted from the first sample of the request."""


class TtsFallback(msgspec.Struct, frozen=True, kw_only=True):
    """An engine failed or was late, and another one speaks the rest of the text in its place."""

    from_engine: str
    to_engine: str
    reason: str
    """Code of the error (see :mod:`parley.errors`)."""


class SpeechChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes the samples that come with it."""

    sample_rate: int
    offset: int
    """Index of the first sample within the request's audio."""
    words: list[WordMark] = []
    """Words that begin in this chunk."""
    start_char: int = 0
    end_char: int = 0
    """Half-open span of the text of which something is heard in this chunk; equal: not told."""
    fallback: TtsFallback | None = None
    """Set in a chunk without samples: from here on another engine speaks. Its sample rate is 0 if
    nothing was heard before."""
