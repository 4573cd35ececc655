"""Deepgram's ``/v1/agent/converse``, in front of an agent without a server."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from deepgram_client import refusal, rest, say
from listening_gateway import until
from websockets.asyncio.client import connect

from parley.errors import UnsupportedVoiceError
from parley.protocol import (
    AgentState,
    Audio,
    ErrorEvent,
    Interrupted,
    Remember,
    ResponseDone,
    ResponseText,
    SamplingOptions,
    Say,
    SpeechStarted,
    SpeechStopped,
    Text,
    Tool,
    ToolCancelled,
    ToolRequest,
    ToolResponse,
    TurnDecision,
    Update,
    Updated,
    decode_message,
)
from parley_gateway.errors import UnauthorizedError

SAMPLES = np.arange(160, dtype=np.int16)
ANSWER = {"turn": 1, "response_id": "r1"}
SPOKEN = Audio(**ANSWER, offset_ms=0, sample_rate=16_000, samples=len(SAMPLES))
SETTINGS = {
    "audio": {
        "input": {"encoding": "linear16", "sample_rate": 16_000},
        "output": {"encoding": "linear16", "sample_rate": 16_000, "container": "none"},
    },
    "agent": {
        "listen": {"provider": {"type": "deepgram", "model": "flux-general-en", "keyterms": ["Anna"]}},
        "think": {
            "provider": {"type": "open_ai", "model": "gpt-4o"},
            "prompt": "Be brief.",
            "functions": [
                {"name": "get_weather", "description": "of a city", "parameters": {"type": "object"}}
            ],
        },
        "speak": {"provider": {"type": "deepgram", "model": "aura-2-thalia-en"}},
        "greeting": "Hello.",
        "context": {"messages": [{"type": "History", "role": "user", "content": "I am Bob."}]},
    },
}


@asynccontextmanager
async def connected(gateway):
    async with asyncio.timeout(20), connect(f"{gateway.ws_url}/v1/agent/converse") as socket:
        yield socket


@asynccontextmanager
async def conversation(gateway, **settings):
    """An open one, behind ``SettingsApplied``."""
    async with connected(gateway) as socket:
        await say(socket, "Settings", **SETTINGS | settings)
        assert [(await receive(socket))["type"] for _ in range(2)] == ["Welcome", "SettingsApplied"]
        yield socket


async def receive(socket):
    message = await socket.recv()
    return message if isinstance(message, bytes) else json.loads(message)


async def kinds(socket, count):
    """The next messages, by their types."""
    return [
        message if isinstance(message, bytes) else (message.get("content"), message["type"])
        for message in [await receive(socket) for _ in range(count)]
    ]


async def test_settings_open_the_call(agent_gateway, agent):
    gateway = await agent_gateway()
    async with conversation(gateway):
        await until(lambda: agent.received(Remember))
    opened = decode_message(agent.stream.seen[0].message)
    assert (opened.system_prompt, opened.greeting, opened.voice) == ("Be brief.", "Hello.", None)
    assert (opened.phrases, opened.tools[0].name, opened.output_sample_rate) == (
        ["Anna"], "get_weather", 16_000,
    )  # fmt: skip
    assert (opened.turn.answer, opened.barge_in.pause_playback) == (True, False)
    assert agent.received(Remember) == [Remember(role="user", text="I am Bob.")]


async def test_settings_may_name_an_agent(agent_gateway, agent):
    gateway = await agent_gateway()
    async with conversation(gateway, agent="restaurant"):
        assert decode_message(agent.stream.seen[0].message).agent == "restaurant"


async def test_turn_and_its_answer(agent_gateway, agent):
    gateway = await agent_gateway()
    async with conversation(gateway) as socket:
        for event in (
            SpeechStarted(at_ms=0),
            SpeechStopped(at_ms=300, detected_at_ms=460),
            TurnDecision(utterance=1, decision="commit", reason="waited", text="hi"),
            AgentState(state="processing"),
            ResponseText(**ANSWER, text="Hello "),
            ResponseText(**ANSWER, text="Bob."),
            AgentState(state="speaking"),
        ):
            agent.stream.say(event)
        agent.stream.say(SPOKEN, SAMPLES)
        agent.stream.say(ResponseDone(**ANSWER, audio_ms=10))
        assert await kinds(socket, 3) == [
            (None, "UserStartedSpeaking"), ("hi", "ConversationText"), ("", "AgentThinking"),
        ]  # fmt: skip
        speaking = await receive(socket)
        assert speaking["type"] == "AgentStartedSpeaking"
        assert speaking["total_latency"] == pytest.approx(speaking["ttt_latency"] + speaking["tts_latency"])
        assert await kinds(socket, 3) == [
            SAMPLES.astype("<i2").tobytes(), ("Hello Bob.", "ConversationText"), (None, "AgentAudioDone"),
        ]  # fmt: skip


async def test_only_an_interruption_stops_the_agent(agent_gateway, agent):
    gateway = await agent_gateway()
    async with conversation(gateway) as socket:
        for event in (
            AgentState(state="speaking"),
            ResponseText(**ANSWER, text="One two three."),
            SpeechStarted(at_ms=0),
            Interrupted(**ANSWER, played_ms=400, spoken_text="One two"),
            AgentState(state="listening"),
            Interrupted(**ANSWER, played_ms=400, spoken_text="One two"),
        ):
            agent.stream.say(event)
        assert await kinds(socket, 4) == [
            (None, "AgentStartedSpeaking"), ("One two", "ConversationText"), (None, "UserStartedSpeaking"),
            (None, "UserStartedSpeaking"),
        ]  # fmt: skip


async def test_functions_are_called_at_the_client(agent_gateway, agent):
    gateway = await agent_gateway()
    async with conversation(gateway) as socket:
        for number in (1, 2):
            agent.stream.say(
                ToolRequest(turn=1, call_id=f"c{number}", name="get_weather", arguments={"city": "Paris"})
            )
        agent.stream.say(ToolCancelled(turn=1, call_id="c2", reason="interrupted"))
        asked, _, cancelled = [await receive(socket) for _ in range(3)]
        (function,) = asked["functions"]
        assert (function["name"], json.loads(function["arguments"])) == ("get_weather", {"city": "Paris"})
        assert cancelled["functions"] == [{"id": "c2", "name": "get_weather"}]
        await say(socket, "FunctionCallResponse", id="c1", name="get_weather", content='{"sky": "grey"}')
        await until(lambda: agent.received(ToolResponse))
    assert agent.received(ToolResponse) == [ToolResponse(call_id="c1", output='{"sky": "grey"}')]


async def test_texts_are_injected_unless_a_turn_is_under_way(agent_gateway, agent):
    gateway = await agent_gateway()
    async with conversation(gateway) as socket:
        await say(socket, "InjectUserMessage", content="hi")
        assert await kinds(socket, 1) == [("hi", "ConversationText")]
        agent.stream.say(AgentState(state="processing"))
        await receive(socket)
        await say(socket, "InjectAgentMessage", message="Still there?")
        assert (await receive(socket))["type"] == "InjectionRefused"
        await say(socket, "InjectAgentMessage", message="Then this.", behavior="queue")
        await until(lambda: agent.received(Say))
    assert (agent.received(Text)[0].text, [one.text for one in agent.received(Say)]) == ("hi", ["Then this."])


async def test_updates_are_accepted_or_refused(agent_gateway, agent):
    gateway = await agent_gateway()
    refused = ErrorEvent.of(UnsupportedVoiceError("no voice x"))
    agent.answers[Update] = iter([[Updated()], [refused]])
    async with conversation(gateway) as socket:
        await say(socket, "UpdatePrompt", prompt="Be kind.")
        assert (await receive(socket))["type"] == "PromptUpdated"
        await say(socket, "UpdateSpeak", speak=[{"provider": {"type": "deepgram", "model": "x"}}])
        warning = await receive(socket)
    assert (warning["type"], warning["code"]) == ("Warning", "unsupported_voice")
    assert agent.received(Update) == [Update(system_prompt="Be kind."), Update(voice="x")]


async def test_model_and_turns_are_updated(agent_gateway, agent):
    gateway = await agent_gateway()
    agent.answers[Update] = iter([[Updated()]] * 3)
    provider = {"type": "open_ai", "model": "gpt-4o-mini", "temperature": 0.5}
    function = {"name": "look", "parameters": {"type": "object"}}
    async with conversation(gateway) as socket:
        await say(socket, "UpdateThink", think=[{"provider": provider, "prompt": "Hi", "functions": []}])
        await say(socket, "UpdateThink", think={"provider": {"type": "open_ai"}, "functions": [function]})
        listen = {"version": "v2", "model": "flux-general-en", "eot_threshold": 0.8, "keyterms": ["Anna"]}
        await say(socket, "UpdateListen", listen={"provider": listen})
        kinds = [(await receive(socket))["type"] for _ in range(3)]
        endpoint = function | {"endpoint": {"url": "http://x"}}
        await say(socket, "UpdateThink", think={"provider": provider, "functions": [endpoint]})
        messages, _ = await rest(socket)
    assert kinds == ["ThinkUpdated", "ThinkUpdated", "ListenUpdated"]
    first, second, third = agent.received(Update)
    assert first == Update(system_prompt="Hi", tools=[], sampling=SamplingOptions(temperature=0.5))
    assert second == Update(tools=[Tool(name="look", description="", parameters={"type": "object"})])
    assert (third.turn.threshold, third.phrases, third.turn.answer) == (0.8, ["Anna"], True)
    assert "endpoint" in messages[-1]["description"]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"type": "InjectUserMessage", "content": "hi"}, "Settings"),
        ({"type": "Settings", "audio": {"input": {"encoding": "opus"}}}, "opus"),
        ({"type": "Settings", "audio": {"output": {"container": "wav"}}}, "wav"),
        (
            {
                "type": "Settings",
                "agent": {"think": {"functions": [{"name": "f", "endpoint": {"url": "x"}}]}},
            },
            "endpoint",
        ),
        ({"type": "Settings", "agent": {"listen": {"provider": {"eot_threshold": 3}}}}, "eot_threshold"),
        ({"type": "Settings", "agent": {"context": {"messages": [{"function_calls": []}]}}}, "role"),
    ],
)
async def test_unsupported_settings_end_the_connection(agent_gateway, agent, message, said):
    gateway = await agent_gateway()
    async with connected(gateway) as socket:
        await socket.send(json.dumps(message))
        messages, closed = await rest(socket)
    assert [one["type"] for one in messages] == ["Welcome", "Error"]
    assert said in messages[1]["description"]
    assert closed == (1008, "invalid_message")
    assert agent.stream is None


async def test_end_of_the_call_closes_the_connection(agent_gateway, agent):
    gateway = await agent_gateway()
    async with conversation(gateway) as socket:
        agent.stream.close("agent_ended")
        assert (await rest(socket))[1] == (1000, "agent_ended")


async def test_client_that_vanishes_ends_the_call(agent_gateway, agent):
    gateway = await agent_gateway()
    async with conversation(gateway) as socket:
        socket.transport.abort()
        await until(lambda: gateway.gateway.calls.count == 0)
    assert agent.stream.seen[-1].end


async def test_refused_credentials_have_deepgrams_code(agent_gateway, agent, monkeypatch):
    gateway = await agent_gateway()

    async def refuse(connection, scope):
        raise UnauthorizedError("who?")

    monkeypatch.setattr(gateway.gateway.guard, "admit", refuse)
    answer, body = await refusal(connected(gateway))
    assert (answer.status_code, body["err_code"]) == (401, "INVALID_AUTH")
