"""What goes into a stream of speech and comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrEvent
from parley.errors import InvalidAudioError


class FinalizedEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="finalized"):
    """All that was sent before a :meth:`Recognition.finalize` is written down; its texts came before this."""

    at_ms: int
    """How much had been sent (milliseconds)."""


RecognitionEvent: TypeAlias = AsrEvent | FinalizedEvent


@dataclass(frozen=True)
class RecognitionLimits:
    """How much a stream holds, and how long it waits."""

    audio_s: float = 30.0
    """Audio that was sent and not heard yet; more is refused."""
    events: int = 512
    """Events that were not read yet; then no more audio is heard."""
    answer_s: float = 5.0
    """For the model's answer to a piece of audio."""
    final_s: float = 10.0
    """For the final text of speech that has ended."""
    consumer_s: float = 30.0
    """For the application to read its events."""
    room_s: float = 30.0
    """For room in :meth:`Recognition.send_all`."""


def read_samples(audio: bytes | NDArray[np.int16]) -> NDArray[np.int16]:
    """Audio as int16 ``[n]``.

    Raises:
        InvalidAudioError: an odd number of bytes.
    """
    if not isinstance(audio, bytes):
        return audio.copy()  # the caller may use its memory again
    if len(audio) % 2:
        raise InvalidAudioError(f"audio of {len(audio)} bytes; samples have two bytes each")
    return np.frombuffer(audio, "<i2").astype(np.int16, copy=False)
