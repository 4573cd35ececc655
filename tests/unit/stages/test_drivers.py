"""Each driver with a fake of its endpoint."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import replace

import pytest
import soundfile
from fake_endpoints import QUICK, utterance
from fake_services import Service, serving
from stages.drivers import DRIVERS, parse_endpoint
from stages.drivers.common import EndpointOptions
from stages.protocols import EndpointError, Prompt, Stage
from stages.turns import answer, call, recognize, speak

PROMPT = Prompt("Be short.", "hello")
PATIENT = replace(QUICK, turn_s=30.0)


@pytest.fixture
async def service():
    one = Service()
    async with serving(one) as url:
        one.url = url
        yield one


async def measure(kind, url, patience=QUICK, **options):
    """One turn."""
    driver = DRIVERS[kind]
    async with driver.open(EndpointOptions(url=url, **options)) as endpoint:
        match driver.stage:
            case Stage.RECOGNIZER:
                return await recognize(endpoint, utterance(), patience)
            case Stage.LANGUAGE_MODEL:
                return await answer(endpoint, PROMPT, patience)
            case Stage.VOICE:
                return await speak(endpoint, "hello", patience)
            case Stage.CALL:
                return (await call(endpoint, [utterance()], patience))[0]


OPENAI = (
    "openai-chat",
    "openai-speech",
    "openai-recording",
    "openai-realtime-recognizer",
    "openai-realtime",
)
DEEPGRAM = ("deepgram-recognizer", "deepgram-speech")


def url_of(service, kind):
    return f"{service.url}/v1" if kind in OPENAI else service.url


@pytest.mark.parametrize("kind", [*OPENAI, *DEEPGRAM])
async def test_every_service_is_measured(service, kind):
    turn = await measure(kind, url_of(service, kind), key="secret")
    assert turn.failure == ""
    assert turn.figures
    if DRIVERS[kind].stage == Stage.RECOGNIZER:
        assert (turn.text, turn.words) == ("one two", (0, 2))


@pytest.mark.parametrize("kind", [*OPENAI, *DEEPGRAM])
async def test_a_refusal_is_a_failure_with_its_code(service, kind):
    service.refuses = True
    turn = await measure(kind, url_of(service, kind))
    assert turn.failure in ("HTTP 429", "full")


NO_RESULT = '{"type": "Results", "is_final": true, "channel": {"alternatives": [%s]}}'
STARTED, NO_ID = "input_audio_buffer.speech_started", ', "item_id": 1'
SOUND = '{"type": "response.output_audio.delta", "delta": %s}'
NO_CHUNK = b'data: {"choices": [{"index": 0, "delta": %s}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("kind", "answered"),
    [
        *(("deepgram-recognizer", [one]) for one in ("{", "[]", b"\xff", NO_RESULT % "", NO_RESULT % "1")),
        ("deepgram-recognizer", [NO_RESULT % '{"transcript": 1}']),
        *(("deepgram-speech", [one]) for one in ("{", "[]", b"odd")),
        *(("openai-chat", one) for one in (b"data: {\n\n", b"\xff\n\n", NO_CHUNK % b"1")),
        ("openai-chat", NO_CHUNK % b'{"content": 1}'),
        *(("openai-recording", body) for body in (b"{", b"[]", b'{"text": 1}', b"\xff", b"[" * 100_000)),
        *(
            (kind, [one])
            for kind in ("openai-realtime-recognizer", "openai-realtime")
            for one in ("{", "[]", "{}", b"\xff", '{"type": "error", "error": 1}')
        ),
        *(("openai-realtime-recognizer", [f'{{"type": "{STARTED}"{field}}}']) for field in ("", NO_ID)),
        *(("openai-realtime", [SOUND % one]) for one in ("1", '"A"', '"AA=="', '"*"')),
    ],
)
async def test_an_unreadable_answer_is_a_failure(service, kind, answered):
    service.answer = answered
    turn = await measure(kind, url_of(service, kind), PATIENT, key="secret")
    assert turn.failure == "unreadable answer"


@pytest.mark.parametrize("kind", [kind for kind, driver in DRIVERS.items() if kind != "pipecat"])
async def test_a_service_that_is_not_there_is_a_failure(kind):
    url = "127.0.0.1:1" if kind.startswith("parley") else "http://127.0.0.1:1"
    with suppress(EndpointError):  # where the endpoint connects before the first turn
        assert (await measure(kind, url)).failure


@pytest.mark.parametrize("kind", ["openai-realtime-recognizer", "deepgram-recognizer"])
async def test_streams_have_partial_texts(service, kind):
    assert "first_partial_ms" in (await measure(kind, url_of(service, kind))).figures


async def test_chat_uses_the_endpoints_count_of_tokens_and_the_key(service):
    turn = await measure("openai-chat", f"{service.url}/v1", key="secret", model="small")
    ((authorization, body),) = service.seen
    assert authorization == "Bearer secret"
    assert (body["model"], [message["content"] for message in body["messages"]]) == (
        "small",
        ["Be short.", "hello"],
    )
    assert turn.text == "one two"


async def test_recordings_are_wav_files_of_the_speech_alone(service):
    await measure("openai-recording", f"{service.url}/v1")
    ((_, body),) = service.seen
    samples, rate = soundfile.read(io.BytesIO(body), dtype="int16")
    assert rate == 16_000
    assert 64 <= len(samples) / 16 <= 128


async def test_a_voice_keeps_its_connection_for_the_next_text(service):
    async with DRIVERS["deepgram-speech"].open(EndpointOptions(url=service.url)) as endpoint:
        for text in ("one", "two"):
            assert not (await speak(endpoint, text, QUICK)).failure
    assert (service.seen, service.connections) == (["one", "two"], 1)


async def test_realtime_asks_for_the_turn_detection_that_is_wanted(service):
    extra = {"turn_detection": "semantic_vad"}
    await measure("openai-realtime", f"{service.url}/v1", voice="alloy", extra=extra)
    (session,) = service.seen
    assert session["audio"]["input"]["turn_detection"] == {"type": "semantic_vad"}
    assert session["audio"]["output"]["voice"] == "alloy"


def test_an_endpoint_is_written_as_driver_and_options(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "secret")
    written = "openai-chat,url=http://host/v1/,key=SOME_KEY,model=a=b,name=mine"
    spec = parse_endpoint(written)
    assert (spec.name, spec.options.url, spec.options.key, spec.options.model) == (
        "mine",
        "http://host/v1",
        "secret",
        "a=b",
    )
    assert parse_endpoint("deepgram-speech,url=http://host:1,voice=v").name == "deepgram-speech v at host:1"
    assert "secret" not in repr(spec)


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("telepathy", "unknown driver 'telepathy'; there are parley-recognizer"),
        ("openai-chat,model", "'model' is not option=value"),
        ("openai-chat,colour=red", "unknown option 'colour'; there are name, url"),
        ("openai-chat,endpointing=300", "unknown option"),
        ("openai-chat,key=NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE is not set"),
        ("parley-llm", "parley-llm needs url=HOST:PORT"),
    ],
)
def test_unusable_endpoint_is_reported(written, complaint):
    with pytest.raises(EndpointError, match=complaint):
        parse_endpoint(written)
