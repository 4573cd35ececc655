"""What the gateway's parts need of its security: who is it, may they, and how much.

:mod:`parley_gateway.security` implements it; tests use fakes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from starlette.requests import HTTPConnection

Scope: TypeAlias = Literal["agent", "transcribe", "speak", "chat", "admin"]


class Principal(Protocol):
    """Who is connected."""

    @property
    def id(self) -> str:
        """The key's or token's id; never the secret itself."""
        ...

    @property
    def scopes(self) -> frozenset[Scope]:
        """What they may do."""
        ...

    @property
    def session_id(self) -> str | None:
        """The only session that they may use; None: any of their own."""
        ...


class Meter(Protocol):
    """Counts the messages of one WebSocket."""

    def message(self, size: int) -> None:
        """Count a message of ``size`` bytes.

        Raises:
            MessageTooLargeError: it is too large.
            RateLimitedError: there are too many, or too many bytes.
        """
        ...


class Guard(Protocol):
    """Lets connections in."""

    async def admit(
        self, connection: HTTPConnection, scope: Scope, *, session_id: str | None = None
    ) -> Principal:
        """Who this is.

        Args:
            connection: A request, or a WebSocket that is not accepted yet.
            scope: What they want to do.
            session_id: The session that they want to use.

        Raises:
            UnauthorizedError: no valid credentials.
            ForbiddenError: they do not reach this far, or the origin is not allowed.
            RateLimitedError: too many requests.
        """
        ...

    def meter(self, principal: Principal) -> Meter:
        """A new count for one WebSocket."""
        ...

    def issue(
        self,
        principal: Principal,
        *,
        ttl_s: float,
        session_id: str | None = None,
        scopes: Iterable[Scope] = ("agent",),
    ) -> str:
        """A short-lived token for browsers."""
        ...


@dataclass(frozen=True)
class Anyone:
    """A principal where nobody has to say who they are."""

    id: str = "anyone"
    scopes: frozenset[Scope] = frozenset(("agent", "transcribe", "speak", "chat", "admin"))
    session_id: str | None = None


class OpenMeter:
    """Counts nothing."""

    def message(self, size: int) -> None:
        """Let it pass."""


class OpenGuard:
    """Lets everybody in: for a gateway that only this machine can reach."""

    async def admit(self, *_: object, **__: object) -> Anyone:
        """Everybody is the same."""
        return Anyone()

    def meter(self, _: Principal) -> OpenMeter:
        """No limits."""
        return OpenMeter()

    def issue(self, *_: object, **__: object) -> str:
        """A token that nobody checks."""
        return secrets.token_urlsafe(16)
