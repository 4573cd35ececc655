"""Telephone calls that go on at another gateway, and what ends them."""

from contextlib import asynccontextmanager
from xml.etree import ElementTree as ET

import httpx2
import numpy as np
import pytest
from listening_gateway import until
from resuming_agent import FRAME_MS
from test_realtime_taken_over import lose_from
from twilio_line import ACCOUNT, AUTH_TOKEN, PUBLIC_URL, TwilioLine, closing, sign, voice_request
from websockets.asyncio.client import connect

from parley import protocol
from parley_gateway.apis.twilio import stream
from parley_gateway.audio.codecs import encode_ulaw
from parley_gateway.errors import UnauthorizedError

WORD = encode_ulaw(np.full(8 * FRAME_MS, 8_000, np.int16))
SILENCE = encode_ulaw(np.zeros(80 * FRAME_MS, np.int16))


@pytest.fixture
def start(gateways, tmp_path):
    """Starts a gateway for telephones."""
    (tmp_path / "token").write_text(AUTH_TOKEN)

    async def start_one(**parts):
        return await gateways.start(
            listen={"public_url": PUBLIC_URL},
            security={"insecure_allow_anonymous": True},
            twilio={"auth_token_file": str(tmp_path / "token"), "account": ACCOUNT},
            **parts,
        )

    return start_one


async def ask(url, path="/v1/twilio/ended", **form):
    """The TwiML with which a gateway answers a webhook."""
    async with httpx2.AsyncClient(base_url=url) as http:
        answer = await http.post(path, **voice_request({"CallSid": "CA1", **form}, path=path))
    assert answer.status_code == 200
    return ET.fromstring(answer.text)  # noqa: S314 - our own


@asynccontextmanager
async def connected(url, twiml, call_sid="CA1"):
    """The stream that TwiML asks for, at the gateway of ``url``."""
    wanted = twiml.find("Connect/Stream")
    address = wanted.get("url")
    assert address.startswith("wss://")
    headers = {"X-Twilio-Signature": sign(address)}
    path = address.removeprefix(f"wss{PUBLIC_URL.removeprefix('https')}")
    async with connect(f"ws{url.removeprefix('http')}{path}", additional_headers=headers) as socket:
        line = TwilioLine(socket)
        parameters = {one.get("name"): one.get("value") for one in wanted.findall("Parameter")}
        await line.begin(parameters, call_sid=call_sid)
        yield line


@asynccontextmanager
async def called(gateways, number=0):
    """A call whose agent has a session."""
    twiml = await ask(gateways.urls[number], "/v1/twilio/voice")
    async with connected(gateways.urls[number], twiml) as line:
        await until(lambda: gateways.sessions[number])
        yield line


async def say_a_word(line):
    await line.speak(WORD)
    await line.speak(SILENCE)


async def saved(gateways, line):
    """The store has all that came before."""
    writes = gateways.memory.writes
    await line.press("5")
    await until(lambda: gateways.memory.writes > writes)


def user_said(agent):
    return [message.content for message in agent.messages if message.role == "user"]


async def test_a_call_goes_on_where_it_was_heard(gateways, start):
    await start()
    await start()
    async with called(gateways) as line:
        (agent,) = gateways.sessions[0]
        lose_from(agent, protocol.Audio, 3)
        await say_a_word(line)
        await line.receive_marks(2)
        writes = gateways.memory.writes
        await line.play(1)  # of two words of 40 ms that came
        await until(lambda: gateways.memory.writes > writes)
        gateways.lines[0].cut()
    twiml = await ask(gateways.urls[1], CallStatus="in-progress")
    async with connected(gateways.urls[1], twiml) as line:
        await until(lambda: gateways.sessions[1])
        (after,) = gateways.sessions[1]
        progress = after.start.resume.progress
        assert 0 < progress.audio_ms == progress.played_ms < 80  # some of what came
        await line.receive_marks(2)  # the second word and the third
        await say_a_word(line)
        await until(lambda: len(user_said(after)) == 2)
        assert user_said(after)[:1] == user_said(agent)
        # It is the caller who ends it now.
        await line.hang_up()
        assert (await closing(line))[0] == 1000
    assert (await ask(gateways.urls[1])).find("Hangup") is not None


