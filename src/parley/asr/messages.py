"""Messages of ``parakeet_tdt`` and every other recogniser.

Tensors of a recogniser of streams: in ``AUDIO`` INT16 [1, n] (16 kHz mono PCM, n may be 0) and, if it says
more than its defaults, ``REQUEST`` TYPE_STRING [1, 1] (:class:`AsrRequest`); out ``REPLY`` TYPE_STRING
[1, 1] (:class:`AsrReply`).
One Triton sequence is one stream of audio. Times are milliseconds since its START.

A transcription model (``parakeet_transcribe``) takes a whole recording instead: in ``AUDIO`` INT16
[1, n] and ``REQUEST`` (:class:`TranscribeRequest`); out ``REPLY`` (:class:`TranscribeReply`). Its
times are milliseconds of the recording.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from parley.protocol import MAX_ALTERNATIVES, Alternative, Language, VadOptions, Word

MAX_JOIN_MS = 30_000
STREAM_ENDED = "stream_ended"
"""Reason of a fallback: the stream ended before the final text was written."""
Nbest: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_ALTERNATIVES)]
"""Number of readings of a final text, the best included. 0: none. Greedy decoding has none."""


class AsrOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream, fixed by its START request."""

    vad: VadOptions = VadOptions()
    language: Language = "en"
    """A tag such as ``en`` or ``pt-BR``; ``auto``: as in :class:`TranscribeRequest`. Empty: ``auto`` for a
    model that understands several and finds it out, otherwise its first language."""
    partial_interval_ms: int = 240
    """New audio between two partial transcripts. 0: finals only. A streaming model sends a partial
    after every chunk that changes the text, and heeds only the 0."""
    lookahead_ms: Literal[80, 160, 320, 560, 1120] | None = None
    """How much audio a streaming model waits for before it decides: more is slower and more exact.
    None: the server's choice. Other models ignore it."""
    words: bool = True
    """Whether transcripts carry word times and confidences, if the model has them."""
    phrases: list[str] = []
    """Names and words that are expected: the decoder favours them (:mod:`parley.asr.decoding.boosting`)."""
    phrase_weight: float = 1.0
    """Strength of that, from 0 (none) to 10."""
    names: list[str] = []
    """Further phrases, as far as there is room for them; models other than attention decoders ignore them."""
    nbest: Nbest = 0
    join_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_JOIN_MS)] = 0
    """Longest speech that is read together for a final text: the utterance with those before it, back to
    the last ``turn_over``. 0: each by itself."""
    traceparent: str = ""
    """Span of the caller (W3C Trace Context): those of final texts are below it. Empty: there is none."""


class AsrRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Comes with every piece of audio."""

    options: AsrOptions | None = None
    """Read with the START flag only; None: the defaults."""
    flush: bool = False
    """End the utterance now, as after enough silence. A final text that another model writes may
    come with the answer to a later piece, also to an empty one."""
    turn_over: bool = False
    """What was said before this piece of audio is no longer joined to what follows (``join_ms``)."""


class OnsetEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="onset"):
    """Something that may be speech has begun: the first window at ``vad.onset_threshold``.

    Either ``speech_started`` or ``onset_lost`` follows, unless the stream ends first. The former has the
    same ``at_ms``, or a later one where ``vad.onset_threshold`` is below the threshold. No speech starts
    without an onset, not even speech that goes on after it was cut for its length.
    """

    at_ms: int


class OnsetLostEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="onset_lost"):
    """No speech came of it: it was over before ``min_speech_ms``, or never reached ``vad.threshold``."""


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
    stable_words: int = 0
    """Number of first words that probably stay as they are (:mod:`parley.asr.decoding.words`); in a final
    text all."""
    alternatives: list[Alternative] = []
    """The best readings, of a final text if they were asked for; the first is the text itself."""
    first: int = 0
    """First utterance of a final text that was decoded together with earlier ones."""
    before: str = ""
    """What those said, read anew: it takes the place of their texts."""


class AsrFallbackEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="fallback"):
    """A model failed or was late, and another one transcribes this utterance in its place."""

    utterance: int
    from_model: str
    to_model: str
    reason: str
    """Code of the error (see :mod:`parley.errors`), or ``stream_ended``: the END came before the text of
    ``from_model``, and no reply follows it. Send empty pieces before the END to get that text."""


UtteranceEvent: TypeAlias = SpeechStartedEvent | SpeechStoppedEvent | TranscriptEvent | AsrFallbackEvent
AsrEvent: TypeAlias = OnsetEvent | OnsetLostEvent | UtteranceEvent


class AsrReply(msgspec.Struct, frozen=True, kw_only=True):
    """What one piece of audio brought."""

    events: list[AsrEvent] = []
    """In the order in which they happened."""
    stream_ms: int = 0
    languages: list[str] = []
    """Languages that the model understands; in the reply to START only."""
    vad_ms: float = 0.0
    encoder_ms: float = 0.0
    decoder_ms: float = 0.0
    """Wall time of the shared (batched) model calls that served this piece."""
    batch: int = 1
    """How many streams were served together."""


class TranscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Goes with a whole recording."""

    language: Language = "en"
    """A tag such as ``en`` or ``pt-BR``; ``auto``: a model that understands several finds it out. Empty:
    ``auto`` for such a model, for others their first language."""
    words: bool = True
    """Whether the reply carries word times and confidences."""
    phrases: list[str] = []
    """Words and phrases that are more likely than usual, such as names."""
    phrase_weight: float = 1.0
    """See :class:`AsrOptions`."""
    nbest: Nbest = 0
    traceparent: str = ""
    """Span of the caller (W3C Trace Context): those of the model are below it. Empty: there is none."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a recording that was read at once."""

    text: str
    start_ms: int
    end_ms: int
    confidence: float
    """0-1."""


class TranscribeReply(msgspec.Struct, frozen=True, kw_only=True):
    """What was said in a recording."""

    text: str
    confidence: float = 0.0
    """Mean of the words' confidences, 0-1."""
    words: list[Word] = []
    """Empty also for a model without word times; then there are ``segments``."""
    segments: list[Segment] = []
    """Segments of a model without word times."""
    alternatives: list[Alternative] = []
    """The best readings, if they were asked for; the first is the text itself. Where pauses part a
    recording, the score is the mean over its parts."""
    duration_ms: int = 0
    speech_ms: int | None = None
    """Length of what was read of it, the parts with speech. None: the model reads all, or does not say."""
    language: str = ""
    """The language that most of it was read in. Empty: there is no text, or the model understands several
    languages and does not say which it was."""
    encoder_ms: float = 0.0
    decoder_ms: float = 0.0
    """Wall time of the shared (batched) model calls that served this recording."""
