"""Whole recordings to texts: read piece by piece, in turn with all others that are under way."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.files.recording import SpeechSearch, search_together
from parley.asr.messages import Segment, TranscribeReply, TranscribeRequest
from parley.asr.pipeline.segmentation import PER_MS, Detector
from parley.asr.segments.reader import (
    Reader,
    RecognizedText,
    Stretch,
    combine_confidences,
    combine_texts,
    combine_words,
    to_parley_error,
)
from parley.asr.segments.utterance import Window, pieces
from parley.errors import ParleyError
from parley.protocol import VadOptions

_PAUSE_MS = 1_000
"""Speech on both sides of a shorter pause is read at once, if there is room: each side helps the other."""


@dataclass(frozen=True)
class SegmentRecordingLimits:
    """How a recording is cut into what is read at once."""

    vad: VadOptions | None = field(default_factory=VadOptions)
    """Which pauses part stretches of speech; None: the whole recording is one stretch."""
    window: Window = field(default_factory=Window)
    preroll_ms: int = 320
    """Audio before the onset that belongs to a stretch too."""


class SegmentRecording:
    """A recording, and how far it has come."""

    def __init__(
        self,
        audio: NDArray[np.int16],
        request: TranscribeRequest,
        reader: Reader,
        limits: SegmentRecordingLimits,
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
        self._with_words = request.words
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

    def next_stretch(self) -> Stretch | None:
        """The next piece to read; None: the speech is not all found, or all is read."""
        if self.search.track is not None:
            return None
        if self._pieces is None:
            self._pieces = deque(self._cut())
        if not self._pieces:
            return None
        start, end = self._pieces[0]
        return Stretch(self.search.audio[start:end], self.reading, start // PER_MS)

    def add(self, text: RecognizedText) -> None:
        """Take the text of :meth:`next_stretch`."""
        assert self._pieces
        start, end = self._pieces.popleft()
        self._read.append((start, end, text))

    def reply(self) -> TranscribeReply:
        """The transcript of a recording that is :attr:`done`."""
        texts = [text for _, _, text in self._read]
        words = [
            msgspec.structs.replace(
                word, start_ms=self._in_recording(word.start_ms), end_ms=self._in_recording(word.end_ms)
            )
            for word in combine_words(texts)
        ]
        segments = [
            Segment(
                text=text.text,
                start_ms=self._in_recording(start // PER_MS),
                end_ms=self._in_recording(end // PER_MS),
                confidence=text.confidence,
            )
            for start, end, text in self._read
            if text.text
        ]
        return TranscribeReply(
            text=combine_texts(texts),
            confidence=combine_confidences(texts),
            words=words if self._with_words else [],
            segments=[] if words else segments,
            duration_ms=self.samples // PER_MS,
            speech_ms=self.search.speech_ms,
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

    def _in_recording(self, searched_ms: int) -> int:
        """A time without the silence that was put before the recording."""
        return min(max(searched_ms - self.search.lead_ms, 0), self.samples // PER_MS)


def _main_language(texts: Sequence[RecognizedText]) -> str:
    lengths: Counter[str] = Counter()
    for text in texts:
        lengths[text.language] += len(text.text)
    return max(lengths, key=lambda language: lengths[language], default="")


class SegmentRounds:
    """:class:`parley.asr.files.service.TranscriptionSteps` with the networks in this process."""

    def __init__(self, reader: Reader, detector: Detector) -> None:
        """Use the networks; ``detector`` is used by this object only."""
        self._reader = reader
        self._detector = detector

    def run(self, recordings: Sequence[SegmentRecording]) -> None:
        """Hear 10 s more of each recording, or read its next piece."""
        search_together(recordings, self._detector)
        due = [
            (recording, stretch)
            for recording in recordings
            if recording.error is None and (stretch := recording.next_stretch()) is not None
        ]
        while due:
            places = self._reader.run_limits.together([len(stretch.audio) for _, stretch in due])
            together = [due.pop(place) for place in reversed(places)]
            results = self._reader.read_all([stretch for _, stretch in together])
            for (recording, _), result in zip(together, results, strict=True):
                if isinstance(result, Exception):
                    recording.error = to_parley_error(result)
                else:
                    recording.add(result)
