"""A telephone call: Twilio's stream, its playback and its end."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from resuming_agent import WORD_MS, cut_behind, lose, send_away, serve_session
from telephone_agent import SAMPLES, TelephoneAgent
from twilio_line import closing, sign
from websockets.exceptions import InvalidStatus

from parley.errors import OverloadedError
from parley.protocol import (
    AgentState,
    Audio,
    Dtmf,
    Interrupted,
    Paused,
    Resumed,
    Text,
)
from parley_client.call import Call
from parley_client.events import AgentAudio
from parley_gateway.apis.twilio.stream import MAX_PIECES, PIECE_MS, TwilioPlayback
from parley_gateway.audio.codecs import decode_ulaw, encode_ulaw
from parley_gateway.errors import ForbiddenError


@pytest.fixture
async def agent():
    return TelephoneAgent()


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


@pytest.mark.parametrize(
    ("parameters", "greeting"),
    [(None, "Good day."), ({"greeting": "Hello Anna.", "else": "x"}, "Hello Anna.")],
)
async def test_settings_and_parameters_of_the_twiml_open_a_call(call, agent, parameters, greeting):
    settings = {"greeting": "Good day.", "system_prompt": "Be brief.", "voice": "en-us+f3"}
    async with call(parameters, twilio=settings):
        start = await agent.start
    assert (start.greeting, start.system_prompt, start.voice) == (greeting, "Be brief.", "en-us+f3")
    assert start.output_sample_rate == 8_000


async def test_agent_of_the_twiml_is_not_changed_by_settings(call, agent):
    settings = {"greeting": "Good day.", "system_prompt": "Be brief.", "language": "de"}
    async with call({"agent": "restaurant", "greeting": "Hello Anna."}, twilio=settings):
        start = await agent.start
    assert (start.agent, start.greeting, start.system_prompt) == ("restaurant", "Hello Anna.", None)
    assert (start.voice, start.language) == (None, "en")


@pytest.mark.parametrize("signature", ["", "AAAA", sign("wss://evil.example/v1/twilio/stream"), "é"])
async def test_streams_without_twilios_signature_are_refused(gateway, agent, signature):
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
    async with gateway(agent, calls={"limit": 1}) as phone, phone.stream() as first:
        await first.begin()
        await asyncio.wait_for(agent.start, 10)
        async with phone.stream() as second:
            await second.begin()
            assert await closing(second) == (1013, "too_many_calls")


# --- both ways --------------------------------------------------------------------------------


async def test_the_callers_audio_reaches_the_agent(call, agent):
    async with call() as line:
        for at in range(0, len(SAMPLES), 160):
            await line.speak(encode_ulaw(SAMPLES[at : at + 160]))
            await line.speak(b"\x00" * 160, track="outbound")
        await asyncio.wait_for(agent.enough.wait(), 10)
    samples = np.concatenate(agent.audio)[800:]
    # 440 Hz at 16 kHz, and none of the other track.
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    assert abs(np.argmax(spectrum) * 16_000 / len(samples) - 440) < 10


async def test_the_agents_audio_reaches_the_caller(call, agent):
    async with call() as line:
        agent.say()
        await line.receive_marks(3)
        await line.play()
        assert await agent.playbacks(3) == [100, 200, 300]
    assert np.abs(decode_ulaw(line.heard).astype(int) - SAMPLES).max() < 300


async def test_playback_is_reported_up_to_the_last_mark(call, agent):
    async with call() as line:
        agent.say(offset_ms=500)
        await line.receive_marks(3)
        await line.play(1)
        assert await agent.playbacks(1) == [600]


async def test_keys_reach_the_agent(call, agent):
    async with call() as line:
        await line.press("4")
        await line.press("#")
        assert await agent.next_message() == Dtmf(digits="4")
        assert await agent.next_message() == Dtmf(digits="#")


async def test_a_key_that_is_refused_does_not_end_the_call(call, agent, monkeypatch, caplog):
    def refuse(*_):
        raise OverloadedError("too many messages wait")

    async with call() as line:
        await line.press("x")
        await line.press("4")
        assert await agent.next_message() == Dtmf(digits="4")
        with monkeypatch.context() as patch:
            patch.setattr(Call, "send_dtmf", refuse)
            await line.press("5")
            async with asyncio.timeout(10):
                while not any("overloaded" in message for message in caplog.messages):  # noqa: ASYNC110
                    await asyncio.sleep(0)
        await line.press("6")
        assert await agent.next_message() == Dtmf(digits="6")


async def test_unknown_messages_are_ignored(call, agent):
    async with call() as line:
        await line.send("weather", weather={"sky": "blue"})
        await line.press("1")
        assert await agent.next_message() == Dtmf(digits="1")


# --- interruptions ----------------------------------------------------------------------------


async def pause_after_100_ms(line, agent):
    agent.say()
    await line.receive_marks(3)
    await line.play(1)
    assert await agent.playbacks(1) == [100]
    agent.stream.say(Paused(turn=1, response_id="r1", at_ms=0))
    await line.receive_until("clear")


async def test_an_interruption_clears_what_was_not_played(call, agent):
    async with call() as line:
        await pause_after_100_ms(line, agent)
        assert line.waiting == b""
        agent.stream.say(Interrupted(turn=1, response_id="r1", played_ms=100, spoken_text=""))
        agent.say(response="r2")
        await line.receive_marks(3)
        await line.play()
        # The marks that ``clear`` returned were ignored: the next ones are those of the new response.
        assert await agent.playbacks(3) == [100, 200, 300]
        assert line.clears == 1
        assert len(line.heard) == 8 * (100 + 300)


async def test_after_a_cough_playback_continues_at_its_position(call, agent):
    async with call() as line:
        await pause_after_100_ms(line, agent)
        agent.say(offset_ms=300)  # was on its way
        agent.stream.say(Resumed(turn=1, response_id="r1", reason="noise"))
        await line.receive_marks(5)
        await line.play()
        assert await agent.playbacks(5) == [200, 300, 400, 500, 600]
    assert line.heard == encode_ulaw(SAMPLES) * 2


async def test_an_interruption_without_a_pause_clears_too(call, agent):
    async with call() as line:
        agent.say()
        await line.receive_until("mark")
        agent.stream.say(Interrupted(turn=1, response_id="r1", played_ms=0, spoken_text="", reason="input"))
        await line.receive_until("clear")
        assert line.waiting == b""


# --- another server ---------------------------------------------------------------------------


@pytest.mark.parametrize("end", [lose, send_away])
async def test_an_answer_goes_on_at_another_server(gateway, end):
    sessions = asyncio.Queue()

    async def serve(stream):
        def loudly(word, samples, _):
            return np.full(samples, 1_000 * word, np.int16)

        await serve_session(stream, sessions.put_nowait, loudly)

    async with gateway(serve, serve) as phone, phone.stream() as line:
        await line.begin()
        first = await asyncio.wait_for(sessions.get(), 10)
        cut_behind(first.stream, Audio, 2, end)
        first.on_message(Text(text="one two three"))
        await line.receive_marks(2)
        await line.play(1)
        second = await asyncio.wait_for(sessions.get(), 10)
        await line.receive_marks(3)
        await line.play()
        assert line.heard == encode_ulaw(np.repeat(np.arange(1, 6) * 1_000, 8 * WORD_MS).astype(np.int16))
        assert line.clears == 0
        second.on_message(Text(text="four"))
        await line.receive_marks(3)
        await line.hang_up()
        assert await closing(line) == (1000, "hangup")
    said = [message.content for message in second.messages if message.role == "user"]
    assert said == ["one two three", "four"]


# --- the end ----------------------------------------------------------------------------------


async def test_a_caller_who_hangs_up_ends_the_call(gateway, agent):
    async with gateway(agent) as phone:
        calls = phone.app.state.gateway.calls
        async with phone.stream() as line:
            await line.begin()
            await asyncio.wait_for(agent.start, 10)
            assert calls.count == 1
            await line.hang_up()
            assert await closing(line) == (1000, "hangup")
        await asyncio.wait_for(agent.over.wait(), 10)
        await asyncio.wait_for(calls.drain(10), 10)
        assert calls.count == 0


async def test_a_caller_who_vanishes_ends_the_call(call, agent):
    async with call() as line:
        line._socket.transport.abort()
        await asyncio.wait_for(agent.over.wait(), 10)


@pytest.mark.parametrize(("farewell_s", "returns_marks"), [(100, True), (0.05, False)])
async def test_the_rest_is_played_when_the_agent_hangs_up(call, agent, farewell_s, returns_marks):
    async with call(twilio={"farewell_s": farewell_s}) as line:
        agent.say()
        agent.stream.hang_up("silence")
        if returns_marks:
            await line.receive_marks(3)
            await line.play()
        assert await closing(line) == (1000, "silence")
        assert len(line.heard) == (len(SAMPLES) if returns_marks else 0)


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


class PlaybackLine:
    def __init__(self):
        self.sent = []
        self.reported = []
        self.playback = TwilioPlayback("MZ1", self.sent.append, lambda *heard: self.reported.append(heard))

    def say(self, milliseconds, response="r1", offset_ms=0, rate=8_000):
        samples = np.zeros(rate * milliseconds // 1000, np.int16)
        self.playback.play(AgentAudio(1, response, offset_ms, rate, samples, ""))

    def marks(self):
        return [message["mark"]["name"] for message in self.sent if message["event"] == "mark"]

    def audio_ms(self):
        payloads = [message["media"]["payload"] for message in self.sent if message["event"] == "media"]
        return sum(len(base64.b64decode(payload)) for payload in payloads) / 8


@pytest.fixture
def line():
    return PlaybackLine()


def test_every_piece_is_followed_by_a_mark(line):
    line.say(250)
    assert [message["event"] for message in line.sent] == ["media", "mark"] * 3
    assert line.audio_ms() == 250
    assert not line.playback.silent.is_set()


def test_a_mark_counts_for_everything_before_it(line):
    line.say(300)
    line.playback.on_mark(line.marks()[1])
    assert line.reported == [("r1", 200)]
    line.playback.on_mark(line.marks()[0])  # came too late to mean anything
    assert line.reported == [("r1", 200)]
    line.playback.on_mark(line.marks()[2])
    assert line.playback.silent.is_set()


def test_an_unknown_mark_means_nothing(line):
    line.say(100)
    line.playback.on_mark("nonsense")
    assert line.reported == []


def test_another_answer_stays_when_one_is_dropped(line):
    line.say(100, "r1")
    line.say(100, "r2")
    line.playback.drop("r1")
    line.playback.on_mark(line.marks()[-1])
    assert line.reported == [("r2", 100)]
    assert [message["event"] for message in line.sent][-3:] == ["clear", "media", "mark"]


def test_without_a_pause_there_is_nothing_to_go_on_with(line):
    line.say(100)
    before = len(line.sent)
    line.playback.resume()
    assert len(line.sent) == before


def test_a_peer_that_returns_no_marks_is_not_remembered_for_ever(line):
    for count in range(MAX_PIECES + 50):
        line.say(PIECE_MS, offset_ms=PIECE_MS * count)
    line.playback.on_mark(line.marks()[0])
    assert line.reported == []
    line.playback.on_mark(line.marks()[-1])
    assert line.reported == [("r1", PIECE_MS * (MAX_PIECES + 50))]


def test_speech_of_another_rate_is_brought_to_the_telephones(line):
    line.say(100, rate=22_050)
    assert line.audio_ms() == pytest.approx(100, abs=1)
    assert not decode_ulaw(base64.b64decode(line.sent[0]["media"]["payload"])).any()


def test_words_without_audio_make_no_message(line):
    line.say(0)
    assert line.sent == []
    assert line.playback.silent.is_set()
