"""The chain chatterbox, t3, s3gen inside the real server, with small random weights."""

from __future__ import annotations

import asyncio
import random
import uuid
from contextlib import aclosing

import numpy as np
import pytest
from clicks import clicks

from parley.engines.speech import ChatterboxSpeaker
from parley.errors import (
    InvalidMessageError,
    OverloadedError,
    SessionIdleError,
    SessionNotFoundError,
    UnsupportedLanguageError,
    UnsupportedSampleRateError,
    UnsupportedVoiceError,
)
from parley.inference import ModelRequest, text_tensor
from parley.tts.messages import MoreText, SpeakRequest

TEXT = "The train leaves at 7:30, and the ticket costs $5."
SESSIONS = 16  # of LIMITS


@pytest.fixture
def speaker(port):
    return ChatterboxSpeaker(port)


def request(text=TEXT, **fields):
    return SpeakRequest(request_id=uuid.uuid4().hex, text=text, **{"seed": 1, **fields})


async def collect(speaker, wanted):
    return [piece async for piece in speaker.speak(wanted)]


def joined(pieces, text=TEXT):
    """The audio, after checking that its pieces describe themselves and all words are there."""
    offset, marks = 0, []
    for chunk, audio in pieces:
        assert chunk.offset == offset
        assert all(offset <= mark.at_sample <= offset + len(audio) for mark in chunk.words)
        offset += len(audio)
        marks += chunk.words
    assert [text[mark.start_char : mark.end_char] for mark in marks] == text.split()
    at = [mark.at_sample for mark in marks]
    assert at == sorted(at)
    return np.concatenate([audio for _, audio in pieces])


def difference(first, second):
    """Of full scale."""
    assert len(first) == len(second), "other tokens were spoken"
    return np.abs(first.astype(int) - second).max() / 32768


async def test_the_same_seed_says_the_same(speaker):
    pieces = await collect(speaker, request())
    audio = joined(pieces)
    assert len(audio) > 24_000
    assert len([piece for _, piece in pieces if len(piece)]) >= 3
    assert difference(audio, joined(await collect(speaker, request()))) <= 1e-4
    for other in (request(seed=2), request(voice="other"), request(exaggeration=2.0), request("Else.")):
        changed = joined(await collect(speaker, other), other.text)
        assert len(changed) != len(audio) or difference(audio, changed) > 0.01


async def test_text_that_is_still_being_written(speaker):
    parts = ["Hello there, ", "I am speaking ", "while you write. ", "Bye!"]
    wanted = request("", final=False, sample_rate=22_050)
    pieces, position = [], 0
    async with aclosing(speaker.speak(wanted)) as stream:
        opened, nothing = await anext(stream)
        assert (opened.sample_rate, len(nothing)) == (22_050, 0)
        for number, part in enumerate(parts):
            message = MoreText(
                request_id=wanted.request_id, text=part, first=position, final=number == len(parts) - 1
            )
            await speaker.more(message)
            position += len(part)
            if number == 1:  # the rest follows while the beginning is spoken
                pieces.append(await anext(stream))
        pieces += [piece async for piece in stream]
    audio = joined(pieces, "".join(parts))
    spans = [(chunk.start_char, chunk.end_char) for chunk, samples in pieces if len(samples)]
    assert spans == sorted(spans)
    assert (spans[0][0], spans[-1][1]) == (0, len("".join(parts)))
    seams = np.cumsum([len(samples) for _, samples in pieces])[:-1]
    assert clicks(audio, [int(seam) for seam in seams if 0 < seam < len(audio)], 22_050) == []


class Heard:
    """Reads an utterance as it comes."""

    def __init__(self, speaker, wanted):
        self.pieces = []
        self._more = asyncio.Event()
        self._reading = asyncio.create_task(self._read(speaker, wanted))

    async def _read(self, speaker, wanted):
        try:
            async with aclosing(speaker.speak(wanted)) as stream:
                async for _, audio in stream:
                    if len(audio):
                        self.pieces.append(audio)
                        self._more.set()
        finally:
            self._more.set()

    async def until(self, count):
        """Wait for so many pieces, or for the end."""
        while len(self.pieces) < count and not self._reading.done():
            self._more.clear()
            await self._more.wait()

    async def end(self):
        async with asyncio.timeout(30):
            await self._reading

    async def hang_up(self):
        self._reading.cancel()
        await asyncio.wait([self._reading])


