"""The way from the loudspeaker to the microphone."""

from __future__ import annotations

import numpy as np

from parley_client.audio.playout import Heard
from simulate.microphone import Mixer
from simulate.scenario import Echo
from simulate.voices import RATE

_TAIL_S = 0.06
_DECAY_S = 0.015


class EchoPath:
    """Delays what is heard, makes it softer and lets a small room answer.

    Args:
        echo: how late and how soft.
        mixer: of the microphone.
    """

    def __init__(self, echo: Echo, mixer: Mixer) -> None:
        self._delay = round(echo.delay_ms * RATE / 1000)
        self._mixer = mixer
        rng = np.random.default_rng(7)
        tail = rng.standard_normal(round(_TAIL_S * RATE)) * np.exp(
            -np.arange(round(_TAIL_S * RATE)) / (_DECAY_S * RATE)
        )
        room = np.concatenate([[1.0], 0.08 * tail])
        self._room = room / np.sqrt(np.sum(room**2)) * 10 ** (-echo.attenuation_db / 20)
        self._at = 0

    def heard(self, heard: Heard) -> None:
        """Something left the loudspeaker, at the microphone's own rate."""
        at = round(heard.at_s * RATE)
        if abs(at - self._at) <= 2:  # it goes on; rounding must not open gaps
            at = self._at
        self._at = at + len(heard.samples)
        self._mixer.add_echo(at + self._delay, np.convolve(heard.samples.astype(np.float64), self._room))
