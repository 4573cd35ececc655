"""OpenAI's names of voices."""

from __future__ import annotations

OPENAI_VOICES = frozenset(
    "alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse".split()
)
"""Clients name one of these without having chosen it: they stand for the server's default voice."""
