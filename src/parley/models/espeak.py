"""The model ``espeak`` out of its settings."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from parley.models.synthesizer import SpeechModel
from parley.runtime.parameters import Parameters, Positive
from parley.tts.espeak import EspeakSynthesizer
from parley.tts.espeak_library import EspeakLibrary

# A request is synthesized within milliseconds.
_CHUNKS_BETWEEN_CHECKS = 8


class EspeakSettings(msgspec.Struct, frozen=True):
    """Settings of ``espeak``."""

    rate: Annotated[int, msgspec.Meta(ge=80, le=450)] = 175
    """Words per minute."""
    buffer_ms: Annotated[int, msgspec.Meta(ge=10)] = 60
    """Audio of one response."""
    max_requests: Positive = 64
    """Requests open at once before more are refused."""


class EspeakModel(SpeechModel):
    """What ``model.py`` of ``espeak`` runs.

    Parameters of the model: :class:`EspeakSettings`.

    Raises:
        ModelLoadingError: espeak-ng is not installed, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        settings = parameters.read(EspeakSettings)
        library = EspeakLibrary(settings.buffer_ms)
        library.set_rate(settings.rate)
        synthesizer = EspeakSynthesizer(library, max_requests=settings.max_requests)
        super().__init__(pb_utils, parameters, synthesizer, check_every=_CHUNKS_BETWEEN_CHECKS)
