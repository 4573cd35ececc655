"""Names of gateways in the ids that they make: what an id stands for is in the memory of one of them."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Mapping

from parley_gateway.errors import WrongGatewayError

PATTERN = r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?\Z"
"""Of a name that is given; it is part of URLs, and may be a host's."""
_MARK = re.compile(r"([a-z0-9-]{1,63})_")
_POD_VARIABLE = "POD_NAME"
_HASH_CHARS = 8


def choose_instance(given: str, environment: Mapping[str, str]) -> str:
    """The name of this gateway: the given one, or a hash of its pod's or host's, which it does not reveal."""
    if given:
        return given
    host = environment.get(_POD_VARIABLE) or socket.gethostname()
    return hashlib.sha256(host.encode()).hexdigest()[:_HASH_CHARS]


def mark(instance: str, key: str) -> str:
    """An id that names the gateway which made it."""
    return f"{instance}_{key}"


def check_instance(instance: str, marked: str) -> None:
    """Whether an id that is not known here may be one of this gateway's.

    Raises:
        WrongGatewayError: another gateway has made it.
    """
    found = _MARK.match(marked)
    if found is not None and found[1] != instance:
        raise WrongGatewayError("another gateway has made this id, and it cannot be reached", found[1])
