"""Which server takes a call, and how a process that shuts down ends its calls."""

import asyncio
import gc
import json
import logging
import os
import signal
from collections import Counter

import httpx
import pytest
from fake_agent import CONNECTED, polite
from listening_gateway import (
    DEADLINE_S,
    GatewayUnderTest,
    closed,
    fake_servers,
    receive,
    until,
)
from websockets.exceptions import InvalidStatus

from parley import protocol
from parley.errors import (
    DeadlineExceededError,
    ModelUnavailableError,
    TooManySessionsError,
    UnsupportedVoiceError,
)
from parley_client.call import Call
from parley_client.errors import ConnectError
from parley_gateway import serving
from parley_gateway.errors import NoServerReadyError
from parley_gateway.security.principal import ANONYMOUS, Principal
from parley_gateway.servers import ServerSettings
from parley_gateway.servers import server as server_module


async def stubborn(stream):
    """Never says goodbye."""
    await stream.frames.get()
    stream.say(CONNECTED)
    await asyncio.Event().wait()


async def open_and_close(one):
    async with one.gateway.calls.open(protocol.Start(), principal=ANONYMOUS, api="test") as call:
        return call.id


@pytest.mark.parametrize("given", ["", "chosen by the client"])
async def test_prefix_cache_of_a_call_is_that_of_its_key(gateway, given):
    """Whatever the client sends."""
    streams = []

    async def noting(stream):
        streams.append(stream)
        await polite(stream)

    one = await gateway(noting)
    scopes = frozenset({"agent"})
    ann, bob = (Principal(id=name, scopes=scopes) for name in ("ann", "bob"))
    browser = Principal(id="ann", scopes=scopes, kind="token")
    telephone = Principal(id="twilio", scopes=scopes, kind="signature")
    for principal in (ann, browser, bob, ANONYMOUS, telephone):
        start = protocol.Start(cache_salt=given)
        async with one.gateway.calls.open(start, principal=principal, api="test"):
            pass
    first, second, third, *shared = (
        protocol.decode_start(stream.seen[0].message).cache_salt for stream in streams
    )
    assert first == second
    assert len({first, third, given, ""}) == len({given, ""}) + 2
    assert shared == ["", ""]  # the agent gives each session one of its own


# --- which server ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal", [ConnectError("down"), TooManySessionsError("full"), ModelUnavailableError("gone")]
)
async def test_another_server_takes_a_call_that_one_refuses(gateway, refusal):
    one = await gateway(refusal, polite)
    call_id = await open_and_close(one)
    assert one.agents[1].call_ids == [call_id]
    assert await one.metric("parley_gateway_failovers_total") == 1


async def test_only_servers_that_could_not_be_reached_are_left_out_afterwards(gateway):
    one = await gateway(TooManySessionsError("full"), polite)
    await open_and_close(one)
    assert all(server.is_ready for server in one.gateway.servers.all)
    other = await gateway(ConnectError("down"), polite, servers={"retry_s": 50.0, "retry_max_s": 50.0})
    await open_and_close(other)
    assert [server.is_ready for server in other.gateway.servers.all] == [False, True]


async def test_a_refusal_for_good_is_not_tried_elsewhere(gateway):
    one = await gateway(UnsupportedVoiceError("no such voice"), polite)
    with pytest.raises(UnsupportedVoiceError):
        await open_and_close(one)
    assert one.agents[1].streams == []


async def test_last_refusal_is_returned_without_a_ready_server(gateway):
    one = await gateway(TooManySessionsError("full"), TooManySessionsError("full too"))
    with pytest.raises(TooManySessionsError, match="full"):
        await open_and_close(one)
    assert one.gateway.calls.count == 0
    assert [server.users for server in one.gateway.servers.all] == [0, 0]


async def test_only_so_many_servers_are_tried(gateway):
    full = TooManySessionsError("full")
    one = await gateway(full, full, full, servers={"attempts": 2})
    with pytest.raises(TooManySessionsError):
        await open_and_close(one)
    assert await one.metric("parley_gateway_failovers_total") == 2


async def test_a_server_that_says_nothing_is_given_up_in_time(gateway):
    async def silent(stream):
        await asyncio.Event().wait()

    one = await gateway(silent, polite, calls={"attempt_s": 0.05, "close_s": 0.05})
    await open_and_close(one)
    assert one.agents[1].streams


async def test_opening_a_call_has_a_deadline_over_all_servers(gateway):
    async def silent(stream):
        await asyncio.Event().wait()

    one = await gateway(silent, silent, calls={"attempt_s": 0.1, "open_s": 0.12, "close_s": 0.05})
    with pytest.raises(DeadlineExceededError):
        await open_and_close(one)


