"""A voice, and recordings to make voices of."""

import io
from pathlib import Path

import numpy as np
import soundfile
import soxr

from parley.tts.voice_messages import VoiceDetails
from parley_torch.tts.voices.voice import Voice

RATE = 16_000
_CLIPS = Path(__file__).parents[3] / "data" / "asr_eval"


def speech(seconds=8.0, rate=RATE, *, seed=0):
    """Sentences with pauses and a faint hiss; f32 [n]."""
    hiss = np.random.default_rng(seed)
    pieces = []
    for path in sorted(_CLIPS.glob("sentences-*.flac")):
        pieces += [soundfile.read(path, dtype="float32")[0], np.zeros(RATE // 4, np.float32)]
    audio = np.concatenate(pieces)[: int(seconds * RATE)]
    audio = audio / np.abs(audio).max() * 0.5 + 1e-4 * hiss.standard_normal(len(audio), np.float32)
    return soxr.resample(audio, RATE, rate).astype(np.float32)


def pcm(audio):
    return (np.clip(audio, -1, 1) * 32_767).astype("<i2").tobytes()


def as_file(audio, rate=RATE, kind="WAV", subtype="PCM_16"):
    file = io.BytesIO()
    soundfile.write(file, audio, rate, format=kind, subtype=subtype)
    return file.getvalue()


def make_voice(voice_id="anna", *, seed=0, tokens=50, **details):
    random = np.random.default_rng(seed)
    return Voice(
        voice_id,
        speaker_embedding=random.random(256, np.float32),
        t3_prompt_tokens=random.integers(0, 6561, 150).astype(np.int32),
        speaker=random.standard_normal(192).astype(np.float32),
        prompt_tokens=random.integers(0, 6561, tokens).astype(np.int32),
        prompt_mel=random.standard_normal((2 * tokens, 80)).astype(np.float32),
        details=VoiceDetails(name="Anna", **details),
    )
