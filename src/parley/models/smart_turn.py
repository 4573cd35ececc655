"""The model ``smart_turn`` out of its settings, and its service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from parley.audio.whisper_mel import SAMPLE_RATE
from parley.errors import InvalidAudioError, ParleyError
from parley.inference import Tensor, decode_request
from parley.runtime.batching import Tensors, run_together
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters, Positive
from parley.runtime.weights import resolve_weights
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.request_queue import QueuedRequest, RequestQueue
from parley.turns.smart_turn import SAMPLES, SmartTurn, TurnRequest, bundled_folder, network_file

_requests = msgspec.json.Decoder(TurnRequest)
_DEFAULTS = TurnRequest()


def load_network(parameters: Parameters, *, rows: int) -> SmartTurn:
    """The network in the folder that the model's settings name, else that of the package ``pipecat-ai``.

    Raises:
        WeightsNotFoundError: there is no such folder, it has no network, or the package is not installed.
        ModelLoadingError: the network cannot be opened.
    """
    folder = resolve_weights(parameters, bundled_folder)
    return SmartTurn(open_configured(network_file(folder), parameters), rows=rows)


class SmartTurnSettings(msgspec.Struct, frozen=True):
    """Settings of ``smart_turn``."""

    rows: Positive = 1
    """Pauses in one run of the network."""
    max_waiting: Positive = 16
    """Pauses that wait before more are refused."""


def load_model(pb_utils: Any, parameters: Parameters) -> RequestQueue[Tensors]:
    """What ``model.py`` of ``smart_turn`` runs.

    Parameters of the model: :class:`SmartTurnSettings`, and those of :func:`load_network`.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """
    settings = parameters.read(SmartTurnSettings)
    service = SmartTurnService(load_network(parameters, rows=settings.rows))
    service.warm_up()
    return RequestQueue(
        pb_utils,
        "score",
        read_request,
        # More wait longer for the first of them than they save.
        partial(count_together, rows=settings.rows),
        service.serve,
        max_waiting=settings.max_waiting,
        metrics=ModelMetrics(pb_utils, parameters),
        traces=ModelTraces.open(parameters),
    )


def read_request(tensors: Mapping[str, Tensor]) -> QueuedRequest[Tensors]:
    """A pause to be scored, with the span of its caller."""
    message = _DEFAULTS
    if "REQUEST" in tensors:
        message = decode_request(tensors["REQUEST"].reshape(-1)[:1], _requests, _DEFAULTS)
    return QueuedRequest(lambda: tensors, message.traceparent)


def count_together(waiting: Sequence[Tensors], *, rows: int) -> int:
    """How many of the pauses that wait are scored in one run."""
    return min(rows, len(waiting))


class SmartTurnService:
    """Probabilities that turns are over.

    Input: ``AUDIO`` i16 ``[B, n]``, 16 kHz mono, at most eight seconds: the turn so far, with the silence
    after it; ``REQUEST`` TYPE_STRING ``[B, 1]``, of which the first is read
    (:class:`parley.turns.smart_turn.TurnRequest`), may be left out. Output: ``PROBABILITY`` f32 ``[B, 1]``.
    """

    def __init__(self, network: SmartTurn) -> None:
        self._network = network

    def warm_up(self) -> None:
        """Run once, so that the first real request does not pay for what only the first run does.

        Raises:
            InferenceError: the network cannot run at all.
        """
        self._network.score([np.zeros(SAMPLE_RATE, np.int16)])

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """Score the turns of all requests."""
        return run_together(requests, _check, self._run)

    def _run(self, requests: Sequence[Tensors]) -> list[Tensors]:
        scores = iter(self._network.score([row for request in requests for row in request["AUDIO"]]))
        return [
            {"PROBABILITY": np.array([[next(scores)] for _ in request["AUDIO"]], np.float32)}
            for request in requests
        ]


def _check(request: Tensors) -> None:
    audio = request["AUDIO"]
    if audio.ndim != 2 or audio.dtype != np.int16:
        raise InvalidAudioError(
            f"AUDIO is {audio.dtype} {list(audio.shape)}; it must be int16 [rows, samples]"
        )
    if not 1 <= audio.shape[1] <= SAMPLES:
        raise InvalidAudioError(f"AUDIO has {audio.shape[1]} samples; it must have 1 to {SAMPLES}")
