"""Segments of speech to texts by an attention decoder: one at a time, and judged whether they are speech."""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.vocabulary import Vocabulary
from parley.asr.reader import Reader, ReadOptions, RecognizedText, Stretch
from parley.asr.readers.attention.greedy import GeneratedTokens, GreedyRules, decode
from parley.asr.readers.attention.network import AttentionNetwork
from parley.asr.segmenter.segmentation import FULL_SCALE, PER_MS
from parley.errors import InferenceError
from parley.languages import DETECT
from parley.runtime.onnx import Stop

_SHIFT = 50 * PER_MS
"""Silence before a stretch that is read again, because the decoder did not end its text: where the encoder's
frames are cut elsewhere, it rarely loops again."""
_SURE = 0.75
"""Confidence from which the second text is taken. Of noise, decoders make loops too, and in their place "You"
and the like with up to 0.7."""
_log = logging.getLogger(__name__)
_TWO_STOPS = re.compile(r"(?<!\.)\.\.(?!\.)")
"""That of an abbreviation and that of the sentence: "H.."."""


class Prompt(Protocol):
    """The tokens before a text, and what the decoder says of the audio after them."""

    @property
    def languages(self) -> Sequence[str]:
        """What the model understands; :data:`DETECT` among them if it can tell them apart."""
        ...

    @property
    def detection(self) -> Sequence[int]:
        """The prompt after which the model says which language it hears."""
        ...

    def tokens(self, language: str) -> Sequence[int]:
        """The prompt for a language."""
        ...

    def language(self, logits: NDArray[np.float32]) -> str:
        """The likeliest language, by the scores f32 ``[V]`` after :attr:`detection`."""
        ...

    def silence(self, logits: NDArray[np.float32]) -> float:
        """Probability (0-1) that nothing is said, by the scores f32 ``[prompt, V]`` after a prompt."""
        ...


@dataclass(frozen=True)
class FixedPrompt:
    """The prompt of a model of one language."""

    start: int
    languages: Sequence[str] = ("en",)

    @property
    def detection(self) -> Sequence[int]:
        """See :class:`Prompt`."""
        return (self.start,)

    def tokens(self, language: str) -> Sequence[int]:  # noqa: ARG002 - there is one
        """See :class:`Prompt`."""
        return (self.start,)

    def language(self, logits: NDArray[np.float32]) -> str:  # noqa: ARG002 - there is one
        """See :class:`Prompt`."""
        return self.languages[0]

    def silence(self, logits: NDArray[np.float32]) -> float:  # noqa: ARG002 - the model does not say
        """See :class:`Prompt`."""
        return 0.0


@dataclass(frozen=True)
class ReadText:
    """What the networks made of a stretch, before it is judged."""

    text: str
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
            logits, _ = self.network.step(encoded, self.prompt.detection, None)
            language = self.prompt.language(logits[-1])
        tokens = decode(
            self.network,
            encoded,
            self.prompt.tokens(language),
            self.rules,
            options.boosting,
            limit=self.rules.limit(len(audio)),
            stop=stop,
        )
        return ReadText(
            _TWO_STOPS.sub(".", self.vocabulary.text(tokens.ids)),
            language,
            tokens,
            self.prompt.silence(tokens.prompt_logits),
            round(1000 * (encoded_at - began), 3),
            round(1000 * (time.perf_counter() - encoded_at), 3),
        )


class AttentionReader(Reader):
    """Reads with a model of attention decoders.

    Args:
        model: reads.
        least_confidence: of a text, 0-1, below which there is none; None: the model's own.
    """

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
        problem = self._limits.problem(read)
        encoder_ms, decoder_ms = read.encoder_ms, read.decoder_ms
        if not read.tokens.ended and len(samples) + _SHIFT <= self.model.longest:
            again = self.model.read(np.pad(samples, (_SHIFT, 0)), stretch.options, stop)
            encoder_ms, decoder_ms = encoder_ms + again.encoder_ms, decoder_ms + again.decoder_ms
            wanted = problem or again.tokens.ended
            if wanted and again.tokens.confidence >= _SURE and not self._limits.problem(again):
                read, problem = again, ""
        if problem:
            _log.debug("%d ms have no text: %s", len(stretch.audio) // PER_MS, problem)
            return [RecognizedText("", 0.0, encoder_ms, decoder_ms)]
        confidence = round(read.tokens.confidence, 4)
        return [RecognizedText(read.text, confidence, encoder_ms, decoder_ms, read.language)]
