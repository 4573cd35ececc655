"""Whether the models answer: asked in the background, shown to those who may see it."""

from __future__ import annotations

import asyncio
import json
import threading

import grpc
import pytest
from fake_agent import polite
from listening_gateway import WELL, until

from parley.canaries.asking import CanaryResult
from parley.errors import ModelUnavailableError
from parley_gateway.model_health import ModelHealth
from parley_gateway.security.keys import new_key
from parley_gateway.servers.load import ServerReport

QUICK = {"check_s": 0.01, "canary_s": 0.02}


def failed(model, detail="no answer within 5 s"):
    return CanaryResult(model, ok=False, duration_ms=5_000.0, detail=detail)


def report(*results):
    return [*WELL, *results]


async def asked(one, number=0, times=1):
    """Wait until the models of a server have been asked so often from now on, and the answer is there."""
    server = one.gateway.servers.all[number]
    before = sum(address == server.address for address, *_ in one.pool.asked)
    await until(lambda: sum(address == server.address for address, *_ in one.pool.asked) > before + times)


async def get(one, path, key=""):
    answer = await one.http.get(path, headers={"Authorization": f"Bearer {key}"} if key else {})
    return answer.status_code, answer.json()


async def test_a_server_whose_models_answer_is_ready(gateway):
    one = await gateway()
    await until(lambda: one.gateway.servers.all[0].models.results)
    assert await get(one, "/ready") == (200, {"ready": True})
    assert await get(one, "/health") == (
        200,
        {"status": "ok", "triton": "ready", "active_sessions": 0, "gpu_memory_free": None},
    )
    status, answer = await get(one, "/readyz")
    assert (status, answer["status"]) == (200, "ready")
    assert answer["models"]["server-0:1"]["models"][0]["model"] == "voice_agent"


async def test_no_request_makes_a_canary_run(gateway):
    one = await gateway(servers={"canary_s": 600.0})
    await until(lambda: one.gateway.servers.all[0].models.results)
    for path in ("/readyz", "/ready", "/health", "/healthz") * 5:
        assert (await one.http.get(path)).status_code == 200
    assert one.pool.asked == [("server-0:1", 5.0)]


async def test_a_model_that_fails_is_named_and_calls_go_on(gateway):
    one = await gateway(servers=QUICK)
    one.pool.reports["server-0:1"] = report(failed("espeak"))
    await asked(one)
    assert await get(one, "/ready") == (503, {"ready": False})
    status, answer = await get(one, "/health")
    assert (status, answer["status"]) == (200, "degraded")
    status, answer = await get(one, "/readyz")
    assert (status, answer["models"]["server-0:1"]["problem"]) == (200, "espeak failed")
    await one.create()
    well = CanaryResult("espeak", ok=True, duration_ms=1.0, detail="it answered")
    one.pool.reports["server-0:1"] = report(well)
    await asked(one)
    assert await get(one, "/ready") == (200, {"ready": True})


async def test_a_server_whose_agent_fails_twice_gets_no_calls(gateway):
    one = await gateway(servers=QUICK)
    await asked(one)
    one.pool.reports["server-0:1"] = [failed("voice_agent")]
    await asked(one, times=2)
    status, answer = await get(one, "/readyz")
    assert (status, answer["error"]["code"]) == (503, "no_server_ready")
    assert answer["models"]["server-0:1"]["problem"] == "voice_agent: no answer within 5 s"
    status, answer = await get(one, "/health")
    assert (status, answer["status"], answer["triton"]) == (503, "unavailable", "ready")
    one.pool.reports.clear()
    await until(lambda: one.gateway.servers.is_ready)


@pytest.mark.parametrize(
    ("state", "reason", "message"),
    [
        (
            grpc.ChannelConnectivity.TRANSIENT_FAILURE,
            "no_server",
            "nothing answers at server-0:1, server-1:1",
        ),
        (grpc.ChannelConnectivity.READY, "not_ready", "not ready: server-0:1 (loading)"),
    ],
)
async def test_readyz_reason_distinguishes_no_server_from_not_ready(
    gateway, monkeypatch, state, reason, message
):
    one = await gateway(polite, polite)
    first, other = one.gateway.servers.all
    for server in (first, other):
        one.pool.problems[server.address] = ModelUnavailableError("loading")
        server.doubt(ModelUnavailableError("loading"))
    monkeypatch.setattr(first.channel, "get_state", lambda: state)
    monkeypatch.setattr(other.channel, "get_state", lambda: grpc.ChannelConnectivity.CONNECTING)
    status, answer = await get(one, "/readyz")
    assert (status, answer["error"]["code"]) == (503, "no_server_ready")
    assert (answer["reason"], answer["error"]["message"]) == (reason, message)


async def test_the_addresses_of_servers_are_not_for_everyone(gateway, tmp_path):
    (tmp_path / "keys.toml").write_text(new_key("one", ["agent"]).line + "\n")
    one = await gateway(security={"keys_file": str(tmp_path / "keys.toml")})
    one.pool.problems["server-0:1"] = ModelUnavailableError("down")
    one.gateway.servers.all[0].doubt(ModelUnavailableError("down"))
    _, answer = await get(one, "/readyz")
    assert (answer["reason"], answer["error"]["message"]) == (
        "not_ready",
        "a server answers, but it is not ready",
    )
    assert "server-0" not in json.dumps(answer)


async def test_a_server_that_is_whole_makes_the_gateway_ready(gateway):
    one = await gateway(polite, polite, servers=QUICK)
    one.pool.reports["server-0:1"] = report(failed("qwen3"))
    await asked(one)
    await asked(one, 1)
    assert await get(one, "/ready") == (200, {"ready": True})


