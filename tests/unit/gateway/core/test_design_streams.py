"""A session's stream with the message set design."""

import asyncio
import json

import numpy as np
import pytest
from fake_agent import serve
from listening_gateway import DEADLINE_S, closed, frame_of, receive
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from parley import protocol

DESIGN = {"subprotocols": ["parley.design"]}
SPEECH = np.arange(40_000).astype(np.int16)
IDS = {"turn": 1, "response_id": "r1"}
WORDS = protocol.Audio(offset_ms=0, sample_rate=22_050, samples=len(SPEECH), text="Hi", **IDS)
SAID = {"utterance": 1, "text": "weather and time"}
HEARD = (
    protocol.SpeechStarted(at_ms=100),
    protocol.Transcript(is_final=False, confidence=0.5, **SAID),
    protocol.SpeechStopped(at_ms=900, detected_at_ms=1_200),
    protocol.Transcript(is_final=True, confidence=0.75, **SAID),
    protocol.AgentState(state="processing"),
    protocol.ToolRequest(turn=1, call_id="a", name="weather", arguments={"city": "Paris"}),
    protocol.ToolRequest(turn=1, call_id="b", name="time", arguments={}),
)


async def answering(stream):
    """Asks for two tools at the first audio, and answers when both have come."""
    results = {}

    def on_frame(frame):
        if frame.audio and not results:
            results["heard"] = True
            for event in HEARD:
                stream.say(event)
        elif b"tool_response" in frame.message:
            answer = protocol.decode_message(frame.message)
            results[answer.call_id] = answer.output
            if results == {"heard": True, "a": {"celsius": 8}, "b": "20:54"}:
                stream.say(protocol.AgentState(state="speaking"))
                stream.say(WORDS, SPEECH)
                stream.say(protocol.ResponseText(text="Hi", **IDS))
                stream.say(protocol.ResponseDone(audio_ms=1_814, **IDS))
                stream.say(protocol.TurnMetrics(turn=1))
                stream.say(protocol.AgentState(state="listening"))

    await serve(stream, on_frame)


async def take(socket, count):
    """The next messages, JSON decoded."""
    async with asyncio.timeout(DEADLINE_S):
        taken = [await socket.recv() for _ in range(count)]
    return [json.loads(one) if isinstance(one, str) else one for one in taken]


async def test_conversation_has_the_messages_of_the_specification(gateway):
    one = await gateway(answering)
    tools = [{"name": "weather"}, {"name": "time"}]
    created = await one.http.post("/v1/sessions?protocol=design", json={"vad": "design", "tools": tools})
    async with connect(created.json()["stream_url"]) as socket:
        await socket.send(bytes(32_000))
        heard = await take(socket, 7)
        for request_id, result in (("b", "20:54"), ("a", {"celsius": 8})):
            await socket.send(
                json.dumps({"type": "tool_response", "request_id": request_id, "result": result})
            )
        answered = await take(socket, 6)
    assert heard == [
        {"type": "vad_state", "state": "speaking"},
        {"type": "transcript", "text": "weather and time", "is_final": False, "confidence": 0.5},
        {"type": "vad_state", "state": "ended"},
        {"type": "transcript", "text": "weather and time", "is_final": True, "confidence": 0.75},
        {"type": "agent_state", "speaking": False, "processing": True},
        {
            "type": "tool_request",
            "request_id": "a",
            "tool_name": "weather",
            "parameters": {"city": "Paris"},
        },
        {"type": "tool_request", "request_id": "b", "tool_name": "time", "parameters": {}},
    ]
    first, *audio, done, last = answered
    assert first == {"type": "agent_state", "speaking": True, "processing": True}
    assert [len(piece) for piece in audio] == [32_768, 32_768, 14_464]
    assert b"".join(audio) == SPEECH.astype("<i2").tobytes()
    assert done == {"type": "agent_state", "speaking": True, "processing": False}
    assert last == {"type": "agent_state", "speaking": False, "processing": False}
    start = protocol.decode_message(one.agents[0].streams[0].seen[0].message)
    assert (start.vad.silence_ms, start.turn.eagerness, start.output_sample_rate) == (300, "off", 22_050)
    assert not start.barge_in.pause_playback


async def test_vad_is_idle_after_a_second_of_silence(gateway):
    one = await gateway(answering)
    async with one.stream(**DESIGN) as socket:
        await socket.send(bytes(32_000))
        await take(socket, 7)
        # 300 ms of the second were over when the silence was noticed.
        await socket.send(bytes(32 * 700 - 2))
        await socket.send("{")
        await socket.send(bytes(2))
        messages = await take(socket, 2)
    assert messages[0]["code"] == "invalid_message"
    assert messages[1] == {"type": "vad_state", "state": "idle"}


