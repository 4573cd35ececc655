"""The prompt of one utterance as embeddings: voice, emotion, text, start of speech.

Voice and emotion are encoded by ``cond_enc`` of the T3 checkpoints (chatterbox-tts, MIT). The modules
have the names of the tensors.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from parley.errors import ModelLoadingError
from parley_torch.tts.t3.checkpoint import T3Shape
from parley_torch.tts.t3.request import (
    SPEAKER_EMBEDDING_SIZE,
    START_OF_SPEECH,
    TokenPrompt,
    TokenVoice,
    prompt_ids,
)

_MAX_VOICES = 64
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
    """Resamples any number of rows to 32; both passes share one attention."""

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

    Original and Multilingual (``guided``) resample the reference speech and have emotion; Turbo takes the
    speech as it is and has none.
    """

    def __init__(self, width: int, *, guided: bool) -> None:
        super().__init__()
        self.spkr_enc = nn.Linear(SPEAKER_EMBEDDING_SIZE, width)
        self.perceiver = Perceiver(width) if guided else None
        self.emotion_adv_fc = nn.Linear(1, width, bias=False) if guided else None

    def voice(self, speaker: Tensor, speech: Tensor) -> Tensor:
        """Rows of the ``speaker`` embedding [256] and the embedded reference ``speech`` [n, width].

        [1, width] if n is 0, else [33, width], or [1 + n, width] for Turbo.
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


class _Positions(nn.Module):
    """A table of learned positions, named as in the checkpoints."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(size, width)

    def first(self, count: int) -> Tensor:
        """Positions 0 to ``count`` - 1, [count, width]."""
        return self.emb.weight[:count]


class PromptEncoder(nn.Module):
    """Computes prompts; several threads may use it."""

    def __init__(self, shape: T3Shape) -> None:
        super().__init__()
        self._shape = shape
        self.cond_enc = ConditioningEncoder(shape.width, guided=shape.guided)
        self.text_emb = nn.Embedding(shape.text_vocabulary, shape.width)
        self.speech_emb = nn.Embedding(shape.speech_vocabulary, shape.width)
        self.text_pos_emb = _Positions(shape.max_text, shape.width) if shape.guided else None
        self.speech_pos_emb = _Positions(shape.max_speech, shape.width) if shape.guided else None
        self._voices: OrderedDict[bytes, Tensor] = OrderedDict()
        self._lock = threading.Lock()  # guards _voices

    @classmethod
    def load(cls, checkpoint: Path, shape: T3Shape, *, device: str = "cpu") -> PromptEncoder:
        """Load the prompt's part of a checkpoint.

        Raises:
            ModelLoadingError: the file cannot be read, or a tensor is missing or has another shape.
        """
        with torch.device("meta"):
            encoder = cls(shape)
        try:
            with safe_open(checkpoint, framework="pt", device=device) as file:
                state = {name: file.get_tensor(name).float() for name in encoder.state_dict()}
            encoder.load_state_dict(state, assign=True)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise ModelLoadingError(f"{checkpoint}: {error}") from error
        return encoder.eval().requires_grad_(requires_grad=False)

    def encode(
        self, voice: TokenVoice, text: Sequence[int], *, exaggeration: float, guidance_weight: float
    ) -> TokenPrompt:
        """Compute the prompt of one utterance.

        ``text`` includes marks. Reference speech is cut to the length that the model was trained with. Turbo
        ignores ``exaggeration`` and ``guidance_weight``.

        Raises:
            ValueError: the length of the prompt cannot be encoded in positions.
        """
        with torch.inference_mode():
            tokens = torch.tensor(text, dtype=torch.long, device=self.speech_emb.weight.device)
            head = torch.cat([self._voice_rows(voice), self.cond_enc.emotion(exaggeration)])
            words = self.text_emb(tokens)
            start = self.speech_emb.weight[START_OF_SPEECH : START_OF_SPEECH + 1]
            if self.text_pos_emb is None or self.speech_pos_emb is None:
                embeddings = torch.cat([head, words, start])
                guidance_weight = 0.0
            else:
                places = self.text_pos_emb.first(len(tokens))
                start = start + self.speech_pos_emb.first(1)
                # The unconditional half has no words, but their positions. Upstream feeds the start
                # token twice.
                conditional = torch.cat([head, words + places, start, start])
                unconditional = torch.cat([head, places, start, start])
                embeddings = torch.cat([conditional, unconditional], -1)
        ids = prompt_ids(len(embeddings), guidance_weight, self._shape.speech_vocabulary)
        return TokenPrompt(embeddings.cpu(), ids)

    def _voice_rows(self, voice: TokenVoice) -> Tensor:
        tokens = voice.prompt_tokens[: self._shape.max_prompt_tokens]
        key = sha256(voice.speaker_embedding.tobytes() + tokens.tobytes()).digest()
        with self._lock:
            rows = self._voices.get(key)
            if rows is not None:
                self._voices.move_to_end(key)
                return rows
        device = self.speech_emb.weight.device
        speech = self.speech_emb(torch.from_numpy(tokens.astype(np.int64)).to(device))
        if self.speech_pos_emb is not None:
            speech = speech + self.speech_pos_emb.first(len(tokens))
        rows = self.cond_enc.voice(torch.from_numpy(voice.speaker_embedding.copy()).to(device), speech)
        with self._lock:
            self._voices[key] = rows
            if len(self._voices) > _MAX_VOICES:
                self._voices.popitem(last=False)
        return rows
