"""Gateways in the nodes of a :class:`cluster.network.Network`, and the file that names their servers."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import msgspec

from cluster.network import Node
from cluster.programs import Program
from cluster.session_logs import GatewayLogs
from parley.checkpoint import HistoryState
from parley.launcher.options import ROOT

_PORT, _METRICS_PORT = 8080, 9100
_READY_S = 60.0
_HISTORY_S = 5.0
_READY = b"ready http="


class ServersFile:
    """The servers that gateways know (``servers.file``), as an operator or a controller writes them.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, servers: Mapping[str, str] | Sequence[str]) -> None:
        """Replace the list, as a whole.

        Args:
            servers: gRPC addresses; with the URLs of their metrics where those are elsewhere.
        """
        if isinstance(servers, Mapping):
            listed = json.dumps([{"address": one, "metrics": url} for one, url in servers.items()])
        else:
            listed = "\n".join(servers) + "\n"
        new = self.path.with_suffix(".new")
        new.write_text(listed)
        new.replace(self.path)


def shared_settings(redis_url: str, folder: Path) -> dict[str, str]:
    """Settings of gateways that count rates together, and take sessions over from each other.

    Args:
        redis_url: Of the store.
        folder: For the keys that encrypt it.
    """
    keys = folder / "takeover.keys"
    keys.touch(0o600)
    keys.write_bytes(base64.b64encode(secrets.token_bytes(32)) + b"\n")
    return {
        "PARLEY_GATEWAY_RATES_STORE": redis_url,
        "PARLEY_GATEWAY_TAKEOVER_STORE": redis_url,
        "PARLEY_GATEWAY_TAKEOVER_KEYS_FILE": str(keys),
    }


class Gateway:
    """A gateway without authentication.

    Args:
        node: Where it runs; its name is the gateway's in the ids of sessions.
        servers: Its servers.
        folder: For its log.
        settings: Environment variables beside those that it needs.
    """

    def __init__(
        self, node: Node, servers: ServersFile, folder: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self.node = node
        self.name = node.name
        self.address = f"{node.address}:{_PORT}"
        self.metrics = f"{node.address}:{_METRICS_PORT}"
        """Of its metrics."""
        self._program = Program(node, node.name, folder)
        self.log_path = self._program.log_path
        self._environment = {
            "PARLEY_GATEWAY_LISTEN_HOST": node.address,
            "PARLEY_GATEWAY_LISTEN_PORT": str(_PORT),
            "PARLEY_GATEWAY_LISTEN_METRICS_PORT": str(_METRICS_PORT),
            "PARLEY_GATEWAY_LISTEN_INSTANCE": node.name,
            "PARLEY_GATEWAY_SERVERS_FILE": str(servers.path),
            # The network ends at this machine.
            "PARLEY_GATEWAY_SECURITY_INSECURE_ALLOW_ANONYMOUS": "true",
            "PARLEY_GATEWAY_REALTIME_WEBRTC": "false",
            **(settings or {}),
        }

    async def start(self) -> None:
        """Start it, and wait until it listens.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: not within a minute.
        """
        await self._program.start(
            [ROOT / ".venv" / "bin" / "parley", "gateway"],
            lambda: self._program.has_logged(_READY),
            ready_s=_READY_S,
            environment=self._environment,
        )

    @property
    def pid(self) -> int:
        """Of its process; 0: it does not run."""
        return self._program.pid

    async def stop(self, within_s: float) -> None:
        """End it politely (SIGTERM): it waits for its calls for ``listen.drain_s``.

        Raises:
            DeadlineExceededError: it has not ended in time.
        """
        await self._program.stop(within_s)

    def kill(self) -> None:
        """End all of its processes at once (SIGKILL)."""
        self._program.kill()


async def read_history(gateways: Sequence[Gateway], session_id: str) -> HistoryState | None:
    """What the agent remembers of a session that is open at one of these gateways; None: none of them says.

    Args:
        gateways: All of them.
        session_id: The session's first; it may have gone on at another gateway, with another one.
    """
    current = GatewayLogs.read(gateway.log_path for gateway in gateways).ids_of(session_id)[-1]
    for gateway in gateways:
        if current.startswith(f"{gateway.name}_"):
            url = f"http://{gateway.address}/v1/sessions/{current}/history"
            try:
                async with httpx.AsyncClient(timeout=_HISTORY_S, trust_env=False) as client:
                    answer = await client.get(url)
            except httpx.HTTPError:
                return None
            return msgspec.json.decode(answer.content, type=HistoryState) if answer.is_success else None
    return None
