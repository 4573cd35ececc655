"""The model ``piper`` out of its settings."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from parley.models.synthesizer import SpeechModel
from parley.runtime.parameters import NonNegative, Parameters, Positive
from parley.runtime.weights import resolve_weights
from parley.tts.clauses.synthesizer import ClauseSynthesizer
from parley.tts.english.pronouncer import load_front_end
from parley.tts.piper.network import PiperNetwork
from parley.tts.piper.notation import Notation, read_settings
from parley.tts.piper.parts import PiperStyle, VoiceParts
from parley.tts.piper.voices import FILES, SETTINGS, VOICE


class PiperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of ``piper``. The style of a voice is as published where it is not set."""

    threads: Positive = 1
    """CPU threads of the network."""
    length_scale: Annotated[float, msgspec.Meta(ge=0.25)]
    """Above 1 the voice speaks slower. Not set: as published with the voice."""
    noise_scale: NonNegative
    """How much the sound varies. Not set: as published."""
    noise_w: NonNegative
    """How much the lengths of sounds vary. Not set: as published."""
    max_requests: Positive = 64
    """Requests open at once before more are refused."""


class PiperModel(SpeechModel):
    """What ``model.py`` of ``piper`` runs.

    Parameters of the model: :class:`PiperSettings`, ``weights`` (the folder of the voice), and those of
    :func:`parley.tts.english.pronouncer.load_front_end`.

    Raises:
        ModelLoadingError: weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        folder = resolve_weights(parameters, "piper-joe", FILES)
        voice = read_settings(folder / SETTINGS)
        published = voice.inference
        settings = parameters.read(
            PiperSettings,
            length_scale=published.length_scale,
            noise_scale=published.noise_scale,
            noise_w=published.noise_w,
        )
        network = PiperNetwork(
            VoiceParts(folder / VOICE, threads=settings.threads),
            Notation(voice.phoneme_id_map),
            PiperStyle(settings.length_scale, settings.noise_scale, settings.noise_w),
            voice.audio.sample_rate,
            load_front_end(parameters),
        )
        synthesizer = ClauseSynthesizer(network, name="piper", max_requests=settings.max_requests)
        super().__init__(pb_utils, parameters, synthesizer)
