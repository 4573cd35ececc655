"""What ``model.py`` of ``moonshine``, ``whisper``, ``sherpa_onnx`` and their twins for recordings runs.

Which family a model is of, and which languages it understands, is said by its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.families import load_model, new_reader
from parley.asr.files.service import TranscriptionService
from parley.asr.messages import TranscribeRequest
from parley.asr.pipeline.segmentation import PER_MS
from parley.asr.segments.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.segments.reader import Reader, RunLimits
from parley.asr.segments.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.segments.utterance import Window
from parley.asr.segments.worker import ThreadedReader
from parley.engines.weight_files import find_weights, recognizer_files
from parley.errors import ModelLoadingError
from parley.models.parakeet_transcribe import RecordingRequests, read_limits, read_vad
from parley.models.recognition import RecognitionModel, open_detector
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters
from parley.triton.model_traces import ModelTraces

MAX_BATCH = 64
DEFAULT = "moonshine-tiny-en"
_CLOSE_S = 5.0


def load_reader(parameters: Parameters, *, device_id: int) -> Reader:
    """The networks in this process, run once.

    Parameters of the model:
        ``weights``: their folder.
        ``family``: of a folder that does not say it (:mod:`parley.asr.families`).
        ``device``, ``threads``: where they run; with one thread a text takes the least work.
        ``least_confidence``: of a text, below which there is none; not set, it is the family's.
        ``batch``, ``max_run_ms``: stretches that are read in one run at most, and their audio, each counted
            as long as the longest; for networks that can read several.

    Raises:
        ModelLoadingError: the weights are missing, or cannot be used.
    """
    model = load_model(
        find_weights(parameters, DEFAULT, recognizer_files),
        parameters.text("family", "moonshine"),
        partial(open_configured, parameters=parameters, device_id=device_id),
    )
    least = parameters.number("least_confidence", -1.0)
    limits = RunLimits(
        parameters.integer("batch", 1, minimum=1, maximum=MAX_BATCH),
        parameters.integer("max_run_ms", 60_000, minimum=1_000) * PER_MS,
    )
    reader = new_reader(model, least_confidence=None if least < 0 else least, limits=limits)
    reader.warm_up()
    return reader


def read_window(parameters: Parameters, reader: Reader) -> Window:
    """How much is read at once (parameters ``window_ms`` and ``shortest_ms``).

    Raises:
        ModelLoadingError: the one is longer than the other, or than what the model can read.
    """
    defaults = Window()
    window = Window(
        parameters.integer("window_ms", defaults.longest_ms, minimum=1_000, maximum=reader.longest_ms),
        parameters.integer("shortest_ms", defaults.shortest_ms, minimum=500),
    )
    if window.shortest_ms >= window.longest_ms:
        raise ModelLoadingError(
            f"shortest_ms of model {parameters.model} is {window.shortest_ms}, "
            f"and window_ms no more than {window.longest_ms}"
        )
    return window


class SegmentRecognizer:
    """A recogniser in this process.

    Parameters of the model, besides those of :class:`parley.models.recognition.RecognitionModel`,
    :func:`load_reader` and :func:`read_window`:
        ``preroll_ms``: audio before the onset that is read too.
        ``max_utterance_ms``: speech without a pause is ended after this time.
        ``early_ms``: silence after which the final text is begun.
        ``queue``: final texts that may wait, and as many partial ones (default: twice ``max_sessions``).
        ``stall_ms``: a text that takes longer will never come, and the model counts as hanging.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        reader = load_reader(parameters, device_id=parameters.device_id)
        defaults = SegmentPipelineLimits()
        limits = SegmentPipelineLimits(
            window=read_window(parameters, reader),
            preroll_ms=parameters.integer("preroll_ms", defaults.preroll_ms),
            max_utterance_ms=parameters.integer("max_utterance_ms", defaults.max_utterance_ms, minimum=1_000),
            early_ms=parameters.integer("early_ms", defaults.early_ms),
        )
        sessions = parameters.integer("max_sessions", 64, minimum=1)
        stall_s = parameters.integer("stall_ms", 20_000, minimum=1_000) / 1000
        self._reader = ThreadedReader(
            reader, room=parameters.integer("queue", 2 * sessions, minimum=1), stall_s=stall_s
        )
        pipeline = SegmentPipeline(reader, self._reader, open_detector(), limits, model=parameters.model)
        self._model = RecognitionModel(pb_utils, parameters, pipeline, languages=reader.languages)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer one piece of audio of each stream."""
        return self._model.execute(requests)

    def close(self) -> None:
        """Stop the threads."""
        self._model.close()
        self._reader.close(_CLOSE_S)


class SegmentTranscription(RecordingRequests):
    """Whole recordings to texts: networks of its own, so that no conversation waits for a recording.

    Parameters of the model, besides those of :func:`load_reader` and :func:`read_window`, and those of
    ``parakeet_transcribe`` that :func:`read_vad` and :func:`read_limits` read:
        ``preroll_ms``: audio before the onset that is read too.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        reader = load_reader(parameters, device_id=parameters.device_id)
        recording = SegmentRecordingLimits(
            read_vad(parameters), read_window(parameters, reader), parameters.integer("preroll_ms", 320)
        )
        limits = read_limits(parameters, reader.languages)
        rounds = SegmentRounds(reader, open_detector())

        def begin(audio: NDArray[np.int16], request: TranscribeRequest) -> SegmentRecording:
            return SegmentRecording(audio, request, reader, recording)

        service = TranscriptionService(begin, rounds, limits)
        super().__init__(pb_utils, service, ModelTraces.open(parameters))
