"""The flow: tokens of many utterances to their mel spectrograms, in one run.

Each row of a batch is an utterance's prompt and tokens, padded on the right. Masks keep the
padding out of everything, so that a row is what it would be alone (to rounding, 5e-7 measured),
whatever stands beside it.

*Chunks*: a frame may see the prompt, its own chunk and those before, never a later one; nothing
else looks ahead but the three tokens of the encoder. With the noise fixed for each frame, a
prefix of an utterance has the spectrogram that the whole utterance has there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN, LOOKAHEAD, Encoder
from parley.tts.s3gen.estimator import MEL_BANDS, Estimator

SPEAKER_SIZE = 192
GUIDANCE = 0.7
"""How far the guided mode goes beyond the conditional direction, as upstream."""


@dataclass(frozen=True)
class Voice:
    """What the flow must know of a speaker."""

    embedding: NDArray[np.float32]
    """``[192]``."""
    tokens: NDArray[np.int64]
    """Of the reference speech, ``[P]``."""
    mel: NDArray[np.float32]
    """Of the reference speech, ``[2P, 80]``."""


@dataclass(frozen=True)
class FlowRow:
    """One utterance, as far as it is known."""

    voice: Voice
    tokens: NDArray[np.int64]
    """``[n]``."""
    chunks: Sequence[int]
    """Number of each token's chunk, from 1, ``[n]``; all equal for full attention with the prompt."""
    final: bool
    """Whether the utterance ends here; otherwise the last three tokens only serve as look-ahead."""
    noise: NDArray[np.float32]
    """``[frames, 80]`` or longer, prompt first."""

    @property
    def prompt_frames(self) -> int:
        """Frames before the utterance."""
        return FRAMES_PER_TOKEN * len(self.voice.tokens)

    @property
    def frames(self) -> int:
        """Frames that the flow works on, prompt included."""
        known = len(self.voice.tokens) + len(self.tokens) - (0 if self.final else LOOKAHEAD)
        return FRAMES_PER_TOKEN * known


@dataclass(frozen=True)
class FlowBatch:
    """Rows as tensors; T tokens, M frames."""

    tokens: Tensor
    """i64 ``[B, T]``."""
    token_lengths: Tensor
    frame_lengths: Tensor
    """i64 ``[B]``."""
    chunks: Tensor
    """i64 ``[B, T]``: 0 for the prompt."""
    speakers: Tensor
    """``[B, 192]``."""
    prompts: Tensor
    noise: Tensor
    """``[B, 80, M]``, zero outside."""


