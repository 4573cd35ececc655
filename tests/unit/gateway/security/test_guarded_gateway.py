"""A gateway with keys, as clients meet it."""

import json
import logging
import re

import jwt
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.keys import new_key


def bearer(credential):
    return {"Authorization": f"Bearer {credential}"}


async def new_session(gateway, key):
    answer = await gateway.http.post("/v1/sessions", headers=bearer(key))
    assert answer.status_code == 201
    return answer.json()


async def refusal(url, **options):
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, **options):
            pass
    return caught.value.response


async def test_without_a_key_nothing_is_open(guarded):
    one = await guarded()
    for path in ("/v1/sessions", "/v1/tokens", "/v1/realtime/client_secrets"):
        answer = await one.http.post(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in (
        "/v1/realtime",
        "/v1/listen",
        "/v2/listen",
        "/v1/agent/converse",
        "/v1/speak",
        "/v1/sessions/x/stream",
    ):
        assert (await refusal(one.ws_url + path)).status_code == 401


async def test_answers_make_browsers_careful_and_name_no_server(guarded, keys_file):
    one = await guarded(listen={"public_url": "https://voice.example"})
    answer = await one.http.post("/v1/sessions", headers=bearer(keys_file.key))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["strict-transport-security"]
    assert "server" not in answer.headers
    page = await one.http.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]


async def test_a_key_in_a_url_is_refused_and_logged_nowhere(guarded, keys_file, caplog):
    one = await guarded()
    with caplog.at_level(logging.DEBUG):
        answer = await one.http.post(f"/v1/sessions?api_key={keys_file.key}")
        refused = await refusal(f"{one.ws_url}/v1/listen?token={keys_file.key}")
    assert answer.status_code == refused.status_code == 401
    assert "do not belong in URLs" in answer.text
    from_gateway = [
        record for record in caplog.records if not record.name.startswith(("httpx", "websockets"))
    ]
    assert from_gateway
    assert keys_file.key not in "\n".join(map(logging.Formatter().format, from_gateway))
    assert keys_file.key not in answer.text


