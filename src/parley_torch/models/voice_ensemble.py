"""The Python steps of the ensemble ``voice_ensemble``: ``voice_reference`` and ``voice_conditionals``."""

from __future__ import annotations

from typing import Any

import torch

from parley.engines.weight_files import find_weights
from parley.runtime.onnx import open_session
from parley.runtime.parameters import Parameters
from parley.triton.backend import TensorModel
from parley.vad.silero import FILE, bundled_folder
from parley_torch.models.voice_enrollment import open_maker, read_limits
from parley_torch.tts.voices.enrollment.ensemble import Conditionals, ReferenceChecks
from parley_torch.tts.voices.enrollment.recordings import silero
from parley_torch.weight_files import enrollment_files


def load_checks(parameters: Parameters) -> ReferenceChecks:
    """The service of ``voice_reference``.

    Parameters of the model: ``require_consent``, ``min_speech_s``, ``max_audio_s``, ``max_bytes``,
    ``min_level_db``, ``max_clipped`` and ``min_snr_db``, as in ``voice_enrollment``.

    Raises:
        ModelLoadingError: a setting is not usable.
    """
    return ReferenceChecks(
        silero(open_session(bundled_folder() / FILE)),
        read_limits(parameters),
        require_consent=parameters.boolean("require_consent", default=True),
    )


def load_conditionals(parameters: Parameters) -> Conditionals:
    """The service of ``voice_conditionals``.

    Parameters of the model: ``weights``, ``variant``, ``prompt_s``, ``threads`` and ``max_audio_s``, as in
    ``voice_enrollment``.

    Raises:
        ModelLoadingError: a setting or the weights are not usable.
    """
    torch.set_num_threads(parameters.integer("threads", 1, minimum=1))
    weights = find_weights(parameters, "chatterbox", enrollment_files)
    return Conditionals(open_maker(parameters, weights), read_limits(parameters))


def load_checks_model(pb_utils: Any, parameters: Parameters) -> TensorModel:
    """What ``model.py`` of ``voice_reference`` runs."""
    return TensorModel(pb_utils, load_checks(parameters).serve)


def load_conditionals_model(pb_utils: Any, parameters: Parameters) -> TensorModel:
    """What ``model.py`` of ``voice_conditionals`` runs."""
    return TensorModel(pb_utils, load_conditionals(parameters).serve)
