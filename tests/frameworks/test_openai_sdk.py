"""The OpenAI Python SDK talks to the agent over its Realtime API."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from conftest import ROOT, open_gateway, running, wait_for
from openai import AsyncOpenAI
from realtime_call import INSTRUCTIONS, TOOLS, Caller, spoken, words


@asynccontextmanager
async def connected(gateway, *, session=None, model="gpt-realtime", **options):
    """A caller whose events the SDK sends and reads; ``options`` are of its ``connect``."""
    client = AsyncOpenAI(api_key="none", base_url=f"{gateway}/v1")
    async with client.realtime.connect(model=model, **options) as connection:
        caller = Caller(connection.send)

        async def read():
            async for event in connection:
                caller.note(event.to_dict())

        reading = asyncio.create_task(read())
        try:
            await caller.wait("session.created")
            if session is not None:
                await connection.session.update(session=session)
                await caller.wait("session.updated")
            yield caller
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def speaking(caller):
    """Its microphone is on."""
    task = asyncio.create_task(caller.speak())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def realtime_session(turn_detection, **fields):
    return {
        "type": "realtime",
        "instructions": INSTRUCTIONS,
        "tools": TOOLS,
        "audio": {
            "input": {"turn_detection": turn_detection, "transcription": {"model": "gpt-4o-transcribe"}}
        },
        **fields,
    }


@pytest.mark.parametrize(
    "turn_detection",
    [{"type": "semantic_vad", "eagerness": "high"}, {"type": "server_vad", "silence_duration_ms": 400}],
    ids=["semantic", "server"],
)
async def test_holds_a_conversation(gateway, turn_detection):
    async with connected(gateway, session=realtime_session(turn_detection)) as caller, speaking(caller):
        caller.microphone.say("02-weather")
        heard = await caller.wait("conversation.item.input_audio_transcription.completed")
        assert "weather" in heard["transcript"]
        calls = await caller.answer_call(await caller.wait_done())
        assert [call["name"] for call in calls] == ["get_weather"]
        answer = await caller.wait_done(since=caller.count)
        assert {"8", "foggy"} <= set(words(spoken(answer)))
        assert answer["usage"]["output_tokens"] > 0

        since = caller.count
        caller.microphone.say("06-story")
        delta = await caller.wait("response.output_audio.delta", since=since)
        await asyncio.sleep(2.0)
        caller.microphone.say("07-stop")
        response = await caller.wait_done(since=since, status="cancelled")
        assert response["status_details"]["reason"] == "turn_detected"
        await caller.send(
            {
                "type": "conversation.item.truncate",
                "item_id": delta["item_id"],
                "content_index": 0,
                "audio_end_ms": 900,
            }
        )
        await caller.wait("conversation.item.truncated", since=since, item_id=delta["item_id"])
        await caller.send({"type": "conversation.item.retrieve", "item_id": delta["item_id"]})
        shown = await caller.wait("conversation.item.retrieved", since=since)
        kept = words(shown["item"]["content"][0]["transcript"])
        assert 0 < len(kept) < 8, shown
        assert not [event for event in caller.notes.events if event["type"] == "error"]


@pytest.fixture
def tool_server(tmp_path):
    """The address of an MCP server that has the tool of the others' clients."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = str(unused.getsockname()[1])
    log = tmp_path / "tools.log"
    with running([str(ROOT / "tests/frameworks/mcp_weather.py"), port], log) as process:
        wait_for(process, log, lambda: "serving" in log.read_text())
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize("require_approval", ["never", "always"])
async def test_an_mcp_server_is_called(triton, tool_server, tmp_path, require_approval):
    server = {"type": "mcp", "server_label": "weather", "server_url": tool_server}
    session = realtime_session(None, tools=[server | {"require_approval": require_approval}])
    settings = {"PARLEY_GATEWAY_REALTIME_MCP_PRIVATE_HOSTS": "127.0.0.1"}
    with open_gateway(triton, tmp_path, **settings) as (gateway, _):
        async with connected(gateway, session=session) as caller:
            await caller.wait("mcp_list_tools.completed")
            await caller.type("what's the weather in paris")
            asked = (await caller.wait_done())["output"][-1]
            since = caller.count
            if require_approval == "always":
                assert (asked["type"], asked["name"]) == ("mcp_approval_request", "get_weather")
                reply = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
                await caller.send({"type": "conversation.item.create", "item": reply})
            else:
                assert (asked["type"], asked["name"]) == ("mcp_call", "get_weather")
            answer = await caller.wait_done(since=since)
            assert spoken(answer) == "It's 8 degrees and foggy in Paris."
            assert await caller.wait("response.mcp_call.completed")


