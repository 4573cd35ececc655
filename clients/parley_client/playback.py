"""Telling the server how much of each response was really heard."""

from __future__ import annotations

from collections.abc import Callable

from parley.errors import OverloadedError
from parley_client.call import Call
from parley_client.errors import ClientError

_INTERVAL_S = 0.2


class PlaybackMarks:
    """Sends a response's mark now and then while it is played, and at once when it falls silent.

    So the last mark of a response that was played to its end says so, and one that is paused stands still.

    Args:
        call: Gets the marks.
        played_ms: How much of a response has been played (milliseconds).
        interval_s: Between two marks of a response that is being played (seconds).
    """

    def __init__(
        self, call: Call, played_ms: Callable[[str], float], *, interval_s: float = _INTERVAL_S
    ) -> None:
        self._call = call
        self._played_ms = played_ms
        self._interval_s = interval_s
        self._playing: str | None = None
        self._next_s = 0.0

    def update(self, playing: str | None, now: float) -> None:
        """Call this often.

        Args:
            playing: The response that is being played; None: nothing is, or the loudspeaker is paused.
            now: Seconds, monotonic.
        """
        if playing is not None and not self._played_ms(playing):
            playing = None  # it is still to begin
        if self._playing is not None and playing != self._playing:
            if not self._report(self._playing):
                return
        elif playing is not None and now >= self._next_s and self._report(playing):
            self._next_s = now + self._interval_s
        self._playing = playing

    def _report(self, response_id: str) -> bool:
        """Whether the mark was sent, or nobody waits for it any more."""
        try:
            self._call.report_playback(response_id, self._played_ms(response_id))
        except OverloadedError:
            return False  # the queue is full; a later mark says more
        except ClientError:
            pass  # the call has ended, of which its reader tells
        return True
