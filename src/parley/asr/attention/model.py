"""A model of any family of attention decoders: what is common to them, from audio to a text."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.attention.greedy import GeneratedTokens, GreedyRules, decode
from parley.asr.attention.network import AttentionNetwork
from parley.asr.decoding.vocabulary import Vocabulary
from parley.asr.segments.reader import ReadOptions
from parley.languages import DETECT
from parley.runtime.onnx import Stop

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
