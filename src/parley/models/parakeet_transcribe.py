"""Triton's requests to the models for whole recordings, and the settings of ``parakeet_transcribe``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec

from parley.asr import checkpoint
from parley.asr.messages import TranscribeReply
from parley.asr.parakeet.networks import RemoteModels
from parley.asr.parakeet.reader import ParakeetReader
from parley.asr.reader import Reader, RunLimits
from parley.asr.segmenter.segmentation import PER_MS, Detector
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.utterances.transcription import TranscriptionLimits, TranscriptionService
from parley.asr.utterances.utterance import Window
from parley.errors import ModelLoadingError, ParleyError
from parley.inference import Tensor, struct_tensor
from parley.languages import ALL_LANGUAGES, only_language
from parley.models.recognition import open_detector, read_languages
from parley.protocol import VadOptions
from parley.runtime.parameters import Natural, NonNegative, Parameters
from parley.triton.model_client import InProcessBlockingClient
from parley.triton.model_traces import ModelTraces
from parley.triton.responses import Responder, receive_requests
from parley.vad.segmenter import DEFAULT_SILENCE_MS, check_options

_CLOSE_S = 15.0
_MOST_ROWS = 64
"""Rows that Triton passes to ``parakeet_encoder`` and ``parakeet_decoder`` at once (``max_batch_size``)."""


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
    """Reads the recordings of Triton's requests; ``detector`` is used by this object and ``reader`` only."""

    def __init__(
        self,
        pb_utils: Any,
        parameters: Parameters,
        reader: Reader,
        detector: Detector,
        *,
        recording: SegmentRecordingLimits,
        limits: TranscriptionLimits,
    ) -> None:
        self._pb = pb_utils
        self._traces = ModelTraces.open(parameters)
        begin = partial(SegmentRecording, reader=reader, limits=recording)
        self._service = TranscriptionService(begin, SegmentRounds(reader, detector), limits)

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


class RecordingSettings(msgspec.Struct, frozen=True):
    """Settings of every model that transcribes whole recordings."""

    languages: tuple[str, ...] = (ALL_LANGUAGES,)
    """Languages that are served; ``all``: those of the weights."""
    max_audio_ms: Annotated[int, msgspec.Meta(ge=1_000)] = 24 * 60_000
    """Longest recording."""
    max_pending_ms: Annotated[int, msgspec.Meta(ge=1_000)] = 120 * 60_000
    """Audio that may wait before more is refused."""
    pause_ms: Natural = DEFAULT_SILENCE_MS
    """Silence that ends a stretch of speech; 0: the recording is read as a whole."""
    vad_threshold: NonNegative = VadOptions().threshold
    """Probability from which audio is speech."""
    preroll_ms: Natural = 320
    """Audio before the onset that is read too."""


class TranscriptionSettings(msgspec.Struct, frozen=True):
    """Settings of ``parakeet_transcribe``."""

    window_ms: Annotated[int, msgspec.Meta(ge=1_000)] = 30_000
    """Longest audio that is read at once; longer speech is cut at the quietest place of its second half."""
    room_ms: Annotated[int, msgspec.Meta(ge=1_000)] = 120_000
    """Audio of one encoder call."""
    timeout_s: Annotated[float, msgspec.Meta(ge=0.1)] = 30.0
    """Limit of each call to a network."""


def read_limits(parameters: Parameters, languages: Sequence[str]) -> TranscriptionLimits:
    """What is accepted, by :class:`RecordingSettings`.

    ``languages``: those of the weights, as for :func:`parley.models.recognition.read_languages`.
    """
    settings = parameters.read(RecordingSettings)
    taken = read_languages(parameters, languages)
    return TranscriptionLimits(
        taken,
        max_audio_ms=settings.max_audio_ms,
        max_pending_ms=settings.max_pending_ms,
        # Weights of several languages write each that they hear, also where only one is taken.
        written_in=only_language(languages or taken),
    )


class TranscriptionModel(RecordingRequests):
    """What ``model.py`` of ``parakeet_transcribe`` runs.

    Parameters of the model: :class:`TranscriptionSettings` and :class:`RecordingSettings`.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        export = checkpoint.load_description(parameters)
        settings = parameters.read(TranscriptionSettings)
        self._client = InProcessBlockingClient(pb_utils)
        detector = open_detector()
        limits = read_limits(parameters, export.languages)
        reader = ParakeetReader(
            RemoteModels(self._client, detector, timeout_s=settings.timeout_s),
            export,
            languages=limits.languages,
            longest_ms=settings.window_ms,
            # Final texts of calls are short: one run for all of them takes less than several without padding.
            limits=RunLimits(_MOST_ROWS, settings.room_ms * PER_MS, ratio=math.inf),
        )
        recording = SegmentRecordingLimits(
            read_vad(parameters),
            Window(settings.window_ms, settings.window_ms // 2),
            parameters.read(RecordingSettings).preroll_ms,
            join_ms=0,
        )
        super().__init__(pb_utils, parameters, reader, detector, recording=recording, limits=limits)

    def close(self) -> None:
        """Refuse what is not done, and stop."""
        super().close()
        self._client.close()


def read_vad(parameters: Parameters) -> VadOptions | None:
    """Which pauses part stretches of speech by :class:`RecordingSettings`.

    Raises:
        ModelLoadingError: one of them is out of range.
    """
    settings = parameters.read(RecordingSettings)
    if settings.pause_ms == 0:
        return None
    options = VadOptions(threshold=settings.vad_threshold, silence_ms=settings.pause_ms)
    try:
        check_options(options)
    except ParleyError as error:
        raise ModelLoadingError(f"parameters of model {parameters.model}: {error}") from error
    return options
