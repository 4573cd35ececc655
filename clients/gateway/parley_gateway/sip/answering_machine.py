"""Whether a person or a machine has answered a call, by its first seconds.

People say a few words and wait; machines speak on. The limits are those of Twilio's detection, so that
figures of other systems apply. Words that only machines say decide at once.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

AnsweredBy: TypeAlias = Literal["human", "machine", "unknown"]
_SPEECH_MS = 2_400
"""A greeting that is longer is a machine's (Twilio: MachineDetectionSpeechThreshold)."""
_AFTER_MS = 1_200
"""Silence that ends a greeting (MachineDetectionSpeechEndThreshold)."""
_SILENCE_MS = 5_000
"""Silence after which nothing is known (MachineDetectionSilenceTimeout)."""
_WORDS = re.compile(
    r"\b(?:voice ?mail|mailbox|after the (?:tone|beep)|leave (?:me |us )?(?:a|your) (?:message|name)"
    r"|(?:not|un)(?:able| available)? to (?:take|answer) your call|(?:is|am|are) not available"
    r"|nach dem (?:ton|signalton|piep)|hinterlassen sie"
    r"|apr[eè]s le (?:bip|signal)|laissez un message|despu[eé]s de la señal|deje (?:un|su) mensaje)\b",
    re.IGNORECASE,
)


class AnswerDetection:
    """Decides once; times are those of the audio, from when the call was answered (milliseconds)."""

    def __init__(self) -> None:
        self.answered_by: AnsweredBy | None = None
        """None: not decided yet."""
        self._began_ms: int | None = None
        self._ended_ms: int | None = None

    def on_speech_started(self, at_ms: int) -> None:
        """Somebody speaks; a pause that was no end belongs to the greeting."""
        if self._began_ms is None:
            self._began_ms = at_ms
        self._ended_ms = None

    def on_speech_stopped(self, at_ms: int) -> None:
        """Nobody speaks any more."""
        self._ended_ms = at_ms

    def on_transcript(self, text: str) -> None:
        """What was understood so far."""
        if self.answered_by is None and _WORDS.search(text):
            self.answered_by = "machine"

    def on_time(self, now_ms: int) -> None:
        """Time goes by."""
        if self.answered_by is not None:
            return
        if self._began_ms is None:
            self.answered_by = "unknown" if now_ms >= _SILENCE_MS else None
        elif (self._ended_ms or now_ms) - self._began_ms > _SPEECH_MS:
            self.answered_by = "machine"
        elif self._ended_ms is not None and now_ms - self._ended_ms >= _AFTER_MS:
            self.answered_by = "human"
