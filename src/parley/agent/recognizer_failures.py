"""Failures of the recogniser streams of one call: when another stream is opened, and at which models."""

from __future__ import annotations

from collections.abc import Collection

HEALTHY_S = 3.0
"""Audio that a stream must have taken before its failures are forgotten (seconds)."""
_REOPEN_WAITS_S = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
_REST_WAITS_S = (0.0, 30.0, 120.0, 300.0, 600.0)
"""Until a model is asked again with which one, two, ... streams have failed; the last one repeats."""


class ReconnectBackoff:
    """The attempts of one outage: from a failure until a replacement has worked for three seconds.

    A replacement that fails earlier continues the outage. Otherwise a recogniser that opens and then fails
    would be replaced for ever. ``limit_s`` is the longest outage.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began: float | None = None
        self._attempts = 0
        self._worked_s = 0.0

    def failed(self, now: float) -> bool:
        """Record a failure at ``now`` (seconds); returns whether another attempt is allowed."""
        if self._began is None:
            self._began, self._attempts = now, 0
        self._worked_s = 0.0
        return now - self._began <= self._limit_s

    def wait_s(self) -> float:
        """Seconds to wait before the next attempt; grows with each."""
        self._attempts += 1
        return _REOPEN_WAITS_S[min(self._attempts, len(_REOPEN_WAITS_S)) - 1]

    def worked(self, seconds: float) -> None:
        """Record audio that the replacement has processed."""
        if self._began is not None:
            self._worked_s += seconds
            if self._worked_s >= HEALTHY_S:
                self._began = None


class ModelFailures:
    """Models with which streams of one call have failed, until one of them has understood the user again."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._rest_ends: dict[str, float] = {}

    def suspect(self, model: str) -> None:
        """Record that ``model`` has opened no stream: the call had another one, so there is no pause."""
        self._counts.setdefault(model, 0)

    def record_failure(self, model: str, now: float) -> int:
        """Record that a stream has failed at ``now`` (seconds); returns how many since :meth:`forget`."""
        count = self._counts[model] = self._counts.get(model, 0) + 1
        self._rest_ends[model] = now + _REST_WAITS_S[min(count, len(_REST_WAITS_S)) - 1]
        return count

    def has_failed(self, model: str) -> bool:
        """Whether ``model`` has failed."""
        return model in self._counts

    def resting(self, now: float) -> Collection[str]:
        """Models that are not to be asked at ``now`` (seconds)."""
        return [model for model, end in self._rest_ends.items() if end > now]

    def forget(self, model: str) -> None:
        """Record that ``model`` works."""
        self._counts.pop(model, None)
        self._rest_ends.pop(model, None)
