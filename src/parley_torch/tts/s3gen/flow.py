"""The flow: tokens of many utterances to their mel spectrograms, in one run.

*Chunks*: a frame may see the prompt, its own chunk and those before, never a later one; nothing
else looks ahead but the encoder, by three tokens. With the noise fixed for each frame, a
piece of an utterance has the spectrogram that the whole utterance has there.

A row of a run is a piece of an utterance: all of it, or the piece after those already done. Pieces are
padded on the right and pasts on the left, so that a piece follows its past without a gap. Masks keep
the padding out of everything: a row's result does not depend on the other rows (but for rounding).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from parley.runtime.batching import round_up
from parley_torch.tts.s3gen.networks import (
    HEAD_SIZE,
    LOOKAHEAD,
    MEL_BANDS,
    Estimator,
    RelativeAttention,
    TokenEncoder,
)
from parley_torch.tts.s3gen.state import (
    ALWAYS,
    FRAMES_PER_TOKEN,
    NEVER,
    LayerState,
    Past,
    PastBatch,
    Workspace,
    batch_pasts,
)

SPEAKER_SIZE = 192
GUIDANCE = 0.7
"""How far the guided mode goes beyond the conditional direction, as upstream."""
_NOISE_BLOCK = 64  # frames from one generator
_FLOW_STREAM, _PROMPT_STREAM = 0, 2  # of random numbers; 1 is the vocoder's
_ANY_CHUNK = 1 << 40  # of queries in the padding: they see everything, so that no attention is empty


def flow_noise(seed: int, frames: int, first: int = 0) -> NDArray[np.float32]:
    """The flow's initial noise for the frames from ``first`` of an utterance: f32 ``[frames, 80]``."""
    return _noise((_FLOW_STREAM, seed), frames, first)


def prompt_noise(frames: int) -> NDArray[np.float32]:
    """The noise for the frames of a prompt: always the same, so that each prompt is computed once."""
    return _noise((_PROMPT_STREAM,), frames, 0)


