"""What a response cost, in OpenAI's words."""

from __future__ import annotations

from typing import Any

from parley.protocol import TurnMetrics


def usage_of(metrics: TurnMetrics | None) -> dict[str, Any] | None:
    """The tokens of a turn; None: they are not known.

    The language model reads and writes text only, so that no token is one of audio.
    """
    if metrics is None:
        return None
    cached = min(metrics.cached_tokens, metrics.prompt_tokens)
    return {
        "total_tokens": metrics.prompt_tokens + metrics.completion_tokens,
        "input_tokens": metrics.prompt_tokens,
        "output_tokens": metrics.completion_tokens,
        "input_token_details": {
            "text_tokens": metrics.prompt_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": metrics.completion_tokens, "audio_tokens": 0},
    }
