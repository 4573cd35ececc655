"""A small Chatterbox with two voices."""

from __future__ import annotations

import asyncio
import sys

import numpy as np

from parley.launcher.options import ROOT
from parley.tts.voices.objects import FolderObjects
from parley.tts.voices.store import VoiceStore
from parley.tts.voices.voice import MAX_VOICE_BYTES, Voice


def write_weights(folder):
    """Write them; the environment of a server that is to use them."""
    sys.path.insert(0, str(ROOT / "build"))
    from chatterbox_export.small_s3gen import write_small_s3gen
    from chatterbox_export.small_t3 import write_small_t3

    write_small_t3(folder)
    write_small_s3gen(folder)
    asyncio.run(_write_voices(VoiceStore(FolderObjects(folder / "voices", MAX_VOICE_BYTES))))
    return {f"PARLEY_WEIGHTS_{name}": str(folder) for name in ("T3", "S3GEN", "CHATTERBOX")}


async def _write_voices(store):
    for seed, name in enumerate(("default", "other")):
        noise = np.random.default_rng(seed)
        await store.put(
            Voice(
                name,
                noise.standard_normal(256, np.float32),
                noise.integers(0, 6561, 60, np.int32),
                noise.standard_normal(192, np.float32),
                noise.integers(0, 6561, 50, np.int32),
                noise.standard_normal((100, 80), np.float32),
            )
        )
