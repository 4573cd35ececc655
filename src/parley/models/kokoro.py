"""The model ``kokoro`` out of its settings."""

from __future__ import annotations

from typing import Any

from parley.models.synthesizer import SpeechModel
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.tts.clauses.synthesizer import ClauseSynthesizer
from parley.tts.english.pronouncer import load_front_end
from parley.tts.espeak_phonemes.client import PhonemeProcess
from parley.tts.espeak_phonemes.front_end import VOICES, EspeakFrontEnd
from parley.tts.kokoro.network import FILES, load_network


class KokoroModel(SpeechModel):
    """What ``model.py`` of ``kokoro`` runs.

    Spanish and French are pronounced by espeak-ng, whose process begins with the first text.

    Parameters of the model, besides those of :func:`parley.tts.english.pronouncer.load_front_end`:
        ``weights``: folder of the graph and the voices.
        ``threads``: CPU threads of the network.
        ``max_requests``: requests open at once before more are refused.

    Raises:
        ModelLoadingError: weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        folder = resolve_weights(parameters, "kokoro-82m", FILES)
        self._phonemes = PhonemeProcess()
        front_ends = {language: EspeakFrontEnd(self._phonemes, language) for language in VOICES}
        network = load_network(
            folder,
            {"en": load_front_end(parameters), **front_ends},
            threads=parameters.integer("threads", 1, minimum=1),
        )
        synthesizer = ClauseSynthesizer(
            network, name="kokoro", max_requests=parameters.integer("max_requests", 64, minimum=1)
        )
        super().__init__(pb_utils, parameters, synthesizer)

    def close(self) -> None:
        """End every request, and the process of espeak-ng."""
        super().close()
        self._phonemes.close()
