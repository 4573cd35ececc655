"""Voices and languages that espeak-ng is offered with."""

from __future__ import annotations

from parley.errors import UnsupportedLanguageError, UnsupportedVoiceError
from parley.tts.catalogue import KnownVoice

# Variants change the timbre of any language's voice.
_VARIANTS = {"man-1": "", "man-2": "+m3", "woman-1": "+f2", "woman-2": "+f4"}
_FILES = {
    "en": "gmw/en-US",
    "en-us": "gmw/en-US",
    "en-gb": "gmw/en",
    "de": "gmw/de",
    "nl": "gmw/nl",
    "sv": "gmq/sv",
    "da": "gmq/da",
    "fr": "roa/fr",
    "es": "roa/es",
    "it": "roa/it",
    "pt": "roa/pt",
    "pl": "zlw/pl",
}

VOICES = tuple(_VARIANTS)
"""The first is the default."""
LANGUAGES = tuple(_FILES)
KNOWN_VOICES = tuple(
    KnownVoice(name, LANGUAGES, "female" if name.startswith("woman") else "male") for name in VOICES
)


def voice_file(voice: str | None, language: str) -> str:
    """espeak-ng's identifier for a voice in a language.

    Raises:
        UnsupportedVoiceError: no voice of this name.
        UnsupportedLanguageError: no voice speaks this language.
    """
    variant = _VARIANTS.get(voice or VOICES[0])
    if variant is None:
        raise UnsupportedVoiceError(f"no voice {voice!r}; there are {', '.join(VOICES)}")
    file = _FILES.get(language.lower())
    if file is None:
        raise UnsupportedLanguageError(f"no voice speaks {language!r}; languages are {', '.join(LANGUAGES)}")
    return file + variant
