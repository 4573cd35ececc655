"""``/v1/agent``: what the agent has, asked of the agent itself."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from fake_agent import polite
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley import protocol
from parley_gateway.doors import agent as agent_door
from parley_gateway.security.keys import new_key

DESCRIPTION = protocol.AgentDescription(
    recognizer="hears_german",
    language_model="qwen3",
    synthesizers=["espeak"],
    languages=["en", "de", "de-at", "fr"],
    voices=["man-1"],
    tools=["get_weather"],
    examples=["hello"],
)


async def describing(stream):
    frame = await stream.frames.get()
    start = protocol.decode_message(frame.message)
    assert start.describe
    assert start.greeting == start.system_prompt == ""
    stream.say(protocol.Connected(session_id="fake", output_sample_rate=22_050, agent=DESCRIPTION))
    while (frame := await stream.frames.get()) is not None:
        if frame.end:
            stream.hang_up()
        stream.acknowledge(frame)
    stream.end()


class Configurations(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Triton, as far as it tells how models are configured."""

    def __init__(self, languages):
        self.languages = languages

    async def ModelConfig(self, request, context):  # noqa: N802 - gRPC's name
        answer = service_pb2.ModelConfigResponse()
        answer.config.name = request.name
        if self.languages is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no such model")
        answer.config.parameters["languages"].string_value = self.languages
        return answer


@asynccontextmanager
async def configured(one, languages):
    """The gateway's only server tells this of its recogniser."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Configurations(languages), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    (behind,) = one.gateway.servers.all
    behind.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    one.pool.channels[id(behind.channel)] = behind.address
    yield
    await behind.channel.close()
    await server.stop(None)


@pytest.mark.parametrize(
    ("understood", "languages"),
    [
        ("en, de", ["en", "de", "de-at"]),
        ("de", ["de", "de-at"]),
        # Configurations that name none, or cannot be had: what is spoken.
        ("", DESCRIPTION.languages),
        (None, DESCRIPTION.languages),
    ],
)
async def test_languages_are_those_that_are_spoken_and_understood(gateway, understood, languages):
    one = await gateway(describing)
    async with configured(one, understood):
        answer = await one.http.get("/v1/agent")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "recognizer": "hears_german",
        "language_model": "qwen3",
        "synthesizers": ["espeak"],
        "languages": languages,
        "voices": ["man-1"],
        "tools": ["get_weather"],
        "examples": ["hello"],
    }
    (call_id,) = one.agents[0].call_ids
    assert call_id.startswith(protocol.CANARY_PREFIX), "it takes no caller's place"


async def test_the_agent_is_asked_once_for_many_and_again_later(gateway, monkeypatch):
    one = await gateway(describing)
    async with configured(one, "en"):
        for _ in range(3):
            await one.http.get("/v1/agent")
        assert len(one.agents[0].call_ids) == 1
        monkeypatch.setattr(agent_door, "_KEPT_S", 0.0)
        await one.http.get("/v1/agent")
        assert len(one.agents[0].call_ids) == 2


async def test_an_agent_that_does_not_tell_is_an_error_and_so_is_none(gateway, monkeypatch):
    monkeypatch.setattr(agent_door, "_FAILED_S", 0.0)
    one = await gateway(polite)
    answer = await one.http.get("/v1/agent")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
    one.gateway.servers.all[0]._is_reachable = False
    answer = await one.http.get("/v1/agent")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server_ready")


async def test_who_may_not_talk_to_the_agent_is_not_told(gateway, tmp_path):
    key = new_key("reader", ["transcribe"])
    keys = tmp_path / "keys.toml"
    keys.write_text(key.line + "\n")
    one = await gateway(describing, security={"keys_file": str(keys)})
    assert (await one.http.get("/v1/agent")).status_code == 401
    answer = await one.http.get("/v1/agent", headers={"Authorization": f"Bearer {key.secret}"})
    assert answer.status_code == 403
    assert one.agents[0].call_ids == []


async def test_those_who_waited_for_a_failure_do_not_ask_again(gateway, monkeypatch):
    async def silent(stream):
        await stream.frames.get()
        stream.say(protocol.Connected(session_id="s", output_sample_rate=22_050))  # an older agent
        while (frame := await stream.frames.get()) is not None:
            if frame.end:
                stream.hang_up()
            stream.acknowledge(frame)
        stream.end()

    monkeypatch.setattr(agent_door, "_FAILED_S", 60.0)
    one = await gateway(silent)
    answers = await asyncio.gather(*(one.http.get("/v1/agent") for _ in range(5)))
    assert {answer.status_code for answer in answers} == {503}
    assert len(one.agents[0].call_ids) == 1
