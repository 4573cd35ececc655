"""The Python steps of the ensemble ``parakeet_ensemble``: ``parakeet_features`` and ``parakeet_text``."""

from __future__ import annotations

from parley.asr.checkpoint import load_description
from parley.asr.features.log_mel import LogMel
from parley.asr.files.ensemble import RecordingFeatures, RecordingTexts
from parley.asr.files.recording import RecordingLimits, WindowPlan
from parley.models.parakeet_transcribe import read_limits, read_vad
from parley.runtime.onnx import open_session
from parley.runtime.parameters import Parameters
from parley.vad.silero import FILE, SileroVad, bundled_folder


def load_features(parameters: Parameters) -> RecordingFeatures:
    """What ``parakeet_features`` runs.

    Parameters of the model:
        ``window_ms``: longest speech that is read.
        ``pause_ms``, ``vad_threshold``, ``preroll_ms``, ``max_audio_ms``, ``languages``: as in
            ``parakeet_transcribe``.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """
    export = load_description(parameters)
    plan = WindowPlan.of(
        export.config, window_ms=parameters.integer("window_ms", 30_000), left_ms=0, right_ms=0
    )
    recording = RecordingLimits(plan, read_vad(parameters), parameters.integer("preroll_ms", 320))
    detector = SileroVad(open_session(bundled_folder() / FILE))
    limits = read_limits(parameters, export.languages)
    return RecordingFeatures(LogMel(export.config), detector, recording, limits)


def load_texts(parameters: Parameters) -> RecordingTexts:
    """What ``parakeet_text`` runs.

    Raises:
        ModelLoadingError: the weights are missing.
    """
    return RecordingTexts(load_description(parameters))
