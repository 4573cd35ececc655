"""The model ``speaker_embedding`` out of its settings, and its service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from parley.errors import InvalidAudioError
from parley.inference import Tensor
from parley.runtime.batching import Tensors
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters, Positive
from parley.runtime.weights import resolve_weights
from parley.speakers.campplus import make_graph
from parley.speakers.embedding import FILE, LEAST, MOST, SpeakerEmbedding
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.request_queue import QueuedRequest, RequestQueue

DEFAULT = "campplus-zh-en"


class SpeakerSettings(msgspec.Struct, frozen=True):
    """Settings of ``speaker_embedding``."""

    max_waiting: Positive = 16
    """Requests that wait before more are refused."""


def load_network(parameters: Parameters) -> SpeakerEmbedding:
    """The network in the folder that the model's settings name.

    Raises:
        WeightsNotFoundError: there is no such folder, or it lacks the file.
        ModelLoadingError: the network cannot be opened.
    """
    file = resolve_weights(parameters, DEFAULT, (FILE,)) / FILE
    return SpeakerEmbedding(open_configured(file, parameters, part=make_graph(file)))


def load_model(pb_utils: Any, parameters: Parameters) -> RequestQueue[Tensors]:
    """What ``model.py`` of ``speaker_embedding`` runs.

    Parameters of the model: :class:`SpeakerSettings`, and those of
    :func:`parley.runtime.onnx.open_configured`.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """
    settings = parameters.read(SpeakerSettings)
    service = SpeakerService(load_network(parameters))
    service.warm_up()
    return RequestQueue(
        pb_utils,
        "embed",
        read_request,
        lambda _: 1,
        service.serve,
        max_waiting=settings.max_waiting,
        metrics=ModelMetrics(pb_utils, parameters),
        traces=ModelTraces.open(parameters),
    )


def read_request(tensors: Mapping[str, Tensor]) -> QueuedRequest[Tensors]:
    """The audio of one person; raises an ``InvalidAudioError``."""
    audio = tensors["AUDIO"]
    if audio.dtype != np.int16 or audio.ndim != 2 or len(audio) != 1 or not LEAST <= audio.size <= MOST:
        raise InvalidAudioError(
            f"AUDIO is {audio.dtype} {list(audio.shape)}; it must be int16 [1, {LEAST} to {MOST}]"
        )
    return QueuedRequest(lambda: tensors, "")


class SpeakerService:
    """Vectors of speakers.

    Input: ``AUDIO`` i16 ``[1, n]``, 16 kHz mono, 0.5 to 4 s of speech. Output: ``EMBEDDING`` f32 ``[1, d]``
    of length 1.
    """

    def __init__(self, network: SpeakerEmbedding) -> None:
        self._network = network

    def warm_up(self) -> None:
        """Run once, so that no real request pays for what only the first run does.

        Raises:
            InferenceError: the network cannot run at all.
        """
        self._network.embed(np.random.default_rng(0).integers(-99, 99, MOST, np.int16))

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors]:
        """The vectors of all requests; raises an ``InferenceError``."""
        return [{"EMBEDDING": self._network.embed(request["AUDIO"][0])[np.newaxis]} for request in requests]
