"""The Python steps of the ensemble ``parakeet_ensemble``: ``parakeet_features`` and ``parakeet_text``."""

from __future__ import annotations

from typing import Any

from parley.asr.checkpoint import load_description
from parley.asr.features import LogMel
from parley.asr.parakeet.ensemble import RecordingFeatures, RecordingTexts
from parley.asr.utterances.recordings import SegmentRecordingLimits
from parley.asr.utterances.utterance import Window
from parley.models.parakeet_transcribe import RecordingSettings, read_limits, read_vad
from parley.models.recognition import open_detector
from parley.runtime.parameters import Parameters
from parley.triton.backend import TensorModel


def load_features(parameters: Parameters) -> RecordingFeatures:
    """The service of ``parakeet_features``.

    Parameters of the model:
        ``window_ms``: longest speech that is read.
        ``pause_ms``, ``vad_threshold``, ``preroll_ms``, ``max_audio_ms``, ``languages``: as in
            ``parakeet_transcribe``.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """
    export = load_description(parameters)
    longest_ms = parameters.integer("window_ms", 30_000)
    recording = SegmentRecordingLimits(
        read_vad(parameters), Window(longest_ms, longest_ms), parameters.read(RecordingSettings).preroll_ms
    )
    limits = read_limits(parameters, export.languages)
    return RecordingFeatures(LogMel(export.config), open_detector(), recording, limits)


def load_texts(parameters: Parameters) -> RecordingTexts:
    """The service of ``parakeet_text``.

    Raises:
        ModelLoadingError: the weights are missing.
    """
    return RecordingTexts(load_description(parameters))


def load_features_model(pb_utils: Any, parameters: Parameters) -> TensorModel:
    """What ``model.py`` of ``parakeet_features`` runs."""
    return TensorModel(pb_utils, load_features(parameters).serve)


def load_texts_model(pb_utils: Any, parameters: Parameters) -> TensorModel:
    """What ``model.py`` of ``parakeet_text`` runs."""
    return TensorModel(pb_utils, load_texts(parameters).serve)
