"""``POST /v1/embeddings``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from fastapi import Request
from msgspec import Meta
from numpy.typing import NDArray
from starlette.responses import Response

from parley.embeddings.messages import EmbedReply, TextKind
from parley.engines.embeddings import EMBEDDINGS, ModelEmbedder
from parley.triton.grpc_client import GrpcModelClient
from parley_gateway.apis.openai import rest
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import StageRoute, while_connected

_MOST_TEXTS = 256
Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to represent."""

    input: Text | Annotated[list[Text], Meta(min_length=1, max_length=_MOST_TEXTS)]
    model: str
    """`embeddings`, or the name of a model of OpenAI."""
    encoding_format: Literal["float", "base64"] | None = None
    """`base64`: of float32, little endian."""
    input_type: TextKind = "passage"
    """Parley's own: what the texts are to a search."""
    dimensions: int | None = None
    """Not supported: vectors have the network's own length."""
    user: Any = None


class EmbeddingRoute(StageRoute):
    """Represents texts by vectors of length 1, whose dot product is their similarity."""

    async def create(self, request: Request) -> Response:
        """The vectors of texts."""
        principal = await self._gateway.guard.admit(request, "chat")
        wanted = await rest.read_json(request, EmbeddingRequest)
        model = rest.choose_model(wanted.model, (EMBEDDINGS,), EMBEDDINGS)
        if wanted.dimensions is not None:
            raise rest.unsupported("dimensions")
        texts = [wanted.input] if isinstance(wanted.input, str) else wanted.input
        with rest.serving(wanted.model, model):
            vectors, replies = await while_connected(request, self._embed(principal, texts, wanted))
        for index, reply in enumerate(replies):
            if reply.is_truncated:
                raise rest.RefusedRequestError(
                    f"input[{index}] has more than {reply.space.max_tokens} tokens",
                    param="input",
                    reason="context_length_exceeded",
                )
        encode = _base64 if wanted.encoding_format == "base64" else np.ndarray.tolist
        tokens = sum(reply.tokens for reply in replies)
        content = msgspec.json.encode(  # 256 vectors take json ten times as long, 50 ms, on every call's loop
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": encode(vector)}
                    for index, vector in enumerate(vectors)
                ],
                "model": model,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )
        return Response(content, media_type="application/json")

    async def _embed(
        self, principal: Principal, texts: Sequence[str], wanted: EmbeddingRequest
    ) -> tuple[NDArray[np.float32], list[EmbedReply]]:
        with self._limiter.lease(principal) as server:
            client = GrpcModelClient(lambda: server.channel)
            try:
                return await ModelEmbedder(client).embed_counted(texts, kind=wanted.input_type)
            finally:
                await client.close()


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
