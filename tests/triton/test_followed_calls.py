"""A call that is recorded and has a webhook, on the real server."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import uuid
import wave
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

from leftovers import ANY_PORTS

from parley.calls.folder import CallFolder
from parley.launcher import EmbeddedServer, ServerOptions
from parley.protocol import ResponseDone, Start
from parley_client.call import Call
from parley_client.transport import TritonTransport

KEY = "0123456789abcdef01234567"
AGENT = """instructions = "You take bookings."
greeting = "Good evening."
record = true
recording.consent = "This call is recorded."
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


async def test_recorded_call_leaves_files_and_its_webhook_is_called(tmp_path):
    agents, calls = tmp_path / "agents", tmp_path / "calls"
    agents.mkdir()
    with receiver() as (url, got):
        (agents / "restaurant.toml").write_text(AGENT.format(url=url))
        (agents / "restaurant.secret").write_text(KEY)
        options = ServerOptions(
            state_dir=tmp_path / "state",
            environment={"PARLEY_VOICE_AGENT_AGENTS": str(agents), "PARLEY_VOICE_AGENT_CALLS": str(calls)},
            **ANY_PORTS,
        )
        with EmbeddedServer(options) as server:
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
    (info,) = CallFolder(calls).list()
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
