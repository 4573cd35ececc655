"""JWTs of another issuer, such as the operator's own login service.

The algorithms are the configuration's, never the token's: a token that names another one is refused before
its signature is looked at, and a public key is never taken for a secret.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import jwt

from parley_gateway.errors import GatewaySettingsError, UnauthorizedError
from parley_gateway.security.principal import SCOPES, Principal, Scope
from parley_gateway.security.settings import JwtSettings
from parley_gateway.security.watched import WatchedFile

MIN_SECRET_BYTES = 32
_MAX_ID_CHARS = 128
_Keys: TypeAlias = "bytes | jwt.PyJWKSet"


class JwtVerifier:
    """Recognises them.

    Raises:
        GatewaySettingsError: they cannot be used.
    """

    def __init__(self, settings: JwtSettings) -> None:
        secret = [name.startswith("HS") for name in settings.algorithms]
        if not settings.algorithms or any(secret) != all(secret):
            raise GatewaySettingsError(
                "jwt.algorithms: either those with a secret (HS…), or those with a public key"
            )
        if not settings.audience or not settings.key_file:
            raise GatewaySettingsError("jwt.audience and jwt.key_file are needed where there is jwt.issuer")
        self._settings = settings
        self._decoder = jwt.PyJWT(options={"enforce_minimum_key_length": True})
        self._file: WatchedFile[_Keys] = WatchedFile(
            Path(settings.key_file), _read_secret if all(secret) else _read_public_keys
        )

    def reload(self) -> None:
        """Read the key file again now."""
        self._file.reload()

    def verify(self, token: str) -> Principal:
        """Whose token it is.

        Raises:
            UnauthorizedError: its signature, issuer, audience, time or claims do not hold.
        """
        settings = self._settings
        try:
            claims = self._decoder.decode(
                token,
                self._key(token),
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            expires_at = float(claims["exp"])
        except jwt.ExpiredSignatureError as error:
            raise UnauthorizedError("the token has expired") from error
        except jwt.InvalidAudienceError as error:
            raise UnauthorizedError("the token has another audience") from error
        except (jwt.PyJWTError, OverflowError) as error:  # times beyond all floats
            raise UnauthorizedError("the token is not valid") from error
        is_bound = settings.session_claim in claims
        return Principal(
            id=f"jwt:{_text(claims, 'sub')}",
            scopes=_scopes(claims.get(settings.scope_claim)),
            agents=_agents(claims[settings.agent_claim]) if settings.agent_claim in claims else None,
            session_id=_text(claims, settings.session_claim) if is_bound else None,
            session_claimed=is_bound,
            kind="jwt",
            root="jwt",
            expires_at=expires_at,
        )

    def _key(self, token: str) -> bytes | jwt.PyJWK:
        keys = self._file.get()
        if isinstance(keys, bytes):
            return keys
        key_id = jwt.get_unverified_header(token).get("kid")
        if key_id is None and len(keys.keys) == 1:
            return keys.keys[0]
        for key in keys.keys:
            if key_id is not None and key.key_id == key_id:
                return key
        raise UnauthorizedError("the token's key is not known")


def _read_secret(raw: bytes) -> _Keys:
    secret = raw.strip()
    if secret.startswith((b"-----BEGIN", b"{")):
        raise GatewaySettingsError("a public key is no secret: jwt.algorithms says HS…")
    if len(secret) < MIN_SECRET_BYTES:
        raise GatewaySettingsError(f"the secret has to have at least {MIN_SECRET_BYTES} bytes")
    return secret


def _read_public_keys(raw: bytes) -> _Keys:
    if raw.lstrip().startswith(b"-----BEGIN"):
        if b"PRIVATE KEY" in raw:
            raise GatewaySettingsError(
                "the gateway needs the public key only: keep the private one away from it"
            )
        return raw.strip()
    try:
        keys = jwt.PyJWKSet.from_dict(json.loads(raw))
    except (ValueError, AttributeError, jwt.PyJWTError) as error:
        raise GatewaySettingsError(f"neither a PEM public key nor a JWKS: {error}") from error
    if any(key.key_type == "oct" for key in keys.keys):
        raise GatewaySettingsError("a JWKS with secrets in it cannot be used")
    return keys


def _text(claims: dict[str, Any], name: str) -> str:
    value = claims[name]
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_ID_CHARS or not value.isprintable():
        raise UnauthorizedError(f"the token's {name} is not a short text")
    return value


def _scopes(claim: object) -> frozenset[Scope]:
    """Claims that the gateway reads; issuers may add others."""
    words = _words(claim)
    return frozenset(scope for scope in SCOPES if scope in words)


def _agents(claim: object) -> frozenset[str]:
    """Names of agents; a claim of another form names none."""
    return frozenset(word for word in _words(claim) if isinstance(word, str))


def _words(claim: object) -> list[Any]:
    """The items of a list, or the words of a text."""
    return claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
