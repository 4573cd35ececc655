"""Lets connections in: the one place that decides who may do what, and how often."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from starlette.requests import HTTPConnection

from parley_gateway.errors import (
    CredentialsExpiredError,
    CredentialsRevokedError,
    ForbiddenError,
    GatewayError,
    GatewaySettingsError,
    RateLimitedError,
    UnauthorizedError,
)
from parley_gateway.security import keys, tokens
from parley_gateway.security.addresses import ClientAddresses, counted_as
from parley_gateway.security.audit import audit
from parley_gateway.security.jwts import JwtVerifier
from parley_gateway.security.keys import KeyRing
from parley_gateway.security.origins import Origins
from parley_gateway.security.principal import ANONYMOUS, Principal, Scope, find_credential
from parley_gateway.security.rates import Meter, Rates, What
from parley_gateway.security.settings import JwtSettings, RateSettings, SecuritySettings
from parley_gateway.security.tokens import Grant, SessionTokens
from parley_gateway.security.watched import WatchedFile


class UsedTokens:
    """Remembers them until they expire, up to a bound."""

    def __init__(self, bound: int, clock: Callable[[], float] = time.time) -> None:
        self._bound = bound
        self._clock = clock
        self._expiry: OrderedDict[str, int] = OrderedDict()

    def use(self, token_id: str, expires_at: int) -> bool:
        """Use a token up; False: it was used before.

        Raises:
            RateLimitedError: too many are remembered. To forget one early would let it be used again.
        """
        if token_id in self._expiry:
            return False
        if len(self._expiry) >= self._bound:
            self._forget()
        if len(self._expiry) >= self._bound:
            wait = max(1.0, min(self._expiry.values()) - self._clock())
            raise RateLimitedError("too many single-use tokens at once", retry_after_s=wait)
        self._expiry[token_id] = expires_at
        return True

    def _forget(self) -> None:
        now = self._clock()
        # They last for different times: what has not expired may stand before what has.
        for token_id in [name for name, expiry in self._expiry.items() if expiry < now]:
            del self._expiry[token_id]


CHECK_EVERY_S = 5.0
"""Between two looks at the credentials of an open connection (seconds)."""

Signature: TypeAlias = Callable[[], Principal]
"""An API's own proof: returns who it is, or raises :class:`UnauthorizedError`."""


