"""Whose voices those are that were made through the gateway.

The store of voices has no owners. A voice that is made through the gateway has an id that begins with a
digest of its owner, by which every route decides who may list, use or delete it. Voices with other ids are
shared: those of the synthesizers, those that came with the weights, and those that the operator made with
``parley voices``.
"""

from __future__ import annotations

import re
from hashlib import sha256

from parley.errors import UnsupportedVoiceError
from parley.tts.voice_routing import SEPARATOR
from parley_gateway.security.principal import Principal

_DIGITS = 16
_OWNED = re.compile(rf"v[0-9a-f]{{{_DIGITS}}}-")


def prefix_of(principal: Principal) -> str | None:
    """How ids of the client's own voices begin; None: it can have none, as callers by telephone."""
    owner = principal.owner
    return None if owner is None else f"v{sha256(owner.encode()).hexdigest()[:_DIGITS]}-"


def is_own(voice: str, principal: Principal) -> bool:
    """Whether the client has made a voice."""
    prefix = prefix_of(principal)
    return prefix is not None and voice.startswith(prefix)


def may_use(voice: str, principal: Principal) -> bool:
    """Whether the client may use a voice: its own, and shared ones.

    By telephone every voice: there the operator's settings and TwiML name it.
    """
    name = voice.rpartition(SEPARATOR)[2]
    return principal.kind == "signature" or _OWNED.match(name) is None or is_own(name, principal)


def check_voice(voice: object, principal: Principal) -> None:
    """Refuse another client's voice as one that does not exist.

    Args:
        voice: its name; anything but a text: none is chosen.
        principal: who chooses it.

    Raises:
        UnsupportedVoiceError: it belongs to another client.
    """
    if isinstance(voice, str) and not may_use(voice, principal):
        raise UnsupportedVoiceError(f"there is no voice {voice[:80]!r}")
