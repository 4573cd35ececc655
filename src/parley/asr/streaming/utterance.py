"""The utterance under way in a streaming recogniser."""

from __future__ import annotations

import copy
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.greedy import Tokens
from parley.asr.decoding.hypotheses import Hypothesis, Reading
from parley.asr.decoding.words import StablePrefix
from parley.asr.messages import TranscribeReply
from parley.asr.segmenter.segmentation import PER_MS
from parley.asr.segmenter.turn_audio import JoinedTurn, TurnUtterance
from parley.errors import ParleyError


@dataclass(frozen=True)
class EarlyTranscript:
    """A call to a model that hears an utterance again, made before it was certain to be over."""

    model: str
    call: Future[TranscribeReply]
    joined: JoinedTurn | None
    """What the model hears in the utterance's place."""
    end: int
    """Sample of the stream at which the speech had ended."""
    asked_at: float
    """Seconds of the transcriber's clock."""


class StreamingUtterance:
    """Where recognition stands. The numbers are here; arrays are in the slot.

    Its memory is bounded by the longest utterance: its tokens, and its audio if that is kept.
    """

    def __init__(
        self,
        number: int,
        start: int,
        *,
        onset: int | None = None,
        chunk: int,
        boosting: PhraseAutomaton | None = None,
        prompt: int = 0,
        keep_audio: bool = False,
    ) -> None:
        """Begin.

        Args:
            number: counts the stream's utterances from 1.
            start: sample of the stream at which it begins.
            onset: sample at which speech begins; None: at once.
            chunk: feature frames that the encoder takes at once.
            boosting: phrases that are expected; None: no phrase is.
            prompt: index of the language prompt; of no meaning to a model without prompts.
            keep_audio: whether another model may have to hear it again.
        """
        self.number = number
        self.start_ms = start // PER_MS
        self._start = start
        self._onset = start if onset is None else onset
        self.chunk = chunk
        self.boosting = boosting or PhraseAutomaton.nothing()
        self.prompt = prompt
        self.slot: int | None = None
        """Holds the arrays; None: there is none, and nothing is recognised."""
        self.written = 0
        """Samples so far."""
        self.ended = False
        """Whether no more audio comes."""
        self.frame = 0
        """Feature frames that the encoder has had."""
        self.early: EarlyTranscript | None = None
        """Another model's text of it, asked for when it seemed to be over."""
        self.failure: ParleyError | None = None
        """Why it is not recognised any further."""
        self.replaced = False
        """Whether it was reported."""
        self.reported = ""
        """The last reported partial text."""
        self._news = False
        self._encoded = 0
        self.stable = StablePrefix()
        """Follows the partial texts if they can change."""
        self._tokens: list[Tokens] = []
        self._open: list[Hypothesis] = []
        self._keep_audio = keep_audio
        self._audio: list[NDArray[np.int16]] = []

    def fork(self) -> StreamingUtterance:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin._tokens = list(self._tokens)  # noqa: SLF001 - same class
        twin._audio = list(self._audio)  # noqa: SLF001
        twin.stable = self.stable.fork()
        return twin

    def push(self, samples: NDArray[np.int16]) -> None:
        """Add audio: i16 ``[n]``."""
        self.written += len(samples)
        if self._keep_audio:
            self._audio.append(samples.copy())

    def advance(self, reading: Reading, encoded: int) -> None:
        """A chunk has been recognised.

        Args:
            reading: what it brought; frames within the chunk.
            encoded: the chunk's length in encoder frames.
        """
        self._news = self._news or bool(reading.nbest) or bool(len(reading.settled.ids))
        if len(reading.settled.ids):
            self._tokens.append(reading.settled.moved(self._encoded))
        self._open = [Hypothesis(one.tokens.moved(self._encoded), one.score) for one in reading.nbest]
        self._encoded += encoded
        self.frame += self.chunk

    @property
    def revised(self) -> bool:
        """Whether some of the tokens may still be taken back: so it is with beam search."""
        return bool(self._open)

    def take_news(self) -> bool:
        """Whether the text may have changed since this was asked last."""
        news, self._news = self._news, False
        return news

    def audio(self) -> NDArray[np.int16]:
        """All of it: i16 ``[n]``, if it was kept."""
        return np.concatenate([np.zeros(0, np.int16), *self._audio])

    def piece(self, end: int) -> TurnUtterance:
        """The utterance as part of a turn; ``end``: sample of the stream at which speech ends."""
        return TurnUtterance(self.number, self._start, self._onset, end, self.audio())

    def forget_early(self, *, unless_ended_ms: int | None = None) -> None:
        """Drop the early final text, unless the utterance ended there (milliseconds of the stream)."""
        if self.early is not None and self.early.end // PER_MS != unless_ended_ms:
            self.early.call.cancel()
            self.early = None

    def tokens(self) -> Tokens:
        """All tokens of the best reading so far; frames count from the beginning."""
        settled = self._settled()
        return Tokens.joined([settled, self._open[0].tokens]) if self._open else settled

    def readings(self) -> list[tuple[list[int], float]]:
        """All readings that are still possible, best first: token ids and score; none of greedy decoding."""
        settled = self._settled().ids.tolist()
        return [(settled + one.tokens.ids.tolist(), one.score) for one in self._open]

    def _settled(self) -> Tokens:
        if len(self._tokens) != 1:
            self._tokens = [Tokens.joined(self._tokens)]
        return self._tokens[0]
