"""The features of the utterance that is being spoken."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from parley.asr.features.frontend import LogMel, LogMelStream
from parley.asr.rails.spoken_turn import Piece

_PER_MS = 16


class UtteranceFeatures:
    """Log-mel frames from the last cut (at first: the beginning) of an utterance until now.

    Each piece of audio is seen by the front end once; only the normalisation, which depends on all
    frames, is done anew each time the frames are asked for.
    """

    def __init__(self, mel: LogMel, start: int) -> None:
        """Begin an utterance.

        Args:
            mel: the front end.
            start: sample of the stream at which the utterance begins.
        """
        self._mel = mel
        self._hop = mel.hop
        self._stream = LogMelStream(mel)
        self._start = start
        self._first_frame = 0
        self._frames = [np.zeros((mel.bands, 0), np.float32)]
        self._speech: list[tuple[int, float]] = []
        self.position = start
        """Sample of the stream up to which audio has been pushed."""

    def fork(self) -> UtteranceFeatures:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin._stream = self._stream.fork()  # noqa: SLF001 - same class
        twin._frames = list(self._frames)  # noqa: SLF001
        twin._speech = list(self._speech)  # noqa: SLF001
        return twin

    @property
    def start_ms(self) -> int:
        """Time of the first frame that is still held (milliseconds of the stream)."""
        return (self._start + self._first_frame * self._hop) // _PER_MS

    @property
    def length_ms(self) -> int:
        """Audio since then (milliseconds)."""
        return self.position // _PER_MS - self.start_ms

    def push(self, samples: NDArray[np.float32], probability: float) -> None:
        """Add audio.

        Args:
            samples: f32 ``[n]`` within ±1.
            probability: that its end is speech, 0-1.
        """
        middle = self.position + len(samples) // 2
        self.position += len(samples)
        self._frames.append(self._stream.push(samples))
        self._speech.append(((middle - self._start) // self._hop, probability))

    def so_far(self) -> NDArray[np.float32]:
        """All frames that are complete, normalised: f32 ``[bands, T]``."""
        return self._mel.normalized(self._join())

    def finish(self) -> NDArray[np.float32]:
        """All frames, normalised; the utterance takes no more audio after this."""
        self._frames.append(self._stream.finish())
        return self._mel.normalized(self._join())

    def piece(self, utterance: int, onset: int, end: int) -> Piece | None:
        """The finished utterance as part of a turn, its frames not normalised; None: its beginning is gone.

        Args:
            utterance: its number.
            onset: sample of the stream at which speech begins.
            end: the same of its end.
        """
        return None if self._first_frame else Piece(utterance, self._start, onset, end, self._join())

    def cut(self, search_ms: int) -> NDArray[np.float32]:
        """Give away the frames before the quietest place of the last ``search_ms``.

        Returns:
            Those frames, normalised; the others stay.
        """
        frames = self._join()
        last = self._first_frame + frames.shape[1]
        earliest = max(last - search_ms * _PER_MS // self._hop, self._first_frame + 1)
        candidates = [item for item in self._speech if earliest <= item[0] < last]
        # The latest of equally quiet places: the longer the stretch, the better it is recognised.
        at = min(reversed(candidates), key=lambda item: item[1])[0] if candidates else last
        head = frames[:, : at - self._first_frame]
        self._frames = [frames[:, at - self._first_frame :].copy()]
        self._speech = [item for item in self._speech if item[0] >= at]
        self._first_frame = at
        return self._mel.normalized(head)

    def _join(self) -> NDArray[np.float32]:
        joined = np.concatenate(self._frames, axis=1)
        self._frames = [joined]
        return joined
