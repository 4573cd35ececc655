"""Who is connected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from parley_gateway.access import Scope

SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
"""All there are."""


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a key may do instead of what every key may."""

    requests: str | None = None
    """`600/minute`. None: as every key."""
    sessions: str | None = None
    """`60/minute`. None: as every key."""


_USUAL = KeyLimits()
_ANYBODY = "anonymous"
RESERVED_IDS = frozenset({_ANYBODY, "twilio"})
"""Ids of principals without a key; a key with one of them would be taken for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Somebody whom the guard has let in."""

    id: str
    """The key's id, ``jwt:`` and the subject of a JWT, or ``anonymous``; never a secret."""
    scopes: frozenset[Scope]
    """What they may do."""
    session_id: str | None = None
    """The only session that they may use; None: any of their own."""
    session_claimed: bool = False
    """Another issuer's JWT names ``session_id``: the session is theirs, whoever created it."""
    kind: Literal["anonymous", "key", "jwt", "token", "signature"] = "key"
    """What they have shown."""
    limits: KeyLimits = _USUAL
    """Their own rates."""
    root: Literal["anonymous", "key", "jwt", "signature"] = "key"
    """What ``kind`` comes from: of a token what it was issued to, otherwise the same."""
    fingerprint: str = ""
    """Tells one secret of a key from the next; never a secret itself."""
    expires_at: float | None = None
    """When ``root`` expires (seconds since 1970); None: never."""
    address: str = ""
    """Where the connection comes from, as it is counted."""

    @property
    def is_many(self) -> bool:
        """Whether everybody is this one: who comes without a key, or by telephone."""
        return self.id == _ANYBODY or self.kind == "signature"

    @property
    def owner(self) -> str | None:
        """With whom what they hold is counted; None: telephone callers, who all come from one address."""
        if self.kind == "signature":
            return None
        return f"address {self.address}" if self.id == _ANYBODY else self.id


ANONYMOUS = Principal(id=_ANYBODY, scopes=SCOPES - {"admin"}, kind="anonymous", root="anonymous")
"""Whoever comes where nobody is asked."""