async def test_a_server_that_is_not_ready_is_left_out_until_it_is():
    problems = {"a:1": ModelUnavailableError("loading")}

    async def probe(channel, _):
        if channel.address in problems:
            raise problems[channel.address]

    settings = ServerSettings(addresses=("a:1", "b:1"), check_s=0.01, retry_s=0.01, retry_max_s=0.01)
    async with fake_servers(settings, probe=probe) as servers:
        first, second = servers.all
        assert (first.is_ready, first.problem) == (False, "loading")
        assert {servers.lease().server for _ in range(4)} == {second}
        with pytest.raises(NoServerReadyError):
            servers.lease(excluding=[second])
        problems.clear()
        await until(lambda: first.is_ready)
        assert {servers.lease().server for _ in range(4)} == {first, second}
        problems["b:1"] = ModelUnavailableError("gone")
        await until(lambda: not second.is_ready)
        assert servers.is_ready


async def test_a_check_that_fails_itself_is_written_down_and_made_again(caplog):
    answers = [None, RuntimeError("of gRPC"), RuntimeError("of gRPC"), None]
    problems = []

    async def probe(*_):
        problems.append(servers.all[0].problem)
        answer = answers.pop(0) if answers else None
        if answer is not None:
            raise answer

    settings = ServerSettings(check_s=0.001, retry_s=0.001, retry_max_s=0.001)
    servers = fake_servers(settings, probe=probe)
    async with servers:
        await until(lambda: len(problems) >= 6)
        assert servers.is_ready
    assert problems[2] == problems[3] == "the check failed: RuntimeError"
    assert [record.message for record in caplog.records if record.exc_info] == [
        f"the check of server {servers.all[0].address} failed"
    ] * 2


async def test_changes_of_a_server_are_one_log_line_each(caplog):
    answers = [ModelUnavailableError("refused")] * 3 + [None] * 2 + [ModelUnavailableError("gone")] * 2
    asked = []

    async def probe(*_):
        asked.append(None)
        if len(asked) > len(answers):
            await asyncio.Event().wait()
        if answer := answers[len(asked) - 1]:
            raise answer

    settings = ServerSettings(check_s=0.001, retry_s=0.001, retry_max_s=0.001)
    caplog.set_level(logging.DEBUG, "parley.gateway")
    async with fake_servers(settings, probe=probe) as servers:
        await until(lambda: len(asked) > len(answers))
        address = servers.all[0].address
    lines = [(one.levelname, one.message) for one in caplog.records if one.message.startswith("server")]
    assert lines == [
        ("DEBUG", f"server {address} is not ready: refused"),
        ("INFO", f"server {address} is ready"),
        ("WARNING", f"server {address} is left out: gone"),
    ]


async def test_a_server_is_checked_more_often_while_none_is_ready(monkeypatch):
    monkeypatch.setattr(server_module, "_MAX_CHECK_INTERVAL_S", 0.001)
    problems = dict.fromkeys(("a:1", "b:1"), ModelUnavailableError("loading"))
    checks = Counter()

    async def probe(channel, _):
        checks[channel.address] += 1
        if channel.address in problems:
            raise problems[channel.address]

    settings = ServerSettings(addresses=("a:1", "b:1"), check_s=0.01, retry_s=100.0, retry_max_s=100.0)
    async with fake_servers(settings, probe=probe) as servers:
        first, second = servers.all
        await until(lambda: min(checks.values()) > 3)
        del problems["a:1"]
        await until(lambda: first.is_ready)
        seen, before = checks["b:1"], checks["a:1"]
        await until(lambda: checks["a:1"] > before + 5)
        assert checks["b:1"] <= seen + 1  # one may have been on its way
        problems["a:1"] = ModelUnavailableError("gone")
        problems.pop("b:1")
        await until(lambda: second.is_ready)


async def test_server_is_lost_after_two_late_answers():
    answers = asyncio.Queue()
    checked = asyncio.Queue()

    async def probe(*_):
        checked.put_nowait(None)
        answer = await answers.get()
        if answer is not None:
            raise answer

    settings = ServerSettings(check_s=0.001, retry_s=0.001, retry_max_s=0.001, check_timeout_s=0.01)
    late = DeadlineExceededError("late")
    async with fake_servers(settings, probe=probe) as servers:
        (server,) = servers.all
        for answer, is_ready in ((None, True), (late, True), (None, True), (late, True), (late, False)):
            await checked.get()
            answers.put_nowait(answer)
            await until(answers.empty)
            await until(lambda wanted=is_ready: server.is_ready is wanted)
            assert server.is_ready is is_ready


