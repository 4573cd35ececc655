"""How deep a client's objects may be nested: they are copied and written again, which takes stack."""

from __future__ import annotations

from typing import Any

_DEEPEST = 64


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than 64 levels deep.

    Args:
        value: As it was read from JSON.
    """
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [one for outer in level for one in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
