"""``/v1/realtime`` as a WebSocket: opening, traffic and end."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from fake_agent import serve
from listening_gateway import closed, frame_of, receive, until
from openai_session import check_event
from resuming_agent import cut_behind, lose, send_away, serve_session
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from parley import protocol
from parley.errors import TooManySessionsError, UnsupportedVoiceError

TEXT = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}


@asynccontextmanager
async def session(one, query="?model=gpt-realtime", **arguments):
    """A connected client."""
    async with connect(f"{one.ws_url}/v1/realtime{query}", compression=None, **arguments) as socket:
        yield socket


async def send(socket, kind, **fields):
    await socket.send(json.dumps({"type": kind, **fields}))


async def open_session(socket):
    """Make the gateway open the agent's session."""
    await send(socket, "session.update", session={"type": "realtime"})
    await receive(socket, "session.updated")


async def error(socket, *fields):
    """Fields of the next ``error`` event."""
    event = await receive(socket, "error")
    check_event(event)
    return tuple(event["error"][name] for name in fields)


def of_agent(message):
    """Whether a frame has this message to the agent."""
    return lambda frame: frame.message and json.loads(frame.message)["type"] == message


async def test_a_session_begins_before_there_is_a_call(gateway):
    one = await gateway()
    async with session(one) as socket:
        created = await receive(socket, "session.created")
        check_event(created)
        assert created["session"]["model"] == "gpt-realtime"
        assert one.agents[0].streams == []
        await send(socket, "session.update", session={"type": "realtime", "instructions": "Be brief."})
        await receive(socket, "session.updated")
    start = json.loads(one.agents[0].streams[0].seen[0].message)
    assert start["system_prompt"] == "Be brief."
    assert start["output_sample_rate"] == 24_000


async def test_a_browser_brings_its_key_as_a_subprotocol(gateway):
    one = await gateway()
    protocols = ["realtime", "openai-insecure-api-key.abc"]
    async with session(one, subprotocols=protocols) as socket:
        assert socket.subprotocol == "realtime"
        await receive(socket, "session.created")


@pytest.mark.parametrize("end", [lose, send_away])
async def test_a_response_goes_on_at_another_server(gateway, end):
    streams = []

    async def agent(stream):
        streams.append(stream)
        if len(streams) == 1:
            cut_behind(stream, protocol.Audio, 2, end)
        await serve_session(stream)

    one = await gateway(agent, agent)
    events = []
    async with session(one) as socket:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
        await send(socket, "conversation.item.create", item=item)
        await send(socket, "response.create")
        async with asyncio.timeout(5):
            while not events or events[-1]["type"] != "response.done":
                events.append(json.loads(await socket.recv()))
    assert len(streams) == 2
    for event in events:
        check_event(event)
    kinds = [event["type"] for event in events]
    for kind in ("session.created", "response.created", "response.output_audio.done", "response.done"):
        assert kinds.count(kind) == 1
    assert "error" not in kinds
    assert events[-1]["response"]["status"] == "completed"
    words = [event["delta"] for event in events if event["type"] == "response.output_audio_transcript.delta"]
    assert "".join(words).split() == ["You", "said", "hello."]
    audio = b"".join(
        base64.b64decode(event["delta"]) for event in events if event["type"] == "response.output_audio.delta"
    )
    heard = np.frombuffer(audio, "<i2")
    assert heard.tolist() == np.repeat([1, 2, 3], 960).tolist()


async def test_audio_and_events_keep_their_order(gateway):
    one = await gateway()
    async with session(one) as socket:
        for _ in range(3):
            audio = base64.b64encode(np.full(2_400, 1_000, "<i2").tobytes()).decode()
            await send(socket, "input_audio_buffer.append", audio=audio)
        await send(socket, "input_audio_buffer.commit")
        await frame_of(one.agents[0], of_agent("commit"))
    seen = one.agents[0].streams[0].seen
    until_commit = seen[: next(i for i, frame in enumerate(seen) if of_agent("commit")(frame))]
    assert sum(len(frame.audio) for frame in until_commit) == pytest.approx(3 * 3_200, abs=300)


