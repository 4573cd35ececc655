"""``smart_turn`` as a :class:`parley.engines.base.TurnModel`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parley.inference import ModelClient, ModelRequest, Tensor, struct_tensor
from parley.turns.smart_turn import SAMPLES, TurnRequest

SMART_TURN = "smart_turn"


class SmartTurnModel:
    """Scores pauses with the model ``smart_turn``."""

    def __init__(self, client: ModelClient, *, model: str = SMART_TURN, timeout_s: float = 1.0) -> None:
        self._client = client
        self._model = model
        self._timeout_s = timeout_s

    async def score(self, speech: NDArray[np.int16], *, traceparent: str = "") -> float:
        """The probability that the turn is over, 0-1.

        Args:
            speech: i16 ``[n]``, 16 kHz mono: the turn so far with the silence after it; only its last
                eight seconds are sent.
            traceparent: span of the caller; empty: there is none.

        Raises:
            InvalidAudioError: there is no audio.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        inputs: dict[str, Tensor] = {"AUDIO": speech[-SAMPLES:].reshape(1, -1)}
        if traceparent:
            inputs["REQUEST"] = struct_tensor(TurnRequest(traceparent=traceparent), batched=True)
        request = ModelRequest(self._model, inputs, ("PROBABILITY",), timeout_s=self._timeout_s)
        response = await self._client.infer(request)
        return float(response["PROBABILITY"].reshape(-1)[0])
