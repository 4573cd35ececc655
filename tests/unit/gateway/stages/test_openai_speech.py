"""OpenAI's ``/v1/audio/speech``."""

import asyncio
import base64
import json
import threading

import httpx
import msgspec
import numpy as np
import pytest
from fake_models import Voice
from recordings_for_tests import read

from parley_gateway.settings_sections import StageSettings

PATH = "/v1/audio/speech"
TEXT = "Hello there. How are you?"
SPOKEN = len("Hello there.How are you?") * 2  # samples of the fake voice
RATE = 24_000
RAW = {"model": "tts-1", "input": TEXT, "voice": "alloy", "response_format": "pcm"}


async def speak(gateway, **fields):
    return await gateway.http.post(PATH, json={"model": "tts-1", "input": TEXT, "voice": "alloy", **fields})


@pytest.fixture
def voice(gateway):
    return Voice(gateway.models, rate=RATE)


async def test_a_text_is_spoken_as_raw_audio(gateway, voice):
    answer = await speak(gateway, response_format="pcm")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/pcm"
    samples = np.frombuffer(answer.content, "<i2")
    assert "".join(map(chr, samples[::2])) == "Hello there.How are you?"
    assert {(asked["voice"], asked["sample_rate"]) for asked in gateway.models.asked} == {(None, RATE)}
    assert all(asked["background"] for asked in gateway.models.asked)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("wav", "audio/wav"),
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("flac", "audio/flac"),
        ("aac", "audio/aac"),
        (None, "audio/mpeg"),
    ],
)
async def test_files_can_be_read_again(gateway, form, kind):
    voice = Voice(gateway.models, rate=RATE, times=1_000)
    answer = await speak(gateway, response_format=form)
    assert answer.headers["content-type"] == kind
    spoken_s = sum(1_000 * len(text) for text in voice.spoken) / RATE
    assert len(read(answer.content)) / 16_000 == pytest.approx(spoken_s, abs=0.1)


async def test_speech_as_events(gateway, voice):
    answer = await speak(gateway, response_format="pcm", stream_format="sse")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * 4 + ["speech.audio.done"]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert len(audio) == 2 * SPOKEN
    assert events[-1]["usage"].keys() == {"input_tokens", "output_tokens", "total_tokens"}


@pytest.mark.parametrize("name", ["woman-1", {"id": "woman-1"}])
async def test_voices_and_languages_can_be_named(gateway, voice, name):
    await speak(gateway, voice=name, model="espeak", language="de", instructions="Be kind.", speed=1)
    assert {(asked["voice"], asked["language"]) for asked in gateway.models.asked} == {("woman-1", "de")}


@pytest.mark.parametrize(
    ("name", "language"),
    [("ef_dora", "es"), ("kokoro/ff_siwis", "fr"), ("af_heart", "en"), ("man-2", "en"), ("alloy", "en")],
)
async def test_a_voice_of_another_language_speaks_its_own_unless_one_is_named(gateway, voice, name, language):
    gateway.models.agent_tts, gateway.models.ready = "kokoro,espeak", {"kokoro", "espeak"}
    answer = await speak(gateway, voice=name)
    assert answer.status_code == 200
    assert {asked["language"] for asked in gateway.models.asked} == {language}
    gateway.models.asked.clear()
    await speak(gateway, voice=name, language="en-GB")
    assert {asked["language"] for asked in gateway.models.asked} == {"en-GB"}


@pytest.mark.parametrize(
    ("model", "name", "asked"),
    [
        ("tts-1", "alloy", ("kokoro", None)),
        ("tts-1", "bm_george", ("kokoro", "bm_george")),
        ("tts-1", "man-2", ("espeak", "man-2")),
        ("espeak", "alloy", ("espeak", None)),
    ],
)
async def test_the_synthesizer_that_has_the_voice_speaks(gateway, voice, model, name, asked):
    gateway.models.agent_tts, gateway.models.ready = "kokoro,espeak", {"kokoro", "espeak"}
    await speak(gateway, voice=name, model=model)
    assert {message.get("voice") for message in gateway.models.asked} == {asked[1]}
    assert set(gateway.models.asked_models) == {asked[0]}


