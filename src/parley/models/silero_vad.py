"""The batched service of ``silero_vad``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parley.errors import InvalidInputError, ParleyError
from parley.runtime.batching import Tensors, check_finite, column, run_together, split_rows, stack_rows
from parley.vad.silero import SileroVad


class VadService:
    """Probabilities of speech.

    Inputs: ``WINDOWS`` f32 ``[B, W, 512]``, ``COUNT`` i32 ``[B, 1]`` valid ones in each row; ``STATE``
    f32 ``[B, 2, 128]`` and ``CONTEXT`` f32 ``[B, 64]``, zeros at first. Outputs: ``PROBABILITIES``
    f32 ``[B, W]``, and ``NEXT_STATE`` and ``NEXT_CONTEXT`` for the next windows.
    """

    def __init__(self, vad: SileroVad) -> None:
        self._vad = vad

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """Score the windows of all requests."""
        return run_together(requests, _check_windows, self._run)

    def _run(self, requests: Sequence[Tensors]) -> list[Tensors]:
        probabilities, state, context = self._vad.detect(
            stack_rows([request["WINDOWS"] for request in requests]),
            np.concatenate([column(request["COUNT"], "COUNT") for request in requests]).astype(np.int32),
            np.concatenate([request["STATE"] for request in requests]),
            np.concatenate([request["CONTEXT"] for request in requests]),
        )
        rows = [len(request["WINDOWS"]) for request in requests]
        return [
            {
                "PROBABILITIES": scored[:, : request["WINDOWS"].shape[1]],
                "NEXT_STATE": next_state,
                "NEXT_CONTEXT": next_context,
            }
            for request, scored, next_state, next_context in zip(
                requests,
                split_rows(probabilities, rows),
                split_rows(state, rows),
                split_rows(context, rows),
                strict=True,
            )
        ]


def _check_windows(request: Tensors) -> None:
    counts = column(request["COUNT"], "COUNT")
    if (counts < 0).any() or (counts > request["WINDOWS"].shape[1]).any():
        raise InvalidInputError("COUNT is not within the number of WINDOWS")
    for name in ("WINDOWS", "STATE", "CONTEXT"):
        check_finite(request[name], name)
