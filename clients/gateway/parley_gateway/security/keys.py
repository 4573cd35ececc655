"""API keys, of which only hashes are stored.

A key is ``parley_<id>_<secret>``. The id is public: it finds the line in the file, and it is what logs name.
The secret has 256 random bits, so that one round of SHA-256 suffices: there is nothing to guess, and no need
to make guessing slow. The id is part of what is hashed, so that a hash is of no use under another id.

The file is TOML with one line per key::

    k4fz0q2m = {name = "kiosk", scopes = ["agent"], sha256 = "9f2c…", expires = 2027-01-01T00:00:00Z}
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from parley.protocol import AGENT_NAME
from parley_gateway.errors import GatewaySettingsError, UnauthorizedError
from parley_gateway.security.principal import RESERVED_IDS, KeyLimits, Principal, Scope
from parley_gateway.security.rates import parse_rate
from parley_gateway.security.watched import WatchedFile

PREFIX = "parley_"
_ID = re.compile(r"[a-z0-9]{4,32}")
_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_ID_CHARS = 10
_SECRET_BYTES = 32
_FINGERPRINT_CHARS = 16
AgentName: TypeAlias = Annotated[str, Meta(pattern=f"^({AGENT_NAME})?$")]
"""Name of an agent that servers define; empty: their own agent."""
_NO_HASH = hashlib.sha256(b"no key has this hash").hexdigest()


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the file."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    scopes: frozenset[Scope]
    name: str = ""
    """For people."""
    expires: datetime | None = None
    """From then on it is refused; with an offset. None: never."""
    limits: KeyLimits = KeyLimits()
    agents: frozenset[AgentName] | None = None
    """Agents that it may call; `""`: the server's own. None: all."""


class NewKey(NamedTuple):
    """A key that was just made."""

    secret: str
    """The key itself: shown once, stored nowhere."""
    line: str
    """Its line for the file."""


def new_key(
    name: str,
    scopes: Iterable[Scope],
    expires: datetime | None = None,
    agents: Iterable[str] | None = None,
) -> NewKey:
    """Make a key; ``agents`` are those that it may call, None: all.

    Raises:
        GatewaySettingsError: one of ``agents`` is not a name of an agent.
    """
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARS))
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    fields = [
        f"name = {msgspec.json.encode(name).decode()}",
        "scopes = [" + ", ".join(f'"{scope}"' for scope in sorted(scopes)) + "]",
        f'sha256 = "{hash_secret(key_id, secret)}"',
    ]
    if expires is not None:
        fields.append(f"expires = {expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    if agents is not None:
        fields.append(f"agents = {msgspec.json.encode(sorted(agents)).decode()}")
    line = f"{key_id} = {{{', '.join(fields)}}}"
    read_keys(line.encode())
    return NewKey(f"{PREFIX}{key_id}_{secret}", line)


def hash_secret(key_id: str, secret: str) -> str:
    """What the file holds of a key: hexadecimal SHA-256."""
    return hashlib.sha256(f"parley key {key_id} {secret}".encode()).hexdigest()


def read_keys(raw: bytes) -> dict[str, KeyEntry]:
    """The keys of a file, by id.

    Raises:
        GatewaySettingsError: it cannot be used.
    """
    try:
        entries = msgspec.convert(tomllib.loads(raw.decode()), dict[str, KeyEntry])
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise GatewaySettingsError(f"not a file of API keys: {error}") from error
    for key_id, entry in entries.items():
        if not _ID.fullmatch(key_id):
            raise GatewaySettingsError(f"{key_id!r} is not the id of an API key")
        if key_id in RESERVED_IDS:
            raise GatewaySettingsError(
                f"{key_id!r} cannot be the id of an API key: the gateway itself uses it"
            )
        if entry.expires is not None and entry.expires.tzinfo is None:
            raise GatewaySettingsError(f"{key_id}: `expires` needs an offset, such as 2027-01-01T00:00:00Z")
        for rate in (entry.limits.requests, entry.limits.sessions):
            parse_rate(f"{key_id}: limits", rate or "")
    return entries


class KeyRing:
    """Recognises API keys."""

    def __init__(self, file: WatchedFile[dict[str, KeyEntry]]) -> None:
        self._file = file

    def reload(self) -> None:
        """Read the file again now."""
        self._file.reload()

    def named(self, credential: str) -> str | None:
        """The id of the key that a credential claims to be, right or wrong; None: of none that there is."""
        key_id, _ = _split(credential)
        return key_id if credential.startswith(PREFIX) and key_id in self._file.get() else None

    def verify(self, credential: str) -> Principal:
        """Whose key it is.

        Raises:
            UnauthorizedError: it is unknown or has expired.
        """
        key_id, secret = _split(credential)
        entry = self._file.get().get(key_id)
        # An unknown id takes the same way, so that the time does not reveal which ids exist.
        expected = entry.sha256 if entry is not None else _NO_HASH
        matches = hmac.compare_digest(hash_secret(key_id, secret), expected)
        if entry is None or not matches:
            raise UnauthorizedError("the API key is not valid")
        return self._principal(key_id, entry)

    def find(self, key_id: str) -> Principal:
        """Whom a key id belongs to, for what was issued to it.

        Raises:
            UnauthorizedError: it was removed or has expired.
        """
        entry = self._file.get().get(key_id)
        if entry is None:
            raise UnauthorizedError("the API key behind this token is no longer valid")
        return self._principal(key_id, entry)

    @staticmethod
    def _principal(key_id: str, entry: KeyEntry) -> Principal:
        if entry.expires is not None and datetime.now(UTC) >= entry.expires:
            raise UnauthorizedError("the API key has expired")
        return Principal(
            id=key_id,
            scopes=entry.scopes,
            kind="key",
            limits=entry.limits,
            agents=entry.agents,
            fingerprint=entry.sha256[:_FINGERPRINT_CHARS],
            expires_at=entry.expires.timestamp() if entry.expires is not None else None,
        )


def id_of(named: str) -> str:
    """The id of a key that is named by its id, or by itself."""
    return _split(named)[0] if named.startswith(PREFIX) else named


def without_key(raw: bytes, key_id: str) -> bytes:
    """A file's content without one of its keys; everything else stays as it is written.

    Raises:
        GatewaySettingsError: the key is not written on one line of its own.
    """
    entries = read_keys(raw)
    own = re.compile(rb'\s*["\']?' + re.escape(key_id.encode()) + rb'["\']?\s*=')
    rest = b"".join(line for line in raw.splitlines(keepends=True) if not own.match(line))
    expected = {other: entry for other, entry in entries.items() if other != key_id}
    try:
        remaining = read_keys(rest)
    except GatewaySettingsError:
        remaining = {}
    if remaining != expected or key_id not in entries:
        raise GatewaySettingsError(f"{key_id} is not on one line of its own: take it out by hand")
    return rest


def _split(credential: str) -> tuple[str, str]:
    """Id and secret."""
    key_id, _, secret = credential.removeprefix(PREFIX).partition("_")
    return key_id, secret
