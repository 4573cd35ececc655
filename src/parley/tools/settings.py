"""The file that names the tools of the server: TOML, or JSON with the same fields."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from parley.errors import ModelLoadingError
from parley.tools.schema import TOOL_NAME, SchemaError, argument_schema

_MAX_FILE = 1024 * 1024
_MAX_TOOLS = 128
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_HEADER = re.compile(r"auth|cookie|key|secret|token", re.IGNORECASE)
_MAX_TIMEOUT_MS = 120_000
_MAX_BACKGROUND_MS = 3_600_000
_HTTP_MS = 5_000
_BACKGROUND_MS = 300_000
_MAX_BYTES = 1024 * 1024


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the file; unknown fields are errors."""


class HttpToolSettings(_Part, frozen=True, kw_only=True):
    """A tool that is one HTTP request."""

    name: str
    url: str
    """May hold ``{argument}`` in its path and in the values of its query."""
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments object."""
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, str] = {}
    """``${NAME}`` stands for an environment variable."""
    timeout_ms: int | None = None
    """For one call, at most 120,000, in the background 3,600,000. None: 5,000, in the background 300,000."""
    max_bytes: int = 65_536
    """Largest answer; a longer one is an error."""
    mode: Literal["blocking", "background"] = "blocking"
    """As in :class:`parley.protocol.Tool`, and so are the next two."""
    announce: bool = True
    cancel_on_interruption: bool | None = None

    @property
    def limit_ms(self) -> int:
        """The time of one call."""
        default_ms = _BACKGROUND_MS if self.mode == "background" else _HTTP_MS
        return default_ms if self.timeout_ms is None else self.timeout_ms


class McpToolSettings(_Part, frozen=True, kw_only=True):
    """One tool of an MCP server, where it differs from the server's other tools."""

    announce: bool | None = None
    """None: as the server's; and so is the next."""
    cancel_on_interruption: bool | None = None


class McpServerSettings(_Part, frozen=True, kw_only=True):
    """An MCP server: at a URL (streamable HTTP), or a local program (stdio)."""

    name: str
    """What the log calls it."""
    tools: list[str]
    """Those of its tools that are offered, and no others; empty: all of them."""
    url: str = ""
    headers: dict[str, str] = {}
    """Sent to ``url``; ``${NAME}`` stands for an environment variable."""
    command: list[str] = []
    environment: list[str] = []
    """Variables that the program gets besides the few that every program gets."""
    stderr: bool = False
    """Whether what the program writes there goes into the server's log."""
    prefix: str = ""
    """Stands before the names of its tools."""
    timeout_ms: int = 10_000
    """For one call."""
    background: list[str] = []
    """Those of ``tools`` that do not block."""
    background_timeout_ms: int = _BACKGROUND_MS
    """For one call of these."""
    announce: bool = True
    """Of these, as in :class:`parley.protocol.Tool`; the next one is of all its tools."""
    cancel_on_interruption: bool | None = None
    options: dict[str, McpToolSettings] = {}
    """These two of single ``tools``, by name."""


class ToolSettings(_Part, frozen=True, kw_only=True):
    """The whole file."""

    allowed_hosts: list[str] = []
    """Hosts that URLs may name, over HTTPS and at public addresses."""
    private_hosts: list[str] = []
    """Hosts that may also have private addresses and be reached over HTTP."""
    http: list[HttpToolSettings] = []
    mcp: list[McpServerSettings] = []


