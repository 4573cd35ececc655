"""nginx in a node, with the configuration of the compose file, in front of several gateways."""

from __future__ import annotations

import re
import shutil
import signal
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

from harness.network import NetworkError, Node
from harness.servers import Program

from parley.launcher.options import ROOT

_COMPOSE = ROOT / "deploy" / "compose" / "nginx" / "nginx.conf"
_PORT = 8080
_READY_S = 15.0
_CONNECT_S = 1.0


def render(
    compose: str, listen: str, gateways: Mapping[str, str], folder: Path, leaving: Collection[str] = ()
) -> str:
    """The configuration for plain HTTP and several gateways, as docs/gateway.md describes it.

    Args:
        compose: That of the compose file, with TLS and one gateway.
        listen: Its address.
        gateways: Addresses by name.
        folder: For what it writes.
        leaving: Names of gateways that get nothing but what belongs to their own sessions.

    Raises:
        ValueError: the compose file's is not as it is expected to be.
    """
    pool = "\n".join(
        f"        server {address} max_fails=0;" for name, address in gateways.items() if name not in leaving
    )
    paths = "\n".join(
        f"        ~^/v1/(sessions/|realtime/calls/rtc_){name}_  {address};"
        for name, address in gateways.items()
    )
    tokens = "\n".join(f"        ~ek_{name}_  {address};" for name, address in gateways.items())
    routes = (
        'map "$uri $http_authorization $http_sec_websocket_protocol" $gateway {\n'
        f"{paths}\n{tokens}\n        default  gateways;\n    }}"
    )
    changes = (
        (r"upstream gateway \{.*?\n    \}", f"{routes}\n    upstream gateways {{\n{pool}\n    }}"),
        (r"listen 8443 ssl;\s+listen \[::\]:8443 ssl;", f"listen {listen};"),
        (r"ssl_certificate .*?ssl_session_tickets off;", ""),
        (r"proxy_pass http://gateway;", "proxy_pass http://$gateway;"),
        (r"X-Forwarded-Proto https;", "X-Forwarded-Proto http;"),
        (r"access_log /dev/stdout ", f"access_log {folder}/access.log "),
    )
    compose = compose.replace("/tmp/", f"{folder}/")  # noqa: S108 - replaced
    for pattern, replacement in changes:
        compose, count = re.subn(pattern, lambda _, text=replacement: text, compose, flags=re.DOTALL)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"the compose file's nginx.conf has {pattern!r} {count} times")
    # It is started by root, who alone may write into the folder.
    return f"user root;\n{compose}"


class Balancer:
    """nginx, which sends sessions to the gateways that their ids name.

    Args:
        node: Where it runs.
        folder: For its configuration and logs.

    Raises:
        NetworkError: there is no nginx.
    """

    def __init__(self, node: Node, folder: Path) -> None:
        if shutil.which("nginx") is None:
            raise NetworkError("`nginx` is missing. Run, as root on Debian: scripts/setup --cluster")
        self.node = node
        self.address = f"{node.address}:{_PORT}"
        self._folder = folder / node.name
        self._folder.mkdir()
        self._program = Program(node, node.name, folder)

    async def start(self, gateways: Mapping[str, str]) -> None:
        """Start it, and wait until it listens.

        Args:
            gateways: Addresses by name.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: not in time.
        """
        config = self._write(gateways, ())
        await self._program.start(
            ["nginx", "-c", config, "-e", "stderr", "-g", "daemon off;"],
            lambda: _listens(self.address),
            ready_s=_READY_S,
        )

    def reload(self, gateways: Mapping[str, str], leaving: Collection[str] = ()) -> None:
        """Give it other gateways; WebSockets that are open stay where they are.

        Args:
            gateways: Addresses by name.
            leaving: Names of those that get nothing but what belongs to their own sessions.
        """
        self._write(gateways, leaving)
        self._program.signal(signal.SIGHUP)

    def _write(self, gateways: Mapping[str, str], leaving: Collection[str]) -> Path:
        config = self._folder / "nginx.conf"
        config.write_text(render(_COMPOSE.read_text(), self.address, gateways, self._folder, leaving))
        return config


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        probe.settimeout(_CONNECT_S)
        return probe.connect_ex((host, int(port))) == 0
