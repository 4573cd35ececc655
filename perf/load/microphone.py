"""The schedule of a microphone: which chunk is sent when, without any waiting."""

from __future__ import annotations

from dataclasses import dataclass

from load.recordings import Recording
from parley.protocol import INPUT_SAMPLE_RATE

_BYTES = 2


@dataclass(frozen=True)
class Spoken:
    """When a recording is spoken: seconds on the caller's clock."""

    began_s: float
    """Its first loud sample."""
    ended_s: float
    """Its last one: the true end of speech."""


class Microphone:
    """Cuts speech, and silence between it, into chunks.

    A chunk is due when its last sample has been spoken. The schedule is fixed from the beginning: a chunk
    that leaves late makes none of those after it late.

    Args:
        chunk_ms: length of a chunk (milliseconds).
        began_s: when the first sample is spoken (seconds).
    """

    def __init__(self, chunk_ms: int, began_s: float) -> None:
        self._samples = chunk_ms * INPUT_SAMPLE_RATE // 1000
        self._began_s = began_s
        self._sent = 0
        self._rest = b""
        self.worst_late_s = 0.0
        """The longest that a chunk left behind its time: how busy the client was (seconds)."""

    @property
    def due_s(self) -> float:
        """When the next chunk is complete."""
        return self._time_of(self._sent + self._samples)

    def say(self, recording: Recording) -> Spoken:
        """Speak from the next chunk on; what is left of another recording is dropped."""
        self._rest = recording.pcm
        return Spoken(self._time_of(self._sent + recording.first), self._time_of(self._sent + recording.last))

    def next_chunk(self, now: float) -> bytes:
        """The chunk that leaves at ``now``."""
        self.worst_late_s = max(self.worst_late_s, now - self.due_s)
        size = self._samples * _BYTES
        chunk, self._rest = self._rest[:size], self._rest[size:]
        self._sent += self._samples
        return chunk.ljust(size, b"\0")

    def _time_of(self, sample: int) -> float:
        return self._began_s + sample / INPUT_SAMPLE_RATE
