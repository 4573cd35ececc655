"""What ``model.py`` of a streaming recogniser runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.batch import make_decoder
from parley.asr.features import LogMel
from parley.asr.messages import AsrFallbackEvent, TranscribeReply, TranscribeRequest
from parley.asr.parakeet.networks import OnnxJoint
from parley.asr.segmenter.segmentation import PER_MS
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.encoder import CacheAwareEncoder, StreamingExport, choose, with_keys
from parley.asr.streaming.final_transcripts import FinalTranscriber, FinalTranscriptPolicy
from parley.asr.streaming.pipeline import StreamingLimits, StreamingPipeline
from parley.asr.streaming.recognizer import Recognizer, StreamingRecognizer
from parley.errors import ModelLoadingError, ParleyError, ShuttingDownError
from parley.inference import ModelClient, ModelRequest, struct_tensor, tensor_struct
from parley.languages import find_language
from parley.metrics import Family
from parley.models.parakeet_decoder import beam_size
from parley.models.recognition import RecognitionModel, RecognitionSettings, open_detector, read_languages
from parley.runtime.extensions import find_extensions
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Natural, NonNegative, Parameters, Positive
from parley.runtime.weights import resolve_weights
from parley.triton.model_client import make_model_client
from parley.triton.request_loop import LoopThread
from parley.vad.segmenter import MAX_MIN_SPEECH_MS

ASR_FALLBACKS = Family(
    "parley_asr_fallback_total",
    "counter",
    "Utterances for which one speech model replaced another",
    ("from_model", "to_model", "reason"),
)
_OWN = "own"
_WINDOW_MS = 32
_CLOSE_S = 5.0
_log = logging.getLogger(__name__)


def _graph_with_keys(path: Path, export: StreamingExport) -> bytes:
    """The encoder in its other form; empty if there is none, and then it runs as it is."""
    try:
        return with_keys(path.read_bytes(), export.streaming.cache_last_channel)
    except ModelLoadingError as error:
        _log.info("%s computes keys and values anew for each chunk: %s", path, error)
        return b""


def load_recognizer(
    export: StreamingExport,
    look_aheads_ms: Sequence[int],
    open_session: Callable[..., Any],
    *,
    keeps_keys: bool = True,
    slots: int,
    audio: int,
    beam_size: int | None = None,
) -> tuple[StreamingRecognizer, dict[int, int]]:
    """Open the networks and run each once.

    Args:
        export: the model.
        look_aheads_ms: what clients may choose (milliseconds of audio).
        open_session: opens an ONNX file, as :func:`parley.runtime.onnx.open_session`.
        keeps_keys: whether attention computes keys and values of new frames only
            (:func:`parley.asr.streaming.encoder.with_keys`).
        slots: utterances at once.
        audio: samples that may come for an utterance in one step.
        beam_size: decode by beam search; None: greedily.

    Returns:
        The recogniser, and the feature frames of a chunk by look-ahead (milliseconds).

    Raises:
        ModelLoadingError: a network cannot be loaded or run.
    """
    encoders: dict[int, CacheAwareEncoder] = {}
    chunks: dict[int, int] = {}
    prompts = export.checkpoint.config.prompts
    for look_ahead, path in choose(export, look_aheads_ms).items():
        encoder = CacheAwareEncoder(
            open_session(path, part=_graph_with_keys(path, export) if keeps_keys else b""),
            lookahead=look_ahead,
            channel=export.streaming.cache_last_channel,
            time=export.streaming.cache_last_time,
        )
        if encoder.is_prompted != bool(prompts):
            there, lacks = (path.name, "config.json") if encoder.is_prompted else ("config.json", path.name)
            raise ModelLoadingError(f"{path.parent}: a language prompt is in {there}, but not in {lacks}")
        try:
            encoder.warm_up(max(prompts.values(), default=0))
        except ParleyError as error:
            raise ModelLoadingError(f"{path} cannot be run: {error}") from error
        encoders[encoder.chunk] = encoder
        chunks[export.look_ahead_ms(look_ahead)] = encoder.chunk
    joint = OnnxJoint(open_session(export.checkpoint.decoder))
    recognizer = StreamingRecognizer(
        encoders,
        make_decoder(export.checkpoint, joint, beam_size=beam_size),
        LogMel(export.checkpoint.config),
        slots=slots,
        audio=audio,
    )
    return recognizer, chunks


@dataclass(frozen=True)
class Engine:
    """What recognises."""

    checkpoint: Checkpoint
    recognizer: Recognizer
    chunks: dict[int, int]
    """Feature frames of a chunk by look-ahead (milliseconds)."""


class EngineOpener(Protocol):
    """Loads an export as a model's parameters say."""

    def __call__(
        self, parameters: Parameters, device_id: int, *, look_aheads_ms: Sequence[int], slots: int, audio: int
    ) -> Engine:
        """Load; the arguments are those of :func:`load_recognizer`, and the number of the GPU."""
        ...


