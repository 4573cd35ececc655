"""What somebody may do."""

from __future__ import annotations

from typing import Literal, TypeAlias

Scope: TypeAlias = Literal["agent", "transcribe", "speak", "chat", "admin"]