async def test_the_token_of_a_session_opens_nothing_else(guarded, keys_file):
    one = await guarded()
    session, other = [await new_session(one, keys_file.key) for _ in range(2)]
    wish = {"session_id": session["session_id"], "scopes": ["agent", "speak", "transcribe", "chat"]}
    answer = await one.http.post("/v1/tokens", json=wish, headers=bearer(keys_file.key))
    brought = bearer(answer.json()["token"])
    path = f"/v1/sessions/{session['session_id']}"
    assert (await one.http.get(f"{path}/status", headers=brought)).status_code == 200
    for method, elsewhere in (
        ("POST", "/v1/sessions"),
        ("POST", "/v1/tokens"),
        ("POST", "/v1/realtime/client_secrets"),
        ("POST", "/v1/realtime/calls"),
        ("POST", "/v1/audio/speech"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/speak"),
        ("POST", "/v1/listen"),
        ("DELETE", f"/v1/sessions/{other['session_id']}"),
        ("GET", f"/v1/sessions/{other['session_id']}/status"),
    ):
        answer = await one.http.request(method, elsewhere, headers=brought)
        assert answer.status_code == 403, elsewhere
    for elsewhere in (
        "/v1/realtime?model=parley",
        "/v1/listen",
        "/v2/listen",
        "/v1/agent/converse",
        "/v1/speak",
    ):
        assert (await refusal(one.ws_url + elsewhere, additional_headers=brought)).status_code == 403
    assert (await one.http.delete(path, headers=brought)).status_code == 204


async def test_a_token_for_another_key_s_session_does_not_take_it_over(guarded, keys_file):
    other = new_key("other", ["agent"])
    keys_file.write(keys_file.line, other.line)
    one = await guarded()
    session = await new_session(one, keys_file.key)
    wish = {"session_id": session["session_id"]}
    token = (await one.http.post("/v1/tokens", json=wish, headers=bearer(other.secret))).json()["token"]
    path = f"/v1/sessions/{session['session_id']}"
    for method, part in (("GET", "/status"), ("POST", "/tools"), ("DELETE", "")):
        answer = await one.http.request(method, path + part, headers=bearer(token), json={})
        assert answer.status_code == 404, part
    assert (await refusal(session["stream_url"], additional_headers=bearer(token))).status_code == 404
    assert (await one.http.get(f"{path}/status", headers=bearer(keys_file.key))).json()["state"] == "waiting"


async def test_a_login_service_decides_whose_a_session_is(guarded, keys_file, tmp_path):
    (tmp_path / "secret").write_text("j" * 40)
    one = await guarded(jwt={"issuer": "me", "algorithms": ["HS256"], "key_file": str(tmp_path / "secret")})
    session = await new_session(one, keys_file.key)
    path = f"/v1/sessions/{session['session_id']}/status"
    wish = {"session_id": session["session_id"]}

    async def statuses(**claims):
        payload = {
            "iss": "me",
            "aud": "parley",
            "sub": "ann",
            "exp": 4_000_000_000,
            "scope": "agent",
        } | claims
        brought = jwt.encode(payload, "j" * 40)
        token = (await one.http.post("/v1/tokens", json=wish, headers=bearer(brought))).json()["token"]
        return [(await one.http.get(path, headers=bearer(one_of))).status_code for one_of in (brought, token)]

    assert await statuses(session_id=session["session_id"]) == [200, 200]
    assert await statuses() == [404, 404]


async def test_another_page_may_not_connect(guarded, keys_file):
    one = await guarded(security={"origins": ["https://app.example"]})
    session = await new_session(one, keys_file.key)
    options = {"subprotocols": ["bearer", session["token"], "parley.v1"]}
    assert (await refusal(session["stream_url"], origin="https://evil.example", **options)).status_code == 403
    async with connect(session["stream_url"], origin="https://app.example", **options) as socket:
        assert socket.subprotocol == "parley.v1"


@pytest.mark.parametrize(
    ("wish", "status"),
    [
        ({"scopes": ["admin"]}, 403),
        ({"scopes": []}, 400),
        ({"scopes": ["root"]}, 400),
        ({"ttl_s": 0}, 400),
        ({"ttl": 5}, 400),
        ({"session_id": ""}, 400),
    ],
)
async def test_a_token_has_to_be_asked_for_properly(guarded, keys_file, wish, status):
    one = await guarded()
    answer = await one.http.post("/v1/tokens", json=wish, headers=bearer(keys_file.key))
    assert answer.status_code == status


async def test_a_call_is_written_down_from_beginning_to_end(guarded, keys_file, caplog):
    caplog.set_level(logging.INFO, "parley.audit")
    one = await guarded()
    session = await new_session(one, keys_file.key)
    async with connect(session["stream_url"], additional_headers=bearer(keys_file.key)) as socket:
        await socket.send('{"type": "control", "action": "hangup"}')
        await socket.wait_closed()
    await one.gateway.calls.drain(5)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "parley.audit"]
    opened, closed = (line for line in lines if line["event"].startswith("call_"))
    assert (opened["event"], opened["who"], opened["api"]) == ("call_opened", keys_file.id, "sessions")
    assert (closed["event"], closed["call"], closed["reason"]) == ("call_closed", opened["call"], "ended")


class Upload:
    """A request without end, as the application gets it: 1 KiB at a time."""

    def __init__(self, path, method="POST", headers=()):
        self.read = 0
        self.status = None
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), *headers],
            "client": ("192.0.2.9", 50_000),
            "server": ("127.0.0.1", 80),
        }

    async def receive(self):
        self.read += 1_024
        return {"type": "http.request", "body": b" " * 1_024, "more_body": True}

    async def send(self, message):
        self.status = message.get("status", self.status)


def paths_of(app):
    """Every path that takes a body, with something in the place of its parameters."""
    methods = ("POST", "PUT", "PATCH", "DELETE")
    described = {
        (path, method.upper()) for path, operations in app.openapi()["paths"].items() for method in operations
    }
    return sorted((re.sub(r"\{.*?\}", "x", path), method) for path, method in described if method in methods)


