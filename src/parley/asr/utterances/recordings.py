"""Whole recordings to texts: read piece by piece, in turn with all others that are under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.words import combine_alternatives
from parley.asr.messages import Segment, TranscribeReply, TranscribeRequest
from parley.asr.reader import (
    Reader,
    RecognizedText,
    Stretch,
    combine_confidences,
    combine_texts,
    combine_words,
    to_parley_error,
)
from parley.asr.segmenter.segmentation import PER_MS, Detector
from parley.asr.utterances.speech_search import SpeechSearch, search_together
from parley.asr.utterances.utterance import Window, pieces
from parley.errors import ParleyError
from parley.protocol import VadOptions


@dataclass(frozen=True)
class SegmentRecordingLimits:
    """How a recording is cut into what is read at once."""

    vad: VadOptions | None = field(default_factory=VadOptions)
    """Which pauses part stretches of speech; None: the whole recording is one stretch."""
    window: Window = field(default_factory=Window)
    preroll_ms: int = 320
    """Audio before the onset that belongs to a stretch too."""
    join_ms: int = 1_000
    """Speech on both sides of a shorter pause is read at once, as each side helps the other; 0: never."""


@dataclass
class Piece:
    """What is read of a recording at once. Times are samples of what is searched."""

    start: int
    end: int
    text: RecognizedText | None = None


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

        Raises:
            InvalidMessageError: the phrases cannot be used.
            UnsupportedLanguageError: the model does not understand the language.
        """
        self.reading = reader.options(request.language, request.phrases, request.phrase_weight)
        self._request = request
        self.search = SpeechSearch(audio, limits.vad, limits.preroll_ms)
        self.samples = len(audio)
        self.error: ParleyError | None = None
        self._limits = limits
        self._pieces: list[Piece] | None = None

    @property
    def done(self) -> bool:
        """Whether all of it is read."""
        return self._pieces is not None and all(piece.text is not None for piece in self._pieces)

    def unread(self) -> list[Piece]:
        """The pieces that are still to be read, in order; none as long as the speech is not all found."""
        if self.search.track is not None:
            return []
        if self._pieces is None:
            self._pieces = self._cut()
        return [piece for piece in self._pieces if piece.text is None]

    def stretch(self, piece: Piece) -> Stretch:
        """The audio of a piece."""
        return Stretch(self.search.audio[piece.start : piece.end], self.reading, piece.start // PER_MS)

    def reply(self) -> TranscribeReply:
        """The transcript of a recording that is :attr:`done`."""
        read = [(piece, piece.text) for piece in self._pieces or () if piece.text is not None]
        texts = [text for _, text in read]
        words = [
            msgspec.structs.replace(
                word, start_ms=self._in_recording(word.start_ms), end_ms=self._in_recording(word.end_ms)
            )
            for word in combine_words(texts)
        ]
        segments = [
            Segment(
                text=text.text,
                start_ms=self._in_recording(piece.start // PER_MS),
                end_ms=self._in_recording(piece.end // PER_MS),
                confidence=text.confidence,
            )
            for piece, text in read
            if text.text
        ]
        nbest = self._request.nbest
        return TranscribeReply(
            text=combine_texts(texts),
            confidence=combine_confidences(texts),
            words=words if self._request.words else [],
            segments=[] if words else segments,
            alternatives=combine_alternatives([text.alternatives for text in texts], nbest) if nbest else [],
            duration_ms=self.samples // PER_MS,
            speech_ms=self.search.speech_ms,
            language=_main_language(texts),
            encoder_ms=round(sum(text.encoder_ms for text in texts), 3),
            decoder_ms=round(sum(text.decoder_ms for text in texts), 3),
        )

    def _cut(self) -> list[Piece]:
        """What is read at once: stretches with short pauses between them, and parts of long ones."""
        window, join = self._limits.window, self._limits.join_ms * PER_MS
        joined: list[tuple[int, int]] = []
        for start, end in self.search.stretches:
            begin, before = joined[-1] if joined else (start, start)
            # By their pre-roll stretches may overlap.
            if joined and join and start - before <= join and end - begin <= window.longest_ms * PER_MS:
                joined[-1] = (begin, end)
            else:
                joined.append((start, end))
        return [
            Piece(start + first, start + last)
            for start, end in joined
            for first, last in pieces(self.search.audio[start:end], window)
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
    """The readings of all recordings that are under way."""

    def __init__(self, reader: Reader, detector: Detector) -> None:
        """Use the networks; ``detector`` is used by this object only."""
        self._reader = reader
        self._detector = detector

    def run(self, recordings: Sequence[SegmentRecording]) -> None:
        """Hear 10 s more of each recording, or read its next piece, with later ones where there is room."""
        search_together(recordings, self._detector)
        due: list[tuple[SegmentRecording, Piece]] = []
        later: list[tuple[SegmentRecording, Piece]] = []
        for recording in recordings:
            if recording.error is None:
                unread = [(recording, piece) for piece in recording.unread()]
                due += unread[:1]
                later += unread[1:]
        while due:
            waiting = [*due, *later]
            places = self._reader.run_limits.together([piece.end - piece.start for _, piece in waiting])
            together = [waiting[place] for place in places]
            results = self._reader.read_all([recording.stretch(piece) for recording, piece in together])
            for (recording, piece), result in zip(together, results, strict=True):
                if isinstance(result, Exception):
                    recording.error = to_parley_error(result)
                else:
                    piece.text = result
            due = [pair for pair in due if pair[1].text is None and pair[0].error is None]
            later = [pair for pair in later if pair[1].text is None and pair[0].error is None]
