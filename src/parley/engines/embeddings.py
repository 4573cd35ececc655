"""``embeddings`` as a :class:`parley.engines.base.Embedder`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.embeddings.messages import EmbeddingSpace, EmbedReply, EmbedRequest, TextKind
from parley.errors import InferenceError, InvalidInputError
from parley.inference import ModelClient, ModelRequest, decode_struct, struct_tensor, text_tensor

EMBEDDINGS = "embeddings"
_AT_ONCE = 8
"""Texts that are sent before the first is answered, so that the model may run short ones together."""
_LENGTH_ERROR = 1e-3
_replies = msgspec.json.Decoder(EmbedReply)
_log = logging.getLogger(__name__)


class ModelEmbedder:
    """Computes vectors with the model ``embeddings``."""

    def __init__(self, client: ModelClient, *, model: str = EMBEDDINGS, timeout_s: float = 10.0) -> None:
        self._client = client
        self._model = model
        self._timeout_s = timeout_s
        self._space: EmbeddingSpace | None = None

    async def describe(self) -> EmbeddingSpace:
        """The space of all vectors, by the first answer of the model, or that after it had other weights.

        Raises:
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        if self._space is None:
            await self.embed(["words"], kind="query")
            assert self._space is not None
        return self._space

    async def embed(self, texts: Sequence[str], *, kind: TextKind) -> NDArray[np.float32]:
        """The vectors of texts: f32 ``[len(texts), dimensions]``, each of length 1.

        Each text is a request, eight at once: the model may answer those of others in between.

        Raises:
            InvalidInputError: a text has no words, too many bytes, or half a surrogate pair.
            InferenceError: the model failed, is overloaded, did not answer in time, or has other weights than
                before.
        """
        vectors, replies = await self.embed_counted(texts, kind=kind)
        if truncated := sum(reply.is_truncated for reply in replies):
            _log.warning(
                "%d of %d texts have too many tokens: only their beginning counts", truncated, len(texts)
            )
        return vectors

    async def embed_counted(
        self, texts: Sequence[str], *, kind: TextKind
    ) -> tuple[NDArray[np.float32], list[EmbedReply]]:
        """As :meth:`embed`, with the model's reply to each text."""
        vectors: list[NDArray[np.float32]] = []
        replies: list[EmbedReply] = []
        for start in range(0, len(texts), _AT_ONCE):
            asked = (self._ask(text, kind) for text in texts[start : start + _AT_ONCE])
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
                vector, reply = answer
                vectors.append(vector)
                replies.append(reply)
        if not vectors:
            return np.empty((0, (await self.describe()).dimensions), np.float32), []
        return np.stack(vectors), replies

    async def _ask(self, text: str, kind: TextKind) -> tuple[NDArray[np.float32], EmbedReply]:
        try:
            content = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"a text has half a surrogate pair: {error.reason}") from error
        inputs = {
            "TEXT": text_tensor(content, batched=True),
            "REQUEST": struct_tensor(EmbedRequest(kind=kind), batched=True),
        }
        request = ModelRequest(self._model, inputs, ("EMBEDDING", "REPLY"), timeout_s=self._timeout_s)
        response = await self._client.infer(request)
        reply = decode_struct(response["REPLY"], _replies)
        if self._space is None:
            self._space = reply.space
        elif reply.space != self._space:
            self._space = reply.space
            raise InferenceError(f"{self._model} was loaded again with other weights")
        vector = response["EMBEDDING"].reshape(-1)
        if len(vector) != self._space.dimensions or not abs(np.linalg.norm(vector) - 1) < _LENGTH_ERROR:
            raise InferenceError(f"{self._model} answered with something that is no vector of length 1")
        return vector.astype(np.float32, copy=False), reply
