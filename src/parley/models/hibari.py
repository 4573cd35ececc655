"""The model ``hibari`` out of its settings."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.models.synthesizer import SpeechModel
from parley.runtime.parameters import Parameters, Positive
from parley.runtime.weights import resolve_weights
from parley.tts.clauses.synthesizer import ClauseSynthesizer
from parley.tts.english.pronouncer import load_front_end
from parley.tts.hibari.network import load_network
from parley.tts.hibari.voices import FILES


class HibariSettings(msgspec.Struct, frozen=True):
    """Settings of ``hibari``."""

    threads: Positive = 1
    """CPU threads of the network."""
    max_requests: Positive = 64
    """Requests open at once before more are refused."""


class HibariModel(SpeechModel):
    """What ``model.py`` of ``hibari`` runs.

    Parameters of the model: :class:`HibariSettings`, ``weights`` (the folder of the graph), and those of
    :func:`parley.tts.english.pronouncer.load_front_end`.

    Raises:
        ModelLoadingError: weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        settings = parameters.read(HibariSettings)
        folder = resolve_weights(parameters, "hibari-heart", FILES)
        network = load_network(folder, load_front_end(parameters), threads=settings.threads)
        synthesizer = ClauseSynthesizer(network, name="hibari", max_requests=settings.max_requests)
        super().__init__(pb_utils, parameters, synthesizer)
