"""Encryption of what the store holds.

Each session has a key of its own, which HKDF derives from one of the file's: so the number of messages under
one key of AES-GCM, whose nonces are random, stays far below its limit of 2**32.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.watched import WatchedFile

_KEY_BYTES = 32
_ID_BYTES = 4
_NONCE_BYTES = 12
_MAX_KEYS = 16
_VERSION = b"\x02"
_HEAD = len(_VERSION) + _ID_BYTES + _NONCE_BYTES
OVERHEAD_BYTES = _HEAD + 16
"""By which a sealed text is longer."""


class SealError(Exception):
    """It was not sealed with one of these keys for this session, owner and epoch, or was changed."""


@dataclass(frozen=True, slots=True, repr=False)
class SealKey:
    """One key of the file."""

    secret: bytes

    @property
    def id(self) -> bytes:
        """Finds the key of a sealed text; says nothing about the secret."""
        return hashlib.sha256(b"parley takeover key " + self.secret).digest()[:_ID_BYTES]

    def cipher(self, name: str) -> AESGCM:
        """For the session of this name."""
        info = b"parley session " + name.encode()
        return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt=None, info=info).derive(self.secret))


def read_seal_keys(raw: bytes) -> tuple[SealKey, ...]:
    """The keys of a file, in their order; lines that begin with ``#`` are comments.

    Raises:
        GatewaySettingsError: it cannot be used. The message contains nothing of a key.
    """
    keys: list[SealKey] = []
    for number, line in enumerate(raw.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        try:
            secret = base64.b64decode(text, validate=True)
        except binascii.Error:
            secret = b""
        if len(secret) != _KEY_BYTES:
            raise GatewaySettingsError(f"line {number} is not the base64 of {_KEY_BYTES} bytes")
        keys.append(SealKey(secret))
    if not 1 <= len(keys) <= _MAX_KEYS:
        raise GatewaySettingsError(f"a file of keys has 1 to {_MAX_KEYS} keys, not {len(keys)}")
    return tuple(keys)


class Sealer:
    """Seals with the first key of a file, and opens with all of them."""

    def __init__(self, file: WatchedFile[tuple[SealKey, ...]]) -> None:
        self._file = file

    def seal(self, content: bytes, *, name: str, owner: str, epoch: int) -> bytes:
        """Encrypt what belongs to the session ``name`` of a principal, as its owner in this epoch does."""
        key = self._file.get()[0]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = key.cipher(name).encrypt(nonce, content, _bound_to(name, owner, epoch))
        return _VERSION + key.id + nonce + sealed

    def open(self, sealed: bytes, *, name: str, owner: str, epoch: int) -> bytes:
        """Decrypt.

        Raises:
            SealError: it belongs to another session, principal or epoch, no key fits, or it was changed.
        """
        version, key_id = sealed[:1], sealed[1 : 1 + _ID_BYTES]
        nonce, content = sealed[1 + _ID_BYTES : _HEAD], sealed[_HEAD:]
        if version != _VERSION or len(sealed) < OVERHEAD_BYTES:
            raise SealError("not of this version")
        for key in self._file.get():
            if key.id == key_id:
                try:
                    return key.cipher(name).decrypt(nonce, content, _bound_to(name, owner, epoch))
                except InvalidTag as error:
                    raise SealError("not of this session, owner and epoch, or changed") from error
        raise SealError("of a key that is not in the file")


def _bound_to(name: str, owner: str, epoch: int) -> bytes:
    # Neither a session's id nor the id of a key has a zero byte, and a JWT's subject comes last.
    return b"\0".join((b"parley session", name.encode(), b"%d" % epoch, owner.encode()))