def _open_onnx(
    parameters: Parameters, device_id: int, *, look_aheads_ms: Sequence[int], slots: int, audio: int
) -> Engine:
    """Networks on ONNX Runtime; caches, features and decoding in numpy."""
    folder = resolve_weights(parameters, streaming_checkpoint.DEFAULT, streaming_checkpoint.FILES)
    export = streaming_checkpoint.load(folder)
    recognizer, chunks = load_recognizer(
        export,
        look_aheads_ms,
        partial(open_configured, parameters=parameters, device_id=device_id),
        keeps_keys=parameters.choice("device", "cpu", ("cpu", "gpu")) == "cpu",
        slots=slots,
        audio=audio,
        beam_size=beam_size(parameters),
    )
    return Engine(export.checkpoint, recognizer, chunks)


_ENGINES: Mapping[str, EngineOpener] = {"onnx": _open_onnx, **find_extensions("streaming_engines")}


class StreamingSettings(msgspec.Struct, frozen=True):
    """Settings of ``nemotron_streaming``."""

    default_lookahead_ms: Natural | None = None
    """For clients that do not choose; one of ``lookaheads_ms``. Not set: the shortest."""
    slots: Positive | None = None
    """Utterances of one step. Not set: twice ``max_sessions``, because one that ends and the next one of its
    stream may come together."""
    preroll_ms: Natural = StreamingLimits.preroll_ms
    """Audio before the onset that is recognised too."""
    max_utterance_ms: Annotated[int, msgspec.Meta(ge=1_000)] = StreamingLimits.max_utterance_ms
    """Speech without a pause is ended after this time."""
    finals: str = _OWN
    """``own``, or the model that transcribes every utterance anew at its end."""
    fallback: str = ""
    """Model for the utterances that this one fails at; without it such a piece of audio is refused."""
    finals_early_ms: Natural = StreamingLimits.early_ms
    """Silence after which the final text is begun; 0: at the end of the utterance."""
    finals_deadline_ms: Positive = 2_000
    """After this time the text of another model is no longer awaited."""
    finals_rest_ms: Natural = 10_000
    """Time without requests to a model that was late."""
    finals_wait_ms: NonNegative = StreamingLimits.patience_s * 1000
    """How long a step waits for the text of another model, which holds up all streams. A later one comes with
    a later piece of audio."""


