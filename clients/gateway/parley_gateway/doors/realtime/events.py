"""Server events: how they are named, numbered and sent."""

from __future__ import annotations

import secrets
import string
from typing import Any, Protocol

_LETTERS = string.ascii_letters + string.digits
_LENGTH = 21


class Emit(Protocol):
    """Sends a server event."""

    def __call__(self, kind: str, /, **fields: Any) -> None:
        """``kind`` is the event's type; the event's id is added."""
        ...


def new_id(prefix: str) -> str:
    """An id in OpenAI's form: ``item_`` and 21 letters and digits."""
    return f"{prefix}_" + "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def server_event(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The whole event."""
    return {"type": kind, "event_id": new_id("event"), **fields}
