"""Deepgram's ``/v1/speak``: streams and files."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np
import pytest
from deepgram_client import refusal, rest, say
from fake_models import Voice
from recordings_for_tests import read
from websockets.asyncio.client import connect

from parley_gateway.audio.codecs import SAMPLE_RATES, decode_ulaw
from parley_gateway.security.keys import new_key
from parley_gateway.websocket import IdleLimit

RATE = 24_000
TEXT = "Hello there. How are you? "
SAID = "Hello there.How are you?"


@pytest.fixture
def voice(gateway):
    return Voice(gateway.models, rate=RATE)


@asynccontextmanager
async def open_voice(gateway, query="model=aura-2-thalia-en&encoding=linear16&sample_rate=24000"):
    async with asyncio.timeout(10), connect(f"{gateway.ws_url}/v1/speak?{query}") as socket:
        metadata = json.loads(await socket.recv())
        assert (metadata["type"], metadata["model_name"]) == ("Metadata", "espeak")
        yield socket


async def until(socket, kind):
    """The audio up to a message of a kind, and that message."""
    audio = b""
    while True:
        message = await socket.recv()
        if isinstance(message, bytes):
            audio += message
            continue
        content = json.loads(message)
        assert content["type"] == kind
        return audio, content


async def speak(socket, text):
    """Speak a text; returns its audio and the ``Flushed`` message."""
    await say(socket, "Speak", text=text)
    await say(socket, "Flush")
    return await until(socket, "Flushed")


def text_of(audio):
    return "".join(map(chr, np.frombuffer(audio, "<i2")[::2]))


async def test_text_is_spoken(gateway, voice):
    async with open_voice(gateway) as socket:
        for word in TEXT.split()[:-1]:
            await say(socket, "Speak", text=f"{word} ")
        audio, flushed = await speak(socket, f"{TEXT.rsplit(maxsplit=1)[-1]} ")
        assert text_of(audio) == SAID
        assert flushed["sequence_id"] == 0
        await say(socket, "Flush")
        assert await until(socket, "Flushed") == (b"", {"type": "Flushed", "sequence_id": 1})
        await say(socket, "Speak", text="Bye.")
        await say(socket, "Close")
        audio, _ = await until(socket, "Flushed")
        assert text_of(audio) == "Bye."
        assert (await rest(socket))[1] == (1000, "")


async def test_sentences_are_spoken_before_the_text_is_complete(gateway, voice):
    async with open_voice(gateway) as socket:
        await say(socket, "Speak", text="Hello there. How")
        audio = b""
        while len(audio) < 4 * len("Hello there."):
            audio += await socket.recv()
        assert text_of(audio) == "Hello there."


async def test_clear_silences_the_voice(gateway, voice):
    voice.hold.clear()
    async with open_voice(gateway) as socket:
        await say(socket, "Speak", text=TEXT)
        await say(socket, "Flush")
        await say(socket, "Speak", text="More. ")
        first = await socket.recv()
        assert isinstance(first, bytes)
        await say(socket, "Clear")
        await until(socket, "Cleared")
        await voice.aborted.wait()
        audio, flushed = await speak(socket, "Bye.")
        assert (text_of(audio), flushed["sequence_id"]) == ("Bye.", 1)
    assert voice.spoken == ["Hello there.", "Bye."]


async def test_telephone_audio(gateway):
    Voice(gateway.models, rate=8_000)
    async with open_voice(gateway, "encoding=mulaw") as socket:
        audio, _ = await speak(socket, "Hello.")
    assert {asked["sample_rate"] for asked in gateway.models.asked} == {8_000}
    assert all(asked["background"] for asked in gateway.models.asked)
    assert len(decode_ulaw(audio)) == 2 * len("Hello.")


async def test_the_synthesizer_of_a_voice_is_requested_once(gateway, voice):
    async with open_voice(gateway, "model=woman-1") as socket:
        await speak(socket, "Hello. ")
        await speak(socket, "Bye. ")
    assert gateway.models.configurations == ["voice_agent"]
    assert {(asked["voice"], asked["background"]) for asked in gateway.models.asked} == {("woman-1", True)}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("encoding=mp3", "linear16"),
        ("encoding=linear16&container=wav", "container"),
        ("speed=1.5", "speed"),
        ("callback=http://x", "callback"),
        ("sample_rate=12345", "12345"),
    ],
)
async def test_unsupported_stream_options_are_refused(gateway, query, said):
    answer, body = await refusal(open_voice(gateway, query))
    assert answer.status_code == 400
    assert said in body["err_msg"]


async def test_a_voice_that_is_not_there_is_refused(gateway):
    async def answer(message):
        yield "unsupported_voice: no voice 'x'"

    gateway.models.answer = answer
    answer, body = await refusal(open_voice(gateway, "model=x"))
    assert "voice 'x'" in answer.headers["dg-error"]
    assert "voice 'x'" in body["err_msg"]


@pytest.mark.parametrize("message", [b"audio", "{", '{"type": "Sing"}', '{"type": "Speak"}'])
async def test_invalid_messages_end_the_voice(gateway, voice, message):
    async with open_voice(gateway) as socket:
        await socket.send(message)
        await until(socket, "Error")
        assert (await rest(socket))[1] == (1008, "invalid_message")


async def test_waiting_texts_are_bounded(gateway, voice):
    voice.hold.clear()
    async with open_voice(gateway) as socket:
        await say(socket, "Speak", text="Hello. ")
        for _ in range(66):
            await say(socket, "Flush")
        assert (await rest(socket))[1][0] == 1013
    await voice.aborted.wait()


async def test_a_failed_voice_ends_with_an_error(gateway):
    async def answer(message):
        yield "inference_failed: oh no"

    gateway.models.answer = answer
    async with open_voice(gateway) as socket:
        await say(socket, "Speak", text="Hello. More")
        _, error = await until(socket, "Error")
        assert error["code"] == "inference_failed"
        assert (await rest(socket))[1] == (1011, "NET-0000")


async def test_a_client_that_vanishes_silences_the_voice(gateway, voice):
    voice.hold.clear()
    async with open_voice(gateway) as socket:
        await say(socket, "Speak", text=TEXT)
        await socket.recv()
        socket.transport.abort()
        await voice.aborted.wait()


async def test_more_audio_than_the_queue_holds_is_sent(start):
    gateway = await start(writer={"bytes": 20_000})
    voice = Voice(gateway.models, rate=RATE)
    async with open_voice(gateway) as socket:
        audio, _ = await speak(socket, "Hello there, my friend. " * 200)
    assert len(audio) == sum(4 * len(text) for text in voice.spoken)
    assert len(voice.spoken) == 201  # the first clause is spoken by itself


# --- files ----------------------------------------------------------------------------------


async def post(gateway, query="", **body):
    return await gateway.http.post(f"/v1/speak?{query}", json={"text": TEXT, **body})


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("", "audio/mpeg"),
        ("encoding=linear16", "audio/wav"),
        ("encoding=linear16&container=wav&sample_rate=8000", "audio/wav"),
        ("encoding=opus", "audio/ogg"),
        ("encoding=flac", "audio/flac"),
        ("encoding=aac", "audio/aac"),
        *((f"encoding=mp3&sample_rate={rate}", "audio/mpeg") for rate in SAMPLE_RATES),
        *((f"encoding=aac&sample_rate={rate}", "audio/aac") for rate in SAMPLE_RATES),
    ],
)
async def test_a_text_becomes_a_file(gateway, query, kind):
    voice = Voice(gateway.models, rate=RATE, times=1_000)
    answer = await post(gateway, query)
    assert answer.headers["content-type"] == kind
    spoken_s = sum(1_000 * len(text) for text in voice.spoken) / RATE
    # Some encoders fill their last block.
    assert len(read(answer.content)) / 16_000 == pytest.approx(spoken_s, abs=0.3)


async def test_a_text_becomes_raw_audio(gateway, voice):
    answer = await post(gateway, "encoding=linear16&container=none&sample_rate=24000&model=aura-asteria-en")
    assert text_of(answer.content) == SAID
    assert answer.headers["content-type"] == "audio/l16;rate=24000"
    assert (answer.headers["dg-char-count"], answer.headers["dg-model-name"]) == ("26", "espeak")
    assert "dg-request-id" in answer.headers


async def test_the_synthesizer_of_a_file_is_requested_once(gateway, voice):
    gateway.models.agent_tts = "kokoro,espeak"
    gateway.models.ready = {"kokoro", "espeak"}
    answer = await post(gateway, "encoding=linear16&container=none&sample_rate=24000&model=woman-1")
    assert text_of(answer.content) == SAID
    assert answer.headers["dg-model-name"] == "espeak"
    assert set(gateway.models.asked_models) == {"espeak"}
    assert gateway.models.configurations == ["voice_agent"]


async def test_a_file_takes_one_place_and_one_server(gateway, voice, monkeypatch):
    leased = []
    servers = gateway.gateway.servers
    lease = servers.lease

    def noted(**options):
        leased.append(options)
        return lease(**options)

    monkeypatch.setattr(servers, "lease", noted)
    assert (await post(gateway)).status_code == 200
    assert len(leased) == 1


async def test_a_file_with_a_voice_that_is_not_there_is_refused(gateway, voice):
    answer = await post(gateway, "model=missing")
    assert answer.status_code == 400
    assert "missing" in answer.json()["err_msg"]


@pytest.mark.parametrize(
    ("query", "body", "said"),
    [
        ("encoding=speex", {}, "speex"),
        ("encoding=mulaw&container=wav", {}, "G.711"),
        ("encoding=mp3&container=wav", {}, "mp3"),
        ("encoding=opus&sample_rate=24000", {}, "48000"),
        ("encoding=mp3&sample_rate=8001", {}, "8001"),
        ("", {"text": " "}, "characters"),
        ("", {"text": "a" * 5_000}, "characters"),
        ("", {"text": 3}, "cannot be read"),
    ],
)
async def test_unsupported_file_options_are_refused(gateway, voice, query, body, said):
    answer = await post(gateway, query, **body)
    assert answer.status_code == 400
    assert said in answer.json()["err_msg"]
    assert gateway.models.asked == []


async def test_idle_voices_of_one_key_leave_room_for_another(start, tmp_path):
    keys = [new_key(name, ["speak", "transcribe"]) for name in ("one", "other")]
    (tmp_path / "keys").write_text("\n".join(key.line for key in keys))
    gateway = await start(security={"keys_file": str(tmp_path / "keys")}, stages={"requests": 8})
    one, other = ({"Authorization": f"Token {key.secret}"} for key in keys)
    async with AsyncExitStack() as open_voices:
        for _ in range(6):
            await open_voices.enter_async_context(
                connect(f"{gateway.ws_url}/v1/speak", additional_headers=one)
            )
        answer, _ = await refusal(connect(f"{gateway.ws_url}/v1/speak", additional_headers=one))
        assert answer.status_code == 429
        for path in ("speak", "listen?encoding=linear16&sample_rate=16000"):
            async with connect(f"{gateway.ws_url}/v1/{path}", additional_headers=other):
                pass


async def test_a_voice_without_text_is_closed(start):
    gateway = await start(stages={"voice_idle_s": 0.1})
    async with open_voice(gateway) as socket:
        (error,), closed = await rest(socket)
    assert (error["code"], closed) == ("session_idle", (1011, "NET-0001"))


async def test_a_voice_that_speaks_is_not_idle(gateway, voice, monkeypatch):
    touched = 0

    def touch(self):
        nonlocal touched
        touched += 1

    monkeypatch.setattr(IdleLimit, "touch", touch)
    async with open_voice(gateway) as socket:
        audio, _ = await speak(socket, TEXT)
    assert audio
    assert touched


async def test_a_touch_restarts_the_limit():
    idle = IdleLimit(60.0, "text")

    message = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(idle.wait_for(message))
    await asyncio.sleep(0)
    before = idle._timeout.when()
    idle.touch()
    assert idle._timeout.when() > before
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    idle.touch()
