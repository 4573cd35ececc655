"""Which servers there are: given addresses, names that are resolved, and a file that is read again."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from parley.timeouts import cancel_all
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.watched import WatchedFile
from parley_gateway.servers.settings import DNS, ServerSettings, split_address
from parley_gateway.settings_sections import Count

_log = logging.getLogger("parley.gateway")
_FILE_S = 1.0
"""Time between two looks at the file (seconds)."""
_NOT_YET = "not resolved yet"
_HOST = "{host}"
_TRITON_PORT = 8001
_TRITON_METRICS = "http://{host}:8002/metrics"

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Takes a name and a port; returns ``host:port`` of each of its addresses. Raises :class:`OSError`."""


@dataclass(frozen=True)
class Endpoint:
    """Where one server is reached."""

    address: str
    """``host:port`` of gRPC."""
    metrics_url: str = ""
    """Empty: its metrics are not read."""
    name: str = ""
    """The name that it was found by; empty: the host of ``address``."""
    sessions: int | None = None
    """The most sessions that the gateway opens on it; None: no limit of its own."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server in a JSON file."""

    address: str
    metrics: str = ""
    sessions: Count | None = None


def read_endpoints(raw: bytes, settings: ServerSettings) -> list[Endpoint]:
    """The servers that a file names.

    Args:
        raw: ``host:port`` on each line, where ``#`` begins a comment; or a JSON list of such addresses and of
            objects with ``address``, ``metrics`` and ``sessions``.
        settings: What counts where an entry does not say.

    Raises:
        GatewaySettingsError: it names none, or something else.
    """
    try:
        text = raw.decode()
        if text.lstrip().startswith("["):
            listed = msgspec.json.decode(text, type=list[str | _Entry])
            entries = [_Entry(one) if isinstance(one, str) else one for one in listed]
        else:
            lines = (line.partition("#")[0].strip() for line in text.splitlines())
            entries = [_Entry(line) for line in lines if line]
        for entry in entries:
            split_address(entry.address)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise GatewaySettingsError(f"not a list of servers: {error}") from error
    if not entries:
        raise GatewaySettingsError("it names no server")
    return [
        _endpoint(
            entry.address,
            entry.metrics or settings.metrics_url,
            sessions=entry.sessions or settings.sessions,
        )
        for entry in entries
    ]


async def resolve_name(name: str, port: int) -> Sequence[str]:
    """All addresses of a name, as the system's resolver knows them, sorted.

    Raises:
        OSError: it has none, or the resolver failed.
    """
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return sorted(
        f"[{where[0]}]:{port}" if family == socket.AF_INET6 else f"{where[0]}:{port}"
        for family, _, _, _, where in found
    )


