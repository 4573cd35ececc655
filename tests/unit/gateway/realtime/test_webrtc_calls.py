"""Calls over WebRTC: audio as media, events by the data channel, and every way to end."""

import asyncio
import json
from contextlib import asynccontextmanager
from unittest.mock import patch

import numpy as np
import pytest
from aiortc import RTCPeerConnection
from aiortc.mediastreams import MediaStreamError
from fake_agent import serve
from listening_gateway import frame_of, until
from openai_session import audio
from resuming_agent import WORD_MS, cut_behind, lose, send_away, serve_session
from rtc_client import RtcClient, calling, forgotten, post_offer

from parley import protocol
from parley.errors import TooManySessionsError
from parley_gateway.apis.realtime.output_audio import Part
from parley_gateway.apis.realtime.session_config import SessionConfig
from parley_gateway.apis.realtime.webrtc import calls
from parley_gateway.apis.realtime.webrtc.audio_track import TrackSpeaker
from parley_gateway.apis.realtime.webrtc.network import IceNetwork
from parley_gateway.apis.realtime.webrtc.offers import Offer
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.principal import ANONYMOUS

LOUD = 4_000


def message_of(kind):
    """Whether a frame brings this message to the agent."""
    return lambda frame: frame.message and json.loads(frame.message)["type"] == kind


def loud_frames(client):
    return sum(level > LOUD for level in client.levels)


class Storyteller:
    """An agent that speaks for a second on request."""

    def __init__(self):
        self.stream = None

    async def __call__(self, stream):
        self.stream = stream
        await serve(stream, self._on_frame)

    def _on_frame(self, frame):
        if message_of("respond")(frame):
            self.stream.say(protocol.ResponseText(turn=1, response_id="r-1", text="Once upon a time."))
            for offset_ms in range(0, 1_000, 100):
                piece = protocol.Audio(
                    turn=1, response_id="r-1", offset_ms=offset_ms, sample_rate=48_000, samples=4_800
                )
                self.stream.say(piece, np.tile(np.array([8_000, -8_000] * 24, np.int16).repeat(10), 10))

    def finish(self):
        self.stream.say(protocol.ResponseDone(turn=1, response_id="r-1", audio_ms=1_000))
        self.stream.say(protocol.TurnMetrics(turn=1))

    def interrupt(self):
        self.stream.say(
            protocol.Interrupted(turn=1, response_id="r-1", played_ms=300, spoken_text="Once", reason="words")
        )
        self.stream.say(protocol.TurnMetrics(turn=1, interrupted=True))


@asynccontextmanager
async def listening(gateway):
    """A call in which a response is being played: its agent, its gateway and its client."""
    agent = Storyteller()
    one = await gateway(agent)
    async with calling(one.http) as client:
        client.send("response.create")
        await client.until(lambda: loud_frames(client) > 5)
        yield agent, one, client


async def test_a_response_is_played_and_its_end_is_reported(gateway):
    async with listening(gateway) as (agent, one, client):
        started = await client.receive("output_audio_buffer.started")
        await client.until(lambda: loud_frames(client) > 40)
        agent.finish()
        await client.receive("output_audio_buffer.stopped")
        kinds = client.kinds()
        assert kinds.index("response.done") < kinds.index("output_audio_buffer.stopped")
        assert "response.output_audio.delta" not in kinds
        assert started["response_id"] == (await client.receive("response.done"))["response"]["id"]
    mark = await frame_of(
        one.agents[0], lambda frame: message_of("playback")(frame) and b"1000" in frame.message
    )
    assert json.loads(mark.message) == {"type": "playback", "response_id": "r-1", "played_ms": 1_000}


async def test_an_interruption_flushes_what_was_not_played(gateway):
    async with listening(gateway) as (agent, _, client):
        agent.interrupt()
        truncated = await client.receive("conversation.item.truncated")
        assert truncated["audio_end_ms"] == 300
        await client.receive("output_audio_buffer.cleared")
        done = await client.receive("response.done")
        assert done["response"]["status_details"]["reason"] == "turn_detected"
        heard = len(client.levels)
        await client.until(lambda: len(client.levels) > heard + 30)
        assert max(client.levels[-10:]) < LOUD
        assert loud_frames(client) < 40


async def test_a_pause_holds_what_was_not_played(gateway):
    async with listening(gateway) as (agent, _, client):
        agent.stream.say(protocol.Paused(turn=1, response_id="r-1", at_ms=100))
        await client.until(lambda: max(client.levels[-15:]) < LOUD)
        agent.stream.say(protocol.Resumed(turn=1, response_id="r-1", reason="noise"))
        await client.until(lambda: loud_frames(client) > 40)


def tone(word, samples, rate):
    """The audio of a word: 100 Hz higher with each word, in whole periods."""
    return (8_000 * np.sin(2 * np.pi * (300 + 100 * word) / rate * np.arange(samples))).astype(np.int16)


def word_of(frame):
    """Whose audio most of a received frame is."""
    hz = np.abs(np.fft.rfft(frame * np.hanning(960), 9_600)).argmax() * 48_000 / 9_600
    return round((hz - 300) / 100)


