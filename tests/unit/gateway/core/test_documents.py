"""What the gateway says about itself: OpenAPI, AsyncAPI, its settings and its documentation."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from fake_agent import serve
from jsonschema import Draft202012Validator
from listening_gateway import receive
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from parley import protocol
from parley_gateway.apis.sessions.messages import FROM_CLIENT, FROM_GATEWAY
from parley_gateway.asyncapi import asyncapi
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.keys import new_key
from parley_gateway.settings import load_settings

ROOT = Path(__file__).parents[4]
DOCS = (ROOT / "docs" / "gateway.md").read_text()


def references(part):
    """Every reference in a document."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "$ref":
                yield value
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def resolve(document, reference):
    found = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


# --- documents ------------------------------------------------------------------------------


async def test_openapi_describes_sessions_to_the_last_field(gateway):
    one = await gateway()
    document = (await one.http.get("/openapi.json")).json()
    for reference in references(document):
        resolve(document, reference)
    schemas = document["components"]["schemas"]
    assert schemas["SessionOptions"]["properties"]["turn"]
    assert "input_sample_rate" not in schemas["SessionOptions"]["properties"]
    described = schemas["SessionCreated"]["properties"]["stream_url"]["description"]
    assert described.startswith("Where to connect")
    operations = document["paths"]["/v1/sessions"]["post"]
    assert operations["responses"]["201"]["content"]["application/json"]["schema"]
    assert set(document["paths"]) >= {
        "/v1/sessions",
        "/v1/sessions/{session_id}",
        "/v1/sessions/{session_id}/history",
        "/v1/sessions/{session_id}/status",
        "/v1/sessions/{session_id}/tools",
        "/healthz",
        "/readyz",
    }
    statuses = {
        status
        for path in document["paths"].values()
        for operation in path.values()
        for status in operation["responses"]
    }
    assert "422" not in statuses, "no route answers it"


async def test_answers_are_as_openapi_says(gateway):
    one = await gateway()
    document = (await one.http.get("/openapi.json")).json()

    def check(path, method, status, body):
        schema = document["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
        Draft202012Validator(schema | {"components": document["components"]}).validate(body)

    created = (await one.http.post("/v1/sessions")).json()
    check("/v1/sessions", "post", "201", created)
    path = f"/v1/sessions/{created['session_id']}"
    check("/v1/sessions/{session_id}/status", "get", "200", (await one.http.get(f"{path}/status")).json())
    check("/v1/sessions/{session_id}/history", "get", "200", (await one.http.get(f"{path}/history")).json())
    tools = (await one.http.post(f"{path}/tools", json={"tools": [{"name": "f"}]})).json()
    check("/v1/sessions/{session_id}/tools", "post", "200", tools)
    failure = await one.http.get("/v1/sessions/none/status")
    check("/v1/sessions/{session_id}/status", "get", "404", failure.json())


async def test_asyncapi_is_served_and_holds_every_message(gateway):
    one = await gateway()
    document = (await one.http.get("/asyncapi.json")).json()
    assert document["asyncapi"] == "3.0.0"
    for reference in references(document):
        resolve(document, reference)
    operations = document["operations"]
    names = {
        action: {ref["$ref"].rpartition("/")[2] for ref in operations[action]["messages"]}
        for action in operations
    }
    assert names["session_from_client"] == {kind.__name__ for kind in FROM_CLIENT} | {"audio_from_client"}
    assert names["session_from_gateway"] == {kind.__name__ for kind in FROM_GATEWAY} | {"audio_from_gateway"}
    assert names["design_from_client"] == {"DesignToolResponse", "audio_from_client"}
    assert operations["session_from_client"]["action"] == "receive"


async def test_messages_of_a_stream_are_as_asyncapi_says(gateway):
    events = [
        protocol.ResponseText(turn=1, response_id="r", text="Hi"),
        protocol.ToolRequest(turn=1, call_id="c", name="f", arguments={"x": [1]}),
        protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=0, text="Hi"),
        protocol.TurnMetrics(turn=1, first_audio_ms=4.5),
        protocol.ErrorEvent(code="overloaded", message="", retryable=True),
        protocol.AgentState(state="speaking"),
    ]

    async def agent(stream):
        await serve(stream, lambda _: [stream.say(event) for event in events])

    one = await gateway(agent)
    document = json.loads(json.dumps(asyncapi("1")))
    schemas = {
        message["name"]: message["payload"]
        for message in document["channels"]["session"]["messages"].values()
        if "name" in message
    }
    async with one.stream() as socket:
        heard = [json.loads(await socket.recv())]
        await socket.send(json.dumps({"type": "commit"}))
        heard += [json.loads(await socket.recv()) for _ in events]
    assert [message["type"] for message in heard] == [
        "connected", "response", "tool_request", "audio", "metrics", "error", "state",
    ]  # fmt: skip
    for message in heard:
        schema = schemas[message["type"]] | {"components": document["components"]}
        Draft202012Validator(schema).validate(message)


