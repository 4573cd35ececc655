"""How many calls want to begin: the curve of a day, and bursts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DAY_S = 86_400
# Calls at each hour, as a share of the busiest: offices open at 8, a dip at noon, an evening that fades.
_HOURS = (8, 5, 4, 3, 4, 7, 16, 38, 72, 94, 100, 96, 84, 88, 97, 95, 88, 76, 62, 50, 40, 31, 21, 13)


@dataclass(frozen=True)
class Burst:
    """More calls than the day has, for a while: after an advertisement, or an outage elsewhere."""

    at_s: int
    factor: float
    """Times the calls that the curve has then."""
    rise_s: int = 60
    hold_s: int = 600


def day_curve() -> NDArray[np.float64]:
    """Calls that want to be open, as a share of the busiest moment: f64 ``[86400]``, one for each second."""
    hours = np.array([*_HOURS, _HOURS[0]], np.float64) / max(_HOURS)
    return np.interp(np.arange(DAY_S) / 3600, np.arange(25), hours)


def arrivals(peak: float, mean_call_s: float, bursts: tuple[Burst, ...]) -> NDArray[np.float64]:
    """Calls that begin in each second, on average: f64 ``[86400]``.

    Args:
        peak: calls that are open at the busiest moment of the curve.
        mean_call_s: length of a call.
        bursts: multiply the curve.
    """
    rate = peak / mean_call_s * day_curve()
    seconds = np.arange(DAY_S)
    for burst in bursts:
        ends = burst.at_s + np.array(
            [0, burst.rise_s, burst.rise_s + burst.hold_s, burst.hold_s + 2 * burst.rise_s]
        )
        rate *= np.interp(seconds, ends, [1.0, burst.factor, burst.factor, 1.0])
    return rate
