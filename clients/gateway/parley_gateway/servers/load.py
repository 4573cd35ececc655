"""How full a server is, as its metrics page says: read again and again, because other gateways use it too."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from parley.timeouts import loop_time
from parley_gateway.servers.discovery import Endpoint
from parley_gateway.servers.settings import ServerSettings
from parley_gateway.servers.tls import ServerTls

_log = logging.getLogger("parley.gateway")
_MAX_BYTES = 4 * 1024 * 1024
_OPEN = "voice_agent_active_sessions"
_LIMIT = "voice_agent_sessions_limit"
_DRAINING = "voice_agent_draining"
_GPU_TOTAL = "nv_gpu_memory_total_bytes"
_GPU_USED = "nv_gpu_memory_used_bytes"
_NAMES = (_OPEN, _LIMIT, _DRAINING, _GPU_TOTAL, _GPU_USED)
_INSTANCE = "model_instance"
_MOST = 2.0**53
"""No number of these metrics is as large."""
PUBLISHED_S = 2.0
"""Time after which model processes write their metrics to the page (seconds)."""
_MAX_FAILED_READS = 3
"""Readings that may fail in a row before what was read last no longer counts."""


@dataclass(frozen=True)
class ServerReport:
    """What a server's metrics page says."""

    sessions: int | None = None
    """Sessions that are open in instances which take new ones; None: the page does not say."""
    limit: int | None = None
    """How many these instances take; None: the page does not say, or there is no such instance."""
    draining: bool = False
    """No instance takes new sessions."""
    gpu_memory_free: int | None = None
    """Free memory of all its GPUs together (bytes); None: it has none."""


ReadMetrics: TypeAlias = Callable[[Endpoint], Awaitable[ServerReport]]
"""Reads the metrics of a server; raises :class:`OSError`, ``httpx2.HTTPError`` or :class:`ValueError`."""


def read_report(page: str) -> ServerReport:
    """What a metrics page says about sessions and GPUs.

    Raises:
        ValueError: it cannot be read.
    """
    # The parser takes some 20 us for each line, and a page has thousands.
    lines = "\n".join(line for line in page.splitlines() if line.startswith(_NAMES))
    found: dict[str, dict[str, float]] = {name: {} for name in _NAMES}
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            if not 0 <= sample.value < _MOST:
                raise ValueError(f"{sample.name} is {sample.value}")
            if sample.name in found:
                key = sample.labels.get(_INSTANCE, "") or str(sample.labels)
                found[sample.name][key] = sample.value
    instances = found[_LIMIT]
    taking = [name for name in instances if not found[_DRAINING].get(name)]
    total, used = found[_GPU_TOTAL], found[_GPU_USED]
    return ServerReport(
        sessions=int(sum(found[_OPEN].get(name, 0) for name in taking)) if instances else None,
        # A metric is 0 until its process has set it for the first time.
        limit=int(sum(instances[name] for name in taking)) or None,
        draining=bool(instances) and not taking,
        gpu_memory_free=int(sum(total.values()) - sum(used.values()))
        if total.keys() == used.keys() != set()
        else None,
    )


@cache
def _certificates() -> ssl.SSLContext:
    """Those that the machine trusts; to read them takes 20 ms."""
    return ssl.create_default_context()


class MetricsReader:
    """Reads metrics pages, on connections that it keeps.

    Args:
        timeout_s: Limit of one page (seconds).
        connections: The most connections.
        tls: For pages at ``https://``; None: certificates are checked as those of the web are.
    """

    def __init__(self, timeout_s: float, connections: int, tls: ServerTls | None = None) -> None:
        self._timeout_s = timeout_s
        self._limits = httpx2.Limits(max_connections=connections)
        self._tls = tls
        self._client = self._open(tls.context if tls else _certificates())

    def _open(self, context: ssl.SSLContext) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            verify=context,
            headers={"User-Agent": "parley", "Accept-Encoding": "identity"},
            timeout=self._timeout_s,
            limits=self._limits,
            trust_env=False,
            follow_redirects=False,
        )

    async def read(self, endpoint: Endpoint) -> ServerReport:
        """What the page of a server says.

        Raises:
            OSError: it does not come in time.
            httpx2.HTTPError: it cannot be had.
            ValueError: it cannot be read.
        """
        name = self._tls.address_of(endpoint).name if self._tls else ""
        extensions = {"sni_hostname": name} if name else {}
        parts = []
        size = 0
        async with (
            asyncio.timeout(self._timeout_s),
            self._client.stream("GET", endpoint.metrics_url, extensions=extensions) as answer,
        ):
            answer.raise_for_status()
            async for part in answer.aiter_bytes():
                parts.append(part)
                size += len(part)
                if size > _MAX_BYTES:
                    raise ValueError(f"the page has more than {_MAX_BYTES} bytes")
        return read_report(b"".join(parts).decode())

    async def renew(self) -> None:
        """Make new connections with the certificates as they are now; a page that is being read is lost."""
        if self._tls is not None:
            old, self._client = self._client, self._open(self._tls.context)
            await old.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class ServerLoad:
    """The newest report of one server."""

    def __init__(self, read: ReadMetrics, settings: ServerSettings) -> None:
        self._read = read
        self._fresh_s = _MAX_FAILED_READS * (settings.load_s + settings.check_timeout_s)
        self._report = ServerReport()
        self.read_at = -math.inf
        """When the report was read, by the clock of the event loop (seconds)."""
        self._problem = ""

    @property
    def report(self) -> ServerReport:
        """What the server said last; nothing, if that is too long ago."""
        return self._report if self.read_at > loop_time() - self._fresh_s else ServerReport()

    def forget(self) -> None:
        """The server cannot be reached: what it said no longer counts."""
        self._report, self.read_at = ServerReport(), -math.inf

    async def refresh(self, endpoint: Endpoint) -> None:
        """Read the metrics of the server once, if it has any."""
        if not endpoint.metrics_url:
            return
        problem = ""
        try:
            report = await self._read(endpoint)
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            problem = str(error) or type(error).__name__
        except Exception as error:  # noqa: BLE001 - whatever it was: the next attempt may succeed
            problem = type(error).__name__
            _log.exception("the metrics of server %s could not be read", endpoint.address)
        else:
            self._report, self.read_at = report, loop_time()
        if problem and not self._problem:
            _log.info(
                "the metrics of server %s cannot be read, only this gateway's own calls on it are known: %s",
                endpoint.address,
                problem,
            )
        self._problem = problem
