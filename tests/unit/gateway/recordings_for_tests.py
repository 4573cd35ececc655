"""Audio files."""

import io

import av
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


def pages(form="webm", codec="libopus", seconds=2.0):
    """A tone in a container, in the pieces in which a live encoder writes it."""
    file, pieces = io.BytesIO(), []
    tone = (8_000 * np.sin(2 * np.pi * 440 * np.arange(int(48_000 * seconds)) / 48_000)).astype(np.int16)
    options = {"ogg": {"page_duration": "20000"}, "webm": {"cluster_time_limit": "100"}}.get(form, {})
    with av.open(file, "w", format=form, options=options) as output:
        stream = output.add_stream(codec, rate=48_000, layout="mono")
        frames = [
            av.AudioFrame.from_ndarray(tone[None, at : at + 960], format="s16", layout="mono")
            for at in range(0, len(tone), 960)
        ]
        for number, frame in enumerate([*frames, None]):
            if frame is not None:
                frame.sample_rate, frame.pts = 48_000, 960 * number
            output.mux(stream.encode(frame))
            pieces.append(file.getvalue()[sum(map(len, pieces)) :])
    return [piece for piece in (*pieces, file.getvalue()[sum(map(len, pieces)) :]) if piece]
