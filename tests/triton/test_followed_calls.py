"""A call that is recorded and has a webhook, on the real server."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import threading
import uuid
import wave
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

from gateway_caller import DEADLINE_S, call
from leftovers import ANY_PORTS

from parley.calls.folder import CallFolder
from parley.launcher import EmbeddedServer, ServerOptions
from parley.protocol import ResponseDone, Start
from parley_client.call import Call
from parley_client.transport import TritonTransport
from parley_gateway.security.keys import new_key
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

KEY = "0123456789abcdef01234567"
AGENT = """instructions = "You take bookings."
greeting = "Good evening."
record = true
recording.consent = "This call is recorded."
"""
WEBHOOKS = """
tools.private_hosts = ["127.0.0.1"]
[[webhooks]]
url = "{url}"
secret_file = "restaurant.secret"
events = ["call.started", "call.ended"]
"""


@contextmanager
def receiver():
    """A server for webhooks: its URL, and what it gets."""
    got: SimpleQueue = SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.put((dict(self.headers.items()), self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", got
        finally:
            server.shutdown()
            thread.join()


def posted(got: SimpleQueue) -> dict:
    """The next event, if its signature is right."""
    headers, body = got.get(timeout=60)
    headers = {name.lower(): value for name, value in headers.items()}
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    signature = base64.b64encode(hmac.digest(KEY.encode(), signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{signature}"
    return json.loads(body)


def recording_server(folder):
    """Has the folders ``agents`` and ``calls`` of ``folder``."""
    names = {"PARLEY_VOICE_AGENT_AGENTS": "agents", "PARLEY_VOICE_AGENT_CALLS": "calls"}
    environment = {name: str(folder / part) for name, part in names.items()}
    return EmbeddedServer(ServerOptions(state_dir=folder / "state", environment=environment, **ANY_PORTS))


async def test_recorded_call_leaves_files_and_its_webhook_is_called(tmp_path):
    agents, calls = tmp_path / "agents", tmp_path / "calls"
    agents.mkdir()
    with receiver() as (url, got):
        (agents / "restaurant.toml").write_text(AGENT + WEBHOOKS.format(url=url))
        (agents / "restaurant.secret").write_text(KEY)
        with recording_server(tmp_path) as server:
            transport = TritonTransport(server.endpoints.grpc)
            call_id = uuid.uuid4().hex
            try:
                stream = await transport.open(call_id, 10.0)
                async with aclosing(Call(stream, call_id, Start(agent="restaurant"))) as call:
                    await call.open()
                    async for event in call:
                        if isinstance(event, ResponseDone):
                            break
            finally:
                await transport.close()
            started, ended = posted(got), posted(got)
    assert (started["type"], ended["type"]) == ("call.started", "call.ended")
    assert started["data"]["session"] == ended["data"]["session"] == call_id
    assert ended["data"]["recorded"]
    (info,) = CallFolder(calls).entries.newest()
    assert (info.call, info.session, info.ended, info.incomplete) == (
        ended["data"]["call"],
        call_id,
        True,
        "",
    )
    files = calls / info.id
    assert sorted(path.name for path in files.iterdir()) == ["audio.wav", "call.json", "events.jsonl"]
    events = [json.loads(line) for line in (files / "events.jsonl").read_text().splitlines()]
    (done,) = [one["event"] for one in events if one.get("event", {}).get("type") == "response_done"]
    assert done["text"] == "This call is recorded. Good evening."
    with wave.open(str(files / "audio.wav")) as audio:
        assert audio.getnchannels() == 2
        assert any(audio.readframes(audio.getnframes()))


async def ended_calls(http):
    """The list, as soon as its first call is complete: that is written after the end of the call."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            calls = (await http.get("/v1/calls")).json()["calls"]
            if calls and calls[0].get("ended"):
                return calls
            await asyncio.sleep(0.1)


async def test_call_through_the_gateway_is_read_and_deleted_by_its_key_only(tmp_path):
    keys = {name: new_key(name, ["agent", "calls"]) for name in ("anna", "ben")}
    (tmp_path / "keys.toml").write_text("\n".join(key.line for key in keys.values()))
    anna, ben = ({"Authorization": f"Bearer {key.secret}"} for key in keys.values())
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "restaurant.toml").write_text(AGENT)
    with recording_server(tmp_path) as server:
        flags = {
            "listen": {"port": 0},
            "servers": {"addresses": [server.endpoints.grpc]},
            "calls": {"folder": str(tmp_path / "calls")},
            "security": {"keys_file": str(tmp_path / "keys.toml")},
        }
        async with (
            running(load_settings(flags=flags)) as one,
            call(one.url, headers=anna, agent="restaurant", output="text") as caller,
        ):
            await caller.until("response_done")
            before = len(caller.events)
            await caller.send("text", text="hello")
            await caller.until("response_done", before)
            await caller.send("control", action="hangup")
            await caller.until("closed")
            http = caller.http
            (info,) = await ended_calls(http)
            path = f"/v1/calls/{info['id']}"
            shown = (await http.get(path)).json()
            audio = (await http.get(f"{path}/audio")).content
            for method in ("GET", "DELETE"):
                assert (await http.request(method, path, headers=ben)).status_code == 404
            assert (await http.get("/v1/calls", headers=ben)).json() == {"calls": [], "next": None}
            assert (await http.delete(path)).status_code == 204
            assert (await http.get(path)).json()["error"]["code"] == "call_not_found"
    said = [(line["kind"], line["words"]) for line in shown["lines"] if line.get("words")]
    assert said[:2] == [("agent", "This call is recorded. Good evening."), ("user", "hello")]
    assert said[2][0] == "agent"
    assert shown["call"]["duration_ms"] == info["duration_ms"] > 0
    assert audio.startswith(b"RIFF")
    assert CallFolder(tmp_path / "calls").entries.newest() == []