class Discovery:
    """Knows the servers' endpoints, and keeps them up to date.

    A name that cannot be resolved, or has no address, and a file that cannot be read change nothing: what was
    found before still counts.

    Raises:
        GatewaySettingsError: the file cannot be used.
    """

    def __init__(
        self, settings: ServerSettings, on_change: Callable[[], None], resolve: Resolve = resolve_name
    ) -> None:
        self._settings = settings
        self._on_change = on_change
        self._resolve = resolve
        self._file: WatchedFile[list[Endpoint]] | None = None
        self._names: dict[str, str | None] = {}
        """Addresses that are names; for each the form of the URL of its servers' metrics."""
        self._found: dict[str, Sequence[Endpoint]] = {}
        """By source: an address of the settings, or the path of the file."""
        self._problems: dict[str, str] = {}
        self._endpoints: tuple[Endpoint, ...] = ()
        self._left_out = 0
        self._tasks: list[asyncio.Task[None]] = []
        if settings.file:
            self._file = WatchedFile(Path(settings.file), lambda raw: read_endpoints(raw, settings))
            self._found[settings.file] = self._file.get()
            self._problems[settings.file] = ""
        else:
            templates = dict(zip(settings.addresses, settings.metrics, strict=False))
            for source in settings.addresses:
                template = templates.get(source) or settings.metrics_url
                if source.startswith(DNS):
                    self._names[source] = template
                    self._found[source] = ()
                    self._problems[source] = _NOT_YET
                else:
                    self._found[source] = [_endpoint(source, template, sessions=settings.sessions)]
        self._merge()

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Of all servers, each address once."""
        return self._endpoints

    @property
    def problems(self) -> Mapping[str, str]:
        """By name or file why it could not be used the last time; empty: it could."""
        return self._problems

    async def start(self) -> None:
        """Begin to watch; returns once every name has been resolved, or could not be."""
        loop = asyncio.get_running_loop()
        asked = {source: asyncio.Event() for source in self._names}
        self._tasks = [
            loop.create_task(self._watch_name(source, event), name=f"resolve-{source}")
            for source, event in asked.items()
        ]
        if self._file is not None:
            watch = self._watch_file(self._settings.file, self._file)
            self._tasks.append(loop.create_task(watch, name="servers-file"))
        await asyncio.gather(*(event.wait() for event in asked.values()))

    async def aclose(self) -> None:
        """Watch no longer."""
        await cancel_all(self._tasks)

    async def _watch_name(self, source: str, asked: asyncio.Event) -> None:
        name, port = split_address(source.removeprefix(DNS))
        lookup: asyncio.Future[Sequence[str]] | None = None
        try:
            while True:
                # A lookup that hangs occupies a thread: another one begins only when it has ended.
                lookup = lookup or asyncio.ensure_future(self._resolve(name, port))
                await asyncio.wait([lookup], timeout=self._settings.resolve_timeout_s)
                if lookup.done():
                    self._on_lookup(source, name, lookup)
                    lookup = None
                else:
                    self._record(source, f"no answer within {self._settings.resolve_timeout_s:g} s")
                asked.set()
                await asyncio.sleep(self._settings.resolve_s)
        finally:
            if lookup is not None:
                lookup.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await lookup

    def _on_lookup(self, source: str, name: str, lookup: asyncio.Future[Sequence[str]]) -> None:
        try:
            addresses = lookup.result()
        except Exception as error:  # noqa: BLE001 - whatever a resolver raises, what was found before counts
            self._record(source, str(error) or type(error).__name__)
            return
        if not addresses:
            self._record(source, "it has no address")
            return
        self._found[source] = [
            # The dot that ends a fully qualified name is not part of a certificate.
            _endpoint(address, self._names[source], name=name.rstrip("."), sessions=self._settings.sessions)
            for address in addresses
        ]
        self._record(source, "")
        self._apply()

    async def _watch_file(self, source: str, file: WatchedFile[list[Endpoint]]) -> None:
        while True:
            await asyncio.sleep(_FILE_S)
            file.check()
            self._problems[source] = file.problem
            if self._found[source] is not (found := file.get()):
                self._found[source] = found
                self._apply()

    def _apply(self) -> None:
        self._merge()
        try:
            self._on_change()
        except Exception:  # noqa: BLE001 - logged with its trace
            # The next change may be taken: without its task a source would never be looked at again.
            _log.exception("the servers that were found could not be used")

    def _record(self, source: str, problem: str) -> None:
        before, self._problems[source] = self._problems[source], problem
        if problem and before in ("", _NOT_YET):
            known = len(self._found[source])
            _log.warning("%s cannot be resolved, %d servers are known: %s", source, known, problem)
        elif before and not problem:
            _log.info("%s has %d servers", source, len(self._found[source]))

    def _merge(self) -> None:
        found = {one.address: one for listed in self._found.values() for one in listed}
        # Those that are in use come first: a longer list must not replace servers by others.
        known = [one.address for one in self._endpoints if one.address in found]
        chosen = list(dict.fromkeys([*known, *found]))[: self._settings.max_servers]
        left_out = len(found) - len(chosen)
        if left_out and left_out != self._left_out:
            _log.warning(
                "%d servers are left out: servers.max_servers is %d", left_out, self._settings.max_servers
            )
        self._left_out = left_out
        self._endpoints = tuple(found[address] for address in chosen)


def _endpoint(address: str, template: str | None, *, name: str = "", sessions: int | None = None) -> Endpoint:
    host, port = split_address(address)
    if template is None:
        # At other ports there may be several servers on one host: each would be taken for the one at 8002.
        template = _TRITON_METRICS if port == _TRITON_PORT else ""
    return Endpoint(address, template.replace(_HOST, host), name, sessions)
