"""Calls that are recorded, followed by a webhook and replayed, on the real server."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import threading
import time
import uuid
import wave
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue

import pytest
from gateway_caller import DEADLINE_S, call

from parley.protocol import ResponseDone, Start
from parley.replay.comparison import replay
from parley_client import connect
from parley_client.call import Call
from parley_client.transport import TritonTransport
from parley_gateway.security.keys import new_key
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

KEY = "0123456789abcdef01234567"
QUESTION = Path(__file__).parents[2] / "data" / "conversation" / "02-weather.wav"
AGENT = """instructions = "You take bookings."
greeting = "Good evening."
record = true
recording.consent = "This call is recorded."
"""
WEBHOOKS = """
tools.private_hosts = ["127.0.0.1"]
[[webhooks]]
url = "{url}"
secret_file = "reported.secret"
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


@pytest.fixture(scope="module")
def webhook(server):
    """What the webhook of the agent ``reported`` gets; the agent ``table`` has none."""
    with receiver() as (url, got):
        (server.agents / "reported.secret").write_text(KEY)
        server.write_agents(reported=AGENT + WEBHOOKS.format(url=url), table=AGENT)
        yield got
        server.remove_agents("reported", "table")


def wait_for(found):
    """What another thread of the server writes: what ``found`` returns, once it is not empty."""
    deadline = time.monotonic() + 30
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value


async def test_recorded_call_leaves_files_and_its_webhook_is_called(server, webhook):
    transport = TritonTransport(server.address)
    call_id = uuid.uuid4().hex
    try:
        stream = await transport.open(call_id, 10.0)
        async with aclosing(Call(stream, call_id, Start(agent="reported"))) as call:
            await call.open()
            async for event in call:
                if isinstance(event, ResponseDone):
                    break
    finally:
        await transport.close()
    started, ended = posted(webhook), posted(webhook)
    assert (started["type"], ended["type"]) == ("call.started", "call.ended")
    assert started["data"]["session"] == ended["data"]["session"] == call_id
    assert ended["data"]["recorded"]
    (info,) = wait_for(lambda: [one for one in server.calls if one.session == call_id and one.ended])
    assert (info.call, info.ended, info.incomplete) == (ended["data"]["call"], True, "")
    files = server.folder / "calls" / info.id
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


async def test_call_through_the_gateway_is_read_and_deleted_by_its_key_only(server, webhook, tmp_path):
    keys = {name: new_key(name, ["agent", "calls"]) for name in ("anna", "ben")}
    (tmp_path / "keys.toml").write_text("\n".join(key.line for key in keys.values()))
    anna, ben = ({"Authorization": f"Bearer {key.secret}"} for key in keys.values())
    flags = {
        "listen": {"port": 0},
        "servers": {"addresses": [server.address]},
        "calls": {"folder": str(server.folder / "calls")},
        "security": {"keys_file": str(tmp_path / "keys.toml")},
    }
    async with (
        running(load_settings(flags=flags)) as one,
        call(one.url, headers=anna, agent="table", output="text") as caller,
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
    assert info["id"] not in [one.id for one in server.calls]


async def test_call_that_is_recorded_as_a_whole_is_replayed_without_differences(server):
    records = server.folder / "records"
    before = set(records.glob("*.call"))
    async with asyncio.timeout(60), connect(server.address) as call:
        await call.speak(QUESTION)
        async for event in call:
            if isinstance(event, ResponseDone):
                break
    (file,) = set(records.glob("*.call")) - before
    assert file.stat().st_mode & 0o777 == 0o600
    (played,) = wait_for(lambda: [one for one in [replay(file)] if not one.ended_early])
    assert (played.gone, played.new, played.unanswered) == ([], [], None)
    assert played.length_s > 1.0
