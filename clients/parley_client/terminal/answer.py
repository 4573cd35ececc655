"""What is known of the answer that is being given: what was written, sent and heard of it."""

from __future__ import annotations

from collections.abc import Callable

from parley import protocol
from parley_client.events import AgentAudio

_TOLERANCE_MS = 50.0


class AnswerView:
    """The newest answer, from its first text or audio on.

    Args:
        played_ms: How much of a response has been heard (milliseconds); None: all that came.
    """

    def __init__(self, played_ms: Callable[[str], float] | None = None) -> None:
        self.played_ms = played_ms
        self.unshown = ""
        """Text that no line shows yet."""
        self._response = ""
        self._text = ""
        self._marks: list[tuple[float, str]] = []  # where words begin (milliseconds), and they
        self._sent_ms = 0.0
        self._is_over = False
        self._failed = False

    def note(self, event: protocol.ResponseText | AgentAudio) -> None:
        """More of it has come."""
        if event.response_id != self._response:
            self._forget(event.response_id)
        if isinstance(event, AgentAudio):
            self._sent_ms = max(self._sent_ms, event.offset_ms + event.duration_ms)
            if event.text:
                self._marks.append((event.offset_ms, event.text))
        else:
            self._text += event.text
            self.unshown += event.text

    def note_error(self) -> None:
        """Something failed, perhaps the voice."""
        self._failed = True

    def interrupt(self) -> None:
        """It was interrupted: the event says what was heard."""
        self._forget("")
        self.unshown = ""

    def complete(self, event: protocol.ResponseDone) -> str | None:
        """Nothing more of it comes.

        Returns:
            What will have been heard, if that is not everything; None: everything, or it has no words.
        """
        self._is_over = True
        if event.response_id != self._response or not self._text.strip():
            return None
        if not event.audio_ms:
            return ""
        return self._unless_whole(self._words(float("inf"))) if self._failed else None

    def leave(self) -> str | None:
        """The call is left before its end.

        Returns:
            As :meth:`complete`.
        """
        if not self._text.strip():
            return None
        played_ms = self._sent_ms if self.played_ms is None else self.played_ms(self._response)
        if self._is_over and played_ms >= self._sent_ms - _TOLERANCE_MS:
            return None
        return self._unless_whole(self._words(played_ms))

    def _forget(self, response_id: str) -> None:
        self._response, self._text = response_id, ""
        self._marks, self._sent_ms = [], 0.0
        self._is_over = self._failed = False

    def _words(self, played_ms: float) -> str:
        """The words that begin in what was played."""
        return " ".join(text for begin_ms, text in self._marks if begin_ms < played_ms)

    def _unless_whole(self, words: str) -> str | None:
        return None if _letters(words) == _letters(self._text) else words


def _letters(text: str) -> str:
    """The text without what only its spacing and punctuation make different."""
    return "".join(letter for letter in text if letter.isalnum())
