"""The synthesizers whose voices are part of their weights; a new one is a line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parley.tts import espeak
from parley.tts.hibari import voices as hibari
from parley.tts.kokoro import voices as kokoro
from parley.tts.piper import voices as piper
from parley.tts.voice_routing import KnownVoice


@dataclass(frozen=True)
class KnownSynthesizer:
    """What is known of a model without loading it."""

    voices: Sequence[KnownVoice]
    """The first one is the default."""
    languages: Sequence[str]
    files: Sequence[str] = ()
    """In the folder of its weights; none: it needs no weights."""


ESPEAK = "espeak"
"""Needs no weights, so a server always has it."""
KNOWN: Mapping[str, KnownSynthesizer] = {
    ESPEAK: KnownSynthesizer(espeak.KNOWN_VOICES, espeak.LANGUAGES),
    "piper": KnownSynthesizer(piper.KNOWN_VOICES, piper.LANGUAGES, piper.FILES),
    "hibari": KnownSynthesizer(hibari.KNOWN_VOICES, hibari.LANGUAGES, hibari.FILES),
    "kokoro": KnownSynthesizer(kokoro.KNOWN_VOICES, kokoro.LANGUAGES, kokoro.FILES),
}
"""By model, in the order of preference where several are loaded and none is asked for."""
