"""Text to audio through Triton: the models chatterbox, t3 and s3gen with a small random checkpoint.

Apart because the checkpoint is written by the tests' own support module.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.stats import p50_p95, text_of

from parley.engines.speech import ChatterboxSpeaker
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT
from parley.triton.grpc_client import LoopbackClient
from parley.tts.messages import SpeakRequest

sys.path[:0] = [str(ROOT / "tests" / "triton"), str(ROOT / "tests" / "triton" / "chatterbox")]

from chatterbox_weights import write_weights  # noqa: E402
from leftovers import ANY_PORTS  # noqa: E402

TEXT = "The train leaves at half past seven, and the ticket costs five pounds."
_DEADLINE_S = 300.0


@dataclass(frozen=True)
class Spoken:
    """One utterance; times in seconds from its beginning."""

    first: float
    """When its first audio came."""
    seconds: float
    """When its last audio came."""
    audio: float
    """How long it is."""


def measure_chain(levels: Sequence[int]) -> None:
    """Start a server, let sessions say a sentence at once, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        options = ServerOptions(
            state_dir=Path(folder) / "state",
            load_models=("t3", "s3gen", "chatterbox"),
            environment=write_weights(Path(folder) / "weights"),
            **ANY_PORTS,
        )
        with EmbeddedServer(options) as server:
            asyncio.run(_measure(server.endpoints.grpc, levels))


async def _measure(address: str, levels: Sequence[int]) -> None:
    client = LoopbackClient(address, max_streams=4 * max(levels))
    try:
        await _level(client, 1)  # the first one is slow
        print("sessions | audio s per s | RTF   | first audio ms, p50 / p95")
        for sessions in levels:
            spoken = await _level(client, sessions)
            rate = sum(one.audio for one in spoken) / max(one.seconds for one in spoken)
            first = text_of(p50_p95([1000 * one.first for one in spoken]))
            print(f"{sessions:8} | {rate:13.1f} | {sessions / rate:.3f} | {first}", flush=True)
    finally:
        await client.close()


async def _level(client: LoopbackClient, sessions: int) -> list[Spoken]:
    speaker = ChatterboxSpeaker(client)
    async with asyncio.timeout(_DEADLINE_S):
        return await asyncio.gather(*(_speak(speaker, seed) for seed in range(sessions)))


async def _speak(speaker: ChatterboxSpeaker, seed: int) -> Spoken:
    began = time.perf_counter()
    spoken = Spoken(first=0.0, seconds=0.0, audio=0.0)
    async for chunk, audio in speaker.speak(SpeakRequest(request_id=uuid.uuid4().hex, text=TEXT, seed=seed)):
        now = time.perf_counter() - began
        if len(audio):
            spoken = Spoken(
                first=spoken.first or now, seconds=now, audio=spoken.audio + len(audio) / chunk.sample_rate
            )
    return replace(spoken, seconds=time.perf_counter() - began)
