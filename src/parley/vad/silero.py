"""Silero VAD on ONNX Runtime: the probability of speech in windows of 32 ms.

See https://github.com/snakers4/silero-vad (MIT). The network sees each window together with the
last samples of the one before it, and carries a recurrent state from window to window.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, WeightsNotFoundError

SAMPLE_RATE = 16_000
WINDOW = 512
CONTEXT = 64
"""Samples of the previous window that the network sees again."""
STATE = (2, 128)
"""Shape of the recurrent state of one stream."""
FILE = "silero_vad.onnx"


def bundled_folder() -> Path:
    """Where the package ``silero-vad`` keeps its network.

    The package itself is not imported: it needs torch.

    Raises:
        WeightsNotFoundError: the package is not installed.
    """
    package = importlib.util.find_spec("silero_vad")
    if package is None or not package.submodule_search_locations:
        raise WeightsNotFoundError("the voice activity network comes with the package silero-vad: install it")
    return Path(package.submodule_search_locations[0]) / "data"


class SileroVad:
    """Runs many streams at once; what it remembers of each belongs to the caller."""

    def __init__(self, session: Any) -> None:
        """Use a session of ``silero_vad.onnx``."""
        self._session = session
        self._rate = np.array(SAMPLE_RATE, np.int64)

    def detect(
        self,
        windows: NDArray[np.float32],
        counts: NDArray[np.int32],
        state: NDArray[np.float32],
        context: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Score the next windows of every stream, one run per window step for all of them.

        Args:
            windows: f32 ``[B, W, 512]`` within ±1.
            counts: i32 ``[B]``, how many of its ``W`` windows each stream really has.
            state: f32 ``[B, 2, 128]``; zeros at the start of a stream.
            context: f32 ``[B, 64]``; zeros at the start of a stream.

        Returns:
            Probabilities f32 ``[B, W]`` (0 beyond a stream's count), and the new state and context.

        Raises:
            InferenceError: the network failed.
        """
        probabilities = np.zeros(windows.shape[:2], np.float32)
        recurrent = state.transpose(1, 0, 2).copy()
        context = context.copy()
        for step in range(windows.shape[1]):
            rows = np.flatnonzero(counts > step)
            if not rows.size:
                break  # a run without rows aborts the process in ONNX Runtime
            seen = np.concatenate([context[rows], windows[rows, step]], axis=1)
            feed = {"input": seen, "state": np.ascontiguousarray(recurrent[:, rows]), "sr": self._rate}
            try:
                scored, recurrent[:, rows] = self._session.run(["output", "stateN"], feed)
            except Exception as error:  # ONNX Runtime's own exceptions have no common base class
                raise InferenceError(f"the voice activity network failed: {error}") from error
            probabilities[rows, step] = scored[:, 0]
            context[rows] = seen[:, -CONTEXT:]
        return probabilities, recurrent.transpose(1, 0, 2), context
