"""Requests to synthesizers, and their responses.

Tensors: in ``REQUEST`` TYPE_STRING [1] (one of :data:`SpeechRequest`); out, decoupled, ``CHUNK``
TYPE_STRING [1] (:class:`SpeechChunk`) and ``AUDIO`` INT16 [n]. A failed request ends with a Triton
error whose text is :meth:`parley.errors.ParleyError.to_wire`.

Every synthesizer speaks a complete text. Some (``chatterbox``) also accept it as it is
being written: a :class:`SpeakRequest` that is not final, answered by a chunk without samples as
soon as it may be followed by any number of :class:`MoreText`, the last of which is final. All
audio comes as responses of the first request.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from parley.protocol import Language


class SpeakRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="speak"):
    """Speak a text. None leaves a choice to the model; a model ignores options that it lacks."""

    request_id: str = ""
    """For more text and an abort. Empty: the model chooses one."""
    text: str = ""
    final: bool = True
    """False: more text follows, which not every synthesizer accepts."""
    voice: str | None = None
    language: Language = "en"
    sample_rate: int | None = None
    """In hertz. Audio may come at another rate, which its chunks give."""
    exaggeration: float | None = None
    """Strength of emotion, 0 to 2."""
    guidance_weight: float | None = None
    """0 to 1."""
    seed: int | None = None
    """0 to 2**31 - 1: the same seed gives the same audio for a text."""
    background: bool = False
    """Whether no call waits for it: every other request is spoken first, and it is refused earlier."""
    utterance: str = ""
    """Shared by requests that belong together: an engine that was replaced for one of them is not
    tried again for the others.
    """
    traceparent: str = ""
    """Span of the caller (W3C Trace Context): those of the model are below it. Empty: there is none."""


class MoreText(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="more"):
    """More of a text that is being spoken. Its only response is the end, or an error."""

    request_id: str
    text: str = ""
    """Whole words, best whole clauses: text that arrives together is spoken together."""
    first: int
    """Index of its first character in all of the text, to detect requests out of order."""
    final: bool = False


class AbortSpeech(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="abort"):
    """Stop a request, running or queued; unknown ids are not an error. It has no response."""

    request_id: str


TtsRequest: TypeAlias = SpeakRequest | AbortSpeech
"""Requests that every synthesizer accepts."""
SpeechRequest: TypeAlias = SpeakRequest | MoreText | AbortSpeech
"""Requests of synthesizers that speak while a text is being written."""


class WordMark(msgspec.Struct, frozen=True, kw_only=True):
    """Start of a word of the text in the audio."""

    start_char: int
    end_char: int
    """Half-open span of characters in the whole text."""
    at_sample: int
    """From the first sample of the request."""


class TtsFallback(msgspec.Struct, frozen=True, kw_only=True):
    """An engine failed or was late, and another one speaks the rest of the text in its place."""

    from_engine: str
    to_engine: str
    reason: str
    """Code of the error (see :mod:`parley.errors`)."""


class SpeechChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes the samples of a response."""

    sample_rate: int
    offset: int
    """Index of the first sample within the request's audio."""
    words: list[WordMark] = []
    start_char: int = 0
    end_char: int = 0
    """Half-open span of the text that this chunk speaks a part of; equal: not known."""
    fallback: TtsFallback | None = None
    """Set in a chunk without samples: from here on another engine speaks. Its sample rate is 0 if
    no audio came before.
    """
