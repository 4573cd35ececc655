"""The options of an endpoint, as they are written on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from stages.protocols import EndpointError


@dataclass(frozen=True)
class EndpointOptions:
    """Where an endpoint is, and what is asked for there."""

    url: str = ""
    """Of the service; ``host:port`` where the protocol is gRPC."""
    key: str = field(default="", repr=False)
    """Credentials; empty: none are sent."""
    model: str = ""
    """Empty: the driver's default."""
    voice: str = ""
    """Empty: the driver's default."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Options of a single driver."""


COMMON = ("name", "url", "key", "model", "voice")


def read_options(given: Mapping[str, str], extra: tuple[str, ...]) -> EndpointOptions:
    """Options from ``name=value`` pairs.

    Args:
        given: the pairs; ``key`` names the environment variable that has the key.
        extra: names that the driver has besides.

    Raises:
        EndpointError: an option is unknown, or the variable is not set.
    """
    unknown = [name for name in given if name not in (*COMMON, *extra)]
    if unknown:
        raise EndpointError(f"unknown option {unknown[0]!r}; there are {', '.join((*COMMON, *extra))}")
    key = ""
    if variable := given.get("key"):
        key = os.environ.get(variable, "")
        if not key:
            raise EndpointError(f"the environment variable {variable} is not set")
    return EndpointOptions(
        url=given.get("url", "").rstrip("/"),
        key=key,
        model=given.get("model", ""),
        voice=given.get("voice", ""),
        extra={name: given[name] for name in extra if name in given},
    )
