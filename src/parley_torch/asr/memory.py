"""How much memory of a device a recogniser takes, computed from sizes alone.

Weights and pools are exact. The workspace is an estimate from above of what a step's operations hold at once;
the context of CUDA and what PyTorch keeps in reserve are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from parley_torch.asr.fastconformer import HISTORY, SUBSAMPLING, EncoderPool, EncoderSizes, FastConformer
from parley_torch.asr.offline import RunSizes

_SINGLE = 4
_PLACES = 8


@dataclass(frozen=True)
class TransducerSizes:
    """Sizes of the prediction and joint networks."""

    tokens: int
    """Without the blank."""
    durations: int
    layers: int
    width: int
    """Of the prediction network."""
    joint: int
    """Width of the joint network."""
    inputs: int
    """Width of an encoder frame."""

    @property
    def parameters(self) -> int:
        """How many there are."""
        embedding = (self.tokens + 1) * self.width
        lstm = self.layers * 8 * self.width * (self.width + 1)
        projections = self.joint * (self.inputs + 1 + self.width + 1)
        return embedding + lstm + projections + (self.tokens + 1 + self.durations) * (self.joint + 1)

    @property
    def row_bytes(self) -> int:
        """What is remembered of a stream."""
        return 2 * self.layers * self.width * _SINGLE + 2 * _PLACES


@dataclass(frozen=True)
class PromptSizes:
    """Sizes of the two layers of a language prompt (:class:`parley_torch.asr.prompt.LanguagePrompt`)."""

    prompts: int
    inner: int
    width: int
    """Of an encoder frame."""

    @property
    def parameters(self) -> int:
        """How many there are."""
        return self.inner * (self.width + self.prompts + 1) + self.width * (self.inner + 1)

    def step_bytes(self, frames: int) -> int:
        """Most that operations on one row of encoder frames hold at once."""
        return frames * (3 * self.inner + 2 * self.width) * _SINGLE


@dataclass(frozen=True)
class RecognizerMemory:
    """Bytes on the device."""

    weights: int
    pool: int
    """What is remembered of streams."""
    workspace: int
    """Inputs, results and what a step's operations hold at once."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.pool + self.workspace


NEMOTRON_ENCODER = EncoderSizes(
    bands=128,
    width=1024,
    layers=24,
    heads=8,
    inner=4096,
    channels=256,
    kernel=9,
    biased=True,
    normed=True,
    causal=True,
)
"""Of nemotron-speech-streaming-en-0.6b."""
PARAKEET_ENCODER = replace(NEMOTRON_ENCODER, biased=False, normed=False, causal=False)
"""Of parakeet-tdt-0.6b-v2."""
NEMOTRON_DECODER = TransducerSizes(tokens=1024, durations=0, layers=2, width=640, joint=640, inputs=1024)
NEMOTRON_35_DECODER = replace(NEMOTRON_DECODER, tokens=13_087)
NEMOTRON_35_PROMPT = PromptSizes(prompts=128, inner=2048, width=1024)
"""Of nemotron-3.5-asr-streaming-0.6b, which has the same encoder."""
PARAKEET_DECODER = TransducerSizes(tokens=1024, durations=5, layers=2, width=640, joint=640, inputs=1024)


def encoder_parameters(sizes: EncoderSizes) -> int:
    """How many parameters an encoder has."""
    with torch.device("meta"):
        network = FastConformer(sizes)
    return sum(parameter.numel() for parameter in network.parameters())


def streaming_memory(
    encoder: EncoderSizes,
    decoder: TransducerSizes,
    *,
    chunks: Sequence[int],
    slots: int,
    left: int,
    row_sizes: Sequence[int],
    dtype: torch.dtype,
    prompt: PromptSizes | None = None,
) -> RecognizerMemory:
    """Memory of :class:`parley_torch.asr.streaming.StreamingDevice`.

    Args:
        encoder: its sizes.
        decoder: its sizes.
        chunks: feature frames of the chunks that streams may have.
        slots: utterances at once; each has two rows.
        left: encoder frames of the past that attention sees.
        row_sizes: numbers of rows to which steps are padded.
        dtype: of the encoder.
        prompt: sizes of the language prompt, which is in single precision; None: the model has none.
    """
    weights = encoder_parameters(encoder) * dtype.itemsize + decoder.parameters * _SINGLE
    if prompt is not None:
        weights += prompt.parameters * _SINGLE
    row = EncoderPool.row_bytes(encoder, left=left, dtype=dtype) + decoder.row_bytes
    longest, most = max(chunks), row_sizes[-1]
    # Every chunk has a table of positions, and every size the progress of its decoding.
    kept = 0
    for chunk in chunks:
        frames = chunk // SUBSAMPLING
        tables = encoder.layers * (left + 2 * frames - 1) * encoder.width * dtype.itemsize
        kept += tables
        kept += sum(row_sizes) * (frames * decoder.joint * _SINGLE + decoder.row_bytes)
    work = _step_bytes(encoder, frames=HISTORY + longest, left=left, dtype=dtype)
    if prompt is not None:
        work = max(work, prompt.step_bytes(encoder.subsampled(HISTORY + longest)))
    scores = 2 * _PLACES * (decoder.joint + decoder.tokens + 1 + decoder.durations) * _SINGLE
    return RecognizerMemory(weights, (2 * slots + 2) * row, kept + most * (work + scores))


def encoder_memory(sizes: EncoderSizes, runs: RunSizes, *, dtype: torch.dtype) -> RecognizerMemory:
    """Memory of :class:`parley_torch.asr.offline.DeviceEncoder`; ``runs`` are in feature frames."""
    longest = sizes.subsampled(runs.frames[-1])
    tables = sizes.layers * (2 * longest - 1) * sizes.width * dtype.itemsize
    inputs = max(rows * frames for rows, frames in runs.shapes()) * sizes.bands * _SINGLE
    work = max(
        rows * _step_bytes(sizes, frames=frames, left=0, dtype=dtype) for rows, frames in runs.shapes()
    )
    return RecognizerMemory(encoder_parameters(sizes) * dtype.itemsize, 0, tables + inputs + work)


def decoder_memory(sizes: TransducerSizes, runs: RunSizes) -> RecognizerMemory:
    """Memory of :class:`parley_torch.asr.offline.DeviceGreedyRows`, whose runs have these sizes."""
    most = runs.rows[-1]
    frames = max(rows * frames for rows, frames in runs.shapes())
    scores = 4 * (sizes.joint + sizes.tokens + 1 + sizes.durations) * _SINGLE
    # Encoded frames come to the device before they are projected.
    work = frames * (2 * sizes.joint + sizes.inputs) * _SINGLE + most * scores
    return RecognizerMemory(sizes.parameters * _SINGLE, most * sizes.row_bytes, work)


def _step_bytes(sizes: EncoderSizes, *, frames: int, left: int, dtype: torch.dtype) -> int:
    """Most that operations on one row of ``frames`` feature frames hold at once."""
    # Padded input, output and activation of the first convolution.
    bands = (sizes.bands + 3) // 2
    subsampling = 3 * sizes.channels * ((frames + 3) // 2) * bands
    count = sizes.subsampled(frames)
    keys = left + count
    # Scores of positions, their scaled and masked copies, and what attention itself may write.
    attention = sizes.heads * count * (4 * keys + count) + 6 * keys * sizes.width
    feed_forward = 3 * count * sizes.inner
    features = 6 * frames * 512 * _SINGLE // dtype.itemsize
    return (max(subsampling, attention, feed_forward, features) + 4 * count * sizes.width) * dtype.itemsize
