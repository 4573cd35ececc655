"""What the engine is asked for. Imports no PyTorch: vLLM's environment may not be prepared yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TokenVoice:
    """What T3 has to know of a voice."""

    speaker_embedding: NDArray[np.float32]
    """[256], of the voice encoder."""
    prompt_tokens: NDArray[np.int32]
    """[n] speech tokens of what the voice said; n may be 0."""


@dataclass(frozen=True)
class TokenPrompt:
    """What stands before the speech of one utterance."""

    embeddings: Tensor
    """[P, 2 * width], float32: both halves of guidance side by side; [P, width] for Turbo."""
    ids: list[int]
    """[P], see :func:`parley.tts.t3.side_channel.prompt_ids`."""


class PromptSource(Protocol):
    """Computes prompts; may be used from several threads."""

    def encode(
        self, voice: TokenVoice, text: Sequence[int], *, exaggeration: float, guidance_weight: float
    ) -> TokenPrompt:
        """Compute the prompt of one utterance; see :class:`parley.tts.t3.prompt.PromptEncoder`."""
        ...


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn. Temperature 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int
    """0: all."""
    min_p: float
    repetition_penalty: float
    seed: int | None = None


@dataclass(frozen=True)
class TokenGeneration:
    """One utterance to be continued with speech tokens."""

    request_id: str
    prompt: TokenPrompt
    max_tokens: int
    drawing: Drawing
    priority: int = 0