def read_settings(path: Path) -> ToolSettings:
    """Read and check the file.

    Raises:
        ModelLoadingError: it cannot be read, or says something that cannot be done.
    """
    try:
        raw = path.read_bytes()
        if len(raw) > _MAX_FILE:
            raise ModelLoadingError(f"{path} is larger than {_MAX_FILE} bytes")
        data = msgspec.json.decode(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
        settings = msgspec.convert(data, ToolSettings)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
        raise ModelLoadingError(f"the tools cannot be read from {path}: {error}") from error
    try:
        check_settings(settings)
        _check_named(settings)
    except ValueError as error:
        raise ModelLoadingError(f"{path}: {error}") from error
    return settings


def expand_headers(
    headers: Mapping[str, str], environment: Mapping[str, str], where: str
) -> tuple[dict[str, str], set[str]]:
    """Headers with the values of their variables, and these values.

    Raises:
        ModelLoadingError: a variable is not set, or holds what no header can.
    """
    secrets: set[str] = set()

    def value_of(match: re.Match[str]) -> str:
        value = environment.get(match[1], "").strip()
        if not value:
            raise ModelLoadingError(f"{where}: the environment variable {match[1]} is not set")
        if not value.isascii() or not value.isprintable():
            raise ModelLoadingError(f"{where}: the environment variable {match[1]} suits no header")
        secrets.add(value)
        return value

    return {name: _VARIABLE.sub(value_of, value) for name, value in headers.items()}, secrets


def _check_named(settings: ToolSettings) -> None:
    for server in settings.mcp:
        if not server.tools:
            raise ValueError(f"MCP server {server.name!r}: tools names none of its tools")


def check_settings(settings: ToolSettings) -> None:
    """Refuse what msgspec accepts and cannot be done.

    Raises:
        ValueError: the text names the tool or the MCP server.
    """
    names = list(tool_names(settings))
    if len(names) > _MAX_TOOLS:
        raise ValueError(f"{len(names)} tools; at most {_MAX_TOOLS} are possible")
    for name in names:
        if not TOOL_NAME.fullmatch(name):
            raise ValueError(f"tool name {name!r}: letters, digits, - and _ are possible, at most 64")
        if names.count(name) > 1:
            raise ValueError(f"there are two tools of the name {name!r}")
    for tool in settings.http:
        _check_tool(tool, settings, f"tool {tool.name!r}")
    for server in settings.mcp:
        _check_server(server, settings, f"MCP server {server.name!r}")


def _check_tool(tool: HttpToolSettings, settings: ToolSettings, where: str) -> None:
    check_url(tool.url, settings, where)
    _check_headers(tool.headers, where)
    most_ms = _MAX_BACKGROUND_MS if tool.mode == "background" else _MAX_TIMEOUT_MS
    _check_timeout(tool.limit_ms, where, most_ms)
    if not 1 <= tool.max_bytes <= _MAX_BYTES:
        raise ValueError(f"{where}: max_bytes must be 1 to {_MAX_BYTES}")
    try:
        argument_schema(tool.parameters)
    except SchemaError as error:
        raise ValueError(f"{where}: {error}") from error


def _check_server(server: McpServerSettings, settings: ToolSettings, where: str) -> None:
    if bool(server.url) == bool(server.command):
        raise ValueError(f"{where} must have either a url or a command")
    if server.url:
        check_url(server.url, settings, where)
        if "{" in server.url:
            raise ValueError(f"{where}: its url can have no arguments")
    elif server.headers:
        raise ValueError(f"{where}: headers are for servers with a url")
    _check_headers(server.headers, where)
    _check_timeout(server.timeout_ms, where)
    _check_timeout(server.background_timeout_ms, where, _MAX_BACKGROUND_MS, "background_timeout_ms")
    for field, names in (("background", server.background), ("options", server.options)):
        if unknown := sorted(set(names) - set(server.tools)):
            raise ValueError(f"{where}: {field} names {unknown[0]!r}, which is not one of its tools")


def tool_names(settings: ToolSettings) -> Iterator[str]:
    """Names of all tools, as the language model gets them."""
    for tool in settings.http:
        yield tool.name
    for server in settings.mcp:
        for name in server.tools:
            yield f"{server.prefix}{name}"


def check_url(url: str, settings: ToolSettings, where: str) -> None:
    """Refuse a URL that may not be asked.

    Raises:
        ValueError: the text begins with ``where``.
    """
    try:
        parts = urlsplit(url)
        port = None if "{" in parts.netloc else parts.port
    except ValueError as error:
        raise ValueError(f"{where}: the url is wrong: {error}") from error
    host = parts.hostname or ""
    if parts.username is not None or parts.fragment:
        raise ValueError(f"{where}: the url must not hold a user name or a fragment")
    if "{" in parts.netloc or "{" in parts.scheme:
        raise ValueError(f"{where}: arguments may stand in the path and the query of the url only")
    has_address = parts.scheme in ("http", "https") and bool(host) and port != 0
    if not has_address or not url.isascii() or not url.isprintable():
        raise ValueError(f"{where}: {url!r} is no url of the form https://host/path")
    private = host in map(str.lower, settings.private_hosts)
    if not private and host not in map(str.lower, settings.allowed_hosts):
        raise ValueError(f"{where}: host {host!r} stands neither in allowed_hosts nor in private_hosts")
    if parts.scheme == "http" and not private:
        raise ValueError(f"{where}: http is possible for private_hosts only")


def _check_headers(headers: Mapping[str, str], where: str) -> None:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ValueError(f"{where}: header {name!r} is none that can be sent")
        if _SECRET_HEADER.search(name) and not _VARIABLE.search(value):
            # The value is not repeated here: this text goes into the log.
            raise ValueError(f"{where}: the value of header {name!r} must come from an environment variable")


def _check_timeout(
    timeout_ms: int, where: str, most_ms: int = _MAX_TIMEOUT_MS, name: str = "timeout_ms"
) -> None:
    if not 1 <= timeout_ms <= most_ms:
        raise ValueError(f"{where}: {name} must be 1 to {most_ms}")
