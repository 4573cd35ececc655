"""The flags of the ``tritonserver`` that has started this model's process.

Triton passes neither its ports nor the name of the chosen configuration to its models. Its command line has
both: the parent of a model's process is the server.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parley.runtime.gpu_plan import GPU_PROFILE

_NAME = "tritonserver"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}  # noqa: S104 - what clients connect to
_PORT = 8_001
_FALSE = ("false", "0")


@dataclass(frozen=True)
class ServerFlags:
    """What a command line says that models need to know."""

    profile: str = GPU_PROFILE
    """``--model-config-name``."""
    models: tuple[str, ...] = ()
    """``--load-model``: models that were named to be loaded."""
    grpc_url: str = f"127.0.0.1:{_PORT}"
    """``--grpc-address`` and ``--grpc-port``, as a process of this machine connects to them."""
    has_grpc: bool = True
    """``--allow-grpc``."""
    has_grpc_tls: bool = False
    """``--grpc-use-ssl``."""


def parse_flags(arguments: Sequence[str]) -> ServerFlags:
    """Read a command line without its program; a value follows ``=`` or is the next argument."""
    values: dict[str, list[str]] = {}
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            following = arguments[index + 1] if index + 1 < len(arguments) else ""
            value = value if equals else following
            values.setdefault(name, []).append("" if value.startswith("--") else value)

    def last(name: str, default: str) -> str:
        return values.get(name, [default])[-1] or default

    address = last("--grpc-address", "127.0.0.1")
    return ServerFlags(
        profile=last("--model-config-name", GPU_PROFILE),
        models=tuple(values.get("--load-model", ())),
        grpc_url=f"{_EVERYWHERE.get(address, address)}:{last('--grpc-port', str(_PORT))}",
        has_grpc=last("--allow-grpc", "true").lower() not in _FALSE,
        has_grpc_tls="--grpc-use-ssl" in values and last("--grpc-use-ssl", "true").lower() not in _FALSE,
    )


def read_server_flags() -> ServerFlags | None:
    """Of the parent process; None: it is no ``tritonserver``, or its command line cannot be read."""
    try:
        content = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        return None
    program, *arguments = content.decode(errors="replace").removesuffix("\0").split("\0")
    return parse_flags(arguments) if Path(program).name == _NAME else None
