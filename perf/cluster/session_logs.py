"""Which session is where, from the logs of servers and gateways."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import httpx
import msgspec
from harness.servers import Gateway

from parley.checkpoint import HistoryState

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_AT_SERVER = re.compile(rf"({_UUID})(?:\.\d+)*: (opened|closed)\b")
"""A session that has moved has the id of the call, a point and a number."""
_CALL_OF = re.compile(rf"session (\S+) has call ({_UUID})")
_MOVED = re.compile(rf"^(\S+ \S+) .*call ({_UUID}) goes on at \S+: (\w+)", re.MULTILINE)
_RESUMED = re.compile(r'"event":"session_resumed".*?"session":"([^"]+)","first":"([^"]+)"')
_HISTORY_S = 5.0
_TIME = "%Y-%m-%d %H:%M:%S,%f"


class ServerLog:
    """The sessions of a server since a moment.

    Args:
        path: Of its log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        before = _read(path)
        self._begin = len(before)
        self.open = open_sessions(before)
        """Ids of the calls that were there at that moment."""

    def sessions(self) -> set[str]:
        """Ids of the calls that were there then, or have come since; up to the next start of the server."""
        since = _read(self._path)[self._begin :]
        return self.open | {match[1] for match in _AT_SERVER.finditer(since) if match[2] == "opened"}


def open_sessions(log: str) -> set[str]:
    """Ids of the calls whose sessions a server has opened and not closed, by its log."""
    found: set[str] = set()
    for match in _AT_SERVER.finditer(log):
        if match[2] == "opened":
            found.add(match[1])
        else:
            found.discard(match[1])
    return found


@dataclass(frozen=True)
class GatewayLogs:
    """What gateways have written about calls."""

    calls: dict[str, str]
    """Of each of the gateway's sessions the id of its call."""
    moves: dict[str, list[tuple[float, str]]]
    """Of each call that has moved the times (seconds of ``time.time``) and reasons."""
    resumed: dict[str, list[str]] = field(default_factory=dict)
    """Of each session that has gone on at another gateway, or over another connection, its later ids."""

    def ids_of(self, session_id: str) -> list[str]:
        """All ids of a session by its first, in their order."""
        return [session_id, *self.resumed.get(session_id, [])]

    def calls_of(self, session_id: str) -> set[str]:
        """Ids of the calls of a session by its first id."""
        return {self.calls[one] for one in self.ids_of(session_id) if one in self.calls}

    @classmethod
    def read(cls, paths: Iterable[Path]) -> GatewayLogs:
        """Read the logs of all gateways."""
        calls: dict[str, str] = {}
        moves: dict[str, list[tuple[float, str]]] = {}
        resumed: dict[str, list[tuple[str, str]]] = {}
        for path in paths:
            text = _read(path)
            calls |= {match[1]: match[2] for match in _CALL_OF.finditer(text)}
            for match in _MOVED.finditer(text):
                at = datetime.strptime(match[1], _TIME).timestamp()  # noqa: DTZ007 - of this machine
                moves.setdefault(match[2], []).append((at, match[3]))
            for line in text.splitlines():
                if (found := _RESUMED.search(line)) is not None:
                    resumed.setdefault(found[2], []).append((line.partition(",")[0], found[1]))
        later = {first: [one for _, one in sorted(ids)] for first, ids in resumed.items()}
        return cls(calls, moves, later)


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


async def read_history(gateways: Sequence[Gateway], session_id: str) -> HistoryState | None:
    """What the agent remembers of a session that is open at one of these gateways; None: none of them says.

    Args:
        gateways: All of them.
        session_id: The session's first; it may have gone on at another gateway, with another one.
    """
    current = GatewayLogs.read(gateway.log_path for gateway in gateways).ids_of(session_id)[-1]
    for gateway in gateways:
        if current.startswith(f"{gateway.name}_"):
            url = f"{gateway.url}/v1/sessions/{current}/history"
            try:
                async with httpx.AsyncClient(timeout=_HISTORY_S, trust_env=False) as client:
                    answer = await client.get(url)
            except httpx.HTTPError:
                return None
            return msgspec.json.decode(answer.content, type=HistoryState) if answer.is_success else None
    return None
