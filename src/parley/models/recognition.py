"""A recogniser's pipeline between Triton and :class:`parley.asr.service.RecognitionService`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Annotated, Any

import msgspec

from parley.asr.messages import AsrReply
from parley.asr.segmenter.segmentation import Detector
from parley.asr.service import RecognitionService, RecognizerPipeline, SessionTable, StreamRequest
from parley.errors import ParleyError
from parley.inference import struct_tensor
from parley.languages import ALL_LANGUAGES
from parley.logs import log_ids
from parley.metrics import Family
from parley.runtime.onnx import open_session
from parley.runtime.parameters import Parameters, Positive
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.responses import answer, make_response, read_tensors
from parley.vad.silero import FILE, SileroVad, bundled_folder

_CLOSE_S = 5.0
_log = logging.getLogger(__name__)


class Periodic:
    """Runs a function every ``interval_s`` seconds in a thread, until it is closed.

    A failure is logged and does not end the series.
    """

    def __init__(self, interval_s: float, run: Callable[[], object]) -> None:
        self._interval_s = interval_s
        self._run = run
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="periodic", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a run under way is waited for."""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _repeat(self) -> None:
        while not self._closed.wait(self._interval_s):
            try:
                self._run()
            except Exception:  # noqa: BLE001 - the series goes on, and the log says why
                _log.exception("a periodic task failed")


class RecognitionSettings(msgspec.Struct, frozen=True):
    """Settings of every recogniser of streams."""

    max_sessions: Positive = 64
    """Streams that are open at once."""
    languages: tuple[str, ...] = (ALL_LANGUAGES,)
    """Languages that are served; ``all``: those of the weights."""
    max_chunk_ms: Annotated[int, msgspec.Meta(ge=1_000)] = 10_000
    """Longest audio of one request."""


def read_languages(parameters: Parameters, own: Sequence[str]) -> Sequence[str]:
    """A model's languages (parameter ``languages``); not set or ``all``: ``own``, those of its weights.

    Weights that list none (``own`` is empty) count as English, and a warning is logged.
    """
    named = parameters.read(RecognitionSettings).languages
    if named != (ALL_LANGUAGES,):
        return named
    if not own:
        _log.warning(
            "the weights of %s do not list the languages that they understand, and count as English: list "
            "them in %s, or export the weights again (docs/recognition.md)",
            parameters.model,
            parameters.variable("languages"),
        )
    return own or ("en",)


def open_detector() -> Detector:
    """Silero's voice activity network, in this process.

    Every piece of audio passes it, and a call of another model costs more than its run.

    Raises:
        WeightsNotFoundError: the network is not installed.
    """
    return SileroVad(open_session(bundled_folder() / FILE))


class RecognitionModel:
    """The part that all recognisers share: keeps streams, serves their requests, drops idle ones."""

    def __init__(
        self,
        pb_utils: Any,
        parameters: Parameters,
        pipeline: RecognizerPipeline[Any],
        families: Sequence[Family] = (),
        *,
        languages: Sequence[str] = ("en",),
    ) -> None:
        """Serve ``pipeline`` with the parameters of :class:`RecognitionSettings`.

        The idle limit is that of the model's sequences. ``families`` are metrics of this model only;
        ``languages`` are those of its weights, as for :func:`read_languages`.

        Raises:
            ModelLoadingError: a setting has a value that it cannot have.
        """
        self._pb = pb_utils
        idle_s = parameters.sequence_idle_s
        settings = parameters.read(RecognitionSettings)
        self._traces = ModelTraces.open(parameters)
        self._service = RecognitionService(
            pipeline,
            SessionTable(settings.max_sessions, idle_s),
            languages=read_languages(parameters, languages),
            max_chunk_ms=settings.max_chunk_ms,
            begin_span=self._traces.begin,
        )
        self._sweeper = Periodic(idle_s / 4, self._service.sweep)
        self.metrics = ModelMetrics(pb_utils, parameters, families)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer one piece of audio of each stream."""
        began = monotonic()
        replies = self._service.serve([self._read(request) for request in requests])
        self.metrics.on_batch(len(requests), monotonic() - began)
        return [self._answer(request, reply) for request, reply in zip(requests, replies, strict=True)]

    def _answer(self, request: Any, reply: AsrReply | ParleyError) -> Any:
        if isinstance(reply, AsrReply):
            return make_response(self._pb, {"REPLY": struct_tensor(reply, batched=True)})
        # The requests of a stream have no ids of their own; its sequence has one.
        with log_ids(request=request.request_id() or str(request.correlation_id())):
            return answer(self._pb, reply, lambda _: {})

    def close(self) -> None:
        """Stop the thread that drops idle streams."""
        self._sweeper.close()
        self.metrics.close()
        self._traces.close()

    def _read(self, request: Any) -> StreamRequest:
        tensors = read_tensors(request.inputs())
        flags = request.flags()
        return StreamRequest(
            # To Triton, 5 and "5" are two sequences.
            key=repr(request.correlation_id()),
            start=bool(flags & self._pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            end=bool(flags & self._pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
            audio=tensors["AUDIO"],
            message=tensors.get("REQUEST", b""),
        )
