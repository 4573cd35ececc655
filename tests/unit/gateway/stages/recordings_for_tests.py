"""Audio files."""

import io

import numpy as np
import soundfile

TONE = (8_000 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)).astype(np.int16)
"""A second at 16 kHz."""


def wav(samples=TONE, rate=16_000):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()
