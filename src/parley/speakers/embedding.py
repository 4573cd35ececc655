"""Speaker embeddings of speech: vectors that are near each other for the same person."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.audio.fbank import KaldiFbank
from parley.errors import InferenceError
from parley.speakers.campplus import BANDS, BANK, MOST_FRAMES

FILE = "campplus_cn_en_common.pt"
"""The file of the weights."""
RATE = 16_000
LEAST, MOST = RATE // 2, 4 * RATE
"""Fewest and most samples of audio for one vector."""
_FULL_SCALE = np.float32(32768)


class SpeakerEmbedding:
    """Computes vectors; remembers nothing of them.

    Args:
        session: of the graph of :func:`parley.speakers.campplus.make_graph`.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._bank = KaldiFbank(BANDS)

    def embed(self, speech: NDArray[np.int16]) -> NDArray[np.float32]:
        """The vector of one person's speech, f32 ``[192]`` of length 1.

        ``speech``: i16 ``[n]``, 16 kHz mono, :data:`LEAST` to :data:`MOST` samples. Stretches of up to two
        seconds are embedded one by one, and their mean counts.

        Raises:
            InferenceError: the network failed.
        """
        bank = self._bank.compute(speech.astype(np.float32) / _FULL_SCALE)
        pieces = np.array_split(bank, -(-len(bank) // MOST_FRAMES))
        try:
            vectors = [
                self._session.run(None, {BANK: (one - one.mean(axis=0))[None]})[0][0] for one in pieces
            ]
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the network of speakers failed: {error}") from error
        total = np.sum([vector / np.linalg.norm(vector) for vector in vectors], axis=0)
        found: NDArray[np.float32] = total / np.linalg.norm(total)
        if not np.isfinite(found).all():
            raise InferenceError("the vector of a speaker is not finite")
        return found
