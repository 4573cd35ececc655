"""The voices of Piper that can be offered: those that are published with a licence for any use."""

from __future__ import annotations

from parley.tts.catalogue import ENGLISH, KnownVoice

LANGUAGES = ENGLISH
DEFAULT = "joe"
GAIN_DB = 6.0
"""What brings it to -19 LUFS; measured over 100 sentences."""

KNOWN_VOICES = (KnownVoice(DEFAULT, ("en", "en-us"), "male", "An even American voice."),)
