"""How much longer than judged the pauses of one caller are: some think longer than others.

Where the caller goes on later than was waited for, so that the turn had ended, :attr:`CallerPauses.extra_ms`
grows by half of what was missing. Each end of a turn that was right lowers it. A caller without such pauses
waits as before. The numbers were chosen with recordings of people (docs/measurements.md).
"""

from __future__ import annotations

MOST_EXTRA_MS = 300
_MARGIN_MS = 50
"""Counts as missing too: the next pause may be longer."""
_GOES_ON_MS = 600
"""Speech so soon after the end of a turn belongs to that turn: hardly anything of an answer was heard."""
_KEPT = 0.9
"""Share of the extra that is left after an end that was right."""


class CallerPauses:
    """The pauses of one caller. Positions are milliseconds of the caller's audio.

    Args:
        extra_ms: of an earlier part of the call.
    """

    def __init__(self, extra_ms: int = 0) -> None:
        self._extra_ms = float(extra_ms)
        self._stopped_ms: int | None = None
        self._needed_ms: int | None = None
        self._over: tuple[int, int] | None = None  # the length of the last pause, and what was judged

    @property
    def extra_ms(self) -> int:
        """Silence to wait for beyond what is judged: 0 to :data:`MOST_EXTRA_MS`."""
        return round(self._extra_ms)

    def on_speech_stopped(self, at_ms: int) -> None:
        """A pause begins."""
        self._stopped_ms, self._needed_ms = at_ms, None

    def on_judged(self, needed_ms: int) -> None:
        """So much silence would end the turn without the extra, and nothing else is waited for."""
        self._needed_ms = needed_ms

    def on_speech_started(self, at_ms: int) -> None:
        """The pause is over; whether by words follows."""
        self._over = None
        if self._stopped_ms is not None and self._needed_ms is not None:
            self._over = at_ms - self._stopped_ms, self._needed_ms

    def on_words(self) -> None:
        """What followed the pause has words."""
        if self._over is None:
            return
        (length_ms, needed_ms), self._over = self._over, None
        beyond_ms = length_ms - needed_ms - self._extra_ms
        if beyond_ms > _GOES_ON_MS:
            self._extra_ms *= _KEPT
        elif beyond_ms > 0:
            self._extra_ms = min(MOST_EXTRA_MS, self._extra_ms + (beyond_ms + _MARGIN_MS) / 2)
