"""The prompt of one utterance as embeddings: voice, emotion, text, start of speech."""

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

from parley.errors import ModelLoadingError
from parley.tts.t3.checkpoint import T3Shape
from parley.tts.t3.conditioning import ConditioningEncoder
from parley.tts.t3.request import TokenPrompt, TokenVoice
from parley.tts.t3.side_channel import prompt_ids
from parley.tts.t3.vocabulary import START_OF_SPEECH

_VOICES_KEPT = 64


class _Positions(nn.Module):
    """A table of learned positions, named as in the checkpoints."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(size, width)

    def first(self, count: int) -> Tensor:
        """Positions 0 to ``count`` - 1, [count, width]."""
        return self.emb.weight[:count]


class PromptEncoder(nn.Module):
    """Computes prompts; may be used from several threads.

    Args:
        shape: of the checkpoint.
    """

    def __init__(self, shape: T3Shape) -> None:
        super().__init__()
        self._shape = shape
        self.cond_enc = ConditioningEncoder(shape.width, guided=shape.guided)
        self.text_emb = nn.Embedding(shape.text_vocabulary, shape.width)
        self.speech_emb = nn.Embedding(shape.speech_vocabulary, shape.width)
        self.text_pos_emb = _Positions(shape.max_text, shape.width) if shape.guided else None
        self.speech_pos_emb = _Positions(shape.max_speech, shape.width) if shape.guided else None
        self._voices: OrderedDict[bytes, Tensor] = OrderedDict()
        self._lock = threading.Lock()  # guards the voices kept

    @classmethod
    def load(cls, checkpoint: Path, shape: T3Shape, *, device: str = "cpu") -> PromptEncoder:
        """Load its part of a checkpoint.

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

        Args:
            voice: who speaks; more speech than the model was trained with is cut off.
            text: tokens, marks included.
            exaggeration: of emotion, 0 to 2; 0.5 is neutral. Turbo has none.
            guidance_weight: 0 to 1; Turbo has none.

        Raises:
            ValueError: the prompt is too long for the side channel.
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
                # Without its words, the unconditional half still has their places. The start
                # token is there twice because the model is used in that way where it comes from.
                conditional = torch.cat([head, words + places, start, start])
                unconditional = torch.cat([head, places, start, start])
                embeddings = torch.cat([conditional, unconditional], -1)
        ids = prompt_ids(len(embeddings), guidance_weight, self._shape.speech_vocabulary, START_OF_SPEECH)
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
            if len(self._voices) > _VOICES_KEPT:
                self._voices.popitem(last=False)
        return rows
