"""How a request's own settings reach the model inside vLLM's batch.

vLLM hands a model only tokens and positions. Two things more are needed for every token: the
length of its request's prompt (a speech position counts from there) and the request's guidance
weight. The prompt's token ids carry the weight (its embeddings are computed outside, so the ids
mean nothing else), and the positions carry both: vLLM asks the model for the positions of a
prompt (M-RoPE) and only ever adds to them.

A packed position, from the lowest bit: position in the sequence (13 bits), length of the prompt
(11 bits), guidance weight in hundredths (7 bits): 31 bits, which fit an int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONTEXT_BITS = 13
PROMPT_BITS = 11
WEIGHT_BITS = 7
MAX_CONTEXT = 1 << CONTEXT_BITS
MAX_PROMPT = (1 << PROMPT_BITS) - 1
WEIGHT_STEPS = 100
"""Guidance weights are whole hundredths, from 0 to 1.27."""
PLACEHOLDERS = 1 << WEIGHT_BITS
"""Ids from the speech vocabulary's size on; the model never draws them."""


@dataclass(frozen=True)
class Settings:
    """What the model has to know of a request."""

    prompt_length: int
    guidance_hundredths: int


def prompt_ids(length: int, guidance_weight: float, speech_vocabulary: int, start: int) -> list[int]:
    """The ids of a prompt of ``length`` positions: placeholders, then the start token.

    The start token stands there because vLLM's repetition penalty looks at these ids.
    """
    hundredths = round(guidance_weight * WEIGHT_STEPS)
    if not 0 <= hundredths < PLACEHOLDERS:
        raise ValueError(f"guidance weight {guidance_weight} cannot be carried")
    if not 2 <= length <= MAX_PROMPT:
        raise ValueError(f"a prompt of {length} positions cannot be carried")
    return [speech_vocabulary + hundredths] * (length - 1) + [start]


def read_prompt_ids(ids: Sequence[int], speech_vocabulary: int) -> Settings:
    """The settings behind the ids of a prompt, or of a prompt with what was generated after it.

    Raises:
        ValueError: these are not the ids of :func:`prompt_ids`.
    """
    length = 0
    while length < len(ids) and ids[length] >= speech_vocabulary:
        length += 1
    if not length:
        raise ValueError("the prompt's ids were not passed on")
    return Settings(length + 1, ids[0] - speech_vocabulary)


def pack(settings: Settings) -> int:
    """What is added to every position of a request."""
    return (settings.guidance_hundredths << (CONTEXT_BITS + PROMPT_BITS)) | (
        settings.prompt_length << CONTEXT_BITS
    )
