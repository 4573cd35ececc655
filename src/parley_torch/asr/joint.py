"""The prediction and joint networks on a device, for decoding on the host: beams and expected phrases."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.asr.decoding.beam import Expansion
from parley.asr.decoding.greedy import SCORES, JointNetwork
from parley.errors import InferenceError
from parley.runtime.batching import check_rows
from parley.runtime.process_end import DeviceErrors
from parley_torch.asr.topk import TopK, top_k
from parley_torch.asr.transducer import Transducer, tsallis_confidence


class DeviceJoint(JointNetwork):
    """:class:`parley.asr.decoding.greedy.JointNetwork` on a torch device.

    Each call copies its inputs to the device and its results back, and runs operation by operation. With
    :meth:`expand` these are the best classes only, and not the scores of all.

    Args:
        network: on the device.
        best: finds the best classes.
    """

    def __init__(self, network: Transducer, best: TopK = top_k) -> None:
        self._network = network
        self._best = best
        self._errors = DeviceErrors("the joint network")
        self.inputs = network.inputs
        self.layers = network.layers
        self.width = network.width

    def scan(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`parley.asr.decoding.greedy.JointNetwork.scan`.

        Raises:
            InferenceError: the device failed.
        """
        try:
            scores, *states = (part.cpu().numpy() for part in self._score(frames, targets, hidden, cell))
        except RuntimeError as error:
            raise self._failed(len(targets), error) from error
        self._errors.worked()
        return scores, states[0], states[1]

    def expand(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
        width: int,
    ) -> Expansion:
        """See :meth:`parley.asr.decoding.beam.Expanding.expand`.

        Raises:
            RowsNotFiniteError: scores of some rows are not finite.
            InferenceError: the device failed.
        """
        blank = self._network.blank
        try:
            with torch.inference_mode():
                scores, *states = self._score(frames[:, None], targets, hidden, cell)
                scores = scores[:, 0]
                finite = scores.isfinite().all(-1)
                tokens = scores[:, : blank + 1]
                values, labels = self._best(tokens, width)
                parts = (
                    values.double(),
                    labels,
                    scores[:, blank + 1 :].log_softmax(-1),
                    tsallis_confidence(tokens),
                    *states,
                )
                best, ids, durations, confidences, *after = (part.cpu().numpy() for part in parts)
                usable = finite.cpu().numpy()
        except RuntimeError as error:
            raise self._failed(len(targets), error) from error
        self._errors.worked()
        check_rows(usable, SCORES, independent=True)
        return Expansion(best, ids, durations, confidences.__getitem__, *after)

    @torch.inference_mode()
    def _score(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, and the states with layers first, on the device."""
        network = self._network

        def put(values: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(network.device)

        predicted, hidden_after, cell_after = network.predict(
            put(targets).long(), put(hidden).transpose(0, 1), put(cell).transpose(0, 1)
        )
        scores = network.score(network.project(put(frames)), predicted)
        return scores, hidden_after.transpose(0, 1), cell_after.transpose(0, 1)

    def _failed(self, rows: int, error: RuntimeError) -> InferenceError:
        self._errors.failed(error)
        return InferenceError(f"the joint network failed on {rows} rows: {error}")