def pack(
    rows: Sequence[FlowRow], device: torch.device, round_up: Callable[[int], int] = lambda frames: frames
) -> FlowBatch:
    """Pad rows to a common length, which ``round_up`` may enlarge (frames)."""
    frames = round_up(max(row.frames for row in rows))
    lengths = [len(row.voice.tokens) + len(row.tokens) for row in rows]
    shape = (len(rows), max(*lengths, -(-frames // FRAMES_PER_TOKEN)))
    tokens, chunks = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    prompts = np.zeros((len(rows), MEL_BANDS, frames), np.float32)
    noise = np.zeros_like(prompts)
    for index, row in enumerate(rows):
        prompt = len(row.voice.tokens)
        tokens[index, :prompt] = row.voice.tokens
        tokens[index, prompt : lengths[index]] = row.tokens
        chunks[index, prompt : lengths[index]] = row.chunks
        prompts[index, :, : row.prompt_frames] = row.voice.mel.T
        noise[index, :, : row.frames] = row.noise[: row.frames].T
    speakers = np.stack([row.voice.embedding for row in rows])

    def put(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return FlowBatch(
        tokens=put(tokens),
        token_lengths=put(np.array(lengths)),
        frame_lengths=put(np.array([row.frames for row in rows])),
        chunks=put(chunks),
        speakers=put(speakers),
        prompts=put(prompts),
        noise=put(noise),
    )


class Decoder(nn.Module):
    """Integrates the flow. A module of its own because upstream's key names say so."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, noise: Tensor, inputs: Tensor, valid: Tensor, attention: Tensor, steps: int) -> Tensor:
        """From noise ``[B, 80, M]`` to the spectrogram; see :class:`Estimator` for the others.

        A distilled estimator takes ``steps`` equal steps. Another one takes steps that are small
        at first (cosine), each guided: the direction is moved away from the unconditional one.
        """
        meanflow = self.estimator.meanflow
        times = torch.linspace(0, 1, steps + 1, device=noise.device)
        if not meanflow:
            times = 1 - torch.cos(times * 0.5 * torch.pi)
            inputs = torch.cat([inputs, torch.zeros_like(inputs)])
            valid, attention = torch.cat([valid, valid]), torch.cat([attention, attention])
        # The steps are summed in full precision, whatever the estimator computes in.
        kind = self.estimator.final_proj.weight.dtype
        inputs, valid = inputs.to(kind), valid.to(kind)
        x = noise
        for step in times.unfold(0, 2, 1):
            if meanflow:
                direction = self.estimator(x.to(kind), inputs, valid, attention, step).float()
            else:
                both = torch.cat([x, x]).to(kind)
                given, free = self.estimator(both, inputs, valid, attention, step).float().chunk(2)
                direction = (1 + GUIDANCE) * given - GUIDANCE * free
            x = x + (step[1] - step[0]) * direction
        return x


class Flow(nn.Module):
    """See the module."""

    def __init__(self, vocabulary: int, encoder: Encoder, estimator: Estimator) -> None:
        super().__init__()
        self.input_embedding = nn.Embedding(vocabulary, encoder.width)
        self.spk_embed_affine_layer = nn.Linear(SPEAKER_SIZE, MEL_BANDS)
        self.encoder = encoder
        self.encoder_proj = nn.Linear(encoder.width, MEL_BANDS)
        self.decoder = Decoder(estimator)

    @property
    def meanflow(self) -> bool:
        """Whether the checkpoint was distilled to few large steps."""
        return self.decoder.estimator.meanflow

    @property
    def vocabulary(self) -> int:
        """Tokens are smaller than this."""
        return self.input_embedding.num_embeddings

    def forward(self, batch: FlowBatch, steps: int) -> Tensor:
        """The spectrograms ``[B, 80, M]``, prompts included."""
        frames = batch.noise.shape[2]
        valid_tokens = _valid(batch.token_lengths, batch.tokens.shape[1])
        frame_chunks = batch.chunks.repeat_interleave(FRAMES_PER_TOKEN, dim=1)
        encoded = self.encoder(
            self.input_embedding(batch.tokens),
            valid_tokens,
            _visible(batch.chunks, valid_tokens),
            _visible(frame_chunks, valid_tokens.repeat_interleave(FRAMES_PER_TOKEN, dim=1)),
        )
        valid = _valid(batch.frame_lengths, frames)
        speakers = self.spk_embed_affine_layer(F.normalize(batch.speakers, dim=1))
        inputs = torch.cat(
            [
                (self.encoder_proj(encoded[:, :frames]) * valid[..., None]).transpose(1, 2),
                speakers[:, :, None].expand(-1, -1, frames),
                batch.prompts,
            ],
            dim=1,
        )
        spectrogram: Tensor = self.decoder(
            batch.noise, inputs, valid[:, None].float(), _visible(frame_chunks[:, :frames], valid), steps
        )
        return spectrogram


def _valid(lengths: Tensor, size: int) -> Tensor:
    """Bool ``[B, size]``: false from each length on."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def _visible(chunks: Tensor, valid: Tensor) -> Tensor:
    """Bool ``[B, 1, T, T]``: whether a query (third axis) may see a key (fourth axis).

    A query in the padding sees the prompt, so that no row of attention is empty.
    """
    return ((chunks[:, None, :] <= chunks[:, :, None]) & valid[:, None, :])[:, None]
