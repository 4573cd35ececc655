"""The flow: tokens of many utterances to their mel spectrograms, in one run.

*Chunks*: a frame may see the prompt, its own chunk and those before, never a later one; nothing
else looks ahead but the three tokens of the encoder. With the noise fixed for each frame, a
piece of an utterance has the spectrogram that the whole utterance has there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

from parley.tts.s3gen.batch import FlowBatch
from parley.tts.s3gen.carry import Carry
from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN, TokenEncoder
from parley.tts.s3gen.estimator import HEAD_SIZE, MEL_BANDS, Estimator
from parley.tts.s3gen.past import Past, PastBatch

SPEAKER_SIZE = 192
GUIDANCE = 0.7
"""How far the guided mode goes beyond the conditional direction, as upstream."""


class FlowDecoder(nn.Module):
    """Integrates the flow. A module of its own because upstream's key names say so."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator
        self._shifts: dict[int, Tensor] = {}

    @property
    def branches(self) -> int:
        """Runs of the estimator in each step: one, or two if guided."""
        return 1 if self.estimator.meanflow else 2

    def forward(
        self, noise: Tensor, inputs: Tensor, mask: Tensor, lengths: Tensor, past: PastBatch, *, keep: bool
    ) -> Tensor:
        """From noise to the spectrogram, in as many steps as ``past`` has.

        A distilled estimator takes equal steps. Another one takes steps that are small at first
        (cosine), each guided: the direction is moved away from the unconditional one.

        Args:
            noise: ``[B, 80, M]``.
            inputs: see :class:`Estimator`.
            mask: see :class:`Estimator`.
            lengths: frames, i64 ``[B]``.
            past: keys and contexts.
            keep: whether there is a past, or there will be.

        Returns:
            ``[B, 80, M]``.
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
            direction, new_keys, new_contexts = self.estimator(
                both, inputs, mask, shifts[step], (keys, contexts), lengths
            )
            direction = direction.float()
            if branches > 1:
                given, free = direction.chunk(2)
                direction = (1 + GUIDANCE) * given - GUIDANCE * free
            x = x + (times[step + 1] - times[step]) * direction
            contexts.copy_(new_contexts)
            if keys is not None and new_keys is not None:
                keys[..., -noise.shape[2] :, :] = new_keys
        return x

    def _schedule(self, steps: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Times ``[steps+1]`` and :meth:`Estimator.shifts` of each step, which are always the same."""
        times = torch.linspace(0, 1, steps + 1, device=device)
        if not self.estimator.meanflow:
            times = 1 - torch.cos(times * 0.5 * torch.pi)
        if steps not in self._shifts:
            self._shifts[steps] = torch.stack([self.estimator.shifts(step) for step in times.unfold(0, 2, 1)])
        return times, self._shifts[steps]


class Flow(nn.Module):
    """See the module."""

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

    def empty_past(self, steps: int) -> Past:
        """The past of what begins, for a flow of so many steps."""
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
            keep: whether what is needed later is added to the batch's past; without it, no row may
                have one.

        Returns:
            Spectrograms ``[B, 80, 2T]``, without meaning in the padding.
        """
        past, frames = batch.past, batch.noise.shape[2]
        token_carry = Carry(past.token_keys if keep else None, past.token_contexts, batch.lengths)
        frame_carry = Carry(past.frame_keys if keep else None, past.token_contexts[:, :0], batch.lengths)
        encoded = self.encoder(
            self.input_embedding(batch.tokens), batch.ahead, batch.masks[:2], (token_carry, frame_carry)
        )
        past.token_contexts.copy_(token_carry.new_contexts())
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
