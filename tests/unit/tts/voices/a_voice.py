"""A voice for tests."""

import numpy as np

from parley.tts.voices.messages import VoiceDetails
from parley.tts.voices.voice import Voice


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
