"""Audio that was sent to a client that may not read it.

Triton keeps every response that a client has not read, takes each new one at once, and does not say how many
there are: a client that stops reading would fill the server's memory. Nor do its keep-alive pings show it,
because gRPC answers them by itself. So the only evidence is what the client sends.
"""

from __future__ import annotations


class UnreadAudio:
    """Seconds of audio since the last sign that the client reads.

    Every request of the client counts as such a sign until its first playback mark. From then on only marks
    do: a client can go on sending what its microphone records without reading anything.

    Args:
        limit_s: seconds of audio.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._sent_s = 0.0
        self._marks = False

    @property
    def exceeded(self) -> bool:
        """Whether there are more than the limit."""
        return self._sent_s > self._limit_s

    def sent(self, seconds: float) -> None:
        """Count audio that was sent."""
        self._sent_s += seconds

    def on_request(self) -> None:
        """The client has sent audio or a message."""
        if not self._marks:
            self._sent_s = 0.0

    def on_playback(self) -> None:
        """The client has said how much it has played."""
        self._marks = True
        self._sent_s = 0.0