async def test_an_interruption_ends_speaking_and_processing_at_once(gateway):
    states = ("processing", "speaking", "speaking")
    events = [
        *(protocol.AgentState(state=state) for state in states),
        protocol.Interrupted(played_ms=5, spoken_text="", **IDS),
        protocol.AgentState(state="listening"),
        protocol.AgentState(state="processing"),
    ]

    async def interrupted(stream):
        await serve(stream, lambda _: [stream.say(event) for event in events])

    one = await gateway(interrupted)
    async with one.stream(**DESIGN) as socket:
        assert socket.subprotocol == "parley.design"
        await socket.send(bytes(320))
        flags = [(state["speaking"], state["processing"]) for state in await take(socket, 4)]
    assert flags == [(False, True), (True, True), (False, False), (False, True)]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_message"),
        ("[" * 10_000, "invalid_message"),
        ('{"type": "control", "action": "hangup"}', "invalid_message"),
        ('{"type": "tool_response", "call_id": "a", "output": 1}', "invalid_message"),
        ('{"type": "tool_response", "request_id": "a"}', "invalid_message"),
        ('{"type": "tool_response", "request_id": "a", "result": NaN}', "invalid_message"),
        ('{"type": "tool_response", "request_id": "none", "result": 1}', "unknown_tool_call"),
        (
            json.dumps({"type": "tool_response", "request_id": "a", "result": "x" * 300_000}),
            "invalid_message",
        ),
        (bytes(321), "invalid_audio"),
        (bytes(32_770), "invalid_audio"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_bad_message_is_answered_and_the_call_goes_on(gateway, message, code):
    one = await gateway(answering)
    async with one.stream(**DESIGN) as socket:
        await socket.send(bytes(32_000))
        await take(socket, 7)
        await socket.send(message)
        error = await receive(socket, "error")
        assert set(error) == {"type", "code", "message", "retryable"}
        assert (error["code"], error["retryable"]) == (code, False)
        for request_id, result in (("a", {"celsius": 8}), ("b", "20:54")):
            await socket.send(
                json.dumps({"type": "tool_response", "request_id": request_id, "result": result})
            )
        assert (await receive(socket, "agent_state"))["speaking"]


async def test_a_second_or_late_tool_response_is_an_error(gateway):
    async def cancelling(stream):
        def on_frame(frame):
            if frame.audio:
                for call_id in "ab":
                    stream.say(protocol.ToolRequest(turn=1, call_id=call_id, name="f", arguments={}))
                stream.say(protocol.ToolCancelled(turn=1, call_id="b", reason="timeout"))
                stream.say(protocol.AgentState(state="processing"))

        await serve(stream, on_frame)

    one = await gateway(cancelling)
    async with one.stream(**DESIGN) as socket:
        await socket.send(bytes(320))
        await receive(socket, "agent_state")
        for request_id in "aab":
            await socket.send(json.dumps({"type": "tool_response", "request_id": request_id, "result": None}))
        errors = [await receive(socket, "error") for _ in range(2)]
        assert [error["code"] for error in errors] == ["unknown_tool_call"] * 2
        assert "was cancelled" in errors[1]["message"]
    sent = [frame.message for frame in one.agents[0].streams[0].seen if b"tool_response" in frame.message]
    assert [protocol.decode_message(message).call_id for message in sent] == ["a"]


async def test_the_longest_audio_reaches_the_agent(gateway):
    one = await gateway()
    async with one.stream(**DESIGN) as socket:
        await socket.send(bytes(32_768))
        await frame_of(one.agents[0], lambda frame: frame.end or len(frame.audio) == 768)
    sent = [frame.audio for frame in one.agents[0].streams[0].seen]
    assert sum(map(len, sent)) == 32_768


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("?protocol=other", {}),
        ("?protocol=design", {"encoding": "ulaw"}),
        ("?protocol=design", {"output_sample_rate": 8_000}),
        ("?protocol=design", {"output": "text"}),
        ("", {"vad": "other"}),
        ("", {"vad": "design", "turn": {"eagerness": "patient"}}),
    ],
)
async def test_options_that_the_set_does_not_have_are_refused(gateway, query, options):
    one = await gateway()
    answer = await one.http.post(f"/v1/sessions{query}", json=options)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_message")


async def test_a_session_of_other_audio_is_refused_by_the_stream(gateway):
    one = await gateway()
    with pytest.raises(InvalidStatus) as refusal:
        async with one.stream(await one.create(encoding="alaw"), **DESIGN):
            pass
    assert refusal.value.response.status_code == 400
    assert json.loads(refusal.value.response.body)["error"]["code"] == "invalid_message"


async def test_the_call_s_end_is_the_reason_of_the_close_frame(gateway):
    async def ending(stream):
        await serve(stream, lambda _: stream.close("agent_ended"))

    one = await gateway(ending)
    async with one.stream(**DESIGN) as socket:
        await socket.send(bytes(320))
        assert await closed(socket) == (1000, "agent_ended")
