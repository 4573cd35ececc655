"""One stream of a streaming recogniser: its speech, and what is still to be told of it."""

from __future__ import annotations

import copy

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.messages import AsrEvent, AsrOptions, TranscriptEvent
from parley.asr.rails.segmentation import SpeechTrack
from parley.asr.rails.spoken_turn import SpokenTurn
from parley.asr.rails.untold import take_ready
from parley.asr.streaming.finals import FinalText
from parley.asr.streaming.utterance import StreamingUtterance


class StreamingStream:
    """What is remembered of a stream between two steps.

    Beside its ``track`` and the utterance that is being spoken it holds what waits behind a final
    text that another model has not yet written: at most what happens until that model's deadline. The
    turn's audio is bounded by ``options.join_ms``.
    """

    def __init__(
        self, track: SpeechTrack, options: AsrOptions, *, chunk: int, boosting: PhraseAutomaton
    ) -> None:
        """Start silent.

        Args:
            track: cuts the audio into utterances.
            options: the client's wishes.
            chunk: feature frames that the encoder takes at once.
            boosting: phrases that are expected.
        """
        self.track = track
        self.options = options
        self.chunk = chunk
        self.boosting = boosting
        self.utterance: StreamingUtterance | None = None
        self.turn = SpokenTurn(options.join_ms)
        """What the next utterance is read with."""
        self.untold: list[AsrEvent | FinalText] = []

    def fork(self) -> StreamingStream:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.track = self.track.fork()
        twin.utterance = self.utterance.fork() if self.utterance else None
        twin.untold = list(self.untold)
        return twin

    @property
    def awaited(self) -> list[FinalText]:
        """Final texts that are on their way."""
        return [item for item in self.untold if isinstance(item, FinalText)]

    def tell(self) -> list[AsrEvent]:
        """What can be told now: everything up to the first final text that is not there yet."""
        return take_ready(self.untold, self._look)

    def _look(self, text: FinalText) -> list[AsrEvent] | None:
        events = text.look()
        for event in events or ():
            if isinstance(event, TranscriptEvent) and not event.text:
                self.turn = self.turn.without(event.utterance)
        return events
