"""How much of a response's audio was played, for the agent that sends it and the client that receives it.

Both must count alike: a call that goes on elsewhere repeats or skips words otherwise. Pure bookkeeping: the
time is always given by the caller, in seconds of one monotonic clock.
"""

from __future__ import annotations

_REPORT_GRACE_S = 0.25
"""A playback report is extended by the clock for at most this long."""


class PlayedTime:
    """Audio is played from when its first piece is added, at its own pace.

    Playing stands still while there is nothing to play, and while it is paused. Reports of what was played
    can only say that it is less.
    """

    def __init__(self) -> None:
        self.length_ms = 0.0
        """Audio that was added."""
        self._end_s = 0.0  # when everything added so far will have been played
        self._report: tuple[float, float] | None = None
        self._paused_s: float | None = None

    def add(self, length_ms: float, now: float) -> None:
        """A piece of audio follows what was added before."""
        self.length_ms += length_ms
        self._end_s = max(self._end_s, self._time(now)) + length_ms / 1000

    def restore(self, length_ms: float, played_ms: float, now: float) -> None:
        """Begin with ``length_ms`` of audio, of which so much was played; nothing was added yet."""
        self.length_ms = length_ms
        self._end_s = now + max(0.0, length_ms - played_ms) / 1000

    def report(self, played_ms: float, now: float) -> None:
        """So much was played, of what was added; a report that goes back is ignored."""
        played_ms = min(max(played_ms, 0.0), self.length_ms)
        if self._report is None or played_ms >= self._report[0]:
            self._report = (played_ms, self._time(now))

    def pause(self, now: float) -> None:
        """Playing stops, and the audio is kept."""
        if self._paused_s is None:
            self._paused_s = now

    def resume(self, now: float) -> None:
        """Playing goes on."""
        if self._paused_s is None:
            return
        at_s, self._paused_s = self._paused_s, None
        if self._end_s > at_s:
            self._end_s += now - at_s
        if self._report is not None:
            self._report = (self._report[0], self._report[1] + now - at_s)

    def ahead_ms(self, now: float) -> float:
        """Audio that was added and not yet played, by the clock."""
        return max(0.0, (self._end_s - self._time(now)) * 1000)

    def played_ms(self, now: float) -> float:
        """Audio that was played."""
        by_clock = self.length_ms - self.ahead_ms(now)
        if self._report is None:
            return by_clock
        played_ms, at_s = self._report
        return min(by_clock, played_ms + max(0.0, min(self._time(now) - at_s, _REPORT_GRACE_S)) * 1000)

    def _time(self, now: float) -> float:
        """The time by which audio is played: it stands still during a pause."""
        return now if self._paused_s is None else min(now, self._paused_s)