@pytest.fixture
async def open_to_telephones(guarded, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef")

    async def start(**parts):
        return await guarded(
            listen={"public_url": "https://voice.example"},
            twilio={"auth_token_file": str(tmp_path / "token")},
            **parts,
        )

    return start


KINDS = [b"application/json", b"multipart/form-data; boundary=x", b"application/sdp", b"audio/wav"]


@pytest.mark.parametrize("kind", KINDS)
async def test_at_most_4_kib_are_read_before_authentication(open_to_telephones, kind):
    one = await open_to_telephones()
    paths = paths_of(one.app)
    assert {"/v1/tokens", "/v1/twilio/voice", "/v1/realtime/client_secrets"} <= {path for path, _ in paths}
    for path, method in paths:
        upload = Upload(path, method, [(b"content-type", kind)])
        await one.app(upload.scope, upload.receive, upload.send)
        assert upload.status in (401, 413), path
        assert upload.read <= 4_096 + 1_024, path


async def test_unsigned_request_is_counted_before_its_body_is_read(open_to_telephones):
    one = await open_to_telephones(rates={"ip_requests": "2/minute"})
    for path, method in paths_of(one.app):
        address = f"198.51.100.{paths_of(one.app).index((path, method))}"
        for number in range(3):
            upload = Upload(path, method)
            upload.scope["client"] = (address, 50_000)
            await one.app(upload.scope, upload.receive, upload.send)
            assert (upload.status == 429) is (number == 2), path
        assert upload.read == 0, path


async def test_a_session_of_a_secret_may_be_large_once_its_client_is_known(guarded, keys_file):
    one = await guarded()
    wanted = {"session": {"type": "realtime", "instructions": "x" * 20_000}}
    answer = await one.http.post("/v1/realtime/client_secrets", json=wanted, headers=bearer(keys_file.key))
    assert answer.status_code == 200


async def test_a_large_request_for_a_token_is_refused(guarded, keys_file):
    one = await guarded()
    answer = await one.http.post("/v1/tokens", content=b" " * 5_000, headers=bearer(keys_file.key))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "message_too_large")


READ = ("/", "/metrics", "/asyncapi.json", "/openapi.json", "/v1/sessions/x/status", "/nothing")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "[", "127.0.0.1.evil.example"]
)
async def test_without_keys_nothing_is_read_under_another_name(gateway, host):
    one = await gateway()
    for path in READ:
        answer = await one.http.get(path, headers={"Host": host})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    created = await one.http.post("/v1/sessions", headers={"Host": host})
    assert created.status_code == 403
    if host != "[":
        _, _, port = one.url.rpartition(":")
        answer = await refusal(f"ws://{host}/v1/realtime", host="127.0.0.1", port=int(port))
        assert answer.status_code == 403


@pytest.mark.parametrize(
    "host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "192.0.2.1", "mine.example", "own.example"]
)
async def test_without_keys_the_gateways_own_names_are_known(gateway, host):
    one = await gateway(
        security={"hosts": ["mine.example"], "insecure_allow_anonymous": True},
        listen={"public_url": "https://own.example"},
    )
    assert (await one.http.get("/metrics", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "10-0-0-1.pod.cluster.local"])
async def test_probes_are_answered_under_every_name(gateway, host):
    one = await gateway()
    for path in ("/healthz", "/readyz"):
        assert (await one.http.get(path, headers={"Host": host})).status_code == 200


async def test_with_keys_every_name_is_good(guarded, keys_file):
    one = await guarded()
    headers = {"Host": "anything.example", **bearer(keys_file.key)}
    assert (await one.http.post("/v1/sessions", headers=headers)).status_code == 201


@pytest.mark.parametrize(
    "parts",
    [
        {"listen": {"public_url": "https://voice.example"}},
        {"security": {"trusted_proxies": ["127.0.0.1"]}},
    ],
)
async def test_gateway_behind_a_proxy_without_keys_does_not_start(gateway, parts):
    with pytest.raises(GatewaySettingsError, match="without authentication is refused"):
        await gateway(**parts)
