"""Numbers that every T3 checkpoint agrees on."""

from __future__ import annotations

SPEECH_CODES = 6561
"""Ids below it stand for sound; the others are marks and are never spoken."""
START_OF_SPEECH = 6561
END_OF_SPEECH = 6562
START_OF_TEXT = 255
END_OF_TEXT = 0
SPEAKER_EMBEDDING_SIZE = 256
TOKENS_PER_SECOND = 25
DRAWING_KEY = "parley_drawing"
"""Of a ``Drawing`` among the extra arguments of a vLLM request: :mod:`parley.tts.t3.logits`."""
