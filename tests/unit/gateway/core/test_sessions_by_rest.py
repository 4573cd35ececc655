"""Sessions by REST."""

import json

import pytest
from fake_agent import serve
from listening_gateway import frame_of, receive, until
from websockets.exceptions import InvalidStatus

from parley import protocol
from parley.errors import ModelUnavailableError, OverloadedError, UnknownToolCallError
from parley_gateway.apis.sessions.registry import SessionRegistry
from parley_gateway.apis.sessions.stream import _SEND
from parley_gateway.apis.settings import SessionSettings
from parley_gateway.errors import TooManyCallsError
from parley_gateway.security.principal import Principal


async def asking(stream):
    """Asks for a tool at every text."""
    request = protocol.ToolRequest(turn=1, call_id="c1", name="f", arguments={"x": 1})
    await serve(stream, lambda frame: b'"text"' in frame.message and stream.say(request))


async def test_a_new_session_waits(gateway):
    one = await gateway()
    answer = await one.http.post("/v1/sessions", json={"greeting": "Hello."})
    assert answer.status_code == 201
    created = answer.json()
    assert created["expires_in_s"] == one.settings.sessions.connect_s
    assert created["token"].startswith("ek_")
    status = await one.status(created["session_id"])
    assert (status["state"], status["turns"], status["pending_tools"]) == ("waiting", 0, [])
    assert one.agents[0].streams == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"nothing": 1}',
        b'{"input_sample_rate": 8000}',
        b'{"test": true}',
        b'{"exaggeration": 3}',
        b'{"tools": [{}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
