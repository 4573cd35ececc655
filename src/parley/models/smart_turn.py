"""The batched service of ``smart_turn``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parley.errors import InvalidAudioError, ParleyError
from parley.runtime.batching import Tensors, run_together
from parley.turns.smart_turn import SAMPLE_RATE, SAMPLES, SmartTurn


class SmartTurnService:
    """Probabilities that turns are over.

    Input: ``AUDIO`` i16 ``[B, n]``, 16 kHz mono, at most eight seconds: the turn so far, with the silence
    after it. Output: ``PROBABILITY`` f32 ``[B, 1]``.
    """

    def __init__(self, network: SmartTurn) -> None:
        self._network = network

    def warm_up(self) -> None:
        """Run once, so that the first real request does not pay for what only the first run does.

        Raises:
            InferenceError: the network cannot run at all.
        """
        self._network.score([np.zeros(SAMPLE_RATE, np.int16)])

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """Score the turns of all requests."""
        return run_together(requests, _check, self._run)

    def _run(self, requests: Sequence[Tensors]) -> list[Tensors]:
        scores = iter(self._network.score([row for request in requests for row in request["AUDIO"]]))
        return [
            {"PROBABILITY": np.array([[next(scores)] for _ in request["AUDIO"]], np.float32)}
            for request in requests
        ]


def _check(request: Tensors) -> None:
    audio = request["AUDIO"]
    if audio.ndim != 2 or audio.dtype != np.int16:
        raise InvalidAudioError(
            f"AUDIO is {audio.dtype} {list(audio.shape)}; it must be int16 [rows, samples]"
        )
    if not 1 <= audio.shape[1] <= SAMPLES:
        raise InvalidAudioError(f"AUDIO has {audio.shape[1]} samples; it must have 1 to {SAMPLES}")
