"""The synthesizer's model inside the real server."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing

import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from parley.engines.speech import KnownSpeaker
from parley.errors import InvalidMessageError, UnsupportedLanguageError, UnsupportedVoiceError
from parley.grpc_messages import to_message
from parley.inference import ModelRequest, struct_tensor, text_tensor
from parley.tts.messages import SpeakRequest

TEXT = "It's twenty five degrees and sunny in Paris."
LONG = "word " * 700  # about four minutes of speech


@pytest.fixture
def speaker(port):
    return KnownSpeaker(port, model="espeak")


def request(text=TEXT, **fields):
    return SpeakRequest(**{"request_id": uuid.uuid4().hex, "text": text, **fields})


async def collect(speaker, wanted):
    return [pair async for pair in speaker.speak(wanted)]


def joined(chunks):
    """The audio, after checking that the chunks follow each other."""
    offset = 0
    for chunk, audio in chunks:
        assert chunk.offset == offset
        offset += len(audio)
    return np.concatenate([audio for _, audio in chunks])


async def test_streams_audio_with_marks(speaker):
    chunks = await collect(speaker, request())
    audio = joined(chunks)
    assert audio.dtype == np.int16
    assert {chunk.sample_rate for chunk, _ in chunks} == {22050}
    assert 2 < len(audio) / 22050 < 5
    assert len(chunks[0][1]) < 0.07 * 22050, "the first chunk comes before the rest is made, and is short"
    assert np.abs(audio).max() > 3000
    marks = [mark for chunk, _ in chunks for mark in chunk.words]
    assert [TEXT[mark.start_char : mark.end_char] for mark in marks] == TEXT.split()
    assert [mark.at_sample for mark in marks] == sorted(mark.at_sample for mark in marks)


async def test_text_without_words_gives_no_audio(speaker):
    assert await collect(speaker, request("")) == []
    assert await collect(speaker, request(" ... ")) == []


async def test_voices_differ(speaker):
    one, two = [joined(await collect(speaker, request(voice=voice))) for voice in ("man-1", "woman-1")]
    shortest = min(len(one), len(two))
    assert np.abs(one[:shortest].astype(int) - two[:shortest]).mean() > 100


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"voice": "missing"}, UnsupportedVoiceError),
        ({"language": "xx"}, UnsupportedLanguageError),
        ({"text": "a" * 5000}, InvalidMessageError),
    ],
)
async def test_requests_that_cannot_be_served(speaker, fields, error):
    with pytest.raises(error):
        await collect(speaker, request(**fields))
    assert await collect(speaker, request())


async def test_the_model_chooses_an_id_that_is_left_out(speaker):
    assert await collect(speaker, request(request_id=""))


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"op": "fly"}', b"[" * 10_000])
async def test_garbage(port, raw):
    with pytest.raises(InvalidMessageError):
        await anext(port.stream(ModelRequest("espeak", {"REQUEST": text_tensor(raw)}, ("CHUNK", "AUDIO"))))


async def test_abort_while_running_waiting_and_before(speaker):
    running, waiting, early = request(LONG), request(LONG), request()
    await speaker.abort(early.request_id)
    assert await collect(speaker, early) == []
    async with aclosing(speaker.speak(running)) as stream:
        await anext(stream)
        rest = asyncio.ensure_future(collect(speaker, waiting))
        await speaker.abort(running.request_id)
        heard = sum([len(audio) async for _, audio in stream])
    await speaker.abort(waiting.request_id)
    heard_waiting = sum(len(audio) for _, audio in await rest)
    whole = len(joined(await collect(speaker, request(LONG))))
    assert heard < whole
    assert heard_waiting < whole
    assert await collect(speaker, request()), "the model must go on"


async def test_callers_that_vanish_free_the_synthesizer(server, speaker):
    begin = time.perf_counter()
    await collect(speaker, request(LONG))
    whole = time.perf_counter() - begin
    channels = [grpc.aio.insecure_channel(server.endpoints.grpc) for _ in range(8)]
    try:
        calls = [GRPCInferenceServiceStub(channel).ModelStreamInfer() for channel in channels]
        for call in calls:
            wanted = {"REQUEST": struct_tensor(request(LONG))}
            await call.write(to_message(ModelRequest("espeak", wanted, ("CHUNK", "AUDIO"))))
        await calls[0].read()
    finally:
        for channel in channels:
            await channel.close()
    begin = time.perf_counter()
    assert await collect(speaker, request())
    waited = time.perf_counter() - begin
    assert waited < 4 * whole, "the texts of eight callers who are gone were not all spoken before"


async def test_sixteen_at_once(speaker):
    wanted = [f"Session number {n} says hello." for n in range(16)]
    chunks = await asyncio.gather(*(collect(speaker, request(text)) for text in wanted))
    for text, own in zip(wanted, chunks, strict=True):
        joined(own)
        marks = [mark for chunk, _ in own for mark in chunk.words]
        assert [text[mark.start_char : mark.end_char] for mark in marks] == text.split()