async def test_more_audio_than_was_spoken_is_paced(gateway):
    one = await gateway(realtime={"burst_s": 0.2, "pace": 4.0})
    async with session(one) as socket:
        audio = base64.b64encode(bytes(48_000)).decode()
        began = asyncio.get_running_loop().time()
        await send(socket, "input_audio_buffer.append", audio=audio)
        await send(socket, "input_audio_buffer.append", audio=audio)
        await send(socket, "input_audio_buffer.commit")
        await frame_of(one.agents[0], of_agent("commit"))
        assert 0.25 < asyncio.get_running_loop().time() - began < 2.0


async def refusal(one, query="?model=gpt-realtime", **arguments):
    """The response to a refused client."""
    with pytest.raises(InvalidStatus) as refused:
        async with session(one, query, **arguments):
            pass
    return refused.value.response


@pytest.mark.parametrize("limits", [{"limit": 1}, {"limit": 1, "per_key": 1}])
async def test_clients_that_do_nothing_are_counted(gateway, limits):
    one = await gateway(calls=limits)
    async with session(one) as socket:
        await receive(socket, "session.created")
        for query in ("?model=x", "?intent=transcription"):
            answer = await refusal(one, query)
            assert answer.status_code == 429
            assert answer.headers["Retry-After"] == "5"
            assert json.loads(answer.body)["error"]["code"] == "too_many_calls"
    await until(lambda: one.gateway.calls._attended == 0)
    async with session(one) as socket:
        await receive(socket, "session.created")


async def test_contradictory_credentials_are_refused(gateway):
    one = await gateway()
    protocols = ["realtime", "openai-insecure-api-key.abc"]
    brought = {"Authorization": "Bearer other"}
    answer = await refusal(one, subprotocols=protocols, additional_headers=brought)
    assert answer.status_code == 401


@pytest.mark.parametrize("query", ["?model=x", "?intent=transcription"])
async def test_a_draining_gateway_refuses_sessions(gateway, query):
    one = await gateway()
    one.gateway.calls.drain_began.set()
    assert (await refusal(one, query)).status_code == 503


async def test_the_beta_is_refused_with_a_reason(gateway):
    one = await gateway()
    async with session(one, additional_headers={"OpenAI-Beta": "realtime=v1"}) as socket:
        assert await error(socket, "code") == ("beta_api_shape_disabled",)
        assert (await closed(socket))[0] == 4000


def on_respond(act):
    """An agent that acts on a request for a response."""

    async def agent(stream):
        await serve(stream, lambda frame: act(stream) if of_agent("respond")(frame) else None)

    return agent


def end_begun(stream):
    """The server ends a conversation that cannot go on elsewhere."""
    stream.say(protocol.SpeechStarted(at_ms=0))
    stream.end()


async def test_the_agent_hangs_up(gateway):
    one = await gateway(on_respond(lambda stream: stream.hang_up("silence")))
    async with session(one) as socket:
        await send(socket, "response.create")
        assert (await receive(socket, "response.done"))["response"]["status"] == "cancelled"
        assert await closed(socket) == (1000, "silence")


@pytest.mark.parametrize(
    ("agents", "settings", "code", "close_code"),
    [
        ([TooManySessionsError("full")], {"servers": {"attempts": 1}}, "too_many_sessions", 1013),
        ([on_respond(end_begun)], {}, "call_lost", 1011),
        ([], {"realtime": {"first_event_s": 0.05}}, "session_idle", 1008),
        ([], {"realtime": {"session_s": 0.2}}, "session_expired", 1008),
    ],
)
async def test_a_failed_session_sends_its_error_and_closes(gateway, agents, settings, code, close_code):
    one = await gateway(*agents, **settings)
    async with session(one) as socket:
        if code != "session_idle":
            await send(socket, "response.create")
        assert await error(socket, "code") == (code,)
        assert await closed(socket) == (close_code, code)
    await until(lambda: one.gateway.calls.count == 0)
    counted = [{code: 1}, {}]  # a refusal until the agent's session is open
    assert one.failures() == (counted[::-1] if code in ("call_lost", "session_expired") else counted)


async def refusing_voices(stream):
    """Refuses sessions with the voice "missing"."""
    start = await stream.frames.get()
    if json.loads(start.message).get("voice") != "missing":
        stream.frames.put_nowait(start)
        await serve(stream)
        return
    stream.say(protocol.ErrorEvent.of(UnsupportedVoiceError("no such voice")))
    stream.hang_up("failed")