async def test_canary_results_of_a_lost_server_are_dropped(gateway):
    one = await gateway(servers=QUICK)
    (server,) = one.gateway.servers.all
    await until(lambda: server.models.results)
    one.pool.problems["server-0:1"] = ModelUnavailableError("gone")
    await until(lambda: not server.is_reachable)
    assert (server.models.results, server.models.problem) == ((), "the server does not answer")
    assert (await get(one, "/ready"))[0] == 503
    assert (await get(one, "/health"))[1]["triton"] == "unavailable"
    one.pool.problems.clear()
    await until(lambda: server.models.results)
    assert (await get(one, "/ready"))[0] == 200


async def test_a_gateway_that_drains_is_not_ready(gateway):
    one = await gateway()
    one.gateway.calls.drain_began.set()
    assert (await get(one, "/ready"))[0] == 503
    status, answer = await get(one, "/health")
    assert (status, answer["status"]) == (503, "draining")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (ModelUnavailableError("no connection"), "no connection"),
        (RuntimeError("a bug"), "the models could not be asked: RuntimeError"),
        ([], "voice_agent failed"),
        (report(failed("espeak"), failed("qwen3")), "espeak, qwen3 failed"),
    ],
)
async def test_no_answer_is_a_problem_too(gateway, answer, problem):
    one = await gateway(servers=QUICK)
    one.pool.reports["server-0:1"] = answer
    await asked(one)
    assert one.gateway.servers.all[0].models.problem == problem


async def test_a_model_that_has_to_be_there_and_is_not(gateway):
    one = await gateway(servers={"models": ["voice_agent", "qwen3"]})
    models = one.gateway.servers.all[0].models
    await until(lambda: models.results)
    assert {result.model: result.detail for result in models.results if not result.ok} == {
        "qwen3": "not loaded"
    }
    assert (await get(one, "/ready"))[0] == 503


async def test_a_model_that_the_server_no_longer_names_is_missed(gateway):
    one = await gateway(servers=QUICK)
    models = one.gateway.servers.all[0].models
    one.pool.reports["server-0:1"] = report(CanaryResult("qwen3", ok=True, duration_ms=1.0, detail="ok"))
    await until(lambda: len(models.results) == 2 and not models.problem)
    one.pool.reports["server-0:1"] = report()
    await until(lambda: models.problem)
    assert models.problem == "qwen3 failed"
    assert (await get(one, "/ready"))[0] == 503


async def test_an_answer_that_is_too_old_is_none():
    hangs = threading.Event()
    calls = []

    def ask(*_):
        calls.append(None)
        if len(calls) > 1:
            hangs.wait(30)
        return WELL

    health = ModelHealth("a:1", interval_s=0.01, retry_s=0.01, deadline_s=0.01, ask=ask)
    health.set_reachable(is_reachable=True)
    watch = asyncio.create_task(health.watch())
    try:
        await until(lambda: len(calls) > 1)
        await until(lambda: health.problem == "the last report is too old")
        assert len(calls) == 2
    finally:
        hangs.set()
        watch.cancel()
        await asyncio.wait([watch])


async def test_state_of_models_and_memory_needs_the_admin_scope(gateway, tmp_path):
    plain, admin = new_key("plain", ["agent"]), new_key("ops", ["admin"])
    keys = tmp_path / "keys.toml"
    keys.write_text(f"{plain.line}\n{admin.line}\n")
    one = await gateway(security={"keys_file": str(keys)}, servers={"load_s": 0.01})
    one.pool.metrics["server-0:1"] = ServerReport(gpu_memory_free=7)
    (server,) = one.gateway.servers.all
    await until(lambda: server.gpu_memory_free == 7)
    for key in ("", plain.secret, "wrong"):
        status, answer = await get(one, "/readyz", key)
        assert (status, sorted(answer)) == (200, ["calls", "servers", "status"])
        assert await get(one, "/ready", key) == (200, {"ready": True})
        assert (await get(one, "/health", key))[1]["gpu_memory_free"] is None
    assert "models" in (await get(one, "/readyz", admin.secret))[1]
    assert (await get(one, "/health", admin.secret))[1]["gpu_memory_free"] == 7


async def test_a_page_of_another_name_sees_nothing_of_them_either(gateway):
    one = await gateway(servers={"load_s": 0.01})
    one.pool.metrics["server-0:1"] = ServerReport(gpu_memory_free=7)
    (server,) = one.gateway.servers.all
    await until(lambda: server.gpu_memory_free == 7)
    evil = {"Host": "evil.example"}
    answer = await one.http.get("/readyz", headers=evil)
    assert (answer.status_code, sorted(answer.json())) == (200, ["calls", "servers", "status"])
    assert (await one.http.get("/health", headers=evil)).json()["gpu_memory_free"] is None


async def test_servers_that_hang_take_no_threads_of_the_event_loop():
    hangs = threading.Event()
    names = []

    def ask(*_):
        names.append(threading.current_thread().name)
        hangs.wait(30)
        return WELL

    health = ModelHealth("a:1", interval_s=1.0, retry_s=1.0, deadline_s=1.0, ask=ask)
    health.set_reachable(is_reachable=True)
    watch = asyncio.create_task(health.watch())
    try:
        await until(lambda: names)
        assert names[0].startswith("models-a:1")
    finally:
        hangs.set()
        watch.cancel()
        await asyncio.wait([watch])
