"""The batched service of ``parakeet_encoder``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.asr.parakeet.networks import OfflineEncoder, OnnxEncoder
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
from parley.runtime.extensions import find_extensions
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.triton.backend import TensorModel

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

    def shapes(self, unpadded: int) -> list[tuple[int, int]]:
        """Every ``(rows, frames)`` that a run is padded to, the largest first.

        The arena of the device grows to the largest shape, and smaller ones find room in it. ``unpadded``:
        feature frames of the only run if none is padded.
        """
        shapes = product(self.rows or (1,), self.frames or (unpadded,))
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

    def __init__(
        self,
        encoder: OfflineEncoder,
        bands: int,
        buckets: EncoderBuckets | None = None,
        *,
        longest: int = _WARM_UP_FRAMES,
    ) -> None:
        """Serve an encoder."""
        self._encoder = encoder
        self._bands = bands
        self._buckets = buckets or EncoderBuckets()
        self._warm_up_frames = min(longest, _WARM_UP_FRAMES)

    def warm_up(self) -> None:
        """Run every shape of the buckets once, so that no request pays for what only a first run does.

        Raises:
            ParleyError: the network cannot run at all.
        """
        for rows, frames in self._buckets.shapes(self._warm_up_frames):
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


def open_encoder(parameters: Parameters, device_id: int) -> EncoderService:
    """The service that the parameter ``engine`` names, ready to serve.

    Parameters of the model:
        ``engine``: ``onnx``, or ``torch`` with every size of a run captured when it is loaded.
        ``frame_buckets``, ``row_buckets``: see :class:`EncoderBuckets`. For torch no run is larger.
        ``max_run_frames``: for torch, most feature frames of a run, rows times their padded length.
        Others: those of :func:`parley.runtime.onnx.open_configured` or
            :func:`parley_torch.models.recognizers.device_settings`.

    Raises:
        ModelLoadingError: the weights or a setting are not usable.
    """
    service = _ENGINES[parameters.choice("engine", "onnx", tuple(_ENGINES))](parameters, device_id)
    service.warm_up()
    return service


def load_model(pb_utils: Any, parameters: Parameters) -> TensorModel:
    """What ``model.py`` of ``parakeet_encoder`` runs; see :func:`open_encoder`."""
    return TensorModel(pb_utils, open_encoder(parameters, parameters.device_id).serve)


def _open_onnx(parameters: Parameters, device_id: int) -> EncoderService:
    export = checkpoint.load(resolve_weights(parameters, checkpoint.DEFAULT, checkpoint.FILES))
    session = open_configured(export.encoder, parameters, device_id=device_id, takes_tensorrt=True)
    return EncoderService(OnnxEncoder(session), export.config.features_size, EncoderBuckets.of(parameters))


_ENGINES: Mapping[str, Callable[[Parameters, int], EncoderService]] = {
    "onnx": _open_onnx,
    **find_extensions("encoder_engines"),
}
"""Each loads an encoder as the parameters say, on the GPU of a number."""
