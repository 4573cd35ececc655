"""Whole recordings to texts: read piece by piece, in turn with all others that are under way."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.asr.attention.utterance import Window, pieces
from parley.asr.attention.worker import Reader, RecognizedText, confidence_of, text_of
from parley.asr.files.recording import SpeechSearch, search_together
from parley.asr.messages import Segment, TranscribeReply, TranscribeRequest
from parley.asr.pipeline.segmentation import PER_MS, Detector
from parley.errors import ParleyError
from parley.protocol import VadOptions

_PAUSE_MS = 1_000
"""Speech on both sides of a shorter pause is read at once, if there is room: each side helps the other."""


@dataclass(frozen=True)
class AttentionRecordingLimits:
    """How a recording is cut into what is read at once."""

    vad: VadOptions | None = field(default_factory=VadOptions)
    """Which pauses part stretches of speech; None: the whole recording is one stretch."""
    window: Window = field(default_factory=Window)
    preroll_ms: int = 320
    """Audio before the onset that belongs to a stretch too."""


class AttentionRecording:
    """A recording, and how far it has come."""

    def __init__(
        self,
        audio: NDArray[np.int16],
        request: TranscribeRequest,
        reader: Reader,
        limits: AttentionRecordingLimits,
    ) -> None:
        """Begin.

        Args:
            audio: i16 ``[n]``, 16 kHz mono.
            request: of the caller.
            reader: decodes utterances.
            limits: the server's.

        Raises:
            InvalidMessageError: the phrases cannot be used.
            UnsupportedLanguageError: the model does not understand the language.
        """
        self.reading = reader.options(request.language, request.phrases, request.phrase_weight)
        self.search = SpeechSearch(audio, limits.vad, limits.preroll_ms)
        self.samples = len(audio)
        self.error: ParleyError | None = None
        self._window = limits.window
        self._pieces: deque[tuple[int, int]] | None = None
        self._read: list[tuple[int, int, RecognizedText]] = []

    @property
    def done(self) -> bool:
        """Whether all of it is read."""
        return self._pieces is not None and not self._pieces

    def read_next(self, reader: Reader) -> None:
        """Read the next piece, if the speech is found and there is one.

        Raises:
            InferenceError: it could not be read.
        """
        if self.search.track is not None:
            return
        if self._pieces is None:
            self._pieces = deque(self._cut())
        if self._pieces:
            start, end = self._pieces[0]
            self._read.append((start, end, reader.read(self.search.audio[start:end], self.reading)))
            self._pieces.popleft()

    def reply(self) -> TranscribeReply:
        """The transcript of a recording that is :attr:`done`."""
        texts = [text for _, _, text in self._read]
        return TranscribeReply(
            text=text_of(texts),
            confidence=confidence_of(texts),
            segments=[
                Segment(
                    text=text.text,
                    start_ms=self._ms(start),
                    end_ms=self._ms(end),
                    confidence=text.confidence,
                )
                for start, end, text in self._read
                if text.text
            ],
            duration_ms=self.samples // PER_MS,
            language=_main_language(texts),
            encoder_ms=round(sum(text.encoder_ms for text in texts), 3),
            decoder_ms=round(sum(text.decoder_ms for text in texts), 3),
        )

    def _cut(self) -> list[tuple[int, int]]:
        """What is read at once: stretches with short pauses between them, and parts of long ones."""
        joined: list[tuple[int, int]] = []
        for start, end in self.search.stretches:
            if (
                joined
                and start - joined[-1][1] <= _PAUSE_MS * PER_MS
                and end - joined[-1][0] <= self._window.longest_ms * PER_MS
            ):
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        return [
            (start + first, start + last)
            for start, end in joined
            for first, last in pieces(self.search.audio[start:end], self._window)
        ]

    def _ms(self, sample: int) -> int:
        return min(max(sample // PER_MS - self.search.lead_ms, 0), self.samples // PER_MS)


def _main_language(texts: Sequence[RecognizedText]) -> str:
    lengths: Counter[str] = Counter()
    for text in texts:
        lengths[text.language] += len(text.text)
    return max(lengths, key=lambda language: lengths[language], default="")


class AttentionRounds:
    """:class:`parley.asr.files.service.TranscriptionSteps` with the networks in this process."""

    def __init__(self, reader: Reader, detector: Detector) -> None:
        """Use the networks; ``detector`` is used by this object only."""
        self._reader = reader
        self._detector = detector

    def run(self, recordings: Sequence[AttentionRecording]) -> None:
        """Hear 10 s more of each recording, or read its next piece."""
        search_together(recordings, self._detector)
        for recording in recordings:
            if recording.error is None:
                try:
                    recording.read_next(self._reader)
                except ParleyError as error:
                    recording.error = error
