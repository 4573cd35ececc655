"""A call by telephone, from Twilio's request to the goodbye."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from fake_agent import CONNECTED
from twilio_line import closing, sign
from websockets.exceptions import InvalidStatus

from parley.errors import OverloadedError
from parley.protocol import (
    AgentState,
    Audio,
    Dtmf,
    Interrupted,
    Paused,
    Playback,
    Resumed,
    decode_message,
)
from parley_client.call import Call
from parley_gateway.audio.g711 import decode_ulaw, encode_ulaw
from parley_gateway.calls import CallSettings
from parley_gateway.errors import ForbiddenError

SAMPLES = np.round(8_000 * np.sin(2 * np.pi * 440 / 8_000 * np.arange(2_400))).astype(np.int16)  # 300 ms


class Agent:
    """A polite one that tells what it hears, and speaks when a test says so."""

    def __init__(self):
        self.start = asyncio.get_running_loop().create_future()
        self.heard = asyncio.Queue()
        self.audio = []
        self.enough = asyncio.Event()
        self.over = asyncio.Event()

    async def __call__(self, stream):
        self.stream = stream
        first = await stream.frames.get()
        self.start.set_result(decode_message(first.message))
        stream.say(CONNECTED)
        while (frame := await stream.frames.get()) is not None:
            self._note(frame)
            if frame.end:
                stream.hang_up()
            stream.acknowledge(frame)
        stream.end()
        self.over.set()

    def _note(self, frame):
        if frame.message:
            self.heard.put_nowait(decode_message(frame.message))
        if len(frame.audio):
            self.audio.append(np.frombuffer(frame.audio, "<i2"))
            if sum(map(len, self.audio)) >= 3_200:
                self.enough.set()

    def say(self, samples=SAMPLES, offset_ms=0, response="r1"):
        self.stream.say(
            Audio(turn=1, response_id=response, offset_ms=offset_ms, sample_rate=8_000, samples=len(samples)),
            samples,
        )

    async def next_playback(self):
        while not isinstance(message := await asyncio.wait_for(self.heard.get(), 10), Playback):
            pass
        return message.played_ms


@pytest.fixture
async def agent():
    return Agent()


@pytest.fixture
def call(gateway, agent):
    """An open call: (the line, the agent)."""

    @asynccontextmanager
    async def call(parameters=None, **settings):
        async with gateway(agent, **settings) as phone, phone.stream() as line:
            await line.begin(parameters)
            await asyncio.wait_for(agent.start, 10)
            yield line

    return call


# --- opening ----------------------------------------------------------------------------------


async def test_a_call_is_opened_as_the_settings_say(call, agent):
    settings = {"greeting": "Good day.", "system_prompt": "Be brief.", "voice": "en-us+f3"}
    async with call(twilio=settings):
        start = await agent.start
    assert (start.greeting, start.system_prompt, start.voice) == ("Good day.", "Be brief.", "en-us+f3")
    assert start.output_sample_rate == 8_000


async def test_parameters_of_the_twiml_count_more(call, agent):
    async with call({"greeting": "Hello Anna.", "else": "x"}, twilio={"greeting": "Good day."}):
        assert (await agent.start).greeting == "Hello Anna."


@pytest.mark.parametrize("signature", ["", "AAAA", sign("wss://evil.example/v1/twilio/stream"), "é"])
async def test_without_twilios_signature_nobody_comes_in(gateway, agent, signature):
    async with gateway(agent) as phone:
        with pytest.raises(InvalidStatus) as caught:
            async with phone.stream(signature):
                pass
        assert caught.value.response.status_code == 401
        assert json.loads(caught.value.response.body)["error"]["code"] == "unauthorized"
        assert not phone.agent.streams


async def test_twilio_may_sign_with_a_slash_at_the_end(gateway, agent):
    async with gateway(agent) as phone, phone.stream(sign("wss://voice.example/v1/twilio/stream/")) as line:
        await line.begin()
        await asyncio.wait_for(agent.start, 10)


@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        (lambda line: line.begin(account="AC1"), ForbiddenError.code),
        (lambda line: line.begin(sampleRate=16_000), "unsupported_sample_rate"),
        (lambda line: line.begin(encoding="audio/x-alaw"), "unsupported_sample_rate"),
        (lambda line: line.speak(b"\xff" * 160), "invalid_message"),
        (lambda line: line.send("start"), "invalid_message"),
        (lambda line: line._socket.send("{"), "invalid_message"),
        (lambda line: line._socket.send(b"\x00\xff"), "invalid_message"),
    ],
)
async def test_a_wrong_beginning_ends_the_stream(gateway, begin, reason):
    async with gateway() as phone, phone.stream() as line:
        await begin(line)
        assert await closing(line) == (1008, reason)
        assert not phone.agent.streams


async def test_a_stream_that_never_begins_is_closed(gateway):
    async with gateway(twilio={"start_s": 0.05}) as phone, phone.stream() as line:
        assert await closing(line) == (1008, "session_expired")


async def test_when_all_lines_are_busy_the_stream_is_closed(gateway, agent):
    async with gateway(agent, calls=CallSettings(limit=1)) as phone, phone.stream() as first:
        await first.begin()
        await asyncio.wait_for(agent.start, 10)
        async with phone.stream() as second:
            await second.begin()
            assert await closing(second) == (1013, "too_many_calls")


# --- both ways --------------------------------------------------------------------------------


async def test_what_the_caller_says_reaches_the_agent(call, agent):
    async with call() as line:
        for at in range(0, len(SAMPLES), 160):
            await line.speak(encode_ulaw(SAMPLES[at : at + 160]))
            await line.speak(b"\x00" * 160, track="outbound")
        await asyncio.wait_for(agent.enough.wait(), 10)
    heard = np.concatenate(agent.audio)[800:]
    # 440 Hz at 16 kHz, and none of the other track.
    spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard))))
    assert abs(np.argmax(spectrum) * 16_000 / len(heard) - 440) < 10


async def test_what_the_agent_says_reaches_the_caller(call, agent):
    async with call() as line:
        agent.say()
        for _ in range(3):
            await line.receive_until("mark")
        await line.play()
        assert [await agent.next_playback() for _ in range(3)] == [100, 200, 300]
    assert np.abs(decode_ulaw(line.heard).astype(int) - SAMPLES).max() < 300


async def test_playback_is_reported_as_far_as_it_was_heard(call, agent):
    async with call() as line:
        agent.say(offset_ms=500)
        for _ in range(3):
            await line.receive_until("mark")
        await line.play(1)
        assert await agent.next_playback() == 600


async def test_keys_reach_the_agent(call, agent):
    async with call() as line:
        await line.press("4")
        await line.press("#")
        assert await asyncio.wait_for(agent.heard.get(), 10) == Dtmf(digits="4")
        assert await asyncio.wait_for(agent.heard.get(), 10) == Dtmf(digits="#")


async def test_a_key_that_is_refused_does_not_end_the_call(call, agent, monkeypatch, caplog):
    def refuse(*_):
        raise OverloadedError("too many messages wait")

    async with call() as line:
        await line.press("x")
        await line.press("4")
        assert await asyncio.wait_for(agent.heard.get(), 10) == Dtmf(digits="4")
        with monkeypatch.context() as patch:
            patch.setattr(Call, "send_dtmf", refuse)
            await line.press("5")
            async with asyncio.timeout(10):
                while not any("overloaded" in message for message in caplog.messages):  # noqa: ASYNC110
                    await asyncio.sleep(0)
        await line.press("6")
        assert await asyncio.wait_for(agent.heard.get(), 10) == Dtmf(digits="6")


async def test_messages_that_twilio_invents_are_ignored(call, agent):
    async with call() as line:
        await line.send("weather", weather={"sky": "blue"})
        await line.press("1")
        assert await asyncio.wait_for(agent.heard.get(), 10) == Dtmf(digits="1")


# --- interruptions ----------------------------------------------------------------------------


async def test_an_interruption_clears_what_was_not_heard(call, agent):
    async with call() as line:
        agent.say()
        for _ in range(3):
            await line.receive_until("mark")
        await line.play(1)
        assert await agent.next_playback() == 100
        agent.stream.say(Paused(turn=1, response_id="r1", at_ms=0))
        await line.receive_until("clear")
        assert line.waiting == b""
        agent.stream.say(Interrupted(turn=1, response_id="r1", played_ms=100, spoken_text=""))
        agent.say(response="r2")
        for _ in range(3):
            await line.receive_until("mark")
        await line.play()
        # Marks that came back from the clear were not taken for heard: the next ones are the new answer's.
        assert [await agent.next_playback() for _ in range(3)] == [100, 200, 300]
        assert line.clears == 1
        assert len(line.heard) == 8 * (100 + 300)


async def test_after_a_cough_the_agent_goes_on_where_it_was(call, agent):
    async with call() as line:
        agent.say()
        for _ in range(3):
            await line.receive_until("mark")
        await line.play(1)
        assert await agent.next_playback() == 100
        agent.stream.say(Paused(turn=1, response_id="r1", at_ms=0))
        await line.receive_until("clear")
        agent.say(offset_ms=300)  # was on its way
        agent.stream.say(Resumed(turn=1, response_id="r1", reason="noise"))
        for _ in range(5):
            await line.receive_until("mark")
        await line.play()
        assert [await agent.next_playback() for _ in range(5)] == [200, 300, 400, 500, 600]
    assert line.heard == encode_ulaw(SAMPLES) * 2


async def test_an_interruption_without_a_pause_clears_too(call, agent):
    async with call() as line:
        agent.say()
        await line.receive_until("mark")
        agent.stream.say(Interrupted(turn=1, response_id="r1", played_ms=0, spoken_text="", reason="input"))
        await line.receive_until("clear")
        assert line.waiting == b""


# --- the end ----------------------------------------------------------------------------------


async def test_when_the_caller_hangs_up_so_does_the_gateway(call, agent):
    async with call() as line:
        await line.hang_up()
        assert await closing(line) == (1000, "hangup")
        await asyncio.wait_for(agent.over.wait(), 10)


async def test_a_caller_who_vanishes_ends_the_call(call, agent):
    async with call() as line:
        line._socket.transport.abort()
        await asyncio.wait_for(agent.over.wait(), 10)


async def test_the_caller_hears_the_rest_when_the_agent_hangs_up(call, agent):
    async with call(twilio={"farewell_s": 100}) as line:
        agent.say()
        agent.stream.hang_up("silence")
        for _ in range(3):
            await line.receive_until("mark")
        await line.play()
        assert await closing(line) == (1000, "silence")
        assert len(line.heard) == len(SAMPLES)


async def test_nobody_waits_for_ever_for_marks(call, agent):
    async with call(twilio={"farewell_s": 0.05}) as line:
        agent.say()
        agent.stream.hang_up("silence")
        assert await closing(line) == (1000, "silence")


async def test_a_failure_of_the_server_ends_the_call(call, agent):
    async with call() as line:
        agent.stream.say(AgentState(state="speaking"))
        agent.stream.fail(RuntimeError("the stream broke"))
        code, _ = await closing(line)
        assert code == 1011


async def test_too_much_audio_at_once_ends_the_call(call):
    async with call() as line:
        await line.speak(b"\xff" * 8_001)
        assert await closing(line) == (1008, "invalid_audio")


async def test_no_call_is_left_behind(gateway, agent):
    async with gateway(agent) as phone:
        calls = phone.app.state.gateway.calls
        async with phone.stream() as line:
            await line.begin()
            await asyncio.wait_for(agent.start, 10)
            assert calls.count == 1
            await line.hang_up()
            await closing(line)
        await asyncio.wait_for(agent.over.wait(), 10)
        await asyncio.wait_for(calls.drain(10), 10)
        assert calls.count == 0
