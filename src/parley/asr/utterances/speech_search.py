"""Where speech is in whole recordings: the voice activity network reads them, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.segmenter.segmentation import (
    PER_MS,
    Detector,
    StreamSegmenter,
    UtteranceAudio,
    UtteranceBegan,
    UtteranceEnded,
    detect,
)
from parley.errors import ParleyError
from parley.protocol import VadOptions

LISTEN = 160_000
"""Samples that the voice activity network hears at once: 10 s."""
LEAD_MS = 96
"""Silence that is put before a recording, as a call has it before the first word: without it a word with
which the recording begins is lost. Three windows of the voice activity network."""


class SpeechSearch:
    """Where speech is in a recording, up to the processed position."""

    def __init__(self, audio: NDArray[np.int16], vad: VadOptions | None, preroll_ms: int) -> None:
        """Begin.

        Args:
            audio: i16 ``[n]``, 16 kHz mono.
            vad: which pauses part stretches; None: all of it is one stretch.
            preroll_ms: audio before the onset that belongs to a stretch too.
        """
        self._is_searched = vad is not None
        self.lead_ms = LEAD_MS if self._is_searched else 0
        """Silence before the recording."""
        self.audio = np.concatenate([np.zeros(self.lead_ms * PER_MS, np.int16), audio])
        """The recording with that silence."""
        self.stretches: list[tuple[int, int]] = []
        """Where speech begins and ends: samples of :attr:`audio`."""
        self._spoken = (0, 0)
        self.track: StreamSegmenter | None = None
        """State of the VAD network; None: all audio is processed."""
        if vad is None:
            self.stretches.append((0, len(self.audio)))
        else:
            self.track = StreamSegmenter(
                vad, preroll_ms=preroll_ms, max_utterance_ms=len(self.audio) // PER_MS + 1
            )

    @property
    def speech_ms(self) -> int | None:
        """Length of the stretches within the recording (milliseconds); None: nothing is searched."""
        if not self._is_searched:
            return None
        lead = self.lead_ms * PER_MS
        return sum(end - max(start, lead) for start, end in self.stretches if end > lead) // PER_MS

    def listen(self) -> NDArray[np.float32]:
        """Give the next piece to the voice activity network: its windows, f32 ``[W, 512]``."""
        assert self.track is not None
        begin = self.track.received
        piece = self.audio[begin : begin + LISTEN]
        return self.track.accept(piece, flush=begin + len(piece) == len(self.audio))

    def detected(self, probabilities: NDArray[np.float32]) -> None:
        """Take the probabilities of what :meth:`listen` gave."""
        assert self.track is not None
        for event in self.track.detected(probabilities):
            if isinstance(event, UtteranceBegan):
                self._spoken = (event.start, event.start)
            elif isinstance(event, UtteranceAudio):
                self._spoken = (self._spoken[0], self._spoken[1] + len(event.samples))
            elif isinstance(event, UtteranceEnded):
                self.stretches.append(self._spoken)
        if self.track.received == len(self.audio):
            self.track = None


class Searched(Protocol):
    """A recording that is searched for speech."""

    search: SpeechSearch
    error: ParleyError | None


def search_together(recordings: Sequence[Searched], detector: Detector) -> None:
    """Give the next piece of each recording to the voice activity network: one call for all of them.

    Those that are searched to their end are left out. A failed call sets ``error`` of the others.
    """
    hearing = [recording for recording in recordings if recording.search.track is not None]
    if not hearing:
        return
    tracks = [recording.search.track for recording in hearing if recording.search.track is not None]
    windows = [recording.search.listen() for recording in hearing]
    try:
        probabilities = detect(tracks, windows, detector)
    except ParleyError as error:
        for recording in hearing:
            recording.error = error
        return
    for recording, own in zip(hearing, probabilities, strict=True):
        recording.search.detected(own)
