"""Audio files."""

import io

import numpy as np
import soundfile

from parley_gateway.audio.decoder_process import decode
from parley_gateway.audio.recordings import container_of

TONE = (8_000 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)).astype(np.int16)
"""A second at 16 kHz."""


def wav(samples=TONE, rate=16_000):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


def read(data):
    """A file's samples at 16 kHz, decoded as the gateway does."""
    samples = io.BytesIO()
    container = container_of(data[:16])
    decode(io.BytesIO(data), samples, container.name, dict(container.options), 60.0)
    return np.frombuffer(samples.getvalue(), "<i2")
