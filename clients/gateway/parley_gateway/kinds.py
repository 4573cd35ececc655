"""Kinds of numbers that settings are made of."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
"""Above 0."""
Count: TypeAlias = Annotated[int, Meta(ge=1)]
"""At least 1."""
Size: TypeAlias = Annotated[int, Meta(ge=1)]
"""Bytes, at least 1."""
