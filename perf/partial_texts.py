"""Calls in pieces of 80 ms: their texts, what their partial texts took back, and the decoder's time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from eval_asr import CHUNK, SILENCE, Clip
from numpy.typing import NDArray
from word_errors import word_errors

from parley.asr.decoding.words import Retractions, count_retractions
from parley.asr.messages import AsrOptions, TranscribeReply, TranscribeRequest, TranscriptEvent
from parley.asr.pipeline.step import ChunkRequest, ChunkResult, RecognizerPipeline, TrackedStream
from parley.asr.streaming.encoder import StreamingExport
from parley.asr.streaming.final_transcripts import FinalTranscriber, FinalTranscriptPolicy
from parley.asr.streaming.loading import load_recognizer
from parley.asr.streaming.pipeline import StreamingLimits, StreamingPipeline
from parley.runtime.onnx import open_session
from parley.vad.silero import FILE, SileroVad, bundled_folder

StreamT = TypeVar("StreamT", bound=TrackedStream)


@dataclass
class Told:
    """What calls were told."""

    errors: int = 0
    """Wrong words of the final texts."""
    everything: Retractions = field(default_factory=lambda: Retractions(0, 0))
    """Words of partial texts that were taken back."""
    stable: Retractions = field(default_factory=lambda: Retractions(0, 0))
    """Those of the words that were said to be stable."""
    decoder_ms: list[float] = field(default_factory=list)
    """Of every step in which something was decoded."""


class _Nobody:
    """No other model; the streaming model's own text is final."""

    def submit(
        self, model: str, _audio: NDArray[np.int16], _request: TranscribeRequest
    ) -> Future[TranscribeReply]:
        """Never called."""
        raise AssertionError(model)


def streaming_rail(
    export: StreamingExport, lookahead_ms: int, *, beam_size: int | None, streams: int
) -> StreamingPipeline:
    """The rail of ``nemotron_streaming`` in this process, on one thread."""
    recognizer, chunks = load_recognizer(
        export, [lookahead_ms], open_session, slots=streams, audio=32_000, beam_size=beam_size
    )
    return StreamingPipeline(
        export.checkpoint,
        recognizer,
        SileroVad(open_session(bundled_folder() / FILE)),
        FinalTranscriber(FinalTranscriptPolicy("nemotron_streaming"), _Nobody(), lambda _: None, lambda: 0.0),
        chunks=chunks,
        default_ms=lookahead_ms,
        limits=StreamingLimits(),
    )


def call_all(
    rail: RecognizerPipeline[StreamT], clips: Sequence[Clip], options: AsrOptions, *, at_once: int = 1
) -> Told:
    """Hear each recording as a call of its own, so many of them in every step."""
    told = Told()
    for start in range(0, len(clips), at_once):
        group = clips[start : start + at_once]
        for clip, events in zip(group, _calls(rail, group, options, told), strict=True):
            utterances: dict[int, list[TranscriptEvent]] = {}
            for event in events:
                utterances.setdefault(event.utterance, []).append(event)
            text = " ".join(event.text for event in events if event.is_final)
            told.errors += word_errors(clip.text.split(), text.split())
            for own in utterances.values():
                told.everything += count_retractions([event.text.split() for event in own])
                told.stable += count_retractions(shown_stable(own))
    return told


def _calls(
    rail: RecognizerPipeline[StreamT], clips: Sequence[Clip], options: AsrOptions, told: Told
) -> list[list[TranscriptEvent]]:
    streams = [rail.new_stream(options) for _ in clips]
    calls = [np.concatenate([SILENCE, clip.audio, SILENCE]) for clip in clips]
    events: list[list[TranscriptEvent]] = [[] for _ in clips]
    for start in range(0, max(len(audio) for audio in calls), CHUNK):
        rows = [row for row, audio in enumerate(calls) if start < len(audio)]
        results = rail.step([ChunkRequest(streams[row], calls[row][start : start + CHUNK]) for row in rows])
        for row, heard in zip(rows, results, strict=True):
            if not isinstance(heard, ChunkResult):
                raise heard
            streams[row] = heard.stream
            events[row] += [event for event in heard.reply.events if isinstance(event, TranscriptEvent)]
        spent = max(heard.reply.decoder_ms for heard in results if isinstance(heard, ChunkResult))
        if spent:
            told.decoder_ms.append(spent)
    for stream in streams:
        rail.release(stream)
    return events


def shown_stable(events: Sequence[TranscriptEvent]) -> list[list[str]]:
    """What a client shows that adds stable words, and changes them when a partial contradicts them."""
    shown: list[list[str]] = []
    now: list[str] = []
    for event in events:
        words = event.text.split()
        new = words[: event.stable_words]
        if len(new) > len(now) or words[: len(now)] != now:
            now = new
        shown.append(now)
    return shown


def print_streaming(
    export: StreamingExport,
    recordings: dict[str, Sequence[Clip]],
    *,
    lookahead_ms: int,
    beam_size: int,
    at_once: int,
) -> float:
    """Print the table of the streaming recogniser; return the worst share of stable words taken back."""
    print(
        f"\nstreaming at {lookahead_ms} ms   recordings   wrong words        taken back, stable ones   "
        f"decoder's ms a step, 1 and {at_once} streams"
    )
    worst = 0.0
    for title, clips in recordings.items():
        words = sum(len(clip.text.split()) for clip in clips)
        for name, size in (("greedy", None), (f"beam {beam_size}", beam_size)):
            rail = streaming_rail(export, lookahead_ms, beam_size=size, streams=at_once)
            told, together = (
                call_all(rail, clips, AsrOptions(words=False), at_once=count) for count in (1, at_once)
            )
            worst = max(worst, told.stable.share)
            times = [statistics.mean(some.decoder_ms) for some in (told, together)]
            print(
                f"{name:<21} {title:<12} {told.errors:>4} = {told.errors / words:<9.2%}   "
                f"{told.everything.share:>9.1%} {told.stable.share:>10.1%}          "
                f"{times[0]:.2f} {times[1]:.2f}"
            )
    return worst