@pytest.mark.parametrize("end", [lose, send_away])
async def test_an_answer_goes_on_at_another_server(gateway, end):
    streams = []

    async def agent(stream):
        streams.append(stream)
        if len(streams) == 1:
            cut_behind(stream, protocol.Audio, 45, end)
        await serve_session(stream, voice=tone)

    one = await gateway(agent, agent)
    said = " ".join(["word"] * 48)
    words = 2 + 48
    async with calling(one.http) as client:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]}
        client.send("conversation.item.create", item=item)
        client.send("response.create")
        await client.receive("output_audio_buffer.stopped")
        after = len(client.levels)
        await client.until(lambda: len(client.levels) > after + 25)  # what is on its way, and silence
        kinds = client.kinds()
        assert (await client.receive("response.done"))["response"]["status"] == "completed"
        assert client.peer.connectionState == "connected"
        assert one.gateway.calls.count == 1
    assert len(streams) == 2
    for kind in ("session.created", "response.created", "response.done", "output_audio_buffer.started"):
        assert kinds.count(kind) == 1
    assert "error" not in kinds
    loud = [at for at, level in enumerate(client.levels) if level > LOUD]
    assert loud == list(range(loud[0], loud[-1] + 1))
    frames = [word for word in range(1, words + 1) for _ in range(WORD_MS // 20)]
    # The codec's delay lets the last word reach into one more frame.
    assert [word_of(client.heard[at]) for at in loud] in (frames, [*frames, words])


async def test_the_users_audio_reaches_the_agent(gateway):
    one = await gateway()
    async with calling(one.http) as client:
        client.microphone.skip = 10
        stream = one.agents[0].streams
        await until(lambda: stream and sum(len(frame.audio) for frame in stream[0].seen) > 32_000)
        samples = np.frombuffer(b"".join(frame.audio for frame in stream[0].seen), "<i2")
        assert np.abs(samples).max() > LOUD
        spectrum = np.abs(np.fft.rfft(samples[-8_000:]))
        assert spectrum.argmax() * 16_000 / 8_000 == pytest.approx(440, abs=5)
        start = json.loads(stream[0].seen[0].message)
        assert start["output_sample_rate"] == 48_000
        assert start["barge_in"]["pause_playback"] is True


async def test_a_session_comes_with_the_offer(gateway):
    one = await gateway()
    wanted = {"type": "realtime", "model": "gpt-realtime", "instructions": "Be brief."}
    async with calling(one.http, wanted) as client:
        created = await client.receive("session.created")
        assert created["session"]["instructions"] == "Be brief."
        assert "format" not in created["session"]["audio"]["output"]


async def hang_up(one, client):
    assert (await one.http.post(f"{client.location}/hangup")).status_code == 200


async def leave(one, client):
    await client.close()


async def shut_down(one, client):
    one.gateway.calls.going_away.set()


@pytest.mark.parametrize("end", [hang_up, leave, shut_down])
async def test_a_call_ends(gateway, end):
    one = await gateway()
    async with calling(one.http) as client:
        await client.open_session()
        await end(one, client)
        await forgotten(client.location)
        assert (await one.http.post(f"{client.location}/hangup")).status_code == 404
    assert one.gateway.calls.count == 0


async def test_a_call_whose_audio_fails_ends(gateway, monkeypatch, caplog):
    async def broken(track):
        raise ValueError("no such codec")
        yield track

    monkeypatch.setattr(calls, "read_track", broken)
    one = await gateway()
    async with calling(one.http) as client:
        error = await client.receive("error")
        assert error["error"]["code"] == "internal_error"
        await forgotten(client.location)
    assert "a WebRTC call failed" in caplog.text


async def test_the_agent_ends_the_call(gateway):
    agent = Storyteller()
    one = await gateway(agent)
    async with calling(one.http) as client:
        await client.open_session()
        agent.stream.hang_up("silence")
        await until(lambda: client.peer.connectionState == "closed")


async def test_a_call_that_a_server_refuses_is_a_refusal(gateway):
    one = await gateway(TooManySessionsError("full"), servers={"attempts": 1})
    async with calling(one.http) as client:
        client.send("session.update", session={"type": "realtime"})
        assert (await client.receive("error"))["error"]["code"] == "too_many_sessions"
        await forgotten(client.location)
    assert one.failures() == [{"too_many_sessions": 1}, {}]


async def test_a_call_that_breaks_is_counted_as_lost(gateway):
    agent = Storyteller()
    one = await gateway(agent)
    async with calling(one.http) as client:
        await client.open_session()
        agent.stream.say(protocol.SpeechStarted(at_ms=0))  # without a checkpoint it cannot go on elsewhere
        agent.stream.end()
        assert (await client.receive("error"))["error"]["code"] == "call_lost"
        await forgotten(client.location)
    assert one.failures() == [{}, {"call_lost": 1}]


async def offer_of(client):
    await client.peer.setLocalDescription(await client.peer.createOffer())
    return client.peer.localDescription.sdp


@pytest.mark.parametrize("limits", [{"limit": 1}, {"limit": 1, "per_key": 1}])
async def test_offers_under_way_are_counted(gateway, limits):
    one = await gateway(calls=limits, realtime={"ice_s": 0.1})
    client = RtcClient(one.http)
    sdp = await offer_of(client)
    answers = await asyncio.gather(*(post_offer(one.http, sdp) for _ in range(3)))
    accepted, refused, other = sorted(answers, key=lambda answer: answer.status_code)
    assert (accepted.status_code, refused.status_code, other.status_code) == (201, 429, 429)
    assert refused.json()["error"]["code"] == "too_many_calls"
    assert "retry-after" in refused.headers
    await forgotten(accepted.headers["location"])
    again = await post_offer(one.http, sdp)
    assert again.status_code == 201
    await forgotten(again.headers["location"])
    await client.close()


async def test_a_connection_that_does_not_close_holds_no_call(gateway, monkeypatch, caplog):
    close, stuck = RTCPeerConnection.close, []

    async def hang(self):
        stuck.append(self)
        await asyncio.get_running_loop().create_future()

    one = await gateway()
    client = RtcClient(one.http)
    await client.offer()
    monkeypatch.setattr(calls, "_CLOSE_S", 0.05)
    monkeypatch.setattr(RTCPeerConnection, "close", hang)
    await one.http.post(f"{client.location}/hangup")
    await forgotten(client.location)
    assert "was not closed" in caplog.text
    monkeypatch.undo()
    for connection in stuck:
        await close(connection)
    await client.close()


async def test_a_cancelled_answer_closes_its_connection(gateway, monkeypatch):
    one = await gateway()
    client = RtcClient(one.http)
    sdp = await offer_of(client)
    begun = asyncio.Event()

    async def hang(self, description):
        begun.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(RTCPeerConnection, "setLocalDescription", hang)
    callee = calls.Peer(
        "rtc_1",
        one.gateway,
        ANONYMOUS,
        SessionConfig("sess_1", "x", webrtc=True),
        IceNetwork(),
        limiter=ModelLimiter(one.gateway, "realtime"),
    )
    answering = asyncio.create_task(callee.answer(Offer(sdp)))
    await begun.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert callee._connection.signalingState == "closed"
    await client.close()


@pytest.mark.parametrize(
    ("content", "kind", "code"),
    [
        ("nothing", "application/sdp", "invalid_offer"),
        ("v=0\r\n", "application/sdp", "invalid_offer"),
        ("{}", "application/json", "invalid_content_type"),
    ],
)
async def test_invalid_requests_are_refused(gateway, content, kind, code):
    one = await gateway()
    answer = await one.http.post("/v1/realtime/calls", content=content, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code
    assert one.failures() == [{code: 1}, {}]


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"session": (None, "{}")}, "sdp"),
        *(
            (
                {"sdp": (None, "v=0"), "session": (None, f'{{"tracing": {"[" * levels + "]" * levels}}}')},
                "session",
            )
            for levels in (600, 20_000)
        ),
    ],
)
async def test_invalid_forms_are_refused(gateway, form, param):
    one = await gateway()
    answer = await one.http.post("/v1/realtime/calls", files=form)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("charset", ["punycode", "idna", "utf-7", "unicode_escape", "rot13", "nonsense"])
