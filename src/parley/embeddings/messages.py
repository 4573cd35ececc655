"""Messages of the model ``embeddings``."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

TextKind: TypeAlias = Literal["query", "passage"]
"""What a text is to a search: some networks represent both differently."""


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """May come with texts."""

    kind: TextKind = "passage"
    """Queries are served before passages that wait."""
    traceparent: str = ""
    """Span of the caller (W3C Trace Context): that of the model is below it. Empty: there is none."""


class EmbeddingSpace(msgspec.Struct, frozen=True):
    """What vectors must have in common to be compared."""

    fingerprint: str
    """Of the weights and their settings: vectors of different fingerprints must not be compared."""
    dimensions: int
    max_tokens: int
    """Tokens of a text that count; what follows them is not represented."""


class EmbedReply(msgspec.Struct, frozen=True, kw_only=True):
    """Comes with the vector of a text."""

    space: EmbeddingSpace
    tokens: int
    """Those of the text that count, with the network's own at both ends."""
    is_truncated: bool
    """Whether the text has more."""