async def test_a_session_goes_on_after_a_refused_first_update(gateway):
    one = await gateway(refusing_voices)
    async with session(one) as socket:
        voice = {"type": "realtime", "audio": {"output": {"voice": "missing"}}}
        await send(socket, "session.update", event_id="first", session=voice)
        await send(socket, "conversation.item.create", item=TEXT)
        assert await error(socket, "code", "event_id") == ("unsupported_voice", "first")
        await receive(socket, "conversation.item.added")
        await send(socket, "session.update", session={"type": "realtime", "instructions": "Be brief."})
        await frame_of(one.agents[0], of_agent("update"), number=1)
        assert "voice" not in json.loads(one.agents[0].streams[1].seen[0].message)
    assert one.failures()[0] == {"unsupported_voice": 1}


async def test_a_server_that_takes_no_audio_ends_the_session(gateway):
    def stall(stream):
        stream.say(protocol.SpeechStarted(at_ms=0))  # without a checkpoint it cannot go on elsewhere
        stream.may_send.clear()

    one = await gateway(on_respond(stall), calls={"send_s": 0.1, "close_s": 0.1}, realtime={"burst_s": 60.0})
    async with session(one) as socket:
        await send(socket, "response.create")
        await frame_of(one.agents[0], of_agent("respond"))
        await send(socket, "input_audio_buffer.append", audio=base64.b64encode(bytes(480_000)).decode())
        assert await error(socket, "code", "type") == ("deadline_exceeded", "server_error")
        assert await closed(socket) == (1013, "deadline_exceeded")


async def test_a_client_that_leaves_ends_its_call(gateway):
    one = await gateway()
    async with session(one) as socket:
        await open_session(socket)
    await until(lambda: one.gateway.calls.count == 0)
    assert any(frame.end for frame in one.agents[0].streams[0].seen)


async def test_a_silent_client_keeps_its_call(gateway):
    one = await gateway(realtime={"keep_alive_s": 0.02})
    async with session(one) as socket:
        await send(socket, "session.update", session={"type": "realtime"})
        frame = await frame_of(one.agents[0], of_agent("control"))
        assert json.loads(frame.message)["action"] == "unmute"


async def test_a_refusal_of_the_client_library_is_an_error_event(gateway):
    one = await gateway()
    async with session(one) as socket:
        # The gateway's limit is in characters, and the agent's in bytes.
        settings = {"type": "realtime", "instructions": "é" * 200_000}
        await open_session(socket)
        event = {"type": "session.update", "event_id": "big", "session": settings}
        await socket.send(json.dumps(event, ensure_ascii=False))
        assert await error(socket, "code", "event_id") == ("invalid_message", "big")


@pytest.mark.parametrize(
    "settings",
    [{"instructions": "x" * 300_000}, {"tools": [{"name": "x"}] * 129}, {"include": [""] * 20_000}],
)
async def test_secret_with_too_large_settings_is_refused(gateway, settings):
    one = await gateway()
    answer = await one.http.post("/v1/realtime/client_secrets", json={"session": settings})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


async def test_a_secret_has_its_session(gateway):
    one = await gateway()
    wanted = {
        "expires_after": {"anchor": "created_at", "seconds": 30},
        "session": {"type": "realtime", "instructions": "Be brief.", "model": "gpt-realtime-mini"},
    }
    answer = await one.http.post("/v1/realtime/client_secrets", json=wanted)
    assert answer.status_code == 200, answer.text
    secret = answer.json()
    assert secret["session"]["instructions"] == "Be brief."
    async with session(one, additional_headers={"Authorization": f"Bearer {secret['value']}"}) as socket:
        created = await receive(socket, "session.created")
        assert created["session"]["instructions"] == "Be brief."


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"session": {"type": "realtime", "voice": "x"}}, "unknown_parameter"),
        ({"expires_after": {"seconds": 5}}, "invalid_value"),
        ({"sessions": {}}, "unknown_parameter"),
        ({"session": {"type": "realtime", "tracing": json.loads("[" * 600 + "]" * 600)}}, "invalid_value"),
    ],
)
async def test_invalid_requests_for_a_secret_are_refused(gateway, body, code):
    one = await gateway()
    answer = await one.http.post("/v1/realtime/client_secrets", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("query", ["?model=x", "?intent=transcription"])
async def test_sessions_end_with_the_process(gateway, query):
    one = await gateway()
    async with session(one, query) as socket:
        await receive(socket, "session.created")
        one.gateway.calls.going_away.set()
        assert await closed(socket) == (1001, "going_away")