def _noise(stream: tuple[int, ...], frames: int, first: int) -> NDArray[np.float32]:
    """Numbers that depend on the stream and the frame alone, however the frames are cut into chunks."""
    begin = first // _NOISE_BLOCK
    blocks = [
        np.random.default_rng((*stream, block)).standard_normal((_NOISE_BLOCK, MEL_BANDS), np.float32)
        for block in range(begin, -(-(first + frames) // _NOISE_BLOCK))
    ]
    offset = first - begin * _NOISE_BLOCK
    known: NDArray[np.float32] = np.concatenate([np.zeros((0, MEL_BANDS), np.float32), *blocks])
    return known[offset : offset + frames]


@dataclass(frozen=True)
class AudioVoice:
    """The speaker, as the flow takes it."""

    embedding: NDArray[np.float32]
    """``[192]``."""
    tokens: NDArray[np.int64]
    """Tokens of the reference speech, ``[P]``."""
    mel: NDArray[np.float32]
    """Spectrogram of the reference speech, ``[2P, 80]``."""

    @cached_property
    def digest(self) -> bytes:
        """Hash of all arrays."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.embedding, self.tokens, self.mel):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()


@dataclass(frozen=True)
class FlowRow:
    """A piece of one utterance."""

    voice: AudioVoice
    tokens: NDArray[np.int64]
    """``[n + ahead]``, those of the prompt first where they belong to the piece."""
    ahead: int
    """Number of tokens at the end that are only look-ahead; 0 where the utterance ends."""
    chunks: NDArray[np.int64]
    """Number of each token's chunk, ``[n + ahead]``: 0 for the prompt, and for all with full attention."""
    firsts: NDArray[np.int64]
    """The first token of the utterance that each of them may see, besides the prompt; ``[n + ahead]``."""
    noise: NDArray[np.float32]
    """``[2n, 80]``."""
    prompt: int = 0
    """Number of tokens that are the prompt's."""
    past: tuple[Past, ...] = ()
    """The consecutive pasts before the piece."""

    @property
    def length(self) -> int:
        """Tokens n whose frames are made."""
        return len(self.tokens) - self.ahead

    @property
    def frames(self) -> int:
        """Frames that are made, the prompt's included."""
        return FRAMES_PER_TOKEN * self.length

    @property
    def begin(self) -> int:
        """Number of the first token of the piece within the utterance."""
        return sum(past.tokens for past in self.past if not past.prompt)


@dataclass(frozen=True)
class FlowBatch:
    """B rows of T tokens as tensors."""

    tokens: Tensor
    """i64 ``[B, T+3]``."""
    ahead: Tensor
    """Bool ``[B, T, 4]``: whether a token may see itself and each of the next three."""
    lengths: Tensor
    """Tokens of each row without padding and look-ahead, i64 ``[B]``."""
    masks: tuple[Tensor, Tensor, Tensor]
    """Masks of tokens, frames and the estimator's frames: ``[B, 1, queries, past + queries]``, 0 or -inf."""
    speakers: Tensor
    """``[B, 192]``."""
    prompts: Tensor
    noise: Tensor
    """``[B, 80, 2T]``, zero outside."""
    past: PastBatch


@dataclass(frozen=True)
class Buckets:
    """Rising sizes to which batches are padded; anything larger than the largest is not padded."""

    frames: tuple[int, ...] = ()
    """Frames of the pieces."""
    rows: tuple[int, ...] = ()
    past: tuple[tuple[int, int], ...] = ()
    """Tokens of the encoder's past and frames of the estimator's, if pasts are kept."""

    def round_past(self, tokens: int, frames: int) -> tuple[int, int]:
        """The smallest size of :attr:`past` that holds both; themselves if none does."""
        return next((size for size in self.past if size[0] >= tokens and size[1] >= frames), (tokens, frames))

    def sizes(self, max_frames: int) -> list[tuple[int, tuple[int, int], int]]:
        """Frames, past and rows of all padded batches, those with the largest state first.

        Args:
            max_frames: rows times frames of a batch, whose rows are not yet padded.
        """
        fewest = {rows: fewer + 1 for fewer, rows in itertools.pairwise((0, *self.rows))}
        sizes = [
            (frames, past, rows)
            for frames, past, rows in itertools.product(self.frames, self.past or ((0, 0),), self.rows)
            if fewest[rows] == 1 or fewest[rows] * frames <= max_frames
        ]
        return sorted(sizes, key=lambda size: (size[2] * (size[0] + size[1][1]), size[1][0]), reverse=True)


def batch_rows(
    rows: Sequence[FlowRow],
    empty: Past,
    workspace: Workspace,
    buckets: Buckets,
    *,
    keep: bool,
) -> FlowBatch:
    """Batch rows of any lengths, on the device of ``empty``.

    ``empty`` is a past of no tokens; ``keep`` leaves room for the rows' new state.
    """
    rows = [*rows, *[rows[0]] * (round_up(len(rows), buckets.rows) - len(rows))]
    size = -(-round_up(max(row.frames for row in rows), buckets.frames) // FRAMES_PER_TOKEN)
    tokens = np.zeros((len(rows), size + LOOKAHEAD), np.int64)
    part = np.full_like(tokens, -1)  # 0 for the prompt's, 1 for the utterance's
    chunks = np.full((len(rows), size), _ANY_CHUNK)
    firsts, positions = np.zeros_like(chunks), np.full_like(chunks, NEVER)
    prompts = np.zeros((len(rows), MEL_BANDS, FRAMES_PER_TOKEN * size), np.float32)
    noise = np.zeros_like(prompts)
    for index, row in enumerate(rows):
        n, prompt = row.length, row.prompt
        tokens[index, : len(row.tokens)] = row.tokens
        # The prompt must not look into the utterance, except where everything sees everything.
        part[index, : len(row.tokens)] = row.chunks > 0
        chunks[index, :n], firsts[index, :n] = row.chunks[:n], row.firsts[:n]
        positions[index, :prompt] = ALWAYS
        positions[index, prompt:n] = np.arange(row.begin, row.begin + n - prompt)
        prompts[index, :, : FRAMES_PER_TOKEN * prompt] = row.voice.mel[: FRAMES_PER_TOKEN * prompt].T
        noise[index, :, : row.frames] = row.noise.T
    device = empty.token_keys.device
    longest = (
        max(sum(past.tokens for past in row.past) for row in rows),
        max(sum(past.step_keys.shape[-2] for past in row.past) for row in rows),
    )
    past_tokens, past_frames = buckets.round_past(*longest) if keep else (0, 0)
    past = batch_pasts(
        [row.past for row in rows],
        empty,
        workspace,
        room=size if keep else 0,
        tokens=past_tokens,
        frames=past_frames,
    )

    def put(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    followers = put(part).unfold(1, LOOKAHEAD + 1, 1)
    return FlowBatch(
        tokens=put(tokens),
        ahead=followers == followers[..., :1],
        lengths=put(np.array([row.length for row in rows])),
        masks=_masks(put(chunks), put(firsts), put(positions), past),
        speakers=put(np.stack([row.voice.embedding for row in rows])),
        prompts=put(prompts),
        noise=put(noise),
        past=past,
    )


def _masks(
    chunks: Tensor, firsts: Tensor, positions: Tensor, past: PastBatch
) -> tuple[Tensor, Tensor, Tensor]:
    """See :attr:`FlowBatch.masks`; all arguments but the past are i64 ``[B, T]``."""
    columns = past.token_keys.shape[-2] - past.room
    begin = columns - past.tokens[:, None]
    in_past = torch.arange(columns, device=chunks.device) >= begin
    # The encoder sees all of the past: its state is small, and its positions have no gaps.
    tokens = _visible(chunks, torch.zeros_like(firsts), positions, torch.where(in_past, ALWAYS, NEVER))
    frames = tokens.repeat_interleave(FRAMES_PER_TOKEN, 2).repeat_interleave(FRAMES_PER_TOKEN, 3)
    chunks, firsts, positions = (
        x.repeat_interleave(FRAMES_PER_TOKEN, dim=1) for x in (chunks, firsts, positions)
    )
    return tokens, frames, _visible(chunks, firsts, positions, past.positions)


def _visible(chunks: Tensor, firsts: Tensor, positions: Tensor, past: Tensor) -> Tensor:
    """``[B, 1, T, P+T]``: 0 where a query (third axis) may see a key (fourth axis), else -inf.

    Args:
        chunks: of the piece, ``[B, T]``.
        firsts: the first token that each of the piece may see, ``[B, T]``.
        positions: token of each of the piece, ``[B, T]``.
        past: token of each of the past, ``[B, P]``; all belong to earlier chunks.
    """
    in_piece = (chunks[:, None] <= chunks[:, :, None]) & (positions[:, None] >= firsts[:, :, None])
    in_past = past[:, None] >= firsts[:, :, None]
    seen = torch.cat([in_past, in_piece], dim=2)[:, None]
    # Floats, because each layer's attention would convert truth values anew.
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, float("-inf"))


class FlowDecoder(nn.Module):
    """Integrates the flow. A module of its own because of upstream's key names."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator
        self.shifts: dict[int, Tensor] = {}
        """Of flows of so many steps; see :meth:`Estimator.shifts`."""

    @property
    def branches(self) -> int:
        """Runs of the estimator in each step: one, or two if guided."""
        return 1 if self.estimator.meanflow else 2

    def forward(
        self, noise: Tensor, inputs: Tensor, mask: Tensor, lengths: Tensor, past: PastBatch, *, keep: bool
    ) -> Tensor:
        """Turn noise ``[B, 80, M]`` into the spectrogram, in as many steps as ``past`` has.

        A distilled estimator takes equal steps. Another one takes steps that are small at first
        (cosine), each guided: the direction is moved away from the unconditional one.

        For ``inputs`` and ``mask`` see :class:`Estimator`. ``keep``: whether ``past`` has or takes state.
        """
        steps, branches = len(past.step_contexts), self.branches
        times, shifts = self._schedule(steps, noise.device)
        # The steps are summed in full precision, whatever the estimator computes in.
        kind = self.estimator.final_proj.weight.dtype
        if branches > 1:
            inputs = torch.cat([inputs, torch.zeros_like(inputs)])
            mask, lengths = torch.cat([mask, mask]), torch.cat([lengths, lengths])
        inputs, mask = inputs.to(kind), mask.to(kind)
        x = noise
        for step in range(steps):
            # Branches and rows are one dimension for the estimator.
            keys = past.step_keys[step].flatten(2, 3) if keep else None
            contexts = past.step_contexts[step].flatten(0, 1)
            both = torch.cat([x] * branches).to(kind)
            direction, new_contexts = self.estimator(
                both, inputs, mask, shifts[step], (keys, contexts), lengths
            )
            direction = direction.float()
            if branches > 1:
                conditional, unconditional = direction.chunk(2)
                direction = (1 + GUIDANCE) * conditional - GUIDANCE * unconditional
            x = x + (times[step + 1] - times[step]) * direction
            contexts.copy_(new_contexts)
        return x

    def _schedule(self, steps: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Times ``[steps+1]`` and :meth:`Estimator.shifts` of each step, which are always the same."""
        times = torch.linspace(0, 1, steps + 1, device=device)
        if not self.estimator.meanflow:
            times = 1 - torch.cos(times * 0.5 * torch.pi)
        if steps not in self.shifts:
            self.shifts[steps] = torch.stack([self.estimator.shifts(step) for step in times.unfold(0, 2, 1)])
        return times, self.shifts[steps]


class Flow(nn.Module):
    """Encoder and decoder: :class:`FlowBatch` to spectrograms."""

    def __init__(self, vocabulary: int, encoder: TokenEncoder, estimator: Estimator) -> None:
        super().__init__()
        self.input_embedding = nn.Embedding(vocabulary, encoder.width)
        self.spk_embed_affine_layer = nn.Linear(SPEAKER_SIZE, MEL_BANDS)
        self.encoder = encoder
        self.encoder_proj = nn.Linear(encoder.width, MEL_BANDS)
        self.decoder = FlowDecoder(estimator)

    @property
    def meanflow(self) -> bool:
        """Whether the checkpoint was distilled to few large steps."""
        return self.decoder.estimator.meanflow

    @property
    def vocabulary(self) -> int:
        """Tokens are smaller than this."""
        return self.input_embedding.num_embeddings

    @property
    def cached_tensors(self) -> list[Tensor]:
        """What depends on sizes alone and is computed when they are first met."""
        attentions = (module for module in self.modules() if isinstance(module, RelativeAttention))
        return [*(attention.distances for attention in attentions), *self.decoder.shifts.values()]

    def empty_past(self, steps: int) -> Past:
        """A past of no tokens, for a flow of ``steps`` steps."""
        encoder, estimator = self.encoder, self.decoder.estimator
        whole, part = self.encoder_proj.weight, estimator.final_proj.weight
        head = encoder.width // encoder.heads
        branches = self.decoder.branches
        return Past(
            tokens=0,
            token_keys=whole.new_zeros(len(encoder.encoders), 2, encoder.heads, 0, head),
            frame_keys=whole.new_zeros(len(encoder.up_encoders), 2, encoder.heads, 0, head),
            step_keys=part.new_zeros(steps, estimator.attentions, 2, branches, estimator.heads, 0, HEAD_SIZE),
            token_contexts=whole.new_zeros(encoder.context_channels, 2),
            step_contexts=part.new_zeros(steps, branches, estimator.context_channels, 2),
        )

    def forward(self, batch: FlowBatch, *, keep: bool) -> Tensor:
        """Make the frames of a batch, in as many steps as its past has.

        Args:
            batch: the rows.
            keep: whether to add the new state to the batch's past; if not, no row may have a past.

        Returns:
            Spectrograms ``[B, 80, 2T]``, without meaning in the padding.
        """
        past, frames = batch.past, batch.noise.shape[2]
        token_state = LayerState(past.token_keys if keep else None, past.token_contexts, batch.lengths)
        frame_state = LayerState(past.frame_keys if keep else None, past.token_contexts[:, :0], batch.lengths)
        encoded = self.encoder(
            self.input_embedding(batch.tokens), batch.ahead, batch.masks[:2], (token_state, frame_state)
        )
        past.token_contexts.copy_(token_state.new_contexts())
        speakers = self.spk_embed_affine_layer(F.normalize(batch.speakers, dim=1))
        inputs = torch.cat(
            [
                self.encoder_proj(encoded).transpose(1, 2),
                speakers[:, :, None].expand(-1, -1, frames),
                batch.prompts,
            ],
            dim=1,
        )
        lengths = FRAMES_PER_TOKEN * batch.lengths
        mels: Tensor = self.decoder(batch.noise, inputs, batch.masks[2], lengths, past, keep=keep)
        return mels