async def test_form_with_charset_is_read_as_utf_8(gateway, charset):
    # A codec that the client chooses may take quadratic time, as punycode does.
    one = await gateway()
    form = b'--X\r\nContent-Disposition: form-data; name="sdp"\r\n\r\n-bb\xc3\xa9\r\n--X--\r\n'
    kind = f"multipart/form-data; boundary=X; charset={charset}"
    with patch.object(calls, "Offer", wraps=calls.Offer) as offers:
        answer = await one.http.post("/v1/realtime/calls", content=form, headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_offer")
    assert offers.call_args.args[0] == "-bbé"


async def test_calls_may_be_switched_off(gateway):
    one = await gateway(realtime={"webrtc": False})
    assert (await post_offer(one.http, "v=0")).status_code in (404, 405)


async def test_the_queue_of_a_track_is_bounded_and_ends(caplog):
    events = []
    speaker = TrackSpeaker(lambda kind, /, **fields: events.append(kind), lambda *_: None)
    part = Part("resp_1", "item_1", 0)
    for offset_ms in range(0, 5_000, 100):
        speaker.play(part, audio(1, offset_ms=offset_ms, ms=100, rate=48_000))
    assert caplog.text.count("the audio of resp_1 is too long for the queue") == 1
    frames = 0
    speaker.track.pause()
    await speaker.track.recv()
    speaker.track.resume()
    speaker.finish()
    speaker.on_response_done("resp_1")
    while not speaker.track.is_empty:
        speaker.track._next_samples()
        frames += 1
    assert frames == 150
    assert speaker.track.played == ("r-1", 3_000)
    assert events == ["output_audio_buffer.started", "output_audio_buffer.stopped"]
    speaker.track.stop()
    with pytest.raises(MediaStreamError):
        await speaker.track.recv()
