"""Triton's requests to the models for whole recordings, and the settings of ``parakeet_transcribe``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.asr.features.log_mel import LogMel
from parley.asr.files.recording import Recording, RecordingLimits, WindowPlan
from parley.asr.files.rounds import TranscriptionRounds
from parley.asr.files.service import TranscriptionLimits, TranscriptionService
from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.asr.offline.networks import RemoteModels
from parley.asr.pipeline.segmentation import PER_MS
from parley.errors import ModelLoadingError, ParleyError
from parley.inference import Tensor, struct_tensor
from parley.languages import only_language
from parley.models.recognition import open_detector, read_languages
from parley.protocol import VadOptions
from parley.runtime.parameters import Parameters
from parley.triton.model_client import InProcessBlockingClient
from parley.triton.model_traces import ModelTraces
from parley.triton.responses import Responder, receive_requests
from parley.vad.segmenter import DEFAULT_SILENCE_MS, check_options

_CLOSE_S = 15.0


class _TritonCaller:
    """Sends a transcript as the response to a Triton request."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self.fail = responder.fail

    @property
    def cancelled(self) -> bool:
        """Whether the caller has disconnected."""
        return self._responder.cancelled

    def send(self, reply: TranscribeReply) -> None:
        """Answer and end the request."""
        self._responder.answer({"REPLY": struct_tensor(reply, batched=True)})


class RecordingRequests:
    """Hands Triton's requests to a service."""

    def __init__(
        self,
        pb_utils: Any,
        service: TranscriptionService[Any],
        traces: ModelTraces,
    ) -> None:
        """Own the service and the model's traces."""
        self._pb = pb_utils
        self._traces = traces
        self._service = service

    def execute(self, requests: Iterable[Any]) -> None:
        """Take over Triton's requests; each is answered when it is done."""
        receive_requests(self._pb, requests, self._begin)

    def close(self) -> None:
        """Refuse what is not done, and stop."""
        self._service.close(_CLOSE_S)
        self._traces.close()

    def _begin(self, responder: Responder, tensors: Mapping[str, Tensor]) -> None:
        audio = tensors["AUDIO"]
        request = self._service.submit(audio, tensors["REQUEST"], _TritonCaller(responder))
        length = {"parley.audio_ms": audio.size // PER_MS}
        self._traces.follow(responder, "transcribe", request.traceparent, length)


def read_limits(parameters: Parameters, languages: Sequence[str]) -> TranscriptionLimits:
    """What is accepted (parameters ``languages``, ``max_audio_ms`` and ``max_pending_ms``).

    ``languages``: those of the weights, as for :func:`parley.models.recognition.read_languages`.
    """
    taken = read_languages(parameters, languages)
    return TranscriptionLimits(
        taken,
        max_audio_ms=parameters.integer("max_audio_ms", 24 * 60_000, minimum=1_000),
        max_pending_ms=parameters.integer("max_pending_ms", 120 * 60_000, minimum=1_000),
        # Weights of several languages write each that they hear, also where only one is taken.
        written_in=only_language(languages or taken),
    )


class TranscriptionModel(RecordingRequests):
    """What ``model.py`` of ``parakeet_transcribe`` runs.

    Parameters of the model:
        ``window_ms``, ``left_ms``, ``right_ms``: longest audio that is encoded at once, and how
            much of it is context where longer speech is cut.
        ``room_ms``: audio of one encoder call.
        ``pause_ms``: silence that ends a stretch of speech; 0: the recording is not searched for
            speech, but read from its beginning to its end.
        ``vad_threshold``, ``preroll_ms``: as in ``parakeet_tdt``.
        ``max_audio_ms``: longest recording.
        ``max_pending_ms``: audio that may wait before more is refused.
        ``languages``: what the checkpoint understands.
        ``timeout_s``: limit of each call to a network.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        export = checkpoint.load_description(parameters)
        plan = WindowPlan.of(
            export.config,
            window_ms=parameters.integer("window_ms", 30_000),
            left_ms=parameters.integer("left_ms", 10_000),
            right_ms=parameters.integer("right_ms", 5_000),
        )
        recording = RecordingLimits(plan, read_vad(parameters), parameters.integer("preroll_ms", 320))
        mel = LogMel(export.config)
        limits = read_limits(parameters, export.languages)
        self._client = InProcessBlockingClient(pb_utils)
        timeout_s = parameters.number("timeout_s", 30.0, minimum=0.1)
        rounds = TranscriptionRounds(
            RemoteModels(self._client, open_detector(), timeout_s=timeout_s),
            room=parameters.integer("room_ms", 120_000, minimum=1_000) // export.config.feature_ms,
        )

        def begin(audio: NDArray[np.int16], request: TranscribeRequest) -> Recording:
            return Recording(audio, request, export, mel, recording)

        service = TranscriptionService(begin, rounds, limits)
        super().__init__(pb_utils, service, ModelTraces.open(parameters))

    def close(self) -> None:
        """Refuse what is not done, and stop."""
        super().close()
        self._client.close()


def read_vad(parameters: Parameters) -> VadOptions | None:
    """Which pauses part stretches of speech (parameters ``pause_ms`` and ``vad_threshold``).

    Raises:
        ModelLoadingError: one of them is out of range.
    """
    pause_ms = parameters.integer("pause_ms", DEFAULT_SILENCE_MS)
    if pause_ms == 0:
        return None
    threshold = parameters.number("vad_threshold", VadOptions().threshold)
    options = VadOptions(threshold=threshold, silence_ms=pause_ms)
    try:
        check_options(options)
    except ParleyError as error:
        raise ModelLoadingError(f"parameters of model {parameters.model}: {error}") from error
    return options
