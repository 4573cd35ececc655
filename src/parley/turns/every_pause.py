"""Turns without end-of-turn detection: every pause ends the user's turn."""

from __future__ import annotations

from dataclasses import dataclass

from parley.turns.settings import TurnSettings


@dataclass(frozen=True)
class EndTurn:
    """The turn is over; there is no decision to report, unless the client has ended it."""

    text: str


class EveryPause:
    """Stands in for :class:`parley.turns.endpointing.EndpointingPolicy`, whose methods it has.

    Times are seconds, as there.
    """

    settings: None = None
    text = ""
    """A turn has no words before it is over."""
    interrupted = False

    def __init__(self) -> None:
        self._texts_missing = 0

    @property
    def pending(self) -> bool:
        """Whether the text of a pause is missing."""
        return self._texts_missing > 0

    def restore(self, utterance: int, text: str, ended_at: float, at: float) -> list[EndTurn]:
        """End the turn that another session has begun."""
        del utterance, ended_at, at
        return [EndTurn(text)]

    def take(self) -> str:
        """The words so far: none."""
        return ""

    def on_onset(self) -> None:
        """Something that may be speech."""

    def on_onset_cancelled(self, at: float) -> list[EndTurn]:
        """The onset was no speech."""
        del at
        return []

    def on_speech_started(self, at: float) -> list[EndTurn]:
        """The user speaks."""
        del at
        return []

    def on_speech_stopped(self, ended_at: float, at: float) -> list[EndTurn]:
        """The user is silent; the utterance's text follows."""
        del ended_at, at
        self._texts_missing += 1
        return []

    def on_transcript(
        self, utterance: int, text: str, at: float, *, first: int = 0, before: str = ""
    ) -> list[EndTurn]:
        """End the turn with the text of its utterance."""
        del utterance, at, first, before
        self._texts_missing = max(0, self._texts_missing - 1)
        return [EndTurn(text.strip())]

    def on_score(self, pause: int, probability: float | None, at: float) -> list[EndTurn]:
        """Ignore a score that was asked for by other settings."""
        del pause, probability, at
        return []

    def on_read(self, text: str, probability: float | None, at: float) -> list[EndTurn]:
        """Ignore an answer that was asked for by other settings."""
        del text, probability, at
        return []

    def tick(self, at: float) -> list[EndTurn]:
        """Time has passed."""
        del at
        return []

    def end(self, at: float) -> list[EndTurn]:
        """The client says that the turn is over: it is once the text is there."""
        del at
        return [] if self._texts_missing else [EndTurn("")]

    def change(self, settings: TurnSettings, at: float) -> list[EndTurn]:
        """Go on: the turn under way ends with its text."""
        del settings, at
        return []