def test_the_documentation_names_every_message():
    def tags(kinds):
        return {kind.__struct_config__.tag for kind in kinds}

    _, from_gateway, to_gateway = re.split(r"\| from the gateway \| \||\| to the gateway \| \|", DOCS)
    assert tags(FROM_GATEWAY) <= set(re.findall(r"`(\w+)`", from_gateway))
    assert tags(FROM_CLIENT) <= set(re.findall(r"`(\w+)`", to_gateway.split("\n\n")[0]))


# --- settings -------------------------------------------------------------------------------


def test_flags_count_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text('[listen]\nport = 1\nhost = "::1"\ndrain_s = 5\n[servers]\naddresses = ["a:1"]\n')
    environment = {
        "PARLEY_GATEWAY_LISTEN_PORT": "2",
        "PARLEY_GATEWAY_LISTEN_DRAIN_S": "2.5",
        "PARLEY_GATEWAY_SERVERS_ADDRESSES": "b:1, c:1",
        "PARLEY_GATEWAY_SECURITY_INSECURE_ALLOW_ANONYMOUS": "true",
        "PARLEY_GATEWAY_CONFIG": "elsewhere",
        "PATH": "/bin",
    }
    settings = load_settings(file, environment, {"listen": {"port": 3, "host": None}})
    assert (settings.listen.port, settings.listen.host, settings.listen.drain_s) == (3, "::1", 2.5)
    assert settings.servers.addresses == ("b:1", "c:1")
    assert settings.security.insecure_allow_anonymous is True


@pytest.mark.parametrize(
    ("text", "environment", "flags"),
    [
        ("[listen]\nprot = 1", {}, {}),
        ("[lisen]\nport = 1", {}, {}),
        ("[listen]\nport = 70000", {}, {}),
        ("[listen]\nport = '1'", {}, {}),
        ("[listen]\ndrain_s = inf", {}, {}),
        ("", {"PARLEY_GATEWAY_LISTEN_DRAIN_S": "nan"}, {}),
        ("listen", {}, {}),
        ("", {"PARLEY_GATEWAY_LISTEN_PROT": "1"}, {}),
        ("", {"PARLEY_GATEWAY_LISTEN_PORT": "one"}, {}),
        ("", {"PARLEY_GATEWAY_SERVERS_ADDRESSES": ""}, {}),
        ("", {}, {"calls": {"limit": 0}}),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path, text, environment, flags):
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(GatewaySettingsError):
        load_settings(file, environment, flags)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("SERVERS_SESSIONS", "3.5", "a whole number"),
        ("LISTEN_PORT", "one", "a whole number"),
        ("LISTEN_DRAIN_S", "long", "a number"),
    ],
)
def test_a_variable_that_is_no_number_is_refused_in_words(name, text, kind):
    with pytest.raises(GatewaySettingsError, match=rf"PARLEY_GATEWAY_{name}: expected {kind}$"):
        load_settings(environment={f"PARLEY_GATEWAY_{name}": text})


