"""Calls of a gateway that outlive their server; the client of the gateway notices nothing."""

import json

from fake_agent import FakeStream, polite
from listening_gateway import closed, receive, until
from resuming_agent import Session, frame, send_away, serve_session

from parley import protocol
from parley.errors import ModelUnavailableError, TooManySessionsError, UnsupportedVoiceError
from parley_client.errors import ConnectError
from parley_gateway.servers.load import ServerReport

GONE = ModelUnavailableError("Socket closed")


class Agent:
    """Notes its sessions."""

    def __init__(self):
        self.sessions: list[Session] = []

    async def __call__(self, stream: FakeStream) -> None:
        await serve_session(stream, self.sessions.append)


async def all_until_closed(socket):
    return [json.loads(message) async for message in socket if isinstance(message, str)]


async def test_a_session_goes_on_at_another_server(gateway, caplog):
    first, second = Agent(), Agent()
    one = await gateway(first, second)
    servers = one.gateway.servers.all
    with caplog.at_level("INFO", "parley.audit"):
        async with one.stream() as socket:
            await receive(socket, "connected")
            await socket.send(frame(1) + frame(0))
            await receive(socket, "metrics")
            await socket.send(frame(0) + frame(2))
            await receive(socket, "speech_started")
            used, other = (first, second) if first.sessions else (second, first)
            used.sessions[0].stream.fail(GONE)
            await socket.send(frame(0))
            await receive(socket, "speech_stopped")
            await until(lambda: sorted(server.users for server in servers) == [0, 1])
            await socket.send(json.dumps({"type": "control", "action": "hangup"}))
            rest = await all_until_closed(socket)
    kinds = [event["type"] for event in rest]
    assert kinds.count("response_done") == kinds.count("closed") == 1
    assert not {"connected", "reconnecting", "reconnected", "checkpoint", "error"} & set(kinds)
    assert [event["response_id"] for event in rest if event["type"] == "response_done"] == ["r2"]
    (session,) = other.sessions
    assert session.messages[0].content == "1"
    assert [m.content for m in session.messages if m.role == "user"] == ["1", "2"]
    assert await one.metric("parley_gateway_moves_total") == 1
    moved = [message for message in caplog.messages if '"event":"call_moved"' in message]
    assert len(moved) == 1
    await until(lambda: all(server.users == 0 for server in servers))


async def test_history_of_an_open_session_has_what_was_played(gateway):
    agent = Agent()
    one = await gateway(agent)
    async with one.stream() as socket:
        await receive(socket, "connected")
        path = f"/v1/sessions/{socket.session_id}/history"
        assert (await one.http.get(path)).json() == {
            "session_id": socket.session_id,
            "messages": [],
            "summary": "",
        }
        await socket.send(frame(1) + frame(0))
        await receive(socket, "metrics")

        async def messages():
            return (await one.http.get(path)).json()["messages"]

        while len(await messages()) < 2:  # the last checkpoint comes behind it
            pass
        played = agent.sessions[0].messages
        assert await messages() == [{"role": one.role, "content": one.content} for one in played]
        await socket.send(json.dumps({"type": "control", "action": "hangup"}))
        await closed(socket)
    answer = await one.http.get(path)
    while answer.status_code == 200:
        answer = await one.http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "session_expired")


async def test_a_call_that_finds_no_other_server_goes_back_to_its_own(gateway):
    agent = Agent()
    one = await gateway(agent)
    async with one.stream() as socket:
        await receive(socket, "connected")
        await socket.send(frame(1))
        await receive(socket, "speech_started")
        agent.sessions[0].stream.fail(GONE)
        await socket.send(frame(0))
        done = await receive(socket, "response_done")
        await socket.send(json.dumps({"type": "control", "action": "hangup"}))
    assert done["response_id"] == "r1"
    assert len(agent.sessions) == 2
    call_id, moved_id = one.agents[0].call_ids
    assert moved_id == f"{call_id}.1"


async def test_a_server_that_refuses_a_call_that_moves_is_not_asked_again_at_once(gateway):
    agent = Agent()
    full = TooManySessionsError("full")
    one = await gateway(agent, full, ConnectError("down"))
    async with one.stream() as socket:
        await receive(socket, "connected")
        await socket.send(frame(1))
        await receive(socket, "speech_started")
        agent.sessions[0].stream.fail(GONE)
        await socket.send(frame(0))
        await receive(socket, "response_done")
    assert len(agent.sessions) == 2
    lines = (await one.http.get("/metrics")).text.splitlines()
    moves = {
        line.split(" ")[0]: float(line.split(" ")[1]) for line in lines if "gateway_moves_total{" in line
    }
    assert moves['parley_gateway_moves_total{outcome="moved",reason="lost"}'] == 1
    assert moves['parley_gateway_moves_total{outcome="failed",reason="lost"}'] >= 1


