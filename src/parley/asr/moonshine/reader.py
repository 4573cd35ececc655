"""Audio to text: the networks, their vocabulary, and what is taken for speech."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton, compile_phrases
from parley.asr.moonshine.decoding import read
from parley.asr.moonshine.networks import (
    DECODER,
    ENCODER,
    SHORTEST,
    TOKENIZER,
    Network,
    OnnxNetwork,
    Vocabulary,
    read_vocabulary,
)
from parley.asr.pipeline.segmentation import FULL_SCALE
from parley.errors import InferenceError

LEAST_CONFIDENCE = 0.45
"""Of what is believed to be speech: of silence and noise the networks make "You" and the like."""


@dataclass(frozen=True)
class RecognizedText:
    """What was said in a stretch of audio; nothing if ``text`` is empty."""

    text: str
    confidence: float
    """0-1; 0 where there is no text."""
    encoder_ms: float = 0.0
    decoder_ms: float = 0.0
    """What it took to read."""


NO_TEXT = RecognizedText("", 0.0)


def text_of(pieces: Iterable[RecognizedText]) -> str:
    """The texts of pieces that follow one another."""
    return " ".join(piece.text for piece in pieces if piece.text)


def confidence_of(pieces: Sequence[RecognizedText]) -> float:
    """Their confidence, that of each counted as often as it has words; 0 where there are none."""
    words = [len(piece.text.split()) for piece in pieces]
    total = sum(count * piece.confidence for count, piece in zip(words, pieces, strict=True))
    return round(total / sum(words), 4) if sum(words) else 0.0


class Reader:
    """Reads one stretch at a time; any thread may use it."""

    def __init__(
        self, network: Network, vocabulary: Vocabulary, *, least_confidence: float = LEAST_CONFIDENCE
    ) -> None:
        """Read with these networks.

        Args:
            network: reads.
            vocabulary: its tokens.
            least_confidence: below it there is no text.
        """
        self._network = network
        self._vocabulary = vocabulary
        self._spelled = vocabulary.spelled
        self._least_confidence = least_confidence

    @classmethod
    def load(
        cls,
        folder: Path,
        open_network: Callable[[Path], Any],
        *,
        least_confidence: float = LEAST_CONFIDENCE,
    ) -> Self:
        """Load the files of :mod:`parley.asr.moonshine.networks`.

        Args:
            folder: has them.
            open_network: makes a session of a file.
            least_confidence: see the class.

        Raises:
            ModelLoadingError: they cannot be loaded, or do not go together.
        """
        vocabulary = read_vocabulary(folder / TOKENIZER)
        network = OnnxNetwork(
            open_network(folder / ENCODER),
            open_network(folder / DECODER),
            tokens=len(vocabulary.pieces),
        )
        return cls(network, vocabulary, least_confidence=least_confidence)

    def warm_up(self) -> None:
        """Read silence once, so that no caller waits for what only the first run does.

        Raises:
            InferenceError: the networks cannot run at all.
        """
        self.read(np.zeros(16_000, np.int16), PhraseAutomaton.nothing())

    def phrases(self, phrases: list[str], weight: float) -> PhraseAutomaton:
        """Phrases that are to be favoured.

        Raises:
            InvalidMessageError: see :func:`parley.asr.decoding.boosting.compile_phrases`.
        """
        return compile_phrases(phrases, weight, self._spelled, cased=True)

    def read(
        self,
        audio: NDArray[np.int16],
        boosting: PhraseAutomaton,
        unwanted: Callable[[], bool] = lambda: False,
    ) -> RecognizedText:
        """Read a stretch of at most some seconds: i16 ``[n]``, 16 kHz mono.

        Args:
            audio: the stretch.
            boosting: phrases that are favoured.
            unwanted: asked again and again whether to go on.

        Raises:
            InferenceError: the networks failed.
            Abandoned: it was unwanted.
        """
        samples = audio.astype(np.float32) / FULL_SCALE
        samples = np.pad(samples, (0, max(SHORTEST - len(samples), 0)))
        tokens = read(self._network, samples, boosting, unwanted)
        if not np.isfinite(tokens.confidence):
            raise InferenceError("the decoder's scores are not finite")
        text = self._vocabulary.text(tokens.ids)
        if not any(map(str.isalnum, text)) or tokens.confidence < self._least_confidence:
            return RecognizedText("", 0.0, tokens.encoder_ms, tokens.decoder_ms)
        return RecognizedText(text, round(tokens.confidence, 4), tokens.encoder_ms, tokens.decoder_ms)
