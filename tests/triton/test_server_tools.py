"""A tool that the server runs itself, in a conversation with the real server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from leftovers import ANY_PORTS

from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT
from parley.protocol import Tool, ToolRequest, ToolRun
from parley_client import CallEndedError, connect
from parley_client.audio.files import read_speech
from parley_client.conversation import Conversation
from parley_client.demo_tools import get_time, get_weather, set_timer
from parley_client.script import ScriptTurn
from parley_client.tools import ToolTable

QUESTION = ROOT / "tests/data/conversation/02-weather.wav"
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


class Notes:
    def __init__(self):
        self.events = []

    def begin_turn(self, turn, at_s):
        pass

    def show(self, event, at_s):
        self.events.append(event)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


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
    }
    file = folder / "tools.json"
    file.write_text(json.dumps(settings))
    environment = {"PARLEY_VOICE_AGENT_TOOLS_FILE": str(file), "WEATHER_KEY": KEY}
    with EmbeddedServer(
        ServerOptions(state_dir=folder / "state", environment=environment, **ANY_PORTS)
    ) as running:
        yield running
        assert KEY not in running.log_path.read_text()


async def test_the_server_runs_its_own_tool(server, weather):
    notes = Notes()
    async with connect(server.endpoints.grpc, tools=[get_time, set_timer]) as call:
        turn = ScriptTurn(name="weather", text="what's the weather in paris", samples=read_speech(QUESTION))
        (report,) = await Conversation(call, notes, record=False).run([turn])
    assert report.problem == ""
    (run,) = notes.of(ToolRun)
    assert (run.name, run.arguments, run.is_error) == ("get_weather", {"city": "Paris"}, False)
    assert run.duration_ms > 0
    assert notes.of(ToolRequest) == [], "the client has nothing to do"
    ((path, authorization),) = weather.asked
    assert parse_qs(urlsplit(path).query) == {"place": ["Paris"]}
    assert authorization == f"Bearer {KEY}"
    assert report.answer == "It's 8 degrees and foggy in Paris."


async def test_a_tool_of_the_same_name_is_refused(server):
    with pytest.raises(CallEndedError, match="the server has a tool of this name"):
        async with connect(server.endpoints.grpc, tools=[Tool(name="get_weather")]):
            pass
