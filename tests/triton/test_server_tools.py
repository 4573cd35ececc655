"""Tools that the server runs itself, in conversations with the real server."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest
from leftovers import ANY_PORTS, leftovers
from notes import Notes

from parley.errors import InvalidMessageError
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT
from parley.protocol import Tool, ToolRequest, ToolRun
from parley_client import connect
from parley_client.audio.files import read_speech
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.demo_tools import get_weather, set_timer
from parley_client.cli.script import ScriptTurn
from parley_client.tools import ToolTable

CLIPS = ROOT / "tests/data/conversation"
CLOCK = Path(__file__).parent / "mcp_clock.py"
KEY = "weather-key-1"


class WeatherService(ThreadingHTTPServer):
    """Says that it is foggy everywhere."""

    def __init__(self):
        self.asked = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append((self.path, self.headers["Authorization"]))
        body = json.dumps({"temperature": 8, "sky": "foggy"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def weather():
    with WeatherService() as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        yield service
        service.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(weather, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    (offered,) = ToolTable([get_weather]).definitions
    settings = {
        "private_hosts": ["127.0.0.1"],
        "http": [
            {
                "name": offered.name,
                "description": offered.description,
                "url": f"http://127.0.0.1:{weather.server_port}/weather?place={{city}}",
                "parameters": offered.parameters,
                "headers": {"Authorization": "Bearer ${WEATHER_KEY}"},
            }
        ],
        "mcp": [{"name": "clock", "command": [sys.executable, str(CLOCK)], "tools": ["get_time"]}],
    }
    file = folder / "tools.json"
    file.write_text(json.dumps(settings))
    environment = {"PARLEY_VOICE_AGENT_TOOLS_FILE": str(file), "WEATHER_KEY": KEY}
    running = EmbeddedServer(ServerOptions(state_dir=folder / "state", environment=environment, **ANY_PORTS))
    with running:
        session = running.pid
        yield running
    log = running.log_path.read_text()
    assert KEY not in log
    assert "2 of 2 tools of tools.json can be called" in log
    assert leftovers(session, running.shm_prefix) == ([], [])
    assert not [process for process in psutil.process_iter() if str(CLOCK) in _command(process)]


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def ask(server, clip, notes):
    async with connect(server.endpoints.grpc, tools=[set_timer]) as call:
        turn = ScriptTurn(name=clip, samples=read_speech(CLIPS / clip))
        (report,) = await ScriptedConversation(call, notes, record=False).run([turn])
    assert report.problem == ""
    assert notes.of(ToolRequest) == [], "the client has nothing to do"
    return report


async def test_the_server_makes_http_requests(server, weather):
    notes = Notes()
    report = await ask(server, "02-weather.wav", notes)
    (run,) = notes.of(ToolRun)
    assert (run.name, run.arguments, run.is_error) == ("get_weather", {"city": "Paris"}, False)
    assert run.duration_ms > 0
    ((path, authorization),) = weather.asked
    assert parse_qs(urlsplit(path).query) == {"place": ["Paris"]}
    assert authorization == f"Bearer {KEY}"
    assert report.answer == "It's 8 degrees and foggy in Paris."


async def test_the_server_calls_mcp_servers(server):
    notes = Notes()
    report = await ask(server, "08-time.wav", notes)
    (run,) = notes.of(ToolRun)
    assert (run.name, run.arguments, run.is_error) == ("get_time", {"city": "Tokyo"}, False)
    assert report.answer == "It's 15:52 in Tokyo."


async def test_a_tool_of_the_same_name_is_refused(server):
    with pytest.raises(InvalidMessageError, match="the server has a tool of this name"):
        async with connect(server.endpoints.grpc, tools=[Tool(name="get_weather")]):
            pass