async def test_a_call_that_leaves_a_server_asks_every_other_one(gateway):
    agents = [Agent() for _ in range(3)]
    refused = []

    def serve(agent):
        async def refuse_once(stream):
            first = await stream.frames.get()
            if protocol.decode_message(first.message).resume is not None and not refused:
                refused.append(agent)
                stream.say(protocol.ErrorEvent.of(TooManySessionsError("full", retry_after_s=60.0)))
                stream.hang_up("failed")
                return
            stream.frames.put_nowait(first)
            await agent(stream)

        return refuse_once

    one = await gateway(*map(serve, agents), servers={"load_s": 0.01})
    async with one.stream() as socket:
        await receive(socket, "connected")
        (number,) = (number for number, agent in enumerate(agents) if agent.sessions)
        used = one.gateway.servers.all[number]
        one.pool.metrics[used.address] = ServerReport(1, draining=True)
        await until(lambda: used.is_draining)
        send_away(agents[number].sessions[0].stream)
        await until(lambda: sum(len(agent.sessions) for agent in agents) == 2)
        await socket.send(frame(1) + frame(0))
        await receive(socket, "response_done")
    assert refused


async def test_a_call_does_not_wait_for_full_servers_when_its_own_is_back(gateway):
    agent, asked = Agent(), []

    async def is_full(stream):
        start = protocol.decode_message((await stream.frames.get()).message)
        asked.append(start.resume is not None)
        stream.say(protocol.ErrorEvent.of(TooManySessionsError("full", retry_after_s=60.0)))
        stream.hang_up("failed")

    one = await gateway(agent, is_full)
    own = one.gateway.servers.all[0]
    async with one.stream() as socket:
        await receive(socket, "connected")
        await socket.send(frame(1))
        await receive(socket, "speech_started")
        one.pool.problems[own.address] = GONE
        own.doubt(GONE)
        agent.sessions[0].stream.fail(GONE)
        await until(lambda: True in asked)
        del one.pool.problems[own.address]
        await socket.send(frame(0))
        await receive(socket, "response_done")


async def test_every_ready_server_is_asked_before_a_call_ends(gateway):
    agent, asked = Agent(), 0

    async def refuses_four_times(stream):
        nonlocal asked
        first = await stream.frames.get()
        asked += protocol.decode_message(first.message).resume is not None
        if 1 <= asked <= 4:
            stream.say(protocol.ErrorEvent.of(UnsupportedVoiceError("no such voice")))
            stream.hang_up("failed")
            return
        stream.frames.put_nowait(first)
        await agent(stream)

    one = await gateway(*[refuses_four_times] * 5)
    async with one.stream() as socket:
        await receive(socket, "connected")
        await socket.send(frame(1))
        await receive(socket, "speech_started")
        agent.sessions[0].stream.fail(GONE)
        await socket.send(frame(0))
        await receive(socket, "response_done")
    assert asked == 5


async def test_call_that_moves_may_exceed_the_limit_of_a_server(gateway):
    agents = Agent(), Agent()
    one = await gateway(*agents, servers={"sessions": 1})
    async with one.stream() as socket, one.stream() as other:
        for each in (socket, other):
            await receive(each, "connected")
        await socket.send(frame(1))
        await receive(socket, "speech_started")
        used = next(agent for agent in agents if agent.sessions[0].words)
        used.sessions[0].stream.fail(GONE)
        await socket.send(frame(0))
        await receive(socket, "response_done")


async def test_a_call_that_every_server_refuses_to_resume_is_counted_as_lost(gateway):
    agent = Agent()

    async def refuses_to_resume(stream):
        first = await stream.frames.get()
        if protocol.decode_message(first.message).resume is not None:
            stream.say(protocol.ErrorEvent.of(UnsupportedVoiceError("no such voice")))
            stream.hang_up("failed")
            return
        stream.frames.put_nowait(first)
        await agent(stream)

    one = await gateway(refuses_to_resume, refuses_to_resume)
    async with one.stream() as socket:
        await receive(socket, "connected")
        await socket.send(frame(1))
        await receive(socket, "speech_started")
        agent.sessions[0].stream.fail(GONE)
        assert (await receive(socket, "error"))["code"] == UnsupportedVoiceError.code
        await closed(socket)
    assert one.failures() == [{}, {"call_lost": 1}]


async def test_a_call_without_a_server_is_lost_in_time(gateway):
    async def breaks(stream):
        Session(stream, protocol.decode_message((await stream.frames.get()).message))
        stream.fail(GONE)

    one = await gateway((breaks, GONE), calls={"resume_s": 0.2})
    async with one.stream() as socket:
        await receive(socket, "connected")
        code, reason = await closed(socket)
    assert (code, reason) != (1000, "")
    assert await one.metric("parley_gateway_calls_lost_total") == 1


async def test_a_session_cannot_be_opened_as_one_that_goes_on(gateway):
    one = await gateway(polite)
    for option in ({"resume": {"state": {"version": 1}}}, {"resume": {"token": "t", "state": {}}}):
        answer = await one.http.post("/v1/sessions", json=option)
        assert answer.status_code == 400, answer.text
