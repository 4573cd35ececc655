"""What a connection was let in with, for as long as it is open.

Tokens and JWTs open connections; that they expire ends none at once, as OpenAI's client secrets and
LiveKit's tokens have it. What ends one is that its root does: the API key that it was opened with, or from
which its token was made, is taken out of the file, gets another secret, loses the scope or expires; or the
JWT has been expired for longer than ``jwt.stay_open_s``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import HTTPConnection

from parley_gateway.errors import GatewayError
from parley_gateway.security.audit import audit
from parley_gateway.security.principal import Principal, Scope

CHECK_EVERY_S = 5.0
"""The file of the keys is looked at once a second besides."""


class _RootCheck(Protocol):
    """The guard."""

    def check_root(self, principal: Principal, scope: Scope) -> None: ...


@dataclass(frozen=True, slots=True)
class AdmittedCaller:
    """The admission of a connection.

    Attributes:
        guard: Has let it in.
        principal: Who it is.
        scope: What it is for.
    """

    guard: _RootCheck
    principal: Principal
    scope: Scope

    async def until_revoked(self) -> None:
        """Wait as long as the connection may stay.

        Raises:
            CredentialsRevokedError: its root is no longer accepted.
            CredentialsExpiredError: its root has expired.
        """
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                self.guard.check_root(self.principal, self.scope)
            except GatewayError as error:
                audit("revoked", self.principal, scope=self.scope, code=error.code)
                raise


def admission_of(connection: HTTPConnection) -> AdmittedCaller | None:
    """How a connection was let in; None: not by the guard."""
    return getattr(connection.state, "admission", None)


async def until_revoked(connection: HTTPConnection) -> None:
    """Wait as long as a connection may stay; raises as :meth:`AdmittedCaller.until_revoked`."""
    admission = admission_of(connection)
    if admission is None:
        await asyncio.get_running_loop().create_future()
    else:
        await admission.until_revoked()