class Guard:
    """The gateway's security; one per process.

    Raises:
        GatewaySettingsError: something cannot be used.
    """

    def __init__(
        self,
        security: SecuritySettings | None = None,
        jwt: JwtSettings | None = None,
        rates: RateSettings | None = None,
        *,
        public_url: str = "",
        instance: str = "gateway",
    ) -> None:
        security, jwt, rates = security or SecuritySettings(), jwt or JwtSettings(), rates or RateSettings()
        self._security = security
        self.instance = instance
        self._rate_settings = rates
        self._keys = (
            KeyRing(WatchedFile(Path(security.keys_file), keys.read_keys)) if security.keys_file else None
        )
        self._jwts = JwtVerifier(jwt) if jwt.issuer else None
        self._jwt_stay_open_s = jwt.stay_open_s
        if self.authenticated and security.insecure_allow_anonymous:
            raise GatewaySettingsError(
                "security.insecure_allow_anonymous contradicts keys and JWTs: one or the other"
            )
        self._tokens = SessionTokens(
            tokens.read_secret(security.token_secret_file),
            max_ttl_s=security.token_max_ttl_s,
            instance=instance,
        )
        self._used = UsedTokens(security.tokens_used)
        self._rates = Rates(rates)
        self.peer_seal = self._tokens.derive_seal()
        self.addresses = ClientAddresses(security.trusted_proxies, self.peer_seal)
        self.origins = Origins(security.origins, security.hosts, public_url, anonymous=not self.authenticated)

    @property
    def authenticated(self) -> bool:
        """Whether requests need credentials."""
        return self._keys is not None or self._jwts is not None

    def reload(self) -> None:
        """Read keys again now, as on SIGHUP; without it that happens within a second or two of a change."""
        for source in (self._keys, self._jwts):
            if source is not None:
                source.reload()

    async def aclose(self) -> None:
        """Close the connections to the store of the rates."""
        await self._rates.aclose()

    # --- letting in -----------------------------------------------------------------------

    async def admit(
        self,
        connection: HTTPConnection,
        scope: Scope,
        *,
        session_id: str | None = None,
        signature: Signature | None = None,
        is_counted: bool = False,
    ) -> Principal:
        """Who this is.

        Args:
            connection: A request, or a WebSocket that is not accepted yet.
            scope: What they want to do.
            session_id: The session that they want to use; None: something else, for which credentials of one
                session do not suffice.
            signature: Proves who it is in the place of keys and tokens.
            is_counted: :meth:`count` was called for it.

        Raises:
            UnauthorizedError: no valid credentials.
            ForbiddenError: they do not reach this far, or the origin is not allowed.
            RateLimitedError: too many requests.
            RatesUnavailableError: the store of the rate limits does not answer.
        """
        attempt = self._attempt(connection, scope, session_id, signature)
        with _audited(attempt):
            if not is_counted:
                await self._hit(connection, "ip_requests", attempt.counted)
            principal = await self._judge(attempt)
        connection.state.until_revoked = partial(self.watch, principal, scope)
        return principal

    async def count(self, connection: HTTPConnection) -> None:
        """Count a request that has to be read before its sender is known; :meth:`admit` comes next.

        Raises:
            RateLimitedError: too many requests.
            RatesUnavailableError: the store of the rate limits does not answer.
        """
        await self._hit(connection, "ip_requests", counted_as(self.addresses.of(connection)))

    async def identify(self, connection: HTTPConnection) -> Principal:
        """Who this is, before their request is read, which says what they want; :meth:`authorize` comes next.

        Raises as :meth:`admit`, except for scopes and sessions.
        """
        attempt = self._attempt(connection, None, None, None)
        with _audited(attempt, is_admitted=False):
            await self._hit(connection, "ip_requests", attempt.counted)
            return await self._judge(attempt)

    def authorize(
        self,
        connection: HTTPConnection,
        principal: Principal,
        scope: Scope,
        *,
        session_id: str | None = None,
    ) -> None:
        """Check that an identified client may do what it asks for.

        Raises:
            ForbiddenError: their credentials do not reach this far.
        """
        attempt = self._attempt(connection, scope, session_id, None)
        with _audited(attempt):
            attempt.reach(principal)
        connection.state.until_revoked = partial(self.watch, principal, scope)

    def _attempt(
        self,
        connection: HTTPConnection,
        scope: Scope | None,
        session_id: str | None,
        signature: Signature | None,
    ) -> _Attempt:
        address = self.addresses.of(connection)
        return _Attempt(connection, address, counted_as(address), scope, session_id, signature)

    async def _judge(self, attempt: _Attempt) -> Principal:
        connection, address = attempt.connection, attempt.counted
        is_socket = connection.scope["type"] == "websocket"
        if is_socket:
            await self._hit(connection, "ip_sessions", address)
        self.origins.check(connection)
        credential, malformed = _find_credential(attempt)
        key_id = self._keys.named(credential or "") if self._keys is not None else None
        # Guesses at one key are refused before they are checked. Other clients of the address, such as
        # all behind one router, are still admitted with the right key.
        guesser = address if key_id is None else f"{address} {key_id}"
        if key_id is not None:
            await self._rates.check("auth_failures", guesser)
        try:
            if malformed is not None:
                raise malformed
            principal = await self._identify(attempt, credential)
        except UnauthorizedError:
            # To bring nothing is no attempt to guess.
            if attempt.signature is not None or malformed is not None or credential is not None:
                await self._rates.hit("auth_failures", guesser)
            raise
        # Strangers have their address only: one of them must not use up what all of them may.
        if principal.kind != "anonymous":
            await self._hit(connection, "key_requests", principal.id, principal.limits.requests)
            if is_socket:
                await self._hit(connection, "key_sessions", principal.id, principal.limits.sessions)
        return replace(principal, address=address)

    async def _hit(self, connection: HTTPConnection, what: What, who: str, own: str | None = None) -> None:
        """Count a request, unless another gateway has counted it and passed it on.

        Only the seal of a gateway says so, which needs the secret of the tokens. Wrong credentials are
        counted without this method: a gateway passes on only what it accepts.
        """
        if not self.addresses.is_passed_on(connection):
            await self._rates.hit(what, who, own)

    async def _identify(self, attempt: _Attempt, credential: str | None) -> Principal:
        if attempt.signature is not None:
            return attempt.reach(attempt.signature())
        if credential is not None and credential.startswith(tokens.PREFIX):
            return await self._accept_token(credential, attempt)
        return attempt.reach(self._accept(credential))

    def _accept(self, credential: str | None) -> Principal:
        if not self.authenticated:
            # Clients that cannot do without a key bring any.
            return ANONYMOUS
        if credential is None:
            raise UnauthorizedError("credentials are needed: Authorization: Bearer <key>")
        if credential.startswith(keys.PREFIX) and self._keys is not None:
            return self._keys.verify(credential)
        if self._jwts is not None and credential.count(".") == 2:
            return self._jwts.verify(credential)
        raise UnauthorizedError("the credentials are not valid")

    async def _accept_token(self, credential: str, attempt: _Attempt) -> Principal:
        shown = self._tokens.verify(credential)
        principal = shown.principal
        if principal.root == "key" and self._keys is not None:
            owner = self._keys.find(principal.id)
            if owner.fingerprint != principal.fingerprint:
                raise UnauthorizedError("the API key behind this token was replaced")
            principal = tokens.inherit(shown, owner)
        elif not (self._jwts if principal.root == "jwt" else not self.authenticated):
            raise UnauthorizedError("the credentials behind this token are no longer accepted")
        attempt.reach(principal)
        if shown.single_use:
            # A gateway that passes a request on has used its token up at the common store.
            is_passed_on = self.addresses.is_passed_on(attempt.connection)
            await self.use_once(shown.token_id, shown.expires_at, is_passed_on=is_passed_on)
        return principal

    async def use_once(self, name: str, expires_at: int, *, is_passed_on: bool = False) -> None:
        """Use up what is good for one use.

        Args:
            name: Of a token or a nonce.
            expires_at: Until when it is remembered (seconds since 1970).
            is_passed_on: Another gateway has done so for the same request, at their common store.

        Raises:
            UnauthorizedError: it was used before.
            RateLimitedError: too many are remembered.
        """
        ttl_s = expires_at - time.time()
        is_new = self._used.use(name, expires_at)
        if not is_new or not (is_passed_on or await self._rates.first(name, ttl_s + 1)):
            raise UnauthorizedError("this token was used before")

    def check_root(self, principal: Principal, scope: Scope) -> None:
        """Whether what an open connection was let in with still lets it stay.

        Raises:
            CredentialsRevokedError: the key is gone, has another secret, or lacks the scope.
            CredentialsExpiredError: the key has expired, or the JWT longer ago than it may stay.
        """
        stay_s = self._jwt_stay_open_s if principal.root == "jwt" else 0.0
        has_expired = principal.expires_at is not None and time.time() >= principal.expires_at + stay_s
        expired = CredentialsExpiredError("what this connection was opened with has expired")
        if principal.root != "key" or self._keys is None:
            if has_expired:
                raise expired
            return
        # Of a key the file is asked first: it may say a later time by now.
        try:
            owner = self._keys.find(principal.id)
        except UnauthorizedError as error:
            raise (expired if has_expired else CredentialsRevokedError(str(error))) from error
        if owner.fingerprint != principal.fingerprint or scope not in owner.scopes:
            raise CredentialsRevokedError("the API key behind this connection no longer allows it")

    async def watch(self, principal: Principal, scope: Scope) -> None:
        """Wait as long as a connection may stay that a principal has opened for ``scope``.

        Tokens and JWTs open connections; that they expire ends none at once, as OpenAI's client secrets and
        LiveKit's tokens have it. What ends one is that its root does: the API key that it was opened with, or
        from which its token was made, is taken out of the file, gets another secret, loses the scope or
        expires; or the JWT has been expired for longer than ``jwt.stay_open_s``.

        Raises as :meth:`check_root`.
        """
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                self.check_root(principal, scope)
            except GatewayError as error:
                audit("revoked", principal, scope=scope, code=error.code)
                raise

    # --- what comes with it -----------------------------------------------------------------

    def meter(self) -> Meter:
        """A new count for one WebSocket."""
        return Meter(self._rate_settings)

    def grant(
        self,
        principal: Principal,
        *,
        ttl_s: float | None = None,
        session_id: str | None = None,
        scopes: Iterable[Scope] = ("agent",),
        single_use: bool = False,
    ) -> Grant:
        """A short-lived token for browsers, and what it is good for.

        Args:
            principal: Admitted with a key or a JWT.
            ttl_s: How long it can be used (seconds), within the settings' bounds; None: their default.
            session_id: The only session that it is good for; None: any of the principal's.
            scopes: What it is good for: some of the principal's scopes.
            single_use: It opens one connection and is used up.

        Raises:
            ForbiddenError: the principal has only a token, or not these scopes or this session.
        """
        ttl_s = self._security.token_ttl_s if ttl_s is None else ttl_s
        grant = self._tokens.issue(
            principal, ttl_s=ttl_s, scopes=scopes, session_id=session_id, single_use=single_use
        )
        audit(
            "token_issued", principal, session=session_id, expires_at=grant.expires_at, single_use=single_use
        )
        return grant


