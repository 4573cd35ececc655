"""``piper`` as a :class:`parley.engines.base.Synthesizer`."""

from __future__ import annotations

from collections.abc import Sequence

from parley.engines.speaker import ModelSpeaker
from parley.inference import ModelClient
from parley.tts.catalogue import KnownVoice
from parley.tts.piper.voices import KNOWN_VOICES, LANGUAGES

MODEL = "piper"


class PiperSpeaker(ModelSpeaker):
    """Speech from the model ``piper``: mono, 22050 Hz. See :class:`parley.engines.speaker.ModelSpeaker`."""

    known_voices: Sequence[KnownVoice] | None = KNOWN_VOICES
    languages: Sequence[str] = LANGUAGES

    def __init__(self, port: ModelClient, *, model: str = MODEL, timeout_s: float = 10.0) -> None:
        super().__init__(port, model=model, timeout_s=timeout_s)
