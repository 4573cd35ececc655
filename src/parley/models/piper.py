"""The model ``piper`` out of its settings."""

from __future__ import annotations

from typing import Any

from parley.models.synthesizer import SpeechModel
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.tts.clauses.synthesizer import ClauseSynthesizer
from parley.tts.english.pronouncer import load_front_end
from parley.tts.piper.network import PiperNetwork
from parley.tts.piper.notation import Notation, read_settings
from parley.tts.piper.parts import PiperStyle, VoiceParts
from parley.tts.piper.voices import FILES, SETTINGS, VOICE


class PiperModel(SpeechModel):
    """What ``model.py`` of ``piper`` runs.

    Parameters of the model, besides those of :func:`parley.tts.english.pronouncer.load_front_end`:
        ``weights``: folder of the voice.
        ``threads``: CPU threads of the network.
        ``length_scale``: above 1 it speaks slower. Not set, it and the next two are as published.
        ``noise_scale``, ``noise_w``: how much the sound and the lengths of sounds vary.
        ``max_requests``: requests open at once before more are refused.

    Raises:
        ModelLoadingError: weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        folder = resolve_weights(parameters, "piper-joe", FILES)
        settings = read_settings(folder / SETTINGS)
        published = settings.inference
        network = PiperNetwork(
            VoiceParts(folder / VOICE, threads=parameters.integer("threads", 1, minimum=1)),
            Notation(settings.phoneme_id_map),
            PiperStyle(
                length=parameters.number("length_scale", published.length_scale, minimum=0.25),
                noise=parameters.number("noise_scale", published.noise_scale),
                rhythm_noise=parameters.number("noise_w", published.noise_w),
            ),
            settings.audio.sample_rate,
            load_front_end(parameters),
        )
        synthesizer = ClauseSynthesizer(
            network, name="piper", max_requests=parameters.integer("max_requests", 64, minimum=1)
        )
        super().__init__(pb_utils, parameters, synthesizer)
