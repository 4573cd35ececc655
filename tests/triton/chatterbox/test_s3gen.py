"""S3Gen inside the real server, with small random weights."""

from __future__ import annotations

import asyncio
import random
import uuid
from contextlib import aclosing

import numpy as np
import pytest
from clicks import clicks

from parley.errors import InvalidMessageError, SessionNotFoundError
from parley.inference import ModelRequest, text_tensor
from parley_torch.tts.s3gen.client import AudioModel
from parley_torch.tts.s3gen.messages import OpenUtterance, PushTokens

SAMPLES_PER_TOKEN = 960


@pytest.fixture
def model(port):
    return AudioModel(port)


def make_voice(prompt=50, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "SPEAKER": rng.standard_normal(192).astype(np.float32),
        "PROMPT_TOKENS": rng.integers(0, 6561, prompt).astype(np.int32),
        "PROMPT_MEL": rng.standard_normal((2 * prompt, 80)).astype(np.float32),
    }


def make_tokens(count, seed=1):
    return np.random.default_rng(seed).integers(0, 6561, count).astype(np.int32)


def new_id():
    return uuid.uuid4().hex


async def collect(model, message, voice, tokens=None):
    return [piece async for piece in model.synthesize(message, voice, tokens)]


async def whole(model, tokens, *, seed=0, voice=None, rate=24_000):
    """All tokens at once."""
    message = OpenUtterance(utterance_id=new_id(), seed=seed, final=True, sample_rate=rate)
    return await collect(model, message, voice or make_voice(), tokens)


async def streamed(model, tokens, *, seed=0, voice=None, pieces=9, rate=24_000):
    """Tokens piece by piece."""
    key = new_id()
    message = OpenUtterance(utterance_id=key, seed=seed, sample_rate=rate)
    audio = asyncio.ensure_future(collect(model, message, voice or make_voice(), tokens[:pieces]))
    for first in range(pieces, len(tokens), pieces):
        await push_soon(model, PushTokens(utterance_id=key, first=first), tokens[first : first + pieces])
    await push_soon(model, PushTokens(utterance_id=key, first=len(tokens), final=True), tokens[:0])
    return await audio


async def push_soon(model, message, tokens):
    """Push; the request that opens the utterance may still be on its way."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await model.push(message, tokens)
            except SessionNotFoundError:
                await asyncio.sleep(0.01)


def joined(pieces):
    """The audio, after checking that its pieces describe themselves."""
    offset = 0
    for chunk, audio in pieces:
        assert chunk.offset == offset
        offset += len(audio)
        assert chunk.end_ms == pytest.approx(1000 * offset / chunk.sample_rate, abs=0.01)
    assert [chunk.final for chunk, _ in pieces] == [False] * (len(pieces) - 1) + [True]
    return np.concatenate([audio for _, audio in pieces])


async def test_streamed_is_whole(model):
    tokens = make_tokens(120)
    for rate in (24_000, 22_050):
        expected = joined(await whole(model, tokens, rate=rate))
        pieces = await streamed(model, tokens, rate=rate)
        audio = joined(pieces)
        assert len(pieces) >= 2
        assert abs(len(audio) - 120 * rate / 25) <= 1
        assert np.abs(audio.astype(int) - expected).max() <= 4
        seams = np.cumsum([len(piece) for _, piece in pieces])[:-1]
        assert clicks(audio, list(seams), rate) == []


async def test_first_audio_comes_before_the_last_tokens(model):
    key = new_id()
    tokens = make_tokens(40)
    async with aclosing(
        model.synthesize(OpenUtterance(utterance_id=key), make_voice(), tokens[:15])
    ) as stream:
        _, audio = await anext(stream)
        assert len(audio) == 7 * 480
        await model.push(PushTokens(utterance_id=key, first=15, final=True), tokens[15:])
        rest = [piece async for _, piece in stream]
    assert len(audio) + sum(map(len, rest)) == 40 * SAMPLES_PER_TOKEN


async def test_sixteen_at_once_with_random_interrupts(model):
    rng = random.Random(3)
    speech = [
        (make_tokens(rng.randrange(20, 90), n), make_voice(rng.randrange(20, 60), n)) for n in range(16)
    ]
    interrupted = set(rng.sample(range(16), 5))

    async def speak(number):
        tokens, voice = speech[number]
        if number not in interrupted:
            return joined(await streamed(model, tokens, seed=number, voice=voice))
        key = new_id()
        message = OpenUtterance(utterance_id=key, seed=number, final=True)
        async with aclosing(model.synthesize(message, voice, tokens)) as stream:
            await anext(stream)
            await model.stop(key)
            # Pieces may be on their way: that none is sent later is a test of the service.
            async with asyncio.timeout(30):
                async for _ in stream:
                    pass
        return None

    results = await asyncio.gather(*(speak(number) for number in range(16)))
    for number in sorted(set(range(16)) - interrupted)[:6]:
        tokens, voice = speech[number]
        alone = joined(await whole(model, tokens, seed=number, voice=voice))
        assert np.abs(results[number].astype(int) - alone).max() <= 4


async def test_no_seam_clicks(model):
    rng = random.Random(5)

    async def speak(number):
        rate = rng.choice((8_000, 16_000, 22_050, 24_000, 48_000))
        tokens, voice = make_tokens(rng.randrange(30, 130), number), make_voice(rng.randrange(60), number)
        pieces = await streamed(
            model, tokens, seed=number, voice=voice, pieces=rng.randrange(3, 40), rate=rate
        )
        seams = [int(end) for end in np.cumsum([len(audio) for _, audio in pieces])[:-1]]
        return clicks(joined(pieces), seams, rate), len(seams)

    spoken = await asyncio.gather(*(speak(number) for number in range(16)))
    assert [found for found, _ in spoken] == [[]] * len(spoken)
    assert sum(seams for _, seams in spoken) > 40


async def test_stop_before_open(model):
    key = new_id()
    await model.stop(key)
    message = OpenUtterance(utterance_id=key, final=True)
    assert await collect(model, message, make_voice(), make_tokens(20)) == []


async def test_an_utterance_without_tokens(model):
    assert await collect(model, OpenUtterance(utterance_id=new_id(), final=True), make_voice()) == []


async def test_a_forgotten_utterance_is_given_up(model):
    with pytest.raises(Exception, match="no tokens for 8 s"):
        await collect(model, OpenUtterance(utterance_id=new_id()), make_voice(), make_tokens(5))


async def test_bad_requests(model, port):
    voice, tokens = make_voice(), make_tokens(20)
    for name, value, text in [
        ("PROMPT_MEL", voice["PROMPT_MEL"][:-1], "PROMPT_MEL"),
        ("TOKENS", np.array([6561], np.int32), "6561"),
        ("TOKENS", np.array([-1], np.int32), "-1"),
        ("SPEAKER", np.full(192, np.nan, np.float32), "not numbers"),
    ]:
        inputs = {**voice, "TOKENS": tokens, name: value}
        with pytest.raises(InvalidMessageError, match=text):
            await collect(model, OpenUtterance(utterance_id=new_id(), final=True), inputs)
    with pytest.raises(SessionNotFoundError):
        await model.push(PushTokens(utterance_id=new_id(), first=0), tokens)
    for raw in (b"", b"{", b'{"op": "fly"}', b"\xff"):
        with pytest.raises(InvalidMessageError):
            await anext(port.stream(ModelRequest("s3gen", {"REQUEST": text_tensor(raw)}, ("CHUNK", "AUDIO"))))
    assert joined(await whole(model, tokens)).any(), "the model must go on"
