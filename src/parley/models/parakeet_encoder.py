"""The batched service of ``parakeet_encoder``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parley.asr.offline.networks import OnnxEncoder
from parley.errors import InvalidInputError, ParleyError
from parley.runtime.batching import (
    Tensors,
    check_finite,
    check_lengths,
    column,
    run_together,
    split_rows,
    stack_rows,
    widen,
)


class EncoderService:
    """Encoded speech.

    Inputs: ``FEATURES`` f32 ``[B, bands, T]``, ``LENGTH`` i64 ``[B, 1]`` valid frames in each
    row; a single band stands for all. Outputs: ``ENCODED`` f32 ``[B, D, T']`` with
    ``ENCODED_LENGTH`` i64 ``[B, 1]`` frames.
    """

    def __init__(self, encoder: OnnxEncoder, bands: int) -> None:
        self._encoder = encoder
        self._bands = bands

    def warm_up(self) -> None:
        """Run once, so that the first real request does not pay for what only the first run does.

        Raises:
            ParleyError: the network cannot run at all.
        """
        frames = 1000
        self._run(
            [
                {
                    "FEATURES": np.zeros((1, self._bands, frames), np.float32),
                    "LENGTH": np.array([[frames]], np.int64),
                }
            ]
        )

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """Encode the stretches of all requests."""
        widened = [widen(request, "FEATURES", self._bands) for request in requests]
        return run_together(widened, self._check, self._run)

    def _check(self, request: Tensors) -> None:
        features = request["FEATURES"]
        if features.ndim != 3 or features.shape[1] != self._bands:
            raise InvalidInputError(
                f"FEATURES has shape {list(features.shape)}; it must be [rows, {self._bands}, frames]"
            )
        check_lengths(request, "LENGTH", frames=features.shape[2], minimum=1)
        check_finite(features, "FEATURES")

    def _run(self, requests: Sequence[Tensors]) -> list[Tensors]:
        encoded, lengths = self._encoder.encode(
            stack_rows([request["FEATURES"] for request in requests]),
            np.concatenate([column(request["LENGTH"], "LENGTH") for request in requests]),
        )
        rows = [len(request["FEATURES"]) for request in requests]
        return [
            # A request's own rows decide how long its answer is, not its neighbours'.
            {"ENCODED": outputs[:, :, : own.max()], "ENCODED_LENGTH": own[:, None]}
            for outputs, own in zip(split_rows(encoded, rows), split_rows(lengths, rows), strict=True)
        ]
