"""A streaming model whose every output depends on all that the stream has said before."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import msgspec
import numpy as np
from asr_fakes import FEATURES, VOCABULARY, RandomJoint

from parley.asr.checkpoint import Checkpoint, ParakeetConfig
from parley.asr.decoding.batch import DecoderRows
from parley.asr.decoding.beam import BeamDecoder
from parley.asr.decoding.greedy import TransducerDecoder
from parley.asr.features import LogMel
from parley.asr.messages import AsrOptions, TranscribeReply
from parley.asr.service import ChunkRequest, ChunkResult
from parley.asr.streaming.encoder import CHANNEL, HISTORY, LENGTH, TIME
from parley.asr.streaming.final_transcripts import FinalTranscriber, FinalTranscriptPolicy
from parley.asr.streaming.pipeline import StreamingLimits, StreamingPipeline
from parley.asr.streaming.recognizer import StreamingRecognizer
from parley.errors import InferenceError
from parley.protocol import Alternative, Word

MS = 16
BANDS = 8
CONFIG = ParakeetConfig(model_type="nemo-conformer-rnnt", features_size=BANDS, normalize="NA", durations=())
CHECKPOINT = Checkpoint(None, CONFIG, (*(f"▁{chr(97 + n)}" for n in range(VOCABULARY)), "<blk>"), VOCABULARY)
LOOK_AHEADS = {80: 8, 160: 16, 560: 56, 1120: 112}


class MixingEncoder:
    """Stirs every chunk into its caches, and brings out what it then finds there.

    Computed row by row, so that the sums do not depend on how many rows there are.
    """

    def __init__(self, chunk):
        rng = np.random.default_rng(7)
        self.chunk = chunk
        self.initial = {
            CHANNEL: np.zeros((2, 3, BANDS), np.float32),
            TIME: np.zeros((2, BANDS, 2), np.float32),
            LENGTH: np.zeros((), np.int64),
        }
        self.calls = []
        self.failure = None
        self.poison = None
        self._out = rng.standard_normal((BANDS, FEATURES)).astype(np.float32)

    def encode(self, features, caches, prompts):
        assert (prompts.shape, prompts.dtype) == ((len(features),), np.int64)
        assert features.shape[1:] == (BANDS, HISTORY + self.chunk)
        assert features.dtype == np.float32
        self.calls.append(len(features))
        if self.failure:
            raise self.failure
        silent = features[:, :, -4:].max(axis=(1, 2)) < -16
        if self.poison == "fatal" and silent.any():
            raise InferenceError("a row that cannot be taken")
        rows = [
            self._row(own, caches[CHANNEL][row], caches[TIME][row], caches[LENGTH][row])
            for row, own in enumerate(features)
        ]
        # As with NeMo's models, what a language changes is not remembered.
        rows = [
            (encoded * np.float32(1 + prompt), *others)
            for (encoded, *others), prompt in zip(rows, prompts, strict=True)
        ]
        encoded, channel, time, length = (np.stack(column) for column in zip(*rows, strict=True))
        if self.poison == "not finite":
            encoded[silent] = np.nan
        lengths = np.full(len(features), encoded.shape[2], np.int64)
        return encoded, lengths, {CHANNEL: channel, TIME: time, LENGTH: length}

    def _row(self, features, channel, time, length):
        frames = []
        for at in range(HISTORY, HISTORY + self.chunk, 8):
            window = features[:, at - HISTORY : at + 8]
            seen = (window / 8 + 1).mean(axis=1) + 0.3 * time[0, :, 0]
            channel = np.roll(channel, 1, axis=1)
            channel[:, 0] = np.tanh(seen + 0.5 * channel[:, 1] - 0.25 * channel[:, 2])
            time = np.stack([time[..., 1], np.stack([seen, seen])], axis=-1) * np.float32(0.5)
            frames.append((channel[0, 0] + np.sin(length)) @ self._out)
            length = length + 1
        encoded = np.stack(frames, axis=1).astype(np.float32)
        return encoded, channel.astype(np.float32), time.astype(np.float32), length


class LoudnessDetector:
    """Loud windows are speech."""

    def __init__(self):
        self.calls = []
        self.failure = None

    def detect(self, windows, counts, state, context):
        self.calls.append(len(windows))
        if self.failure:
            raise self.failure
        probabilities = np.where(np.abs(windows).mean(axis=2) > 0.05, 0.9, 0.02).astype(np.float32)
        return probabilities, state + 1, context + 1


class FakeTranscribers:
    """Other models. A reply is a name and the length of the audio, at once if no test interferes."""

    def __init__(self):
        self.submitted = []
        self.failures = {}
        self.slow = set()
        self.open = []

    def submit(self, model, audio, request):
        self.submitted.append((model, audio, request))
        future = Future()
        if model in self.slow:
            self.open.append((future, model, audio))
        elif model in self.failures:
            future.set_exception(self.failures[model])
        else:
            future.set_result(self.reply(model, audio, request.nbest))
        return future

    def answer(self):
        """The slow models answer."""
        while self.open:
            future, model, audio = self.open.pop(0)
            future.set_result(self.reply(model, audio))

    @staticmethod
    def reply(model, audio, nbest=0):
        text = f"{model} {len(audio) // MS}"
        word = Word(text=model, start_ms=10, end_ms=20, confidence=0.5)
        alternatives = [Alternative(text=text, score=-0.5)] if nbest else []
        return TranscribeReply(text=text, confidence=0.5, words=[word], alternatives=alternatives)


class Model:
    """A pipeline, and the parts that its tests inspect and break."""

    def __init__(
        self,
        *,
        slots=8,
        finals="",
        fallback="",
        look_aheads=LOOK_AHEADS,
        patience_s=0.0,
        early_ms=0,
        beam=0,
        max_tail=64,
        prompts=None,
        slow=(),
    ):
        self.now = 0.0
        self.counted = []
        self.encoders = {chunk: MixingEncoder(chunk) for chunk in look_aheads.values()}
        self.joint = RandomJoint(durations=())
        self.detector = LoudnessDetector()
        self.transcribers = FakeTranscribers()
        self.transcribers.slow |= set(slow)
        self.kind = {"blank": VOCABULARY, "durations": (), "max_symbols": 4}
        self.beam = {"beam_size": beam, "max_tail": max_tail}
        decoder = DecoderRows(self.search() if beam else TransducerDecoder(self.joint, **self.kind))
        self.recognizer = StreamingRecognizer(
            self.encoders, decoder, LogMel(CONFIG), slots=slots, audio=14_000 * MS
        )
        self.final_transcriber = FinalTranscriber(
            FinalTranscriptPolicy("streaming", finals, fallback, deadline_s=2.0),
            self.transcribers,
            self.counted.append,
            lambda: self.now,
        )
        config = msgspec.structs.replace(CONFIG, prompts=prompts or {})
        self.pipeline = StreamingPipeline(
            replace(CHECKPOINT, config=config),
            self.recognizer,
            self.detector,
            self.final_transcriber,
            chunks=look_aheads,
            default_ms=min(look_aheads),
            limits=StreamingLimits(patience_s=patience_s, early_ms=early_ms),
        )

    def search(self):
        """The beam search of its decoder."""
        return BeamDecoder(self.joint, **self.kind, **self.beam)

    def fail(self, error):
        """Every encoder fails from now on; None: none does."""
        for encoder in self.encoders.values():
            encoder.failure = error


def speech(*pieces, seed=0):
    """Audio of (milliseconds, loud) pieces; the loud ones are noise that changes its colour."""
    rng = np.random.default_rng(seed)
    parts = []
    for milliseconds, loud in pieces:
        noise = (
            rng.standard_normal(milliseconds * MS)
            * np.repeat(rng.uniform(2000, 9000, -(-milliseconds // 40)), 40 * MS)[: milliseconds * MS]
        )
        tone = 6000 * np.sin(np.arange(milliseconds * MS) * rng.uniform(0.05, 1.5))
        parts.append(((noise + tone) * loud).clip(-32768, 32767).astype(np.int16))
    return np.concatenate(parts)


UTTERANCE = ((640, False), (1600, True), (640, False))


def feed(model, audio, *, chunk_ms=80, flush=False, last=True, stream=None, **options):
    """Send audio in pieces; return the stream and all events."""
    stream = stream or model.pipeline.new_stream(AsrOptions(**options))
    events = []
    for start in range(0, len(audio), chunk_ms * MS):
        ending = start + chunk_ms * MS >= len(audio)
        chunk = ChunkRequest(
            stream, audio[start : start + chunk_ms * MS], flush=flush and ending, last=last and ending
        )
        (result,) = model.pipeline.step([chunk])
        assert isinstance(result, ChunkResult), result
        stream = result.stream
        events += result.reply.events
    return stream, events
