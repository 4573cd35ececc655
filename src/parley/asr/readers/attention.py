"""Recognition by attention decoders: a stretch of audio in, its text out.

One stretch at a time is read, and its text is judged: of silence and noise, networks make texts too::

    audio ──► encoder ──► decoder, with a cache of keys and values ──► tokens ──► TextLimits ──► text

The words have times if the decoder's cross-attention is among its outputs (``cross_attentions.LAYER``).
"""

from __future__ import annotations

import logging
import re
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace as replace_field
from numpy.typing import NDArray

from parley.asr.decoding.alignment import Timing
from parley.asr.decoding.boosting import PhraseAutomaton, PhraseForest, share
from parley.asr.decoding.words import WORD_MARK, text_of
from parley.asr.reader import Reader, ReadOptions, RecognizedText, Stretch
from parley.asr.segmenter.segmentation import FULL_SCALE, PER_MS
from parley.errors import InferenceError, ModelLoadingError
from parley.languages import DETECT
from parley.protocol import Word
from parley.runtime.onnx import Stop, StoppedError

Past: TypeAlias = dict[str, NDArray[np.float32]]
"""What the decoder remembers: keys and values of its layers by the name of the input."""
_PAST, _PRESENT, _OWN = "past_key_values", "present", ".decoder."
_LOGITS = "logits"
ATTENTION = "cross_attentions"
"""Before the layer: the name of an output with its cross-attention, f32 ``[1, heads, tokens, T]``."""
_PER_S = 16_000
_REPEATS = {1: 8, 2: 5}
"""How often the last n tokens stand in a row in a text that is a loop, by n."""
_REPEATS_OF_MORE = 3
_LONGEST_PHRASE = 16
_LEAST_END = float(np.log(0.05))
"""Least log-probability of the end token at which the text of a loop is cut."""
_SHIFT = 50 * PER_MS
"""Silence before a stretch that is read again, because the decoder did not end its text: where the encoder's
frames are cut elsewhere, it rarely loops again."""
_SURE = 0.75
"""Confidence from which the second text is taken. Of noise, decoders make loops too, and in their place "You"
and the like with up to 0.7."""
_log = logging.getLogger(__name__)
_TWO_STOPS = re.compile(r"(?<!\.)\.\.(?!\.)")
"""That of an abbreviation and that of the sentence: "H.."."""


@dataclass(frozen=True)
class Vocabulary:
    """What the tokens stand for."""

    pieces: tuple[bytes, ...]
    """By id, with :data:`WORD_MARK` for a space. A piece may be a part of a character."""
    control: frozenset[int]
    """Ids of tokens that are no part of a text."""

    @property
    def spelled(self) -> tuple[str, ...]:
        """The pieces as text; those that are no text by themselves are empty."""
        return tuple(
            "" if number in self.control else _decoded(piece) or ""
            for number, piece in enumerate(self.pieces)
        )

    def text(self, ids: Iterable[int]) -> str:
        """What tokens say, with single spaces; bytes that are no character are left out."""
        raw = b"".join(self.pieces[token] for token in ids if token not in self.control)
        return " ".join(raw.decode(errors="ignore").replace(WORD_MARK, " ").split())


