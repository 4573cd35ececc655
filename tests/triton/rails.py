"""What the tests of all ASR rails share."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import numpy as np
import soundfile

from parley.asr.messages import AsrOptions, SpeechStoppedEvent, TranscriptEvent
from parley.engines.recognizers import ModelRecognizer
from parley.launcher.options import ROOT, ServerOptions
from parley.launcher.server import EmbeddedServer

QUIET = np.zeros(8000, np.int16)
"""Half a second."""


@dataclass(frozen=True)
class Clip:
    text: str
    audio: np.ndarray


def read_clips(folder):
    """Recordings in which something is said, with half a second of silence around them."""
    return [
        Clip(
            entry["text"],
            np.concatenate([QUIET, soundfile.read(folder / entry["file"], dtype="int16")[0], QUIET]),
        )
        for entry in json.loads((folder / "manifest.json").read_text())
        if entry["text"]
    ]


def serve(tmp_path, models, *, repository=ROOT / "model_repository", **environment):
    return EmbeddedServer(
        ServerOptions(
            model_repository=repository,
            load_models=models,
            state_dir=tmp_path / "state",
            grpc_port=0,
            http_port=0,
            metrics_port=0,
            environment={"PARLEY_MODELS_DIR": str(ROOT / "models"), **environment},
        )
    )


async def hear(port, key, audio, chunk, *, model="parakeet_tdt", **options):
    """All events of a recording that is sent in chunks; a final text may come a little after the flush."""
    recognizer = ModelRecognizer(port, key, model=model, timeout_s=20)
    await recognizer.start(AsrOptions(**options))
    try:
        replies = [await recognizer.push(audio[at : at + chunk]) for at in range(0, len(audio), chunk)]
        replies.append(await recognizer.flush())
        async with asyncio.timeout(20):
            while owes_texts(replies):
                await asyncio.sleep(0.02)
                replies.append(await recognizer.push(QUIET[:0]))
    finally:
        await recognizer.close()
    assert replies[-1].stream_ms == len(audio) // 16
    return [event for reply in replies for event in reply.events]


def owes_texts(replies):
    """Whether an utterance that is over has no final text yet."""
    events = [event for reply in replies for event in reply.events]
    over = {event.utterance for event in events if isinstance(event, SpeechStoppedEvent)}
    return bool(
        over - {event.utterance for event in events if isinstance(event, TranscriptEvent) and event.is_final}
    )


def simple(events):
    """Without confidences, whose last digits depend on the batch."""
    return [
        (event.text, event.is_final, [(word.text, word.start_ms, word.end_ms) for word in event.words])
        if isinstance(event, TranscriptEvent)
        else event
        for event in events
    ]


def final_text(events):
    (final,) = [event for event in events if isinstance(event, TranscriptEvent) and event.is_final]
    return final.text