class SlowEncoder:
    """Needs the loop to go on meanwhile."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()

    def encode(self, samples):
        went_on = threading.Event()
        self.loop.call_soon_threadsafe(went_on.set)
        return b"x" if went_on.wait(2) else b"the loop stood still"

    def finish(self):
        return self.encode(None)


@pytest.mark.parametrize(
    ("module", "path", "body"),
    [
        ("openai.speech", PATH, {"model": "tts-1", "input": TEXT, "voice": "alloy"}),
        ("deepgram.speak", "/v1/speak", {"text": TEXT}),
    ],
)
async def test_audio_is_encoded_outside_of_the_event_loop(gateway, monkeypatch, module, path, body):
    Voice(gateway.models, rate=RATE)
    name = f"parley_gateway.apis.{module}.make_encoder"
    monkeypatch.setattr(name, lambda *_: SlowEncoder())
    answer = await gateway.http.post(path, json=body)
    assert set(answer.text) == {"x"}
    assert len(answer.text) >= 5  # two pieces of each sentence, and the end


async def test_a_client_that_leaves_stops_the_synthesizer(gateway, voice):
    voice.hold.clear()
    async with gateway.http.stream("POST", PATH, json=RAW) as answer:
        await anext(answer.aiter_bytes())
    await asyncio.wait_for(voice.aborted.wait(), 5)
    assert gateway.models.aborted() == [gateway.models.asked[0]["request_id"]]
    assert voice.spoken == ["Hello there."]


async def test_a_client_that_leaves_before_the_first_audio_stops_the_synthesizer(gateway):
    asked, aborted = asyncio.Event(), asyncio.Event()

    async def answer(message):
        (aborted if message["op"] == "abort" else asked).set()
        await aborted.wait()
        return
        yield

    gateway.models.answer = answer
    speaking = asyncio.create_task(speak(gateway))
    await asyncio.wait_for(asked.wait(), 5)
    speaking.cancel()
    await asyncio.wait_for(aborted.wait(), 5)
    await asyncio.wait([speaking])


async def test_a_client_that_does_not_read_stops_the_synthesizer(start):
    gateway = await start(stages={"stall_s": 0.2})
    voice = Voice(gateway.models, rate=RATE, times=200_000)
    host, port = gateway.url.removeprefix("http://").split(":")
    body = json.dumps(RAW)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    await asyncio.wait_for(voice.aborted.wait(), 10)
    assert voice.spoken == ["Hello there."]
    assert reader.at_eof() is False
    writer.transport.abort()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": " "}, "input"),
        ({"input": "a" * 4_097}, "input"),
        ({"speed": 2}, "speed"),
        ({"response_format": "aiff"}, "response_format"),
        ({"stream_format": "pigeon"}, "stream_format"),
        ({"colour": "red"}, "colour"),
        ({"voice": None}, "voice"),
        ({"model": "qwen3"}, "model"),
    ],
)
async def test_unsupported_requests_are_refused(gateway, voice, fields, param):
    answer = await speak(gateway, **fields)
    assert answer.status_code == (404 if param == "model" else 400)
    assert answer.json()["error"]["param"] == param
    assert gateway.models.asked == []


async def test_an_unknown_voice_is_an_http_error(gateway):
    async def answer(message):
        yield "unsupported_voice: no voice 'x'"

    gateway.models.answer = answer
    refused = await speak(gateway, voice="x")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_voice")


async def test_audio_that_breaks_off_is_an_incomplete_response(gateway):
    spoken = Voice(gateway.models, rate=RATE)

    async def answer(message):
        async for piece in spoken.answer(message):
            yield piece
            yield "inference_failed: oh no"
            return

    gateway.models.answer = answer
    with pytest.raises(httpx.RemoteProtocolError):
        await speak(gateway, response_format="pcm")
    streamed = await speak(gateway, response_format="pcm", stream_format="sse")
    last = json.loads(streamed.text.splitlines()[-2].removeprefix("data: "))
    assert last["error"]["code"] == "inference_failed"


async def test_voices_of_all_synthesizers_are_listed(gateway):
    gateway.models.agent_tts, gateway.models.ready = "kokoro,espeak", {"kokoro", "espeak"}
    body = (await gateway.http.get("/v1/audio/voices")).json()
    assert body["object"] == "list"
    listed = body["data"]
    voices = {one["id"]: one for one in listed}
    assert (listed[0]["id"], len(voices)) == ("af_heart", 36)
    assert [voice["id"] for voice in listed[-4:]] == ["man-1", "man-2", "woman-1", "woman-2"]
    assert {voice["object"] for voice in listed} == {"audio.voice"}
    george, woman = voices["bm_george"], voices["woman-1"]
    assert (george["model"], george["gender"], george["languages"]) == ("kokoro", "male", ["en", "en-gb"])
    assert "British" in george["description"]
    assert (woman["model"], woman["gender"], woman["description"]) == ("espeak", "female", None)


def test_a_synthesizer_that_does_not_exist_cannot_be_configured():
    for names in ("auto", "espeak", "kokoro, espeak"):
        assert msgspec.convert({"synthesizer": names}, StageSettings).synthesizer == names
    for names in ("parrot", "espeak,espeak", ""):
        with pytest.raises(msgspec.ValidationError, match="synthesizer"):
            msgspec.convert({"synthesizer": names}, StageSettings)
