"""One stream of audio: its speech, and what is still to be told of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.messages import AsrEvent, AsrOptions, TranscriptEvent
from parley.asr.moonshine.late import LateText
from parley.asr.moonshine.reader import Text
from parley.asr.moonshine.utterance import Utterance
from parley.asr.rails.segmentation import SpeechTrack
from parley.asr.rails.spoken_turn import SpokenTurn
from parley.asr.rails.untold import take_ready


class MoonshineStream:
    """What is remembered of a stream between two steps.

    Its memory is bounded by the window: of the utterance that is being spoken, of the turn so far, and of
    each final text that is waited for, which the desk bounds.
    """

    def __init__(
        self, track: SpeechTrack, options: AsrOptions, boosting: PhraseAutomaton, *, longest_ms: int
    ) -> None:
        """Start silent.

        Args:
            track: cuts the audio into utterances.
            options: the client's wishes.
            boosting: phrases that are favoured.
            longest_ms: what is read at once.
        """
        self.identity = object()
        """The same for all copies, and for no other stream."""
        self.track = track
        self.options = options
        self.boosting = boosting
        self.utterance: Utterance | None = None
        self.turn = SpokenTurn(min(options.join_ms, longest_ms))
        """What the next utterance is read with."""
        self.untold: list[AsrEvent | LateText] = []
        self.read: list[Text] = []
        """What was read for the next reply."""
        self._said: dict[int, str] = {}  # the turn's texts by utterance

    def fork(self) -> MoonshineStream:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.track = self.track.fork()
        twin.utterance = self.utterance.fork() if self.utterance else None
        twin.untold = list(self.untold)
        twin.read = []
        twin._said = dict(self._said)  # noqa: SLF001 - same class
        return twin

    @property
    def awaited(self) -> list[LateText]:
        """Final texts that are on their way."""
        return [item for item in self.untold if isinstance(item, LateText)]

    def turn_over(self) -> None:
        """What follows is not joined to what was said before."""
        self.turn = self.turn.over()
        if self.utterance is not None:
            self.utterance.forget_early()

    def tell(self) -> list[AsrEvent]:
        """What can be told now.

        Raises:
            ParleyError: a final text could not be read.
        """
        return take_ready(self.untold, self._look)

    def _look(self, late: LateText) -> list[AsrEvent] | None:
        found = late.look(lambda joined: [self._said.get(at, "") for at in range(joined.first, late.number)])
        if found is None:
            return None
        events, read = found
        self.read += read
        for event in events:
            if isinstance(event, TranscriptEvent):
                self._note(event, late.said_anew)
        return events

    def _note(self, event: TranscriptEvent, said_anew: Sequence[str]) -> None:
        if not event.text:
            self.turn = self.turn.without(event.utterance)
        self._said |= dict(enumerate([*said_anew, event.text], event.utterance - len(said_anew)))
        oldest = self.turn.pieces[0].utterance if self.turn.pieces else event.utterance
        self._said = {at: text for at, text in self._said.items() if at >= oldest}
