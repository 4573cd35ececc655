"""Requests to the engine, and how their settings reach the model inside vLLM's batch.

Imports no PyTorch: vLLM's environment may not be prepared yet.

vLLM passes only tokens and positions to a model. T3 needs two more values for every token: the
length of the request's prompt (speech positions count from there) and the request's guidance
weight. The ids of the prompt encode the weight (the embeddings are computed outside, so the ids
have no other meaning), and the positions encode both: vLLM asks the model for the positions of a
prompt (M-RoPE) and afterwards only adds to them.

A packed position, from the lowest bit: position in the sequence (13 bits), length of the prompt
(11 bits), guidance weight in hundredths (7 bits): 31 bits, which fit an int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

TOKENS_PER_SECOND = 25
"""Speech tokens per second of audio."""
SPEECH_CODES = 6561
"""Ids below it are sound; the others are marks and are never spoken."""
START_OF_SPEECH = 6561
END_OF_SPEECH = 6562
START_OF_TEXT = 255
END_OF_TEXT = 0
SPEAKER_EMBEDDING_SIZE = 256
SAMPLING_KEY = "parley_sampling"
"""Key of a :class:`TokenSampling` in the ``extra_args`` of a vLLM request."""

CONTEXT_BITS = 13
PROMPT_BITS = 11
WEIGHT_BITS = 7
MAX_CONTEXT = 1 << CONTEXT_BITS
MAX_PROMPT = (1 << PROMPT_BITS) - 1
WEIGHT_STEPS = 100
"""Guidance weights are whole hundredths, from 0 to 1.27."""
PLACEHOLDERS = 1 << WEIGHT_BITS
"""Number of ids, from the size of the speech vocabulary on, that encode a weight and are never sampled."""


@dataclass(frozen=True)
class TokenVoice:
    """The speaker, as T3 takes it."""

    speaker_embedding: NDArray[np.float32]
    """[256], from the voice encoder."""
    prompt_tokens: NDArray[np.int32]
    """[n] speech tokens of the reference recording; n may be 0."""


@dataclass(frozen=True)
class TokenPrompt:
    """The input before the first speech token of one utterance."""

    embeddings: Tensor
    """[P, 2 * width], float32: both halves of guidance side by side; [P, width] for Turbo."""
    ids: list[int]
    """[P], see :func:`prompt_ids`."""


@dataclass(frozen=True)
class TokenSampling:
    """How tokens are sampled; all values are decided. Temperature 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int
    """0: all."""
    min_p: float
    repetition_penalty: float
    seed: int | None = None


@dataclass(frozen=True)
class TokenGeneration:
    """One utterance for the engine."""

    request_id: str
    prompt: TokenPrompt
    max_tokens: int
    sampling: TokenSampling
    priority: int = 0
    traceparent: str = ""


@dataclass(frozen=True)
class PackedSettings:
    """The settings of a request that its positions encode."""

    prompt_length: int
    guidance_hundredths: int

    def offset(self) -> int:
        """The number to add to every position of the request."""
        weight = self.guidance_hundredths << (CONTEXT_BITS + PROMPT_BITS)
        return weight | (self.prompt_length << CONTEXT_BITS)


def prompt_ids(length: int, guidance_weight: float, speech_vocabulary: int) -> list[int]:
    """The ids of a prompt of ``length`` positions: placeholders, then the start token.

    The start token is there because vLLM's repetition penalty reads these ids.
    """
    hundredths = round(guidance_weight * WEIGHT_STEPS)
    if not 0 <= hundredths < PLACEHOLDERS:
        raise ValueError(f"guidance weight {guidance_weight} cannot be encoded")
    if not 2 <= length <= MAX_PROMPT:
        raise ValueError(f"the length of a prompt of {length} positions cannot be encoded")
    return [speech_vocabulary + hundredths] * (length - 1) + [START_OF_SPEECH]


def read_prompt_ids(ids: Sequence[int], speech_vocabulary: int) -> PackedSettings:
    """The settings in the ids of a prompt, or of a prompt with the tokens generated after it.

    Raises:
        ValueError: these are not ids from :func:`prompt_ids`.
    """
    length = 0
    while length < len(ids) and ids[length] >= speech_vocabulary:
        length += 1
    if not length:
        raise ValueError("the ids of the prompt hold no settings")
    return PackedSettings(length + 1, ids[0] - speech_vocabulary)