def _decoded(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True)
class EncodedAudio:
    """Encoded audio."""

    states: NDArray[np.float32]
    """f32 ``[1, T, D]``."""
    more: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further inputs of the decoder, the same in all of its steps."""


class DecoderStep(NamedTuple):
    """What the decoder made of one step."""

    logits: NDArray[np.float32]
    """Scores of the token after each that was fed, f32 ``[tokens, V]``."""
    past: Past
    """Keys and values for the next step."""
    attention: NDArray[np.float32]
    """Where in the audio the next token was looked for: f32 ``[heads, T]``; no heads: it is not known."""


class AttentionNetwork(ABC):
    """Encoder and decoder of a model, the latter as Optimum exports it (``decoder_model_merged``).

    Thread-safe. One recording at a time: in a batch the quantised layers share their scales, so that a text
    would depend on the audio beside it, and padding would make it worse.
    """

    def __init__(
        self, encoder: Any, decoder: Any, *, tokens: int, heads: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Use two sessions.

        Args:
            encoder: session of the encoder, whose first output is its states.
            decoder: session of the merged decoder.
            tokens: size of the vocabulary.
            heads: layers and heads whose cross-attention follows the words; outputs have it.

        Raises:
            ModelLoadingError: it is no such decoder, or has another vocabulary.
        """
        self._encoder = encoder
        self._states = encoder.get_outputs()[0].name
        self._decoder = decoder
        self._nothing = {
            tensor.name: np.zeros((0, tensor.shape[1], 1, tensor.shape[3]), np.float32)
            for tensor in decoder.get_inputs()
            if tensor.name.startswith(_PAST)
        }
        self._heads = [(f"{ATTENTION}.{layer}", head) for layer, head in heads]
        used = dict(self._heads)
        shapes = {
            tensor.name: tensor.shape
            for tensor in decoder.get_outputs()
            if tensor.name.startswith((_LOGITS, _PRESENT)) or tensor.name in used
        }
        self._outputs = list(shapes)
        after = {name.replace(_PRESENT, _PAST) for name in shapes if name.startswith(_PRESENT)}
        if not self._nothing or set(self._nothing) != after:
            raise ModelLoadingError("the decoder has other keys and values going in than coming out")
        if _LOGITS not in shapes or shapes[_LOGITS][-1] != tokens:
            width = shapes.get(_LOGITS, ["no"])[-1]
            raise ModelLoadingError(f"the decoder has {width} tokens; the vocabulary has {tokens}")

    @abstractmethod
    def encode(self, audio: NDArray[np.float32], stop: Stop) -> EncodedAudio:
        """Encode audio: f32 ``[n]`` within ±1, 16 kHz.

        Raises:
            InferenceError: the encoder failed, or its output is not finite.
            StoppedError: it was stopped.
        """

    def run_encoder(self, feed: Mapping[str, NDArray[Any]], stop: Stop) -> NDArray[np.float32]:
        """Run the encoder: f32 ``[1, T, D]``; errors are those of :meth:`encode`."""
        (states,) = stop.run(self._encoder, feed, [self._states])
        if not np.isfinite(states).all():
            raise InferenceError("the encoder's output is not finite")
        return np.asarray(states, np.float32)

    def step(self, encoded: EncodedAudio, tokens: Sequence[int], past: Past | None) -> DecoderStep:
        """Decode one step.

        Args:
            encoded: audio, encoded.
            tokens: those that follow what ``past`` has seen; several in the first step only.
            past: keys and values of the step before; None: this is the first.

        Raises:
            InferenceError: the decoder failed.
        """
        feed = {
            **(past or self._nothing),
            **encoded.more,
            "input_ids": np.array([tokens], np.int64),
            "encoder_hidden_states": encoded.states,
            "use_cache_branch": np.array([past is not None]),
        }
        try:
            outputs = dict(zip(self._outputs, self._decoder.run(self._outputs, feed), strict=True))
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the decoder failed: {error}") from error
        logits = outputs.pop(_LOGITS)[0]
        heads = [outputs[name][0, head, -1] for name, head in self._heads]
        attention = np.stack(heads) if heads else np.zeros((0, 1), np.float32)
        new = {
            name.replace(_PRESENT, _PAST): values
            for name, values in outputs.items()
            if name.startswith(_PRESENT)
        }
        # Only the first step computes what comes from the audio; later ones return nothing in its place.
        past = new if past is None else past | {name: new[name] for name in new if _OWN in name}
        return DecoderStep(logits, past, attention)


@dataclass(frozen=True)
class GreedyRules:
    """What a family's decoder may write."""

    end: int
    """The token after a text."""
    tokens_per_s: float
    """Faster than speech: more tokens are hallucinated."""
    fewest_tokens: int
    """That may be read however short the audio is."""
    most_tokens: int
    """That the decoder has positions for, those of the prompt not included."""
    never: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Ids of tokens that are not written."""
    never_first: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Ids of tokens that no text begins with."""

    def limit(self, samples: int) -> int:
        """How many tokens are read of so much audio (16 kHz)."""
        spoken = int(samples / _PER_S * self.tokens_per_s) + 2
        return min(max(spoken, self.fewest_tokens), self.most_tokens)