def test_variable_of_no_setting_is_refused_with_the_nearest_one():
    with pytest.raises(GatewaySettingsError, match="did you mean PARLEY_GATEWAY_CALLS_LIMIT"):
        load_settings(environment={"PARLEY_GATEWAY_CALLS_LIMT": "3"})


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(GatewaySettingsError, match=r"none\.toml"):
        load_settings(tmp_path / "none.toml")


def test_all_settings_have_defaults_that_can_be_used():
    settings = load_settings()
    assert msgspec.convert(msgspec.to_builtins(settings), type(settings)) == settings


# --- what else is asked by HTTP -----------------------------------------------------------------


async def test_missing_route_has_the_usual_error_body(gateway):
    one = await gateway()
    nothing = await one.http.get("/v1/nothing")
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "not_found")
    wrong = await one.http.put("/v1/sessions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert nothing.headers["X-Content-Type-Options"] == "nosniff"


async def test_counters_tell_of_calls_frames_and_servers(gateway):
    one = await gateway()
    async with one.stream() as socket:
        await receive(socket, "connected")
        await socket.send(bytes(320))
        assert await one.metric("parley_gateway_calls") == 1
        assert await one.metric("parley_gateway_server_ready") == 1
        assert await one.metric("parley_gateway_server_users") == 1
        assert await one.metric("parley_gateway_calls_opened_total") == 1
        assert await one.metric("parley_gateway_added_seconds_count") >= 1
        assert await one.metric("parley_gateway_frames_sent_total") >= 1


async def test_metrics_with_authentication_need_the_admin_scope(gateway, tmp_path):
    plain, admin = new_key("plain", ["agent"]), new_key("admin", ["admin"])
    file = tmp_path / "keys.toml"
    file.write_text(f"{plain.line}\n{admin.line}\n")
    one = await gateway(security={"keys_file": str(file)})
    statuses = [
        (
            await one.http.get("/metrics", headers={"Authorization": f"Bearer {key}"} if key else {})
        ).status_code
        for key in ("", plain.secret, admin.secret)
    ]
    assert statuses == [401, 403, 200]
    assert (await one.http.get("/readyz")).status_code == 200
    answer = await one.http.post("/v1/sessions")
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    document = (await one.http.get("/openapi.json")).json()
    assert document["security"] == [{"key": []}]
    assert document["paths"]["/readyz"]["get"]["security"] == []


async def test_logs_hold_no_query_strings(gateway, caplog):
    one = await gateway()
    with caplog.at_level("DEBUG"):
        await one.http.get("/v1/sessions/a%0Ab/status?secret=hidden")
        async with one.stream() as socket:
            await receive(socket, "connected")
        url = f"{one.ws_url}/v1/sessions/x/stream?secret=hidden"
        with pytest.raises(InvalidStatus, match="404"):
            await connect(url)
    own = [record for record in caplog.records if record.name.startswith(("parley", "uvicorn"))]
    lines = [record.getMessage() for record in own]
    assert any("GET /v1/sessions/a%0Ab/status 404" in line for line in lines)
    assert any("WS /v1/sessions/x/stream 404" in line for line in lines)
    assert not any("hidden" in line for line in lines)


async def test_no_escape_hides_a_secret_from_the_log(gateway, caplog):
    one = await gateway()
    with caplog.at_level("INFO", "parley.gateway.access"):
        await one.http.get("/v1/sessions/parley%5Fabcdefghij%5Fhidden-hidden/status")
        await one.http.get(f"/v1/sessions/%65yJ{'hidden' * 100}/status")
    lines = [record.getMessage() for record in caplog.records if record.name == "parley.gateway.access"]
    assert "/v1/sessions/parley_abcdefghij_%E2%80%A6/status" in lines[0]
    assert not any("hidden" in line for line in lines)
