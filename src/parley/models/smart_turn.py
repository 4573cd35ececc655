"""The service of ``smart_turn``, and the queue of its requests."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from parley.audio.whisper_mel import SAMPLE_RATE
from parley.errors import InvalidAudioError, OverloadedError, ParleyError, ShuttingDownError
from parley.inference import Tensor, decode_request
from parley.runtime.batching import Tensors, run_together
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters, Positive
from parley.runtime.weights import resolve_weights
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.responses import Responder, receive_requests
from parley.turns.smart_turn import SAMPLES, SmartTurn, TurnRequest, bundled_folder, network_file

_CLOSE_S = 5.0
_requests = msgspec.json.Decoder(TurnRequest)
_DEFAULTS = TurnRequest()
_log = logging.getLogger(__name__)


def load_network(parameters: Parameters, *, rows: int) -> SmartTurn:
    """The network in the folder that the model's settings name, else that of the package ``pipecat-ai``.

    Args:
        parameters: of the model.
        rows: pauses in one run of the network.

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


def load_model(pb_utils: Any, parameters: Parameters) -> SmartTurnRequests:
    """What ``model.py`` of ``smart_turn`` runs.

    Parameters of the model: :class:`SmartTurnSettings`, and those of :func:`load_network`.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """
    settings = parameters.read(SmartTurnSettings)
    service = SmartTurnService(load_network(parameters, rows=settings.rows))
    service.warm_up()
    return SmartTurnRequests(
        pb_utils,
        service.serve,
        together=settings.rows,
        max_waiting=settings.max_waiting,
        metrics=ModelMetrics(pb_utils, parameters),
        traces=ModelTraces.open(parameters),
    )


class SmartTurnRequests:
    """Answers requests one after the other in a thread, and refuses those for which there is no room.

    Triton's own bounded queue (``max_queue_size``) would refuse them too. But with it Triton 24.10 overlooks
    about one in a hundred of the requests that come just when another is answered, and serves it half a
    second later, which is too late for the agent.

    Args:
        serve: answers requests that are run together.
        together: requests of one run; more wait longer for the first of them than they save.
        max_waiting: requests that wait beside those in the run.
        metrics: of the model; closed with the thread.
        traces: of the model; closed with the thread.
    """

    def __init__(
        self,
        pb_utils: Any,
        serve: Callable[[Sequence[Tensors]], Sequence[Tensors | ParleyError]],
        *,
        together: int,
        max_waiting: int,
        metrics: ModelMetrics,
        traces: ModelTraces,
    ) -> None:
        self._metrics = metrics
        self._traces = traces
        self._pb = pb_utils
        self._serve = serve
        self._together = together
        self._max_waiting = max_waiting
        self._waiting: deque[tuple[Mapping[str, Tensor], Responder]] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="smart-turn", daemon=True)
        self._thread.start()

    def execute(self, requests: Iterable[Any]) -> None:
        """Take over Triton's requests; returns at once."""
        receive_requests(self._pb, requests, self._take, self._metrics)

    def close(self) -> None:
        """Refuse what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_S)
        self._metrics.close()
        for _, responder in self._waiting:
            responder.fail(ShuttingDownError("the model is being unloaded"))
        self._traces.close()

    def _take(self, responder: Responder, tensors: Mapping[str, Tensor]) -> None:
        if "REQUEST" in tensors:
            message = decode_request(tensors["REQUEST"].reshape(-1)[:1], _requests, _DEFAULTS)
            self._traces.follow(responder, "score", message.traceparent)
        with self._changed:
            if self._closed:
                raise ShuttingDownError("the model is being unloaded")
            if len(self._waiting) >= self._max_waiting:
                raise OverloadedError(f"{self._max_waiting} pauses wait to be scored already")
            self._waiting.append((tensors, responder))
            self._changed.notify()

    def _run(self) -> None:
        while batch := self._next():
            began = monotonic()
            for _, responder in batch:
                responder.on_begun()
            results: Sequence[Tensors | Exception]
            try:
                results = self._serve([tensors for tensors, _ in batch])
            except Exception as error:  # noqa: BLE001 - answered and logged; the one thread goes on
                _log.exception("pauses could not be scored")
                results = [error] * len(batch)
            self._metrics.on_batch(len(batch), monotonic() - began)
            for (_, responder), result in zip(batch, results, strict=True):
                try:
                    if isinstance(result, Exception):
                        responder.fail(result)
                    else:
                        responder.answer(result)
                except Exception:  # noqa: BLE001 - the other requests are answered
                    _log.exception("a score could not be sent")

    def _next(self) -> list[tuple[Mapping[str, Tensor], Responder]]:
        """The requests of the next run; empty at the end."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            return [self._waiting.popleft() for _ in range(min(self._together, len(self._waiting)))]


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
