"""The model ``embeddings``: the vectors of texts, for queries before passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from parley.embeddings.bert import make_graph
from parley.embeddings.encoder import SentenceFolder, TextEncoder, TokenizedText
from parley.embeddings.files import FILES, WEIGHTS_FILE
from parley.embeddings.messages import EmbedReply, EmbedRequest
from parley.errors import InvalidInputError
from parley.inference import Tensor, decode_request, struct_tensor
from parley.runtime.batching import Tensors
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters, Positive
from parley.runtime.weights import resolve_weights
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.request_queue import QueuedRequest, RequestQueue

DEFAULT = "all-minilm-l6-v2"
_requests = msgspec.json.Decoder(EmbedRequest)
_DEFAULTS = EmbedRequest()


class EmbeddingSettings(msgspec.Struct, frozen=True):
    """Settings of ``embeddings``."""

    run_tokens: Positive = 256
    """Tokens of one run of the network, padding included; a query waits for one run at most."""
    max_waiting: Positive = 64
    """Queries that wait before more are refused, and as many passages."""
    query_prefix: str = ""
    """Written before queries, such as `query: ` for networks that were trained so."""
    passage_prefix: str = ""
    """Written before passages."""


def load_model(pb_utils: Any, parameters: Parameters) -> RequestQueue[TokenizedText]:
    """What ``model.py`` of ``embeddings`` runs.

    Parameters of the model: :class:`EmbeddingSettings`, and those of
    :func:`parley.runtime.onnx.open_configured`.

    Raises:
        WeightsNotFoundError: a file of the weights is missing.
        ModelLoadingError: one cannot be used, or a setting is not usable.
    """
    settings = parameters.read(EmbeddingSettings)
    path = resolve_weights(parameters, DEFAULT, FILES)
    folder = SentenceFolder(path, {"query": settings.query_prefix, "passage": settings.passage_prefix})
    session = open_configured(path / WEIGHTS_FILE, parameters, part=make_graph(path, folder.config))
    encoder = TextEncoder(session, takes_mean=folder.takes_mean, run_tokens=settings.run_tokens)
    service = EmbeddingService(folder, encoder)
    service.warm_up()
    return RequestQueue(
        pb_utils,
        "embed",
        service.read,
        encoder.count_together,
        service.serve,
        max_waiting=settings.max_waiting,
        metrics=ModelMetrics(pb_utils, parameters),
        traces=ModelTraces.open(parameters),
    )


class EmbeddingService:
    """Vectors of texts.

    Input: ``TEXT`` TYPE_STRING ``[1, 1]``, UTF-8; ``REQUEST`` TYPE_STRING ``[1, 1]``
    (:class:`parley.embeddings.messages.EmbedRequest`) may be left out. Output: ``EMBEDDING`` f32 ``[1, d]``
    of length 1; ``REPLY`` TYPE_STRING ``[1, 1]`` (:class:`parley.embeddings.messages.EmbedReply`).
    """

    def __init__(self, folder: SentenceFolder, encoder: TextEncoder) -> None:
        self._folder = folder
        self._encoder = encoder

    def warm_up(self) -> None:
        """Run a short and a longest text, so that no real request pays for what only the first run does.

        Raises:
            InferenceError: the network cannot run at all.
        """
        for text in (b"word", b"word " * self._folder.space.max_tokens):
            self.serve([self._folder.tokenize(text, "query")])

    def read(self, tensors: Mapping[str, Tensor]) -> QueuedRequest[TokenizedText]:
        """A request's text, which is tokenized where there is room; raises an ``InvalidInputError``."""
        text, message = tensors["TEXT"], _DEFAULTS
        if text.shape != (1, 1):
            raise InvalidInputError(f"TEXT has shape {list(text.shape)}; it must be [1, 1]")
        if "REQUEST" in tensors:
            message = decode_request(tensors["REQUEST"], _requests, _DEFAULTS)
        (content,) = text.reshape(-1)
        return QueuedRequest(
            partial(self._folder.tokenize, bytes(content), message.kind),
            message.traceparent,
            is_urgent=message.kind == "query",
        )

    def serve(self, texts: Sequence[TokenizedText]) -> Sequence[Tensors]:
        """Vectors and replies of texts that are run together; raises an ``InferenceError``."""
        vectors = self._encoder.encode(texts)
        return [
            {"EMBEDDING": vector[np.newaxis], "REPLY": struct_tensor(self._reply(text), batched=True)}
            for vector, text in zip(vectors, texts, strict=True)
        ]

    def _reply(self, text: TokenizedText) -> EmbedReply:
        return EmbedReply(space=self._folder.space, tokens=len(text.ids), is_truncated=text.is_truncated)