@dataclass
class _Attempt:
    """Who sends a request, before it is known."""

    connection: HTTPConnection
    address: str
    counted: str
    """The address as it is counted."""
    scope: Scope | None
    """None: not known yet; reached without credentials."""
    session_id: str | None
    signature: Signature | None
    principal: Principal | None = None
    """Who it is, as soon as that is known."""

    def reach(self, principal: Principal) -> Principal:
        """Note who it is.

        Raises:
            ForbiddenError: their credentials do not reach this far.
        """
        self.principal = principal
        if self.scope is None:
            return principal
        if self.scope not in principal.scopes:
            raise ForbiddenError(f"the credentials lack the scope {self.scope}")
        # APIs without sessions are not part of the one session either.
        if principal.session_id not in (None, self.session_id):
            raise ForbiddenError("the credentials are for another session")
        return principal


@contextmanager
def _audited(attempt: _Attempt, *, is_admitted: bool = True) -> Iterator[None]:
    """Write to the audit log how an attempt ends; ``is_admitted``: also if it succeeds."""
    about = {
        # A URL made of it would end at a question mark that was escaped, and lose line breaks.
        "path": attempt.connection.scope["path"],
        "scope": attempt.scope,
        "session": attempt.session_id,
        "address": attempt.address,
    }
    try:
        yield
    except GatewayError as error:
        audit("refused", attempt.principal, **about, code=error.code)
        raise
    if is_admitted:
        audit("admitted", attempt.principal, **about)


def _find_credential(attempt: _Attempt) -> tuple[str | None, UnauthorizedError | None]:
    """The credential that a connection brings, if any, or why it cannot be read; no signature is one."""
    try:
        return (None if attempt.signature is not None else find_credential(attempt.connection)), None
    except UnauthorizedError as error:
        return None, error


async def until_revoked(connection: HTTPConnection) -> None:
    """Wait as long as a connection may stay, which is for ever where no guard has let it in.

    Raises as :meth:`Guard.watch`.
    """
    watch = getattr(connection.state, "until_revoked", None)
    await (asyncio.get_running_loop().create_future() if watch is None else watch())
