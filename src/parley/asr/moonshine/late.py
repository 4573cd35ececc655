"""The final text of one utterance, which is on its way while the stream goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parley.asr.messages import STREAM_ENDED, AsrEvent, AsrFallbackEvent, TranscriptEvent
from parley.asr.moonshine.desk import Asked, Desk
from parley.asr.moonshine.reader import NO_TEXT, Text, confidence_of, text_of
from parley.asr.rails.spoken_turn import Joined, split_text
from parley.errors import ParleyError

MODEL = "moonshine"


class LateText:
    """Looks after the readings that it is made of.

    The error of one that fails is raised with the piece of audio that is then being heard, and the reading is
    made anew when that piece comes again. If it fails again it is given up: each later piece of its
    stream fails with that error.
    """

    def __init__(
        self, desk: Desk, number: int, parts: Sequence[Asked], joined: Joined | None, known: str
    ) -> None:
        """Wait for a text.

        Args:
            desk: reads again what has failed.
            number: of the utterance.
            parts: readings of its pieces, in order.
            joined: what was read in the place of its only piece.
            known: the last partial text.
        """
        self.number = number
        self.joined = joined
        self._desk = desk
        self._parts = list(parts)
        self._known = known
        self._cut_off = False
        self._made_anew: set[int] = set()
        self.said_anew: list[str] = []
        """What the utterances before it say now, if it was read with them and is there."""

    def look(
        self, said_before: Callable[[Joined], Sequence[str]]
    ) -> tuple[list[AsrEvent], list[Text]] | None:
        """The events and the readings they are made of; None: they are not there yet.

        Args:
            said_before: the texts so far of each utterance that comes before it in what is joined.

        Raises:
            ParleyError: the speech could not be read.
        """
        if self._cut_off:
            return [self._fallback, self._event([Text(self._known, 0.0)], said_before)], []
        texts: list[Text] = []
        for at, asked in enumerate(self._parts):
            part = self._ask_anew(at) if asked.dropped else asked
            if not part.done:
                return None
            try:
                texts.append(part.result() or NO_TEXT)
            except ParleyError:
                if at not in self._made_anew:
                    part.drop()
                raise
        return [self._event(texts, said_before)], texts

    def _ask_anew(self, at: int) -> Asked:
        failed = self._parts[at]
        self._parts[at] = self._desk.ask(failed.audio, failed.boosting, final=True, of=failed.of)
        self._made_anew.add(at)
        return self._parts[at]

    def end_stream(self) -> None:
        """Take the last partial text if no other is there yet: the stream has no later reply."""
        if not all(part.done and not part.dropped for part in self._parts):
            self.drop()
            self._cut_off = True

    def drop(self) -> None:
        """Nobody wants to know it any more."""
        for part in self._parts:
            part.drop()

    @property
    def _fallback(self) -> AsrFallbackEvent:
        return AsrFallbackEvent(utterance=self.number, from_model=MODEL, to_model=MODEL, reason=STREAM_ENDED)

    def _event(
        self, texts: Sequence[Text], said_before: Callable[[Joined], Sequence[str]]
    ) -> TranscriptEvent:
        text, confidence, first = text_of(texts), confidence_of(texts), 0
        if self.joined is not None and text and not self._cut_off:
            first = self.joined.first
            *self.said_anew, text = split_text(text, said_before(self.joined))
        return TranscriptEvent(
            utterance=self.number,
            text=text,
            is_final=True,
            confidence=confidence if text else 0.0,
            stable_words=len(text.split()),
            first=first,
            before=" ".join(filter(None, self.said_anew)),
        )