async def test_a_stream_that_breaks_is_connected_again_at_the_same_gateway(gateways, start):
    await start()
    async with called(gateways) as line:
        await say_a_word(line)
        await line.receive_marks(1)
        await saved(gateways, line)
        line._socket.transport.abort()
    twiml = await ask(gateways.urls[0])
    async with connected(gateways.urls[0], twiml) as line:
        await until(lambda: len(gateways.sessions[0]) == 2)
        assert user_said(gateways.sessions[0][1]) == user_said(gateways.sessions[0][0])


async def test_a_gateway_that_shuts_down_leaves_its_calls_to_others(gateways, start):
    one = await start()
    await start()
    async with called(gateways) as line:
        await saved(gateways, line)
        one.gateway.calls.going_away.set()
        assert (await closing(line))[0] == 1001
    assert (await ask(gateways.urls[1])).find("Connect") is not None


@pytest.mark.parametrize("form", [{"CallStatus": "completed"}, {"CallSid": "CA2"}])
async def test_a_call_that_is_over_or_unknown_is_not_connected_again(gateways, start, form):
    await start()
    await start()
    async with called(gateways) as line:
        await saved(gateways, line)
        gateways.lines[0].cut()
    assert (await ask(gateways.urls[1], **form)).find("Hangup") is not None


async def test_a_call_that_the_agent_ends_is_over_before_its_stream_is_closed(gateways, start):
    await start()
    async with called(gateways) as line:
        (agent,) = gateways.sessions[0]
        await saved(gateways, line)
        agent.stream.say(protocol.Closed(reason="agent_ended"))
        agent.stream.end()
        assert await closing(line) == (1000, "agent_ended")
        assert (await ask(gateways.urls[0])).find("Hangup") is not None


async def test_a_call_may_have_another_conversation_behind_one_that_is_over(gateways, start):
    await start()
    async with called(gateways) as line:
        await saved(gateways, line)
        gateways.sessions[0][0].stream.say(protocol.Closed(reason="agent_ended"))
        gateways.sessions[0][0].stream.end()
        await closing(line)
    async with called(gateways) as line:
        await until(lambda: len(gateways.sessions[0]) == 2)
        await saved(gateways, line)
        line._socket.transport.abort()
    twiml = await ask(gateways.urls[0])
    async with connected(gateways.urls[0], twiml):
        await until(lambda: len(gateways.sessions[0]) == 3)
    assert gateways.sessions[0][2].start.resume is not None


async def test_another_call_does_not_get_it(gateways, start):
    await start()
    async with called(gateways) as line:
        await saved(gateways, line)
        line._socket.transport.abort()
    twiml = await ask(gateways.urls[0])
    async with connected(gateways.urls[0], twiml, call_sid="CA2") as line:
        assert await closing(line) == (1008, "not_resumable")
    assert len(gateways.sessions[0]) == 1


async def test_no_failure_connects_a_caller_for_ever(gateways, start, monkeypatch):
    monkeypatch.setattr(stream, "_MOST_STREAMS", 3)
    await start()
    async with called(gateways) as line:
        await saved(gateways, line)
        line._socket.transport.abort()
    for _ in range(2):
        twiml = await ask(gateways.urls[0])
        async with connected(gateways.urls[0], twiml) as line:
            await saved(gateways, line)
            line._socket.transport.abort()
    assert (await ask(gateways.urls[0])).find("Hangup") is not None


async def test_a_store_that_is_away_ends_the_call(gateways, start):
    await start()
    async with called(gateways) as line:
        await saved(gateways, line)
        gateways.memory.is_away = True
        line._socket.transport.abort()
    assert (await ask(gateways.urls[0])).find("Hangup") is not None


async def test_only_twilio_may_ask(gateways, start):
    await start()
    async with httpx2.AsyncClient(base_url=gateways.urls[0]) as http:
        answer = await http.post("/v1/twilio/ended", **voice_request({"CallSid": "CA1"}, "wrong"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, UnauthorizedError.code)