# --- room and drain ---------------------------------------------------------------------------


async def test_a_call_that_is_cancelled_leaves_nothing(gateway):
    one = await gateway(stubborn, calls={"close_s": 0.05})
    entered = asyncio.Event()

    async def hold():
        async with one.gateway.calls.open(protocol.Start(), principal=ANONYMOUS, api="test"):
            entered.set()
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    await entered.wait()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert one.gateway.calls.count == 0
    assert one.agents[0].streams[0].cancelled.is_set()
    assert await one.metric("parley_gateway_calls") == 0


@pytest.mark.parametrize("ends", [True, False])
async def test_a_call_whose_api_does_not_wait_for_its_end_is_written_down(gateway, caplog, monkeypatch, ends):
    caplog.set_level(logging.INFO, "parley.audit")
    if not ends:
        monkeypatch.setattr(Call, "aclose", lambda _: asyncio.Event().wait())
    one = await gateway(stubborn, calls={"close_s": 0.05})
    entered = asyncio.Event()

    async def hold():
        async with one.gateway.calls.open(protocol.Start(), principal=ANONYMOUS, api="test") as call:
            entered.set()
            call_ids.append(call.id)
            await asyncio.Event().wait()

    call_ids = []
    holding = asyncio.create_task(hold())
    await entered.wait()
    holding.cancel()
    await until(lambda: any(task.get_name() == f"close-{call_ids[0]}" for task in asyncio.all_tasks()))
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    await one.gateway.calls.aclose()
    assert not any(task.get_name().startswith("close-") for task in asyncio.all_tasks())
    lines = [json.loads(record.message) for record in caplog.records if record.name == "parley.audit"]
    (line,) = (line for line in lines if line["event"] == "call_closed")
    assert (line["call"], line["api"], line["reason"]) == (call_ids[0], "test", "lost")


async def test_a_drain_takes_no_new_calls_and_lets_the_old_ones_finish(gateway):
    one = await gateway()
    waiting = await one.create()
    async with one.stream() as socket:
        await receive(socket, "connected")
        draining = asyncio.create_task(one.gateway.calls.drain(30.0))
        await until(lambda: one.gateway.calls.draining)
        ready = await one.http.get("/readyz")
        assert (ready.status_code, ready.json()["error"]["code"]) == (503, "shutting_down")
        assert "parley_gateway_draining 1.0" in (await one.http.get("/metrics")).text
        new = await one.http.post("/v1/sessions")
        assert (new.status_code, new.json()["error"]["code"]) == (503, "shutting_down")
        assert new.headers["Retry-After"]
        with pytest.raises(InvalidStatus, match="503"):
            async with one.stream(waiting):
                pass
        assert not draining.done()
        await socket.send('{"type": "control", "action": "hangup"}')
        assert await closed(socket) == (1000, "ended")
    async with asyncio.timeout(5):
        await draining


@pytest.mark.parametrize("agent", [polite, stubborn])
async def test_calls_after_the_drain_end_with_going_away(gateway, agent):
    one = await gateway(agent, calls={"close_s": 0.1})
    async with one.stream() as socket:
        await receive(socket, "connected")
        async with asyncio.timeout(10):
            await one.gateway.calls.drain(0.01)
        assert await closed(socket) == (1001, "going_away")
    assert one.gateway.calls.count == 0


async def test_signals_drain_and_the_second_ends_at_once(monkeypatch):
    one = GatewayUnderTest((stubborn,), {"listen": {"drain_s": 60.0}, "calls": {"close_s": 0.2}})
    monkeypatch.setattr(serving, "create_app", lambda _: one.app)
    ready = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serving.serve(one.settings, ready.set_result))
    one.url = (await asyncio.wait_for(ready, DEADLINE_S)).url
    async with httpx.AsyncClient(timeout=30, base_url=one.url) as one.http, one.stream() as socket:
        await receive(socket, "connected")
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: one.gateway.calls.draining)
        assert (await one.http.get("/readyz")).status_code == 503
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_S):
            await task
        assert (await closed(socket))[0] in (1001, 1006, 1012)
    await until(lambda: one.gateway.calls.count == 0)
    await one.stop()


async def test_a_full_collection_does_not_visit_what_was_there_at_the_start(monkeypatch):
    one = GatewayUnderTest((polite,), {})
    monkeypatch.setattr(serving, "create_app", lambda _: one.app)
    ready = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serving.serve(one.settings, ready.set_result))
    await asyncio.wait_for(ready, DEADLINE_S)
    assert gc.get_freeze_count() > len(gc.get_objects())
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(DEADLINE_S):
        await task
    assert gc.get_freeze_count() == 0
    await one.stop()