async def interrupt(speaker, wanted, heard):
    """Stop it. Pieces may be on their way: that none is sent later is a test of the service."""
    await speaker.abort(wanted.request_id)
    await heard.end()


async def test_stop_ends_an_utterance_and_frees_both_models(speaker):
    alone = joined(await collect(speaker, request()))
    text = "One sentence here. " * 12
    for after in (0, 1, 2):
        wanted = request(text, final=False)
        heard = Heard(speaker, wanted)
        await heard.until(after)
        await interrupt(speaker, wanted, heard)
        assert len(heard.pieces) < text.count(".")
        with pytest.raises(SessionNotFoundError):
            await speaker.more(MoreText(request_id=wanted.request_id, text="more", first=228))
    assert difference(joined(await collect(speaker, request())), alone) <= 1e-4


async def test_stop_before_the_request(speaker):
    wanted = request()
    await speaker.abort(wanted.request_id)
    assert await collect(speaker, wanted) == []


async def test_no_more_text(speaker):
    with pytest.raises(SessionIdleError):
        await collect(speaker, request("Hello.", final=False))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"voice": "missing"}, UnsupportedVoiceError),
        ({"voice": "../default"}, UnsupportedVoiceError),
        ({"voice": "missing", "text": ""}, UnsupportedVoiceError),
        ({"language": "de"}, UnsupportedLanguageError),
        ({"sample_rate": 1}, UnsupportedSampleRateError),
        ({"seed": -1}, InvalidMessageError),
        ({"exaggeration": 3.0}, InvalidMessageError),
        ({"text": "a" * 5_000}, InvalidMessageError),
    ],
)
async def test_requests_that_cannot_be_served(speaker, fields, error):
    with pytest.raises(error):
        await collect(speaker, request(**fields))
    assert joined(await collect(speaker, request("Fine.")), "Fine.").any()


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"op": "fly"}', b"[" * 10_000])
async def test_garbage(port, raw):
    with pytest.raises(InvalidMessageError):
        await anext(
            port.stream(ModelRequest("chatterbox", {"REQUEST": text_tensor(raw)}, ("CHUNK", "AUDIO")))
        )


class TestLoad:
    """Sixteen at once, twice, with as many places as that needs."""

    async def test_with_random_interrupts(self, speaker):
        dice = random.Random(0)
        wanted = [
            {
                "text": " ".join(f"Sentence {n} of {number}." for n in range(dice.randint(1, 3))),
                "seed": number,
                "voice": dice.choice(["default", "other"]),
                "sample_rate": dice.choice([16_000, 24_000]),
                "guidance_weight": dice.choice([0.0, 0.5, 1.0]),
            }
            for number in range(SESSIONS)
        ]
        alone = [joined(await collect(speaker, request(**fields)), fields["text"]) for fields in wanted]
        for _ in range(2):
            interrupted = set(dice.sample(range(SESSIONS), 6))

            async def speak(number, interrupted=interrupted):
                own = request(**wanted[number])
                if number not in interrupted:
                    return joined(await collect(speaker, own), own.text)
                heard = Heard(speaker, own)
                await heard.until(dice.randint(0, 3))
                if dice.random() < 0.3:
                    await heard.hang_up()
                else:
                    await interrupt(speaker, own, heard)
                return None

            results = await asyncio.gather(*map(speak, range(SESSIONS)))
            pairs = [(results[number], alone[number]) for number in set(range(SESSIONS)) - interrupted]
            assert all(difference(*pair) <= 1e-4 for pair in pairs)
            await free(speaker)

    async def test_too_many(self, speaker):
        results = await asyncio.gather(
            *(collect(speaker, request("Hello.")) for _ in range(SESSIONS + 4)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, OverloadedError)]
        assert len(refused) + sum(isinstance(result, list) for result in results) == SESSIONS + 4
        assert refused
        await free(speaker)


async def free(speaker):
    """All places are free again: the callers that hung up are noticed a moment later."""
    async with asyncio.timeout(60):
        while True:
            results = await asyncio.gather(
                *(collect(speaker, request("Hi.")) for _ in range(SESSIONS)), return_exceptions=True
            )
            failures = [result for result in results if isinstance(result, Exception)]
            if not failures:
                return
            assert all(isinstance(failure, OverloadedError) for failure in failures), failures
