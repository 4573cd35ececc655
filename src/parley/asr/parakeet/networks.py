"""Parakeet's networks on ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError


class OnnxEncoder:
    """The acoustic encoder: features in, one vector per 80 ms out."""

    def __init__(self, session: Any) -> None:
        """Use a session of ``encoder-model.onnx``."""
        self._session = session

    def encode(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Encode a padded batch; a row's result does not depend on its padding.

        Args:
            features: f32 ``[B, bands, T]``, normalised.
            lengths: i64 ``[B]``, real frames of each row, at least 1.

        Returns:
            f32 ``[B, D, T']`` and i64 ``[B]``, how many of the ``T'`` frames are real.

        Raises:
            InferenceError: the network failed, for example because a row is too long for it, or its
                output is not finite.
        """
        feed = {"audio_signal": features, "length": lengths}
        try:
            outputs, encoded = self._session.run(["outputs", "encoded_lengths"], feed)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the encoder failed on {features.shape}: {error}") from error
        if not np.isfinite(outputs).all():
            raise InferenceError("the encoder's output is not finite")
        return outputs, encoded


class OnnxJoint:
    """The prediction and joint networks (:class:`parley.asr.decoding.transducer.JointNetwork`)."""

    def __init__(self, session: Any) -> None:
        """Use a session of ``decoder_joint-model.onnx``."""
        self._session = session
        shapes = {tensor.name: tensor.shape for tensor in session.get_inputs()}
        self.inputs: int = shapes["encoder_outputs"][1]
        self.layers: int = shapes["input_states_1"][0]
        self.width: int = shapes["input_states_1"][2]

    def step(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`parley.asr.decoding.transducer.JointNetwork.step`; raises as :meth:`scan`."""
        logits, hidden, cell = self.scan(frames[:, None], targets, hidden, cell)
        return logits[:, 0], hidden, cell

    def scan(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`parley.asr.decoding.transducer.JointNetwork.scan`.

        Raises:
            InferenceError: the network failed.
        """
        rows = len(targets)
        feed = {
            "encoder_outputs": frames.transpose(0, 2, 1),
            "targets": targets[:, None],
            "target_length": np.ones(rows, np.int32),
            "input_states_1": hidden,
            "input_states_2": cell,
        }
        try:
            logits, hidden, cell = self._session.run(["outputs", "output_states_1", "output_states_2"], feed)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the joint network failed on {rows} rows: {error}") from error
        return logits[:, :, 0], hidden, cell