@dataclass(frozen=True)
class GeneratedTokens:
    """A text as it was read."""

    ids: list[int]
    """Without the tokens of the prompt and the end."""
    confidence: float
    """Mean probability (0-1) of each token where it was read, the end included if it was reached."""
    logprob: float
    """Mean of the logarithms of the same probabilities."""
    ended: bool
    """Whether the text came to its end by itself."""
    prompt_logits: NDArray[np.float32]
    """Scores after each token of the prompt, f32 ``[prompt, V]``."""
    logprobs: list[float]
    """Of each token."""
    attention: NDArray[np.float32]
    """Where in the audio each token, and the one after them, was looked for: f32 ``[ids or one more, heads,
    T]``; see :attr:`DecoderStep.attention`."""


@dataclass
class _Written:
    """The tokens so far, with the logarithms of their probabilities."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """For each token: the log-probability of the end token at its position."""
    ended: bool = False

    def cut(self, start: int) -> None:
        """Cut a loop from ``start`` on where the end token was likeliest, at ``start`` if it never was."""
        end = start + int(np.argmax(self.ends[start : len(self.ids)]))
        end = end if self.ends[end] >= _LEAST_END else start
        del self.ids[end:], self.logprobs[end:]


def decode(
    network: AttentionNetwork,
    encoded: EncodedAudio,
    prompt: Sequence[int],
    rules: GreedyRules,
    boosting: PhraseAutomaton,
    *,
    limit: int,
    stop: Stop,
) -> GeneratedTokens:
    """Read encoded audio.

    Raises:
        InferenceError: the decoder failed.
        StoppedError: it was stopped.
    """
    phrases = _Phrases(boosting, rules.end) if len(boosting.bonus) else None
    written = _Written()
    fed: Sequence[int] = prompt
    past: Past | None = None
    prompt_logits: NDArray[np.float32] | None = None
    attention: list[NDArray[np.float32]] = []
    for _ in range(limit):
        if stop.requested:
            raise StoppedError
        logits, past, where = network.step(encoded, fed, past)
        attention.append(where)
        prompt_logits = logits if prompt_logits is None else prompt_logits
        token = _choose(logits[-1], rules, written, phrases)
        if token == rules.end:
            written.ended = True
            break
        written.ids.append(token)
        fed = [token]
    assert prompt_logits is not None
    # A phrase that is said three times is followed by other words or by the end; only a decoder that is
    # caught in a loop repeats it until there is no more room.
    if not written.ended and (loop := repeated(written.ids)):
        written.cut(len(written.ids) - loop)
    return GeneratedTokens(
        written.ids,
        float(np.exp(written.logprobs).mean()),
        float(np.mean(written.logprobs)),
        written.ended,
        prompt_logits,
        written.logprobs[: len(written.ids)],
        np.stack(attention[: len(written.ids) + 1]),
    )


def _choose(
    logits: NDArray[np.float32], rules: GreedyRules, written: _Written, phrases: _Phrases | None
) -> int:
    """The next token; its probability is noted as the network's own belief, whatever was favoured."""
    logits = logits.copy()
    logits[rules.never] = -np.inf
    if not written.ids:
        logits[rules.never_first] = -np.inf
    chosen = int((logits if phrases is None else phrases.favour(logits)).argmax())
    if phrases is not None:
        phrases.advance(chosen)
    highest = logits.max()
    total = np.log(np.exp(logits - highest).sum())
    written.logprobs.append(float(logits[chosen] - highest - total))
    written.ends.append(float(logits[rules.end] - highest - total))
    return chosen


def repeated(ids: list[int]) -> int:
    """How many tokens at the end repeat the phrase before them, a last part of it included; 0: no loop."""
    for length in range(1, _LONGEST_PHRASE + 1):
        start = len(ids) - length
        while start > 0 and ids[start - 1] == ids[start - 1 + length]:
            start -= 1
        run = len(ids) - max(start, 0)
        if run >= length * _REPEATS.get(length, _REPEATS_OF_MORE):
            return run - length
    return 0


