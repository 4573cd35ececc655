"""Recordings in Deepgram's form."""

import numpy as np
import pytest
from recordings_for_tests import TONE, wav

from parley.asr.messages import Segment, TranscribeReply
from parley.protocol import Word
from parley_gateway.errors import UnauthorizedError

LINEAR = "encoding=linear16&sample_rate=16000"
WORDS = [Word(text="hello", start_ms=100, end_ms=400, confidence=0.9)]


async def post(gateway, query="", content=None, kind="audio/wav"):
    gateway.models.transcript = TranscribeReply(text="hello", confidence=0.9, words=WORDS, duration_ms=1_000)
    content = wav() if content is None else content
    return await gateway.http.post(
        f"/v1/listen?{query}", content=content, headers={"content-type": kind, "authorization": "Token x"}
    )


async def test_a_recording_is_written_down(gateway):
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
    gateway.models.transcript = TranscribeReply(
        text="Hello.",
        confidence=0.9,
        segments=[Segment(text="Hello.", start_ms=100, end_ms=400, confidence=0.9)],
    )
    answer = await gateway.http.post(
        "/v1/listen?utterances=true",
        content=wav(),
        headers={"content-type": "audio/wav", "authorization": "Token x"},
    )
    body = answer.json()
    reading = body["results"]["channels"][0]["alternatives"][0]
    assert (reading["transcript"], reading["words"]) == ("Hello.", [])
    (utterance,) = body["results"]["utterances"]
    assert (utterance["start"], utterance["end"], utterance["transcript"]) == (0.1, 0.4, "Hello.")
    assert body["metadata"]["models"] == ["moonshine_transcribe"]


async def test_raw_audio_is_written_down(gateway):
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
async def test_recordings_that_cannot_be_had_are_refused(gateway, query, content, kind, said):
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


async def test_who_may_not_come_in_is_told_so(gateway, monkeypatch):
    async def refuse(connection, scope):
        raise UnauthorizedError("who?")

    monkeypatch.setattr(gateway.gateway.guard, "admit", refuse)
    answer = await post(gateway)
    assert (answer.status_code, answer.json()["err_code"]) == (401, "INVALID_AUTH")
