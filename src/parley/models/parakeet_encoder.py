"""The batched service of ``parakeet_encoder``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from parley.asr.offline.networks import OnnxEncoder
from parley.errors import InvalidInputError, ParleyError
from parley.runtime.batching import (
    Tensors,
    check_finite,
    check_lengths,
    column,
    parse_sizes,
    round_up,
    run_together,
    split_rows,
    stack_rows,
    widen,
)
from parley.runtime.parameters import Parameters

_WARM_UP_FRAMES = 1000


@dataclass(frozen=True)
class EncoderBuckets:
    """Rising sizes to which a run is padded; without any, a run has the size of its requests.

    A GPU plans and allocates for every new shape, and nearly every utterance has a new length. A run that
    exceeds the largest size is not padded.

    Parameters of the model:
        ``frame_buckets``: feature frames of 10 ms, such as ``100,200,400``.
        ``row_buckets``: rows of a run, such as ``1,2,4``.
    """

    frames: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    @classmethod
    def of(cls, parameters: Parameters) -> EncoderBuckets:
        """Read them.

        Raises:
            ModelLoadingError: one of the lists is not rising.
        """
        frames, rows = (
            parse_sizes(parameters.text(name, ""), name) for name in ("frame_buckets", "row_buckets")
        )
        return cls(frames, rows)

    def shapes(self) -> list[tuple[int, int]]:
        """Every ``(rows, frames)`` that a run is padded to, the largest first.

        The arena of the device grows to the largest shape, and smaller ones find room in it.
        """
        shapes = product(self.rows or (1,), self.frames or (_WARM_UP_FRAMES,))
        return sorted(shapes, key=lambda shape: shape[0] * shape[1], reverse=True)

    def pad(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Pad a run: ``features`` f32 ``[B, bands, T]`` with zeros, ``lengths`` i64 ``[B]`` with ones."""
        rows, bands, frames = features.shape
        shape = round_up(rows, self.rows), bands, round_up(frames, self.frames)
        if shape == features.shape:
            return features, lengths
        padded = np.zeros(shape, np.float32)
        padded[:rows, :, :frames] = features
        # The network takes no row without a frame.
        return padded, np.concatenate([lengths, np.ones(shape[0] - rows, np.int64)])


class EncoderService:
    """Encoded speech.

    Inputs: ``FEATURES`` f32 ``[B, bands, T]``, ``LENGTH`` i64 ``[B, 1]`` valid frames in each
    row; a single band stands for all. Outputs: ``ENCODED`` f32 ``[B, D, T']`` with
    ``ENCODED_LENGTH`` i64 ``[B, 1]`` frames.
    """

    def __init__(self, encoder: OnnxEncoder, bands: int, buckets: EncoderBuckets | None = None) -> None:
        self._encoder = encoder
        self._bands = bands
        self._buckets = buckets or EncoderBuckets()

    def warm_up(self) -> None:
        """Run every shape of the buckets once, so that no request pays for what only a first run does.

        Raises:
            ParleyError: the network cannot run at all.
        """
        for rows, frames in self._buckets.shapes():
            self._run(
                [
                    {
                        "FEATURES": np.zeros((rows, self._bands, frames), np.float32),
                        "LENGTH": np.full((rows, 1), frames, np.int64),
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
            *self._buckets.pad(
                stack_rows([request["FEATURES"] for request in requests]),
                np.concatenate([column(request["LENGTH"], "LENGTH") for request in requests]),
            )
        )
        rows = [len(request["FEATURES"]) for request in requests]
        encoded, lengths = encoded[: sum(rows)], lengths[: sum(rows)]
        return [
            # A request's own rows decide how long its answer is, not its neighbours'.
            {"ENCODED": outputs[:, :, : own.max()], "ENCODED_LENGTH": own[:, None]}
            for outputs, own in zip(split_rows(encoded, rows), split_rows(lengths, rows), strict=True)
        ]
