"""The model ``espeak`` out of its settings."""

from __future__ import annotations

from typing import Any

from parley.models.synthesizer import SpeechModel
from parley.runtime.parameters import Parameters
from parley.tts.espeak import EspeakSynthesizer
from parley.tts.espeak_library import EspeakLibrary

# A request is synthesized within milliseconds.
_CHUNKS_BETWEEN_CHECKS = 8


class EspeakModel(SpeechModel):
    """What ``model.py`` of ``espeak`` runs.

    Parameters of the model:
        ``rate``: words per minute, 80-450.
        ``buffer_ms``: audio per response.
        ``max_requests``: requests waiting before more are refused.

    Raises:
        ModelLoadingError: espeak-ng is not installed, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        library = EspeakLibrary(parameters.integer("buffer_ms", 60, minimum=10))
        library.set_rate(parameters.integer("rate", 175, minimum=80, maximum=450))
        synthesizer = EspeakSynthesizer(
            library, max_requests=parameters.integer("max_requests", 64, minimum=1)
        )
        super().__init__(pb_utils, parameters, synthesizer, check_every=_CHUNKS_BETWEEN_CHECKS)
