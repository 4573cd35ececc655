"""An MCP server that knows the weather: ``mcp_weather.py PORT``."""

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("weather", log_level="CRITICAL")


@server.tool()
def get_weather(city: str) -> dict[str, int | str]:
    """Get the weather in a city."""
    return {"temperature": 8, "sky": "foggy"} if city == "Paris" else {"error": f"unknown city: {city}"}


if __name__ == "__main__":
    print("serving", flush=True)
    server.run("streamable-http", port=int(sys.argv[1]), json_response=True)
