"""``speaker_embedding`` as a :class:`parley.engines.base.SpeakerModel`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parley.inference import ModelClient, ModelRequest
from parley.speakers.embedding import MOST

SPEAKER_EMBEDDING = "speaker_embedding"


class SpeakerEmbeddingModel:
    """Computes vectors of speakers with the model ``speaker_embedding``."""

    def __init__(self, client: ModelClient, *, timeout_s: float = 1.0) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def embed(self, speech: NDArray[np.int16]) -> NDArray[np.float32]:
        """The vector of one person's speech, f32 ``[d]`` of length 1.

        Args:
            speech: i16 ``[n]``, 16 kHz mono, at least half a second; only its first four seconds are sent.

        Raises:
            InvalidAudioError: it is shorter.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        inputs = {"AUDIO": speech[:MOST].reshape(1, -1)}
        request = ModelRequest(SPEAKER_EMBEDDING, inputs, ("EMBEDDING",), timeout_s=self._timeout_s)
        response = await self._client.infer(request)
        return response["EMBEDDING"].reshape(-1)
