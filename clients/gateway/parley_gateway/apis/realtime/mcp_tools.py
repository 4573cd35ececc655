"""OpenAI's entries of MCP servers in ``tools``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from parley.tools.settings import McpServerSettings, ToolSettings, check_settings
from parley_gateway.apis.realtime.client_events import refusal_of_field
from parley_gateway.apis.realtime.server_events import ClientEventError, unsupported
from parley_gateway.apis.settings import RealtimeSettings

MOST_SERVERS = 8
_SECRET = ("authorization", "headers")
_Names = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=128)]


class ToolFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some tools of a server."""

    tool_names: _Names = []


class ApprovalFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which tools need an approval."""

    always: ToolFilter = ToolFilter()
    never: ToolFilter = ToolFilter()


class McpTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's entry of a server in ``tools``."""

    type: Literal["mcp"]
    server_label: Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
    server_url: Annotated[str, Meta(max_length=2_048)]
    server_description: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: _Names | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None

    @property
    def allowed(self) -> list[str] | None:
        """Names of the tools that may be called; None: all of them."""
        tools = self.allowed_tools
        return tools.tool_names if isinstance(tools, ToolFilter) else tools

    def needs_approval(self, name: str) -> bool:
        """Whether the client is asked before a tool is called."""
        if isinstance(self.require_approval, ApprovalFilter):
            never = self.require_approval.never.tool_names
            return name not in never or name in self.require_approval.always.tool_names
        return self.require_approval != "never"

    def echo(self) -> dict[str, Any]:
        """The entry as the session shows it, without its secrets."""
        given: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in given.items() if name not in _SECRET and value is not None}


def read_mcp_tool(tool: Any, path: str, settings: RealtimeSettings) -> McpTool:
    """An entry of OpenAI's ``tools`` at ``path``; raises ClientEventError."""
    if isinstance(tool, dict) and "connector_id" in tool:
        raise unsupported("Connectors are", f"{path}.connector_id")
    try:
        entry = msgspec.convert(tool, McpTool)
    except msgspec.ValidationError as error:
        raise refusal_of_field(error, McpTool, path) from error
    if entry.allowed is not None and not entry.allowed:
        message = f"Invalid value for '{path}.allowed_tools': no tool is allowed."
        raise ClientEventError(message, code="invalid_value", param=f"{path}.allowed_tools")
    _, hosts, values = settings_of(entry, settings)
    try:
        check_settings(hosts)
    except ValueError as error:
        text = str(error).replace("allowed_hosts", "realtime.mcp_hosts")
        text = text.replace("private_hosts", "realtime.mcp_private_hosts")
        raise ClientEventError(f"Invalid value: {text}", code="invalid_value", param=path) from error
    if entry.authorization and any(name.lower() == "authorization" for name in entry.headers or {}):
        message = "Invalid value: 'authorization' is given beside a header of this name."
        raise ClientEventError(message, code="invalid_value", param=path)
    if not all(value.isascii() and value.isprintable() for value in values.values()):
        message = "Invalid value: 'authorization' and the values of 'headers' have to be printable ASCII."
        raise ClientEventError(message, code="invalid_value", param=path)
    return entry


def settings_of(
    entry: McpTool, settings: RealtimeSettings
) -> tuple[McpServerSettings, ToolSettings, dict[str, str]]:
    """What ``McpServer`` takes: settings of the server, all settings, and the values of its headers.

    Headers name these values as variables: what a client writes must not name one of the process.
    """
    given = dict(entry.headers or {})
    if entry.authorization:
        given["Authorization"] = f"Bearer {entry.authorization.removeprefix('Bearer ')}"
    values = {f"HEADER_{number}": value for number, value in enumerate(given.values())}
    server = McpServerSettings(
        name=entry.server_label,
        url=entry.server_url,
        tools=entry.allowed or [],
        headers={name: f"${{{variable}}}" for name, variable in zip(given, values, strict=True)},
    )
    hosts = ToolSettings(
        allowed_hosts=list(settings.mcp_hosts), private_hosts=list(settings.mcp_private_hosts), mcp=[server]
    )
    return server, hosts, values
