"""What ``model.py`` of ``moonshine``, ``whisper``, ``sherpa_onnx`` and their twins for recordings runs.

Which family a model is of, and which languages it understands, is said by its weights.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec

from parley.asr import readers
from parley.asr.reader import Reader, RunLimits
from parley.asr.segmenter.segmentation import PER_MS
from parley.asr.utterances.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.utterances.recordings import SegmentRecordingLimits
from parley.asr.utterances.utterance import Window
from parley.asr.utterances.worker import ThreadedReader
from parley.engines.weight_files import find_weights, recognizer_files
from parley.errors import ModelLoadingError
from parley.models.parakeet_transcribe import (
    RecordingRequests,
    RecordingSettings,
    read_limits,
    read_vad,
)
from parley.models.recognition import RecognitionModel, RecognitionSettings, open_detector
from parley.runtime.onnx import OnnxSettings, open_configured
from parley.runtime.parameters import Natural, NonNegative, Parameters, Positive

DEFAULT = "moonshine-tiny-en"
_CLOSE_S = 5.0


class ReaderSettings(msgspec.Struct, frozen=True):
    """Settings of networks that read whole stretches of speech."""

    family: str = "moonshine"
    """Family of a folder of weights that does not say it."""
    least_confidence: NonNegative | None = None
    """Of a text, below which there is none. Not set: that of the family."""
    batch: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Stretches that are read in one run at most; for networks that can read several."""
    max_run_ms: Annotated[int, msgspec.Meta(ge=1_000)] = 60_000
    """Audio of one run at most; each stretch counts as long as the longest."""


class WindowSettings(msgspec.Struct, frozen=True):
    """How much is read at once."""

    window_ms: Annotated[int, msgspec.Meta(ge=1_000)] = Window.longest_ms
    """Longest stretch that is read at once; what the model can read is a limit too."""
    shortest_ms: Annotated[int, msgspec.Meta(ge=500)] = Window.shortest_ms
    """Where a longer stretch is cut, each piece is at least as long."""


class SegmentSettings(msgspec.Struct, frozen=True):
    """Settings of the streams of such a recogniser."""

    preroll_ms: Natural = SegmentPipelineLimits.preroll_ms
    """Audio before the onset that is read too."""
    max_utterance_ms: Annotated[int, msgspec.Meta(ge=1_000)] = SegmentPipelineLimits.max_utterance_ms
    """Speech without a pause is ended after this time."""
    early_ms: Natural = SegmentPipelineLimits.early_ms
    """Silence after which the final text is begun."""
    queue: Positive | None = None
    """Final texts that may wait, and as many partial ones. Not set: twice ``max_sessions``."""
    stall_ms: Annotated[int, msgspec.Meta(ge=1_000)] = 20_000
    """A text that takes longer will never come, and the model counts as hanging."""


def load_reader(parameters: Parameters, *, device_id: int) -> Reader:
    """The networks in this process, run once.

    Parameters of the model: ``weights``, :class:`ReaderSettings` and
    :class:`parley.runtime.onnx.OnnxSettings`. With one thread a text takes the least work.

    Raises:
        ModelLoadingError: the weights are missing, or cannot be used.
    """
    settings = parameters.read(ReaderSettings)
    reader = readers.load_reader(
        find_weights(parameters, DEFAULT, recognizer_files),
        settings.family,
        partial(open_configured, parameters=parameters, device_id=device_id),
        least_confidence=settings.least_confidence,
        limits=RunLimits(settings.batch, settings.max_run_ms * PER_MS),
        onnx=parameters.read(OnnxSettings),
    )
    reader.warm_up()
    return reader


def read_window(parameters: Parameters, reader: Reader) -> Window:
    """How much is read at once, by :class:`WindowSettings`.

    Raises:
        ModelLoadingError: the one is longer than the other, or than what the model can read.
    """
    settings = parameters.read(WindowSettings)
    window = Window(settings.window_ms, settings.shortest_ms)
    if window.longest_ms > reader.longest_ms:
        raise ModelLoadingError(
            f"window_ms of model {parameters.model} is {window.longest_ms}; it must be at most "
            f"{reader.longest_ms}"
        )
    if window.shortest_ms >= window.longest_ms:
        raise ModelLoadingError(
            f"shortest_ms of model {parameters.model} is {window.shortest_ms}, "
            f"and window_ms no more than {window.longest_ms}"
        )
    return window


class SegmentRecognizer(RecognitionModel):
    """A recogniser in this process.

    Parameters of the model: :class:`SegmentSettings`, and those of
    :class:`parley.models.recognition.RecognitionModel`, :func:`load_reader` and :func:`read_window`.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        reader = load_reader(parameters, device_id=parameters.device_id)
        settings = parameters.read(SegmentSettings)
        limits = SegmentPipelineLimits(
            window=read_window(parameters, reader),
            preroll_ms=settings.preroll_ms,
            max_utterance_ms=settings.max_utterance_ms,
            early_ms=settings.early_ms,
        )
        room = settings.queue or 2 * parameters.read(RecognitionSettings).max_sessions
        self._reader = ThreadedReader(reader, room=room, stall_s=settings.stall_ms / 1000)
        pipeline = SegmentPipeline(reader, self._reader, open_detector(), limits, model=parameters.model)
        super().__init__(pb_utils, parameters, pipeline, languages=reader.languages)

    def close(self) -> None:
        """Stop the threads."""
        super().close()
        self._reader.close(_CLOSE_S)


class SegmentTranscription(RecordingRequests):
    """Whole recordings to texts: networks of its own, so that no conversation waits for a recording.

    Parameters of the model: :class:`parley.models.parakeet_transcribe.RecordingSettings`, and those of
    :func:`load_reader` and :func:`read_window`.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        reader = load_reader(parameters, device_id=parameters.device_id)
        recording = SegmentRecordingLimits(
            read_vad(parameters),
            read_window(parameters, reader),
            parameters.read(RecordingSettings).preroll_ms,
        )
        limits = read_limits(parameters, reader.languages)
        super().__init__(pb_utils, parameters, reader, open_detector(), recording=recording, limits=limits)