async def test_invalid_body_is_refused(gateway, body):
    one = await gateway()
    answer = await one.http.post("/v1/sessions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_message"


async def test_session_without_a_stream_expires(gateway):
    one = await gateway(sessions={"connect_s": 0.01})
    session_id = await one.create()
    status = await one.status(session_id)
    while status["state"] == "waiting":
        status = await one.status(session_id)
    assert (status["state"], status["reason"]) == ("over", "session_expired")
    with pytest.raises(InvalidStatus) as refusal:
        async with one.stream(session_id):
            pass
    assert refusal.value.response.status_code == 410


async def test_an_open_session_does_not_expire(gateway):
    one = await gateway(sessions={"connect_s": 0.05})
    async with one.stream() as socket:
        await receive(socket, "connected")
        while (await one.status(socket.session_id))["state"] == "connecting":
            pass
        session_id = await one.create()  # a later one expires first
        while (await one.status(session_id))["state"] != "over":
            pass
        assert (await one.status(socket.session_id))["state"] == "open"


async def test_ended_sessions_are_forgotten(gateway):
    one = await gateway(sessions={"connect_s": 0.001, "remembered_s": 0.01})
    session_id = await one.create()
    answer = await one.http.get(f"/v1/sessions/{session_id}/status")
    while answer.status_code == 200:
        answer = await one.http.get(f"/v1/sessions/{session_id}/status")
    assert answer.json()["error"]["code"] == "session_not_found"


async def test_only_so_many_sessions_wait_and_are_remembered(gateway):
    one = await gateway(sessions={"waiting": 2, "remembered": 1})
    first, second = await one.create(), await one.create()
    answer = await one.http.post("/v1/sessions")
    assert answer.status_code == 429
    assert answer.headers["Retry-After"]
    for session_id in (first, second):
        assert (await one.http.delete(f"/v1/sessions/{session_id}")).status_code == 204
    assert (await one.http.get(f"/v1/sessions/{first}/status")).status_code == 404
    assert (await one.status(second))["reason"] == "deleted"


async def test_key_cannot_hold_all_waiting_sessions():
    book = SessionRegistry(SessionSettings(waiting=3, waiting_per_key=2), "a")
    ann, bob = (Principal(id=name, scopes=frozenset(["agent"])) for name in ("ann", "bob"))
    first = book.create(protocol.Start(), ann)
    book.create(protocol.Start(), ann)
    with pytest.raises(TooManyCallsError, match="one key"):
        book.create(protocol.Start(), ann)
    book.create(protocol.Start(), bob)
    with pytest.raises(TooManyCallsError, match="this gateway"):
        book.create(protocol.Start(), bob)
    book.end(first, "deleted")
    book.create(protocol.Start(), ann)
    book.close()


async def test_a_session_that_is_over_keeps_no_prompts():
    book = SessionRegistry(SessionSettings(), "a")
    owner = Principal(id="ann", scopes=frozenset(["agent"]))
    session = book.create(protocol.Start(system_prompt="x" * 100_000), owner)
    book.end(session, "deleted")
    assert book.find(session.id, owner).start == protocol.Start()
    book.close()


async def test_options_that_no_server_takes_are_refused_at_once(gateway):
    one = await gateway()
    large = "x" * 300_000
    answer = await one.http.post("/v1/sessions", json={"system_prompt": large})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_message")
    session_id = await one.create(tools=[{"name": "f"}])
    tools = [{"name": "f", "description": large}]
    answer = await one.http.post(f"/v1/sessions/{session_id}/tools", json={"tools": tools})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_message")
    async with one.stream(session_id) as socket:
        await receive(socket, "connected")


async def test_deleting_an_open_session_hangs_up(gateway):
    one = await gateway()
    async with one.stream() as socket:
        await receive(socket, "connected")
        assert (await one.http.delete(f"/v1/sessions/{socket.session_id}")).status_code == 204
        await receive(socket, "closed")
    await frame_of(one.agents[0], lambda frame: frame.end)
    assert (await one.http.delete(f"/v1/sessions/{socket.session_id}")).status_code == 204


async def test_tools_can_be_answered_by_rest_once(gateway):
    one = await gateway(asking)
    async with one.stream() as socket:
        await socket.send(json.dumps({"type": "text", "text": "hi"}))
        await receive(socket, "tool_request")
        pending = (await one.status(socket.session_id))["pending_tools"]
        assert pending == [{"call_id": "c1", "name": "f", "arguments": {"x": 1}}]
        path = f"/v1/sessions/{socket.session_id}/tools"
        answer = await one.http.post(path, json={"responses": [{"call_id": "c1", "output": [1]}]})
        assert answer.json() == {"responses": 1, "tools": None}
        seen = await frame_of(one.agents[0], lambda frame: b"tool_response" in frame.message)
        assert protocol.decode_message(seen.message) == protocol.ToolResponse(call_id="c1", output=[1])
        again = await one.http.post(path, json={"responses": [{"call_id": "c1"}]})
        assert (again.status_code, again.json()["error"]["code"]) == (404, "unknown_tool_call")
        assert "cancelled" not in again.json()["error"]["message"]


async def test_an_answer_by_rest_to_a_call_that_was_cancelled_is_refused(gateway):
    async def cancelling(stream):
        def ask(frame):
            if b'"text"' in frame.message:
                stream.say(protocol.ToolRequest(turn=1, call_id="c1", name="f", arguments={}))
                stream.say(protocol.ToolCancelled(turn=1, call_id="c1", reason="timeout"))

        await serve(stream, ask)

    one = await gateway(cancelling)
    async with one.stream() as socket:
        await socket.send(json.dumps({"type": "text", "text": "hi"}))
        await receive(socket, "tool_cancelled")
        assert (await one.status(socket.session_id))["pending_tools"] == []
        path = f"/v1/sessions/{socket.session_id}/tools"
        answer = await one.http.post(path, json={"responses": [{"call_id": "c1"}]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_tool_call")
        assert answer.json()["error"]["message"] == "tool request 'c1' was cancelled: it waits for no answer"
        assert not any(b"tool_response" in frame.message for frame in one.agents[0].streams[0].seen)


async def test_the_memory_of_cancelled_calls_is_bounded():
    book = SessionRegistry(SessionSettings(), "a")
    session = book.create(protocol.Start(), Principal(id="ann", scopes=frozenset(["agent"])))
    for number in range(1_000):
        session.record(protocol.ToolCancelled(turn=1, call_id=f"c{number}", reason="interrupted"))
    assert len(session._cancelled) == 64
    with pytest.raises(UnknownToolCallError, match="was cancelled"):
        session.check_tool_call("c999")
    session.record(protocol.ToolRequest(turn=1, call_id="c999", name="f", arguments={}))
    session.check_tool_call("c999")  # asked for anew, by another server
    with pytest.raises(UnknownToolCallError, match="waits for an answer") as refused:
        session.check_tool_call("x" * 9_000)
    assert len(str(refused.value)) < 200  # whatever the client has sent
    book.close()


@pytest.mark.parametrize(
    ("second", "code"),
    [
        ({"call_id": "none"}, "unknown_tool_call"),
        ({"call_id": "c1"}, "invalid_message"),
        ({"call_id": "c2", "output": "x" * 300_000}, "invalid_message"),
    ],
)
async def test_answers_of_tools_are_taken_all_or_none(gateway, second, code):
    async def asking_twice(stream):
        def ask(frame):
            for call_id in ("c1", "c2") if b'"text"' in frame.message else ():
                stream.say(protocol.ToolRequest(turn=1, call_id=call_id, name="f", arguments={}))

        await serve(stream, ask)

    one = await gateway(asking_twice)
    async with one.stream() as socket:
        await socket.send(json.dumps({"type": "text", "text": "hi"}))
        for _ in range(2):
            await receive(socket, "tool_request")
        path = f"/v1/sessions/{socket.session_id}/tools"
        wish = {"responses": [{"call_id": "c1", "output": 1}, second], "tools": []}
        refused = await one.http.post(path, json=wish)
        assert refused.json()["error"]["code"] == code
        answer = await one.http.post(path, json={"responses": [{"call_id": "c1", "output": 2}]})
        assert answer.status_code == 200
        seen = await frame_of(one.agents[0], lambda frame: b"tool_response" in frame.message)
        assert protocol.decode_message(seen.message) == protocol.ToolResponse(call_id="c1", output=2)
        assert not any(b"update" in frame.message for frame in one.agents[0].streams[0].seen)


async def test_an_answer_that_could_not_be_passed_on_may_be_sent_again(gateway, monkeypatch):
    one = await gateway(asking)
    async with one.stream() as socket:
        await socket.send(json.dumps({"type": "text", "text": "hi"}))
        await receive(socket, "tool_request")
        path = f"/v1/sessions/{socket.session_id}/tools"
        wish = {"responses": [{"call_id": "c1"}]}
        with monkeypatch.context() as patch:
            patch.setitem(_SEND, protocol.ToolResponse, _refuse_for_now)
            refused = await one.http.post(path, json=wish)
        assert refused.json()["error"]["code"] == "overloaded"
        assert (await one.http.post(path, json=wish)).status_code == 200


def _refuse_for_now(*_):
    raise OverloadedError("too many messages wait")


async def test_tools_can_be_replaced_before_and_during_a_call(gateway):
    one = await gateway()
    session_id = await one.create(tools=[{"name": "old"}])
    path = f"/v1/sessions/{session_id}/tools"
    answer = await one.http.post(path, json={"tools": [{"name": "f"}]})
    assert answer.json() == {"responses": 0, "tools": 1}
    async with one.stream(session_id) as socket:
        await receive(socket, "connected")
        start = protocol.decode_message(one.agents[0].streams[0].seen[0].message)
        assert start.tools == [protocol.Tool(name="f")]
        assert (await one.http.post(path, json={"tools": []})).status_code == 200
        seen = await frame_of(one.agents[0], lambda frame: b"update" in frame.message)
        assert protocol.decode_message(seen.message) == protocol.Update(tools=[])
    await until(lambda: one.gateway.calls.count == 0)
    assert (await one.http.post(path, json={"tools": []})).status_code == 410


async def test_no_session_is_promised_that_no_server_could_hold(gateway):
    one = await gateway()
    one.pool.problems["server-0:1"] = ModelUnavailableError("down")
    one.gateway.servers.all[0].doubt(ModelUnavailableError("down"))
    answer = await one.http.post("/v1/sessions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server_ready")
    assert answer.headers["Retry-After"]
    assert (await one.http.get("/readyz")).status_code == 503
    assert (await one.http.get("/healthz")).status_code == 200