class _Phrases:
    """Where a text stands in the phrases that are favoured."""

    _ROW = np.zeros(1, np.int64)

    def __init__(self, automaton: PhraseAutomaton, end: int) -> None:
        self._automaton = automaton
        self._end = end
        self._forest: PhraseForest | None = None
        self._state = np.zeros(1, np.int32)

    def favour(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores with what each token earns, at the cost of the other tokens but not of the end."""
        earned = self._in(len(logits)).scores(self._ROW, self._state)
        scores = logits[None].copy()
        scores[:, self._end] = -np.inf
        bonus = share(scores, earned)
        # A phrase that was begun is given up where the text ends, as it is with any other token.
        bonus[:, self._end] = np.minimum(earned[:, self._end], 0.0)
        return np.asarray((logits[None] + bonus)[0], np.float32)

    def advance(self, token: int) -> None:
        """The next token."""
        assert self._forest is not None
        self._state = self._forest.advance(self._ROW, self._state, np.array([token], np.int64))

    def _in(self, tokens: int) -> PhraseForest:
        if self._forest is None:
            self._forest = PhraseForest([self._automaton], tokens)
        return self._forest


@dataclass(frozen=True)
class Prompt:
    """The tokens before a text, and what the decoder says of the audio after them."""

    start: int
    by_language: Mapping[str, int] = field(default_factory=dict)
    """The token of each language, after :attr:`start`; empty: the model is of English alone."""
    task: Sequence[int] = ()
    """After the language."""
    nothing: int | None = None
    """The token for "nothing is said", which is predicted after the first one; None: the model has none."""

    @property
    def languages(self) -> Sequence[str]:
        """What the model understands; :data:`DETECT` among them if it can tell them apart."""
        return (*self.by_language, DETECT) if self.by_language else ("en",)

    def tokens(self, language: str) -> Sequence[int]:
        """The prompt for a language."""
        own = [self.by_language[language]] if self.by_language else []
        return (self.start, *own, *self.task)

    def language(self, logits: NDArray[np.float32]) -> str:
        """The likeliest language, by the scores f32 ``[V]`` after :attr:`start`."""
        return max(self.by_language, key=lambda language: logits[self.by_language[language]])

    def silence(self, logits: NDArray[np.float32]) -> float:
        """Probability (0-1) that nothing is said, by the scores f32 ``[prompt, V]`` after a prompt."""
        if self.nothing is None:
            return 0.0
        first = logits[0] - logits[0].max()
        return float(np.exp(first[self.nothing]) / np.exp(first).sum())


@dataclass(frozen=True)
class ReadText:
    """What the networks made of a stretch, before it is judged."""

    text: str
    words: Sequence[Word]
    """With times from the beginning of the audio; none: they are not known."""
    language: str
    tokens: GeneratedTokens
    silence: float
    """Probability (0-1) that nothing is said."""
    encoder_ms: float
    decoder_ms: float
    """Wall time."""


@dataclass(frozen=True)
class TextLimits:
    """Which texts are taken for speech: of silence and noise, networks make texts too."""

    least_confidence: float = 0.0
    """Mean probability of the tokens."""
    least_logprob: float = -np.inf
    """Mean logarithm of the tokens' probabilities."""
    silence: float = 1.0
    """Above this probability that nothing is said, a text needs :attr:`sure_logprob`."""
    sure_logprob: float = -np.inf
    """See :attr:`silence`."""
    most_compression: float = np.inf
    """UTF-8 bytes of a text that did not end by itself, by those of its compressed form (zlib); repeated
    phrases compress well."""

    def problem(self, read: ReadText) -> str:
        """Why a text is not taken for speech; empty: it is."""
        tokens, raw = read.tokens, read.text.encode()
        if not any(map(str.isalnum, read.text)):
            return "no words"
        if tokens.confidence < self.least_confidence or tokens.logprob < self.least_logprob:
            return "unsure"
        if read.silence > self.silence and tokens.logprob < self.sure_logprob:
            return "silence"
        if not tokens.ended and len(raw) > self.most_compression * len(zlib.compress(raw)):
            return "repetitive"
        return ""


@dataclass(frozen=True)
class AttentionModel:
    """The networks of one model with what a family has fixed about them; thread-safe."""

    network: AttentionNetwork
    vocabulary: Vocabulary
    prompt: Prompt
    rules: GreedyRules
    shortest: int
    """Samples that the encoder needs at least."""
    longest: int
    """Samples that the encoder takes at most."""
    limits: TextLimits
    timing: Timing | None = None
    """None: the words have no times."""

    def read(self, audio: NDArray[np.float32], options: ReadOptions, stop: Stop) -> ReadText:
        """Read audio: f32 ``[n]`` within ±1, 16 kHz, :attr:`shortest` to :attr:`longest`.

        Raises:
            InferenceError: the networks failed.
            StoppedError: it was stopped.
        """
        began = time.perf_counter()
        encoded = self.network.encode(audio, stop)
        encoded_at = time.perf_counter()
        language = options.language
        if language == DETECT:
            language = self.prompt.language(self.network.step(encoded, [self.prompt.start], None).logits[-1])
        tokens = decode(
            self.network,
            encoded,
            self.prompt.tokens(language),
            self.rules,
            options.boosting,
            limit=self.rules.limit(len(audio)),
            stop=stop,
        )
        text = _TWO_STOPS.sub(".", self.vocabulary.text(tokens.ids))
        return ReadText(
            text,
            self._words(text, tokens, audio),
            language,
            tokens,
            self.prompt.silence(tokens.prompt_logits),
            round(1000 * (encoded_at - began), 3),
            round(1000 * (time.perf_counter() - encoded_at), 3),
        )

    def _words(self, text: str, tokens: GeneratedTokens, audio: NDArray[np.float32]) -> Sequence[Word]:
        if self.timing is None:
            return ()
        pieces = [self.vocabulary.pieces[token] for token in tokens.ids]
        words = self.timing.words(pieces, tokens.logprobs, tokens.attention, audio)
        words = [replace_field(word, text=_TWO_STOPS.sub(".", word.text)) for word in words]
        # A vocabulary may have pieces that are no words of their own.
        return words if text_of(words) == text else ()


class AttentionReader(Reader):
    """Reads with a model of attention decoders; ``least_confidence`` None: the model's own."""

    favours_names = True

    def __init__(self, model: AttentionModel, *, least_confidence: float | None = None) -> None:
        self.model = model
        self.languages = tuple(model.prompt.languages)
        self.longest_ms = model.longest // PER_MS
        self.spelled = model.vocabulary.spelled
        self._limits = model.limits
        if least_confidence is not None:
            self._limits = replace(self._limits, least_confidence=least_confidence)

    def read_together(self, stretches: Sequence[Stretch], stop: Stop) -> list[RecognizedText]:
        """See :class:`Reader`; it takes one stretch."""
        (stretch,) = stretches
        samples = stretch.audio.astype(np.float32) / FULL_SCALE
        samples = np.pad(samples, (0, max(self.model.shortest - len(samples), 0)))
        read = self.model.read(samples, stretch.options, stop)
        if not np.isfinite(read.tokens.confidence):
            raise InferenceError("the decoder's scores are not finite")
        problem, shifted_ms = self._limits.problem(read), 0
        encoder_ms, decoder_ms = read.encoder_ms, read.decoder_ms
        if not read.tokens.ended and len(samples) + _SHIFT <= self.model.longest:
            again = self.model.read(np.pad(samples, (_SHIFT, 0)), stretch.options, stop)
            encoder_ms, decoder_ms = encoder_ms + again.encoder_ms, decoder_ms + again.decoder_ms
            wanted = problem or again.tokens.ended
            if wanted and again.tokens.confidence >= _SURE and not self._limits.problem(again):
                read, problem, shifted_ms = again, "", _SHIFT // PER_MS
        if problem:
            _log.debug("%d ms have no text: %s", len(stretch.audio) // PER_MS, problem)
            return [RecognizedText("", 0.0, encoder_ms, decoder_ms)]
        confidence = round(read.tokens.confidence, 4)
        length_ms = len(stretch.audio) // PER_MS
        words = tuple(
            replace_field(
                word,
                start_ms=stretch.start_ms + min(max(word.start_ms - shifted_ms, 0), length_ms),
                end_ms=stretch.start_ms + min(max(word.end_ms - shifted_ms, 0), length_ms),
            )
            for word in read.words
        )
        return [RecognizedText(read.text, confidence, encoder_ms, decoder_ms, read.language, words)]
