"""Everything that stands before the text in T3's prompt: whose voice, and with how much emotion.

Published as ``cond_enc`` in every T3 checkpoint (chatterbox-tts, MIT); the names of the modules
are those of its tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from parley.tts.t3.vocabulary import SPEAKER_EMBEDDING_SIZE

_QUERIES = 32
_HEADS = 4


class _Attention(nn.Module):
    """Pre-norm attention of ``queries`` over ``context``, with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.proj_out = nn.Linear(width, width)

    def forward(self, queries: Tensor, context: Tensor) -> Tensor:
        """``queries`` [n, width], ``context`` [m, width] → [n, width]."""
        normed, keys = self.norm(queries), self.norm(context)
        mixed = functional.scaled_dot_product_attention(
            _heads(self.to_q(normed)), _heads(self.to_k(keys)), _heads(self.to_v(keys))
        )
        projected: Tensor = self.proj_out(mixed.transpose(0, 1).reshape(queries.shape))
        return queries + projected


def _heads(rows: Tensor) -> Tensor:
    """[n, width] → [heads, n, width / heads]."""
    return rows.reshape(rows.shape[0], _HEADS, -1).transpose(0, 1)


class Perceiver(nn.Module):
    """Resamples any number of rows to 32; one attention serves both of its passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pre_attention_query = nn.Parameter(torch.empty(1, _QUERIES, width))
        self.attn = _Attention(width)

    def forward(self, rows: Tensor) -> Tensor:
        """[n, width] → [32, width]."""
        gathered = self.attn(self.pre_attention_query[0], rows)
        mixed: Tensor = self.attn(gathered, gathered)
        return mixed


class ConditioningEncoder(nn.Module):
    """The voice's rows, then one for emotion.

    Args:
        width: of the transformer.
        guided: Original and Multilingual resample the voice's speech and know emotion; Turbo
            takes the speech as it is and knows none.
    """

    def __init__(self, width: int, *, guided: bool) -> None:
        super().__init__()
        self.spkr_enc = nn.Linear(SPEAKER_EMBEDDING_SIZE, width)
        self.perceiver = Perceiver(width) if guided else None
        self.emotion_adv_fc = nn.Linear(1, width, bias=False) if guided else None

    def voice(self, speaker: Tensor, speech: Tensor) -> Tensor:
        """Rows that depend on the voice alone.

        Args:
            speaker: [256], the voice encoder's embedding.
            speech: [n, width], embeddings of what the voice said; n may be 0.

        Returns:
            [1, width] without speech, else [33, width], or [1 + n, width] for Turbo.
        """
        if self.perceiver is not None and len(speech):
            speech = self.perceiver(speech)
        return torch.cat([self.spkr_enc(speaker[None]), speech])

    def emotion(self, exaggeration: float) -> Tensor:
        """[1, width]; [0, width] for Turbo."""
        if self.emotion_adv_fc is None:
            return self.spkr_enc.weight.new_zeros(0, self.spkr_enc.out_features)
        row: Tensor = self.emotion_adv_fc(self.emotion_adv_fc.weight.new_full((1, 1), exaggeration))
        return row
