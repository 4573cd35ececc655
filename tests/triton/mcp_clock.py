"""An MCP server that knows what time it is."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import Field

server = MCPServer("clock", log_level="CRITICAL")


@server.tool()
def get_time(city: Annotated[str, Field(description="The name of the city.")]) -> dict[str, str]:
    """Get the time in a city."""
    return {"time": "15:52" if city == "Tokyo" else "unknown"}


if __name__ == "__main__":
    server.run()
