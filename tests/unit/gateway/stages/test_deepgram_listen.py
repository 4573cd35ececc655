"""Recognition in Deepgram's form."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from recordings_for_tests import TONE
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from parley.asr.messages import SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.errors import ShuttingDownError
from parley.protocol import Word
from parley_gateway.audio.g711 import encode_ulaw
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


async def rest(socket):
    """All messages until the end, and how it is closed."""
    messages = []
    try:
        while True:
            messages.append(json.loads(await socket.recv()))
    except ConnectionClosed:
        return messages, (socket.close_code, socket.close_reason)


def told(message):
    if message["type"] != "Results":
        return message["type"]
    text = message["channel"]["alternatives"][0]["transcript"]
    return text, message["is_final"], message["speech_final"], message["from_finalize"]


async def say(socket, kind):
    await socket.send(json.dumps({"type": kind}))


async def test_speech_is_written_down(gateway):
    hears(gateway, UTTERANCE)
    async with listen(gateway) as socket:
        await socket.send(TONE[:600].tobytes())
        await socket.send(TONE[600:2_000].tobytes())
        await say(socket, "CloseStream")
        messages, closed = await rest(socket)
    assert closed == (1000, "")
    assert [told(message) for message in messages] == [("hello", True, True, False), "Metadata"]
    result, metadata = messages
    assert result["channel"]["alternatives"] == [
        {
            "transcript": "hello",
            "confidence": 0.9,
            "words": [
                {
                    "word": "hello",
                    "start": 0.1,
                    "end": 0.4,
                    "confidence": 0.9,
                    "punctuated_word": "hello",
                }
            ],
        }
    ]
    assert (result["start"], result["duration"], result["channel_index"]) == (0.096, 0.404, [0, 1])
    assert result["metadata"]["request_id"] == metadata["request_id"]
    assert (metadata["duration"], metadata["channels"]) == (0.125, 1)
    heard = np.concatenate([samples for _, _, samples, _ in gateway.models.heard])
    assert np.array_equal(heard, TONE[:2_000])
    await gateway.models.ended.wait()


async def test_what_is_asked_for_is_told_besides(gateway):
    hears(gateway, UTTERANCE)
    query = f"{LINEAR}&interim_results=true&vad_events=true&punctuate=true&model=nova-3&filler_words=true"
    async with listen(gateway, query) as socket:
        await socket.send(WINDOW)
        await say(socket, "CloseStream")
        messages, _ = await rest(socket)
    assert [told(message) for message in messages] == [
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
        assert told(json.loads(await socket.recv())) == ("hello", True, speech_final, False)
    assert gateway.models.heard[0][3].options.vad.silence_ms == silence_ms


async def test_telephone_audio(gateway):
    async with listen(gateway, "encoding=mulaw&sample_rate=8000") as socket:
        await socket.send(encode_ulaw(TONE[::2]))
        await say(socket, "CloseStream")
        await rest(socket)
    heard = np.concatenate([samples for _, _, samples, _ in gateway.models.heard])
    assert len(heard) == len(TONE)
    assert np.abs(heard).max() > 7_000


async def test_finalize_is_answered_with_the_text(gateway):
    hears(gateway, [STARTED], flush=[STOPPED, FINAL])
    async with listen(gateway) as socket:
        await socket.send(WINDOW)
        await say(socket, "Finalize")
        assert told(json.loads(await socket.recv())) == ("hello", True, True, True)


async def test_finalize_is_answered_also_where_there_is_no_text(gateway):
    hears(gateway, [])
    async with listen(gateway) as socket:
        await socket.send(WINDOW)
        await say(socket, "Finalize")
        result = json.loads(await socket.recv())
    assert told(result) == ("", True, False, True)
    assert (result["start"], result["duration"]) == (0.032, 0)


async def test_only_the_last_text_before_finalize_answers_it(gateway):
    second = [
        SpeechStoppedEvent(utterance=2, at_ms=1, detected_at_ms=1),
        TranscriptEvent(utterance=2, text="bye", is_final=True),
    ]
    hears(gateway, UTTERANCE, flush=second)
    async with listen(gateway) as socket:
        await socket.send(WINDOW)
        await say(socket, "Finalize")
        results = [told(json.loads(await socket.recv())) for _ in range(2)]
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
        assert told(json.loads(await socket.recv())) == ("hello", True, True, True)
        await socket.send(WINDOW)
        assert told(json.loads(await socket.recv())) == ("hello", True, True, False)


async def test_silence_after_the_last_word_is_told_once(gateway):
    hears(gateway, UTTERANCE)
    async with listen(gateway, f"{LINEAR}&utterance_end_ms=1000") as socket:
        await socket.send(bytes(2 * 16_000))
        assert told(json.loads(await socket.recv())) == ("hello", True, True, False)
        for _ in range(20):
            await socket.send(bytes(2 * 1_600))
        await say(socket, "CloseStream")
        messages, _ = await rest(socket)
    assert messages[0] == {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 0.4}
    assert [told(message) for message in messages[1:]] == ["Metadata"]


async def test_without_times_of_words_silence_counts_from_the_end_of_speech(gateway):
    stopped = SpeechStoppedEvent(utterance=1, at_ms=700, detected_at_ms=900)
    hears(gateway, [STARTED, stopped, TranscriptEvent(utterance=1, text="Hello.", is_final=True)])
    async with listen(gateway, f"{LINEAR}&utterance_end_ms=1000") as socket:
        await socket.send(bytes(2 * 16_000))
        assert told(json.loads(await socket.recv())) == ("Hello.", True, True, False)
        for _ in range(20):
            await socket.send(bytes(2 * 1_600))
        await say(socket, "CloseStream")
        messages, _ = await rest(socket)
    assert messages[0] == {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 0.7}


async def test_an_empty_message_closes_the_stream_too(gateway):
    async with listen(gateway) as socket:
        await socket.send(b"")
        messages, closed = await rest(socket)
    assert [message["type"] for message in messages] == ["Metadata"]
    assert closed == (1000, "")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "encoding"),
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
async def test_options_that_cannot_be_had_are_refused(gateway, query, said):
    with pytest.raises(InvalidStatus) as caught:
        async with listen(gateway, query):
            pass
    answer = caught.value.response
    body = json.loads(answer.body)
    assert answer.status_code == 400
    assert body["err_code"] == "Bad Request"
    assert said in body["err_msg"]
    assert said in answer.headers["dg-error"]
    assert body["request_id"] == answer.headers["dg-request-id"]
    assert gateway.models.heard == []


async def test_options_that_are_off_are_no_wish(gateway):
    async with listen(gateway, f"{LINEAR}&diarize=false&multichannel=false&smart_format=true&tag=x"):
        pass


async def test_what_the_recogniser_refuses_is_told_before_the_stream_begins(gateway):
    gateway.models.refusal = "unsupported_language: not xx"
    with pytest.raises(InvalidStatus) as caught:
        async with listen(gateway, f"{LINEAR}&language=xx"):
            pass
    assert caught.value.response.status_code == 400


@pytest.mark.parametrize("message", ["", "{", '{"type": "Sing"}', "[]"])
async def test_messages_that_are_none_end_the_stream(gateway, message):
    async with listen(gateway) as socket:
        await socket.send(message)
        messages, (code, reason) = await rest(socket)
    assert [told(one) for one in messages] == ["Error"]
    assert (code, reason) == (1008, "invalid_message")
    await gateway.models.ended.wait()


async def test_a_silent_client_is_let_go(start):
    gateway = await start(stages={"idle_s": 0.1})
    async with listen(gateway) as socket:
        messages, closed = await rest(socket)
    assert messages[0]["variant"] == "NET-0001"
    assert closed == (1011, "NET-0001")


async def test_a_client_that_says_so_is_there(gateway):
    async with listen(gateway) as socket:
        await say(socket, "KeepAlive")
        await say(socket, "CloseStream")
        assert (await rest(socket))[1] == (1000, "")


async def test_a_stream_that_breaks_says_so(gateway):
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


async def test_a_gateway_that_shuts_down_says_so(gateway):
    async with listen(gateway) as socket:
        gateway.gateway.calls.going_away.set()
        _, closed = await rest(socket)
    assert closed == (1001, "going_away")
    await gateway.models.ended.wait()


async def test_a_gateway_that_shuts_down_takes_no_streams(gateway, monkeypatch):
    monkeypatch.setattr(gateway.gateway.calls, "draining", True)
    with pytest.raises(InvalidStatus) as caught:
        async with listen(gateway):
            pass
    assert caught.value.response.status_code == 503
    assert ShuttingDownError.code != json.loads(caught.value.response.body)["err_code"]


async def test_who_may_not_come_in_is_told_so(gateway, monkeypatch):
    async def refuse(connection, scope):
        raise UnauthorizedError("who?")

    monkeypatch.setattr(gateway.gateway.guard, "admit", refuse)
    with pytest.raises(InvalidStatus) as caught:
        async with listen(gateway):
            pass
    answer = caught.value.response
    assert (answer.status_code, json.loads(answer.body)["err_code"]) == (401, "INVALID_AUTH")
