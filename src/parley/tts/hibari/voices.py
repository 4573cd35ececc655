"""The voice of Hibari that comes with its package; imported where there is no onnxruntime."""

from __future__ import annotations

from parley.tts.voice_routing import ENGLISH, KnownVoice

LANGUAGES = ENGLISH
DEFAULT = "heart"
GAIN_DB = 7.2
"""Brings it to -19 LUFS; measured over 30 sentences."""

KNOWN_VOICES = (KnownVoice(DEFAULT, ("en", "en-us"), "female", "American, made of Kokoro's af_heart"),)

GRAPH = "hibari.onnx"
FILES = (GRAPH,)
