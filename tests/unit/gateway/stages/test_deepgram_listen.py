"""Deepgram's ``/v1/listen``: streams and recordings."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from deepgram_client import refusal, rest, say
from recordings_for_tests import TONE, pages, wav
from websockets.asyncio.client import connect

from parley.asr.messages import (
    Segment,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscribeReply,
    TranscriptEvent,
)
from parley.errors import ShuttingDownError
from parley.protocol import Word
from parley_gateway.audio.codecs import encode_ulaw
from parley_gateway.errors import UnauthorizedError

LINEAR = "encoding=linear16&sample_rate=16000"
WINDOW = np.zeros(512, np.int16).tobytes()
WORDS = [Word(text="hello", start_ms=100, end_ms=400, confidence=0.9)]
STARTED = SpeechStartedEvent(utterance=1, at_ms=96)
PARTIAL = TranscriptEvent(utterance=1, text="hel", is_final=False, words=WORDS)
STOPPED = SpeechStoppedEvent(utterance=1, at_ms=500, detected_at_ms=800)
FINAL = TranscriptEvent(utterance=1, text="hello", is_final=True, confidence=0.9, words=WORDS)
UTTERANCE = [STARTED, PARTIAL, STOPPED, FINAL]


def hears(gateway, *replies, flush=()):
    """The recogniser answers pieces of audio with ``replies``, and a flush with ``flush``."""
    waiting = iter(replies)
    gateway.models.hear = lambda request: list(flush) if request[3].flush else next(waiting, [])


@asynccontextmanager
async def listen(gateway, query=LINEAR):
    async with asyncio.timeout(10), connect(f"{gateway.ws_url}/v1/listen?{query}") as socket:
        yield socket


def summary(message):
    if message["type"] != "Results":
        return message["type"]
    text = message["channel"]["alternatives"][0]["transcript"]
    return text, message["is_final"], message["speech_final"], message["from_finalize"]


async def test_speech_is_transcribed(gateway):
    hears(gateway, UTTERANCE)
    async with listen(gateway) as socket:
        await socket.send(TONE[:600].tobytes())
        await socket.send(TONE[600:2_000].tobytes())
        await say(socket, "CloseStream")
        messages, closed = await rest(socket)
    assert closed == (1000, "")
    assert [summary(message) for message in messages] == [("hello", True, True, False), "Metadata"]
    result, metadata = messages
    word = {"word": "hello", "start": 0.1, "end": 0.4, "confidence": 0.9, "punctuated_word": "hello"}
    alternatives = [{"transcript": "hello", "confidence": 0.9, "words": [word]}]
    assert result["channel"]["alternatives"] == alternatives
    assert (result["start"], result["duration"], result["channel_index"]) == (0.096, 0.404, [0, 1])
    assert result["metadata"]["request_id"] == metadata["request_id"]
    assert (metadata["duration"], metadata["channels"]) == (0.125, 1)
    heard = np.concatenate([samples for _, _, samples, _ in gateway.models.heard])
    assert np.array_equal(heard, TONE[:2_000])
    await gateway.models.ended.wait()


async def test_optional_messages_are_sent_on_request(gateway):
    hears(gateway, UTTERANCE)
    query = f"{LINEAR}&interim_results=true&vad_events=true&punctuate=true&model=nova-3&filler_words=true"
    async with listen(gateway, query) as socket:
        await socket.send(WINDOW)
        await say(socket, "CloseStream")
        messages, _ = await rest(socket)
    assert [summary(message) for message in messages] == [
        "SpeechStarted",
        ("hel", False, False, False),
        ("hello", True, True, False),
        "Metadata",
    ]
    assert messages[0] == {"type": "SpeechStarted", "channel": [0, 1], "timestamp": 0.096}


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", {"language": "en", "partial_interval_ms": 0, "phrases": []}),
        ("interim_results=true", {"partial_interval_ms": 240}),
        ("language=en-US", {"language": "en"}),
        ("language=-", {"language": "-"}),  # which the model refuses
        ("keyterm=Anna&keyterm=Bob&keywords=tea:2.5", {"phrases": ["Anna", "Bob", "tea"]}),
    ],
)
async def test_options_reach_the_recogniser(gateway, query, options):
    async with listen(gateway, f"{LINEAR}&{query}"):
        await gateway.models.hearing.wait()
    given = gateway.models.heard[0][3].options
    assert {name: getattr(given, name) for name in options} == options


@pytest.mark.parametrize(
    ("endpointing", "silence_ms", "speech_final"),
    [("400", 400, True), ("10", 200, True), ("false", None, False), ("true", None, True)],
)
async def test_pauses(gateway, endpointing, silence_ms, speech_final):
    hears(gateway, UTTERANCE)
    async with listen(gateway, f"{LINEAR}&endpointing={endpointing}") as socket:
        await socket.send(WINDOW)
        assert summary(json.loads(await socket.recv())) == ("hello", True, speech_final, False)
    assert gateway.models.heard[0][3].options.vad.silence_ms == silence_ms


async def test_telephone_audio(gateway):
    async with listen(gateway, "encoding=mulaw&sample_rate=8000") as socket:
        await socket.send(encode_ulaw(TONE[::2]))
        await say(socket, "CloseStream")
        await rest(socket)
    heard = np.concatenate([samples for _, _, samples, _ in gateway.models.heard])
    assert len(heard) == len(TONE)
    assert np.abs(heard).max() > 7_000


@pytest.mark.parametrize("form", ["webm", "ogg", "wav"])
async def test_containers_are_transcribed_while_they_come(gateway, form):
    hears(gateway, UTTERANCE)
    pieces = pages(form) if form != "wav" else [wav()[:10], wav()[10:9_999], wav()[9_999:]]
    async with listen(gateway, "encoding=ogg-opus" if form == "ogg" else "") as socket:
        for piece in pieces[:-1]:
            await socket.send(piece)
        assert summary(json.loads(await socket.recv()))[0] == "hello"
        await socket.send(pieces[-1])
        await say(socket, "CloseStream")
        messages, closed = await rest(socket)
    assert closed == (1000, "")
    heard = np.concatenate([samples for _, _, samples, _ in gateway.models.heard])
    if form == "wav":
        assert np.array_equal(heard, TONE)
    else:
        assert abs(len(heard) - 32_000) < 800
    assert messages[-1]["duration"] == round(len(heard) / 16_000, 3)


@pytest.mark.parametrize("audio", [b"GIF89a" + bytes(100), pages()[0] + bytes(range(256)) * 400])
async def test_containers_that_are_none_end_the_stream(gateway, audio):
    async with listen(gateway, "") as socket:
        await socket.send(audio)
        await say(socket, "CloseStream")
        messages, closed = await rest(socket)
    assert messages[-1]["code"] == "invalid_audio"
    assert closed == (1008, "DATA-0000")


async def test_finalize_is_answered_also_where_there_is_no_text(gateway):
    hears(gateway, [])
    async with listen(gateway) as socket:
        await socket.send(WINDOW)
        await say(socket, "Finalize")
        result = json.loads(await socket.recv())
    assert summary(result) == ("", True, False, True)
    assert (result["start"], result["duration"]) == (0.032, 0)


async def test_only_the_last_text_before_finalize_answers_it(gateway):
    second = [
        SpeechStoppedEvent(utterance=2, at_ms=1, detected_at_ms=1),
        TranscriptEvent(utterance=2, text="bye", is_final=True),
    ]
    hears(gateway, UTTERANCE, flush=second)
    async with listen(gateway) as socket:
        gateway.models.hearing.clear()
        await socket.send(WINDOW)
        await gateway.models.hearing.wait()
        await say(socket, "Finalize")
        results = [summary(json.loads(await socket.recv())) for _ in range(2)]
    assert results == [("hello", True, True, False), ("bye", True, True, True)]


async def test_finalize_twice_is_answered_once_and_holds_nothing_back(gateway):
    hears(gateway, [STARTED], UTTERANCE, flush=[STOPPED, FINAL])
    async with listen(gateway) as socket:
        gateway.models.may_hear.clear()
        gateway.models.hearing.clear()
        await socket.send(WINDOW)
        await gateway.models.hearing.wait()
        for kind in ("Finalize", "Finalize", "KeepAlive"):
            await say(socket, kind)
        while 'frames_received_total{kind="text"} 3.0' not in (await gateway.http.get("/metrics")).text:
            pass  # the last of them is being read: those before it are done
        gateway.models.may_hear.set()
        assert summary(json.loads(await socket.recv())) == ("hello", True, True, True)
        await socket.send(WINDOW)
        assert summary(json.loads(await socket.recv())) == ("hello", True, True, False)


UNTIMED = [
    STARTED,
    SpeechStoppedEvent(utterance=1, at_ms=700, detected_at_ms=900),
    TranscriptEvent(utterance=1, text="hello", is_final=True),
]


@pytest.mark.parametrize(("events", "last_word_end_s"), [(UTTERANCE, 0.4), (UNTIMED, 0.7)])
async def test_silence_after_the_last_word_is_sent_once(gateway, events, last_word_end_s):
    hears(gateway, events)
    async with listen(gateway, f"{LINEAR}&utterance_end_ms=1000") as socket:
        await socket.send(bytes(2 * 16_000))
        assert summary(json.loads(await socket.recv())) == ("hello", True, True, False)
        for _ in range(20):
            await socket.send(bytes(2 * 1_600))
        await say(socket, "CloseStream")
        messages, _ = await rest(socket)
    assert messages[0] == {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": last_word_end_s}
    assert [summary(message) for message in messages[1:]] == ["Metadata"]


async def test_an_empty_message_closes_the_stream_too(gateway):
    async with listen(gateway) as socket:
        await socket.send(b"")
        messages, closed = await rest(socket)
    assert [message["type"] for message in messages] == ["Metadata"]
    assert closed == (1000, "")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("encoding=opus", "opus"),
        ("encoding=linear16&sample_rate=1000", "sample_rate"),
        ("encoding=linear16&sample_rate=12345", "12345"),
        (f"{LINEAR}&channels=2", "channels"),
        (f"{LINEAR}&diarize=true", "diarize"),
        (f"{LINEAR}&redact=pci&redact=ssn", "redact"),
        (f"{LINEAR}&callback=http://x", "callback"),
        (f"{LINEAR}&endpointing=soon", "endpointing"),
    ],
)
async def test_unsupported_options_are_refused(gateway, query, said):
    answer, body = await refusal(listen(gateway, query))
    assert answer.status_code == 400
    assert body["err_code"] == "Bad Request"
    assert said in body["err_msg"]
    assert said in answer.headers["dg-error"]
    assert body["request_id"] == answer.headers["dg-request-id"]
    assert gateway.models.heard == []


async def test_unsupported_options_may_be_off(gateway):
    async with listen(gateway, f"{LINEAR}&diarize=false&multichannel=false&smart_format=true&tag=x"):
        pass


async def test_a_refusal_of_the_recogniser_is_an_http_error(gateway):
    gateway.models.refusal = "unsupported_language: not xx"
    answer, _ = await refusal(listen(gateway, f"{LINEAR}&language=xx"))
    assert answer.status_code == 400


@pytest.mark.parametrize("message", ["", "{", '{"type": "Sing"}', "[]"])
async def test_invalid_messages_end_the_stream(gateway, message):
    async with listen(gateway) as socket:
        await socket.send(message)
        messages, (code, reason) = await rest(socket)
    assert [summary(one) for one in messages] == ["Error"]
    assert (code, reason) == (1008, "invalid_message")
    await gateway.models.ended.wait()


async def test_a_silent_client_is_closed(start):
    gateway = await start(stages={"idle_s": 0.1})
    async with listen(gateway) as socket:
        messages, closed = await rest(socket)
    assert messages[0]["variant"] == "NET-0001"
    assert closed == (1011, "NET-0001")


async def test_keep_alive_has_no_answer(gateway):
    async with listen(gateway) as socket:
        await say(socket, "KeepAlive")
        await say(socket, "CloseStream")
        assert (await rest(socket))[1] == (1000, "")


async def test_a_failed_stream_ends_with_an_error(gateway):
    gateway.models.hear = lambda _: "inference_failed: oh no"
    async with listen(gateway) as socket:
        await socket.send(WINDOW)
        messages, closed = await rest(socket)
    assert (messages[0]["type"], messages[0]["code"]) == ("Error", "stream_lost")
    assert closed == (1011, "NET-0000")


async def test_a_client_that_vanishes_ends_the_stream(gateway):
    async with listen(gateway) as socket:
        socket.transport.abort()
        await gateway.models.ended.wait()


async def test_a_shutdown_closes_the_stream(gateway):
    async with listen(gateway) as socket:
        gateway.gateway.calls.going_away.set()
        _, closed = await rest(socket)
    assert closed == (1001, "going_away")
    await gateway.models.ended.wait()


async def test_a_draining_gateway_refuses_streams(gateway):
    gateway.gateway.calls.drain_began.set()
    response, body = await refusal(listen(gateway))
    assert response.status_code == 503
    assert body["err_code"] != ShuttingDownError.code, "Deepgram's own codes"


REPLY = TranscribeReply(text="hello", confidence=0.9, words=WORDS, duration_ms=1_000)


async def post(gateway, query="", content=None, kind="audio/wav", reply=REPLY):
    gateway.models.transcript = reply
    content = wav() if content is None else content
    return await gateway.http.post(
        f"/v1/listen?{query}", content=content, headers={"content-type": kind, "authorization": "Token x"}
    )


async def test_a_recording_is_transcribed(gateway):
    answer = await post(gateway, "model=nova-3&language=en-US&smart_format=true&keyterm=Anna&utterances=true")
    assert answer.status_code == 200
    body = answer.json()
    reading = body["results"]["channels"][0]["alternatives"][0]
    assert (reading["transcript"], reading["words"][0]["end"]) == ("hello", 0.4)
    assert body["results"]["utterances"][0]["transcript"] == "hello"
    assert (body["metadata"]["duration"], body["metadata"]["channels"]) == (1.0, 1)
    assert body["metadata"]["request_id"] == answer.headers["dg-request-id"]
    samples, message = gateway.models.transcribed[0]
    assert np.array_equal(samples, TONE)
    assert (message.language, message.phrases) == ("en", ["Anna"])


async def test_a_model_without_times_of_words_gives_those_of_utterances(gateway):
    gateway.models.ready = {"moonshine_transcribe"}
    segment = Segment(text="Hello.", start_ms=100, end_ms=400, confidence=0.9)
    reply = TranscribeReply(text="Hello.", confidence=0.9, segments=[segment])
    body = (await post(gateway, "utterances=true", reply=reply)).json()
    reading = body["results"]["channels"][0]["alternatives"][0]
    assert (reading["transcript"], reading["words"]) == ("Hello.", [])
    (utterance,) = body["results"]["utterances"]
    assert (utterance["start"], utterance["end"], utterance["transcript"]) == (0.1, 0.4, "Hello.")
    assert body["metadata"]["models"] == ["moonshine_transcribe"]


async def test_raw_audio_is_transcribed(gateway):
    answer = await post(gateway, LINEAR, TONE.tobytes(), "application/octet-stream")
    assert answer.status_code == 200
    assert np.array_equal(gateway.models.transcribed[0][0], TONE)


@pytest.mark.parametrize(
    ("query", "content", "kind", "said"),
    [
        ("", b'{"url": "http://127.0.0.1/"}', "application/json", "not fetched"),
        ("", b"nonsense", "audio/wav", "no audio file"),
        (LINEAR, b"", "audio/wav", "empty"),
        ("summarize=v2", None, "audio/wav", "summarize"),
    ],
)
async def test_unsupported_recordings_are_refused(gateway, query, content, kind, said):
    answer = await post(gateway, query, content, kind)
    assert answer.status_code == 400
    assert said in answer.json()["err_msg"]
    assert gateway.models.transcribed == []


async def test_long_recordings_are_one_message(gateway):
    answer = await post(gateway, LINEAR, bytes(20_000_000), "application/octet-stream")
    assert answer.status_code == 200
    assert len(gateway.models.transcribed[0][0]) == 10_000_000


async def test_raw_audio_has_a_longest_length(start):
    gateway = await start(stages={"recording_s": 1})
    answer = await post(gateway, LINEAR, bytes(32_002))
    assert "longer than 1 s" in answer.json()["err_msg"]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_refused_credentials_have_deepgrams_code(gateway, monkeypatch, is_stream):
    async def refuse(connection, scope):
        raise UnauthorizedError("who?")

    monkeypatch.setattr(gateway.gateway.guard, "admit", refuse)
    if is_stream:
        answer, body = await refusal(listen(gateway))
    else:
        answer = await post(gateway)
        body = answer.json()
    assert (answer.status_code, body["err_code"]) == (401, "INVALID_AUTH")