@asynccontextmanager
async def balanced(*gateways):
    """The address of a balancer: a connection goes to the first gateway that takes it."""

    async def pump(reader, writer):
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        for gateway in gateways:
            with suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", urlsplit(gateway).port)
                await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
                return

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_goes_on_at_another_gateway_when_its_own_is_killed(kept_gateways):
    (first, process), (second, _) = kept_gateways
    session = realtime_session({"type": "semantic_vad", "eagerness": "high"})
    ids = []
    hooks = {"on_reconnecting": lambda _: {"extra_query": {"session_id": ids[0]}}}
    async with (
        balanced(first, second) as url,
        connected(url, session=session, **hooks) as caller,
    ):
        ids.append((await caller.wait("session.created"))["session"]["id"])
        await caller.type("hello")
        (greeting,) = (await caller.wait_done())["output"]
        since = caller.count
        await caller.type("tell me a story")
        cut = await caller.wait("response.output_audio.delta", since=since)
        await asyncio.sleep(1.0)
        process.kill()
        process.wait()
        since = caller.count
        known = (await caller.wait("session.created", since=since))["session"]
        assert (known["id"], known["instructions"]) == (ids[0], INSTRUCTIONS)
        assert (await caller.wait_done(since=since, status="cancelled"))["id"] == cut["response_id"]
        await caller.send({"type": "conversation.item.retrieve", "item_id": greeting["id"]})
        assert (await caller.wait("conversation.item.retrieved"))["item"] == greeting
        again = await caller.wait("response.created", since=since)
        assert again["response"]["id"] != cut["response_id"]
        await caller.wait("response.output_audio.delta", since=since, response_id=again["response"]["id"])
        since = caller.count
        await caller.send({"type": "response.cancel"})
        await caller.wait_done(since=since, status="cancelled")
        since = caller.count
        async with speaking(caller):
            caller.microphone.say("02-weather")
            calls = await caller.answer_call(await caller.wait_done(since=since))
            assert [call["name"] for call in calls] == ["get_weather"]
            answer = await caller.wait_done(since=caller.count)
        assert {"8", "foggy"} <= set(words(spoken(answer)))
        assert not [event for event in caller.notes.events if event["type"] == "error"]


async def test_answers_turns_that_the_client_ends(gateway):
    async with connected(gateway, session=realtime_session(None)) as caller:
        async with speaking(caller):
            caller.microphone.say("01-hello")
            await asyncio.sleep(1.5)
        await caller.send({"type": "input_audio_buffer.commit"})
        await caller.send({"type": "response.create"})
        answer = await caller.wait_done()
        assert "hello" in words(spoken(answer))
        kinds = [event["type"] for event in caller.notes.events]
        assert "input_audio_buffer.committed" in kinds
        assert "input_audio_buffer.speech_started" not in kinds


async def test_writes_instead_of_speaking(gateway):
    session = realtime_session(None, output_modalities=["text"])
    async with connected(gateway, session=session) as caller:
        await caller.type("hello", metadata={"note": "1"})
        answer = await caller.wait_done()
        assert "hello" in words(spoken(answer))
        assert answer["metadata"] == {"note": "1"}
        assert answer["output"][0]["content"][0]["type"] == "output_text"
        assert not [event for event in caller.notes.events if "audio.delta" in event["type"]]


async def test_transcribes_only(gateway):
    session = {
        "type": "transcription",
        "audio": {"input": {"transcription": {"model": "gpt-4o-transcribe"}}},
    }
    async with (
        connected(gateway, session=session, extra_query={"intent": "transcription"}) as caller,
        speaking(caller),
    ):
        caller.microphone.say("02-weather")
        heard = await caller.wait("conversation.item.input_audio_transcription.completed")
        assert "weather" in heard["transcript"]
        deltas = [
            event["delta"]
            for event in caller.notes.events
            if event["type"] == "conversation.item.input_audio_transcription.delta"
        ]
        assert "".join(deltas) == heard["transcript"]


async def test_forced_function_is_called(gateway):
    session = realtime_session(None, output_modalities=["text"], tool_choice="required")
    async with connected(gateway, session=session) as caller:
        await caller.type("hello")
        (call,) = (await caller.wait_done())["output"]
        assert call["type"] == "function_call"
        assert call["name"] in {tool["name"] for tool in TOOLS}


async def test_response_outside_the_conversation(gateway):
    async with connected(gateway, session=realtime_session(None, output_modalities=["text"])) as caller:
        content = [{"type": "input_text", "text": "hello"}]
        item = {"type": "message", "role": "user", "content": content}
        await caller.type("hello", conversation="none", input=[item], metadata={"topic": "greeting"})
        response = await caller.wait_done()
        assert response["metadata"] == {"topic": "greeting"}
        assert response["conversation_id"] is None
        assert response["output"][0]["content"][0]["text"] == "Hello! How can I help you?"
