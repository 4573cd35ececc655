"""The voices of Piper with a licence for any use; imported where there is no onnxruntime."""

from __future__ import annotations

from parley.tts.voice_routing import ENGLISH, KnownVoice

LANGUAGES = ENGLISH
DEFAULT = "joe"
GAIN_DB = 6.0
"""Brings it to -19 LUFS; measured over 100 sentences."""

KNOWN_VOICES = (KnownVoice(DEFAULT, ("en", "en-us"), "male", "An even American voice."),)

VOICE = "en_US-joe-medium.onnx"
SETTINGS = f"{VOICE}.json"
FILES = (VOICE, SETTINGS)