class StreamingModel(RecognitionModel):
    """A cache-aware recogniser in this process; other transcripts by other models.

    Parameters of the model, besides :class:`StreamingSettings` and those of
    :class:`parley.models.recognition.RecognitionModel`. Of ``languages`` (those that are served) a model with
    language prompts needs a prompt for each:
        ``lookaheads_ms``: what clients may choose, such as ``80,160``; each is a network in memory.
        ``decoding``, ``beam_size``: ``greedy``, or ``beam`` with this number of hypotheses.
        ``engine``: ``onnx``, or ``torch`` with features, caches and greedy decoding on the device.
        ``device``, ``threads``: where the networks run.
        ``precision``: of torch's encoder; see :func:`parley_torch.models.recognizers.device_settings`.
        ``row_buckets``: rising numbers of rows to which torch's steps are padded.
        ``graphs``: whether torch's steps are CUDA graphs (default: on a GPU).

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        open_engine = _ENGINES[parameters.choice("engine", "onnx", tuple(_ENGINES))]
        settings = parameters.read(StreamingSettings)
        limits = StreamingLimits(
            preroll_ms=settings.preroll_ms,
            max_utterance_ms=settings.max_utterance_ms,
            early_ms=settings.finals_early_ms,
            patience_s=settings.finals_wait_ms / 1000,
        )
        look_aheads = streaming_checkpoint.read_look_aheads(parameters)
        sessions = parameters.read(RecognitionSettings)
        longest_ms = sessions.max_chunk_ms + limits.preroll_ms + MAX_MIN_SPEECH_MS + _WINDOW_MS
        engine = open_engine(
            parameters,
            parameters.device_id,
            look_aheads_ms=look_aheads,
            slots=settings.slots or 2 * sessions.max_sessions,
            audio=longest_ms * PER_MS,
        )
        chunks = engine.chunks
        default_ms = settings.default_lookahead_ms
        if default_ms is None:
            default_ms = look_aheads[0]
        if default_ms not in chunks:
            raise ModelLoadingError(
                f"default_lookahead_ms of model {parameters.model} is {default_ms}; "
                f"lookaheads_ms has {', '.join(map(str, chunks))}"
            )
        policy = _policy(parameters.model, settings)
        self._transcribers = RemoteTranscribers(
            make_model_client(pb_utils, parameters), timeout_s=policy.deadline_s
        )
        pipeline = StreamingPipeline(
            engine.checkpoint,
            engine.recognizer,
            open_detector(),
            FinalTranscriber(policy, self._transcribers, self._count, monotonic),
            chunks=chunks,
            default_ms=default_ms,
            limits=limits,
        )
        check_languages(parameters, engine.checkpoint)
        super().__init__(
            pb_utils, parameters, pipeline, (ASR_FALLBACKS,), languages=engine.checkpoint.languages
        )

    def close(self) -> None:
        """Stop the threads and close the clients."""
        super().close()
        self._transcribers.close()

    def _count(self, event: AsrFallbackEvent) -> None:
        self.metrics.recorder.count(
            ASR_FALLBACKS, from_model=event.from_model, to_model=event.to_model, reason=event.reason
        )


def check_languages(parameters: Parameters, checkpoint: Checkpoint) -> None:
    """Refuse languages (parameter ``languages``) that a model with prompts has no prompt for.

    Raises:
        ModelLoadingError: there is no prompt for one of them.
    """
    own = tuple(checkpoint.config.prompts)
    if not own:
        return
    for language in read_languages(parameters, own):
        if find_language(language, own) is None:
            raise ModelLoadingError(
                f"languages of model {parameters.model} has {language}; its weights have prompts for "
                f"{', '.join(own)}"
            )


def _policy(own: str, settings: StreamingSettings) -> FinalTranscriptPolicy:
    return FinalTranscriptPolicy(
        own=own,
        finals="" if settings.finals == _OWN else settings.finals,
        fallback=settings.fallback,
        deadline_s=settings.finals_deadline_ms / 1000,
        rest_s=settings.finals_rest_ms / 1000,
    )


class RemoteTranscribers:
    """:class:`parley.asr.streaming.final_transcripts.Transcribers` by calls of a bounded client."""

    def __init__(self, client: ModelClient, *, timeout_s: float) -> None:
        """Call through ``client``, and close it at the end; each call has ``timeout_s``."""
        self._client = client
        self._timeout_s = timeout_s
        self._loop = LoopThread("transcribers")
        self._closed = False

    def submit(
        self, model: str, audio: NDArray[np.int16], request: TranscribeRequest
    ) -> Future[TranscribeReply]:
        """Begin to transcribe: i16 ``[n]``, 16 kHz mono."""
        if self._closed:
            refused: Future[TranscribeReply] = Future()
            refused.set_exception(ShuttingDownError(f"no more calls to {model}: the server is stopping"))
            return refused
        return self._loop.submit(self._transcribe(model, audio, request))

    def close(self) -> None:
        """Take no more calls, and stop."""
        self._closed = True
        try:
            self._loop.run(self._client.close(), _CLOSE_S)
        finally:
            self._loop.stop(_CLOSE_S)

    async def _transcribe(
        self, model: str, audio: NDArray[np.int16], request: TranscribeRequest
    ) -> TranscribeReply:
        response = await self._client.infer(
            ModelRequest(
                model,
                {"AUDIO": audio[None], "REQUEST": struct_tensor(request, batched=True)},
                ("REPLY",),
                timeout_s=self._timeout_s,
            )
        )
        return tensor_struct(response["REPLY"], TranscribeReply)
