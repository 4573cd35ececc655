"""A whole call as one stereo recording, aligned as it was heard."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np

from parley.protocol import INPUT_SAMPLE_RATE
from parley_client.audio.files import Pcm, resample, write_stereo
from parley_client.audio.playout import Heard

_MAX_SECONDS = 1800.0


class CallRecording:
    """The user on the left, the agent on the right.

    Args:
        began_s: When the user's first sample was spoken (seconds on the playout's clock).
        max_s: Longest recording (seconds); what comes later is not recorded.
    """

    def __init__(self, began_s: float, max_s: float = _MAX_SECONDS) -> None:
        self.began_s = began_s
        self._max_s = max_s
        self._user: deque[Pcm] = deque()
        self._user_samples = 0
        self._agent: deque[Heard] = deque()

    def add_user(self, samples: Pcm) -> None:
        """The next piece of the microphone's audio: 16 kHz, shape [n]."""
        if self._user_samples < self._max_s * INPUT_SAMPLE_RATE:
            self._user.append(samples)
            self._user_samples += len(samples)

    def add_agent(self, heard: Heard) -> None:
        """A stretch of the agent's audio that was heard."""
        if heard.at_s - self.began_s < self._max_s:
            self._agent.append(heard)

    def tracks(self, rate: int) -> tuple[Pcm, Pcm]:
        """User and agent at ``rate`` (Hertz), beginning together. Shapes [n], [m]."""
        user = np.concatenate(self._user) if self._user else np.zeros(0, np.int16)
        ends = [
            round((heard.at_s - self.began_s + len(heard.samples) / heard.sample_rate) * rate)
            for heard in self._agent
        ]
        agent = np.zeros(max(ends, default=0) + 1, np.int16)
        at = -1.0
        run: list[Pcm] = []
        for heard in self._agent:
            # Pieces that follow each other are resampled as one, so that no seam is heard.
            if run and abs(heard.at_s - at) > 1 / heard.sample_rate:
                self._place(agent, run, at, self._agent_rate, rate)
                run = []
            run.append(heard.samples)
            at = heard.at_s + len(heard.samples) / heard.sample_rate
        self._place(agent, run, at, self._agent_rate, rate)
        return resample(user, INPUT_SAMPLE_RATE, rate), agent

    @property
    def _agent_rate(self) -> int:
        """One session has one output rate."""
        return self._agent[0].sample_rate if self._agent else INPUT_SAMPLE_RATE

    def _place(self, track: Pcm, run: list[Pcm], end_s: float, from_rate: int, rate: int) -> None:
        if not run:
            return
        samples = np.concatenate(run)
        start = round((end_s - len(samples) / from_rate - self.began_s) * rate)
        samples = resample(samples, from_rate, rate)[: len(track) - start]
        track[max(0, start) : start + len(samples)] = samples[max(0, -start) :]

    def write(self, path: Path) -> None:
        """Write a stereo WAV at the agent's rate.

        Raises:
            AudioFileError: the file cannot be written.
        """
        rate = max(INPUT_SAMPLE_RATE, self._agent_rate)
        left, right = self.tracks(rate)
        write_stereo(path, left, right, rate)
