"""T3 inside the real server, with small random weights."""

from __future__ import annotations

import asyncio
import random
import uuid
from contextlib import aclosing

import numpy as np
import pytest

from parley.errors import (
    ContextTooLongError,
    InvalidMessageError,
    OverloadedError,
    UnsupportedLanguageError,
)
from parley.inference import ModelRequest, text_tensor
from parley_torch.tts.t3.client import SpeechTokenModel
from parley_torch.tts.t3.messages import SpeechSampling, SpeechTokensRequest, TokensCompleted
from parley_torch.tts.t3.request import TokenVoice

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests."
MAX_REQUESTS = 32  # of LIMITS
# Random weights: how long an utterance is depends on its seed. These say more than 40 tokens.
LONG_SEED = 1


@pytest.fixture
def model(port):
    return SpeechTokenModel(port)


def voice(seed=0):
    noise = np.random.default_rng(seed)
    return TokenVoice(noise.standard_normal(256, np.float32), noise.integers(0, 6561, 60, np.int32))


def request(*, seed=LONG_SEED, **fields):
    return SpeechTokensRequest(
        **{
            "request_id": uuid.uuid4().hex,
            "text": TEXT,
            "max_tokens": 200,
            "sampling": SpeechSampling(seed=seed),
            **fields,
        }
    )


async def collect(model, wanted, who=None, **options):
    """The tokens, after checking that they follow each other, and the last event."""
    tokens = []
    async for event, drawn in model.generate(wanted, who or voice(), **options):
        if isinstance(event, TokensCompleted):
            assert event.spoken_tokens == len(tokens)
            return tokens, event
        assert event.offset == len(tokens)
        tokens += drawn.tolist()
    raise AssertionError("the last event is missing")


async def test_speaks_in_pieces(model):
    wanted = request(chunk_tokens=5)
    sizes = [len(drawn) async for _, drawn in model.generate(wanted, voice())]
    assert len(sizes) > 3
    assert min(sizes[:-2]) >= 5
    tokens, completed = await collect(model, request())
    assert completed.finish_reason in ("stop", "length")
    assert len(tokens) > 20
    assert all(0 <= token < 6561 for token in tokens)


async def test_settings_change_what_is_said(model):
    plain, _ = await collect(model, request())
    others = [
        await collect(model, request(guidance_weight=0.0)),
        await collect(model, request(exaggeration=0.0)),
        await collect(model, request(seed=LONG_SEED + 1)),
        await collect(model, request(), voice(1)),
        await collect(model, request(text="Something else.")),
        await collect(model, request(text=""), text_tokens=[255, 20, 30, 0]),
    ]
    assert all(tokens != plain for tokens, _ in others)
    again, _ = await collect(model, request())
    assert again == plain


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"text": " "}, InvalidMessageError),
        ({"language": "de"}, UnsupportedLanguageError),
        ({"guidance_weight": 2.0}, InvalidMessageError),
        ({"text": "a" * 3000}, ContextTooLongError),
    ],
)
async def test_requests_that_cannot_be_served(model, fields, error):
    with pytest.raises(error):
        await collect(model, request(**fields))
    assert (await collect(model, request(max_tokens=3)))[1].generated_tokens == 3


async def test_the_model_chooses_an_id_that_is_left_out(model):
    assert (await collect(model, request(request_id="", max_tokens=3)))[1].generated_tokens == 3


async def test_a_voice_of_the_wrong_size(model):
    wrong = TokenVoice(np.ones(192, np.float32), np.zeros(0, np.int32))
    with pytest.raises(Exception, match="256"):
        await collect(model, request(), wrong)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"op": "fly"}', b"[" * 10_000])
async def test_garbage(port, raw):
    with pytest.raises(InvalidMessageError):
        await anext(port.stream(ModelRequest("t3", {"REQUEST": text_tensor(raw)}, ("EVENT", "TOKENS"))))


class TestAbort:
    async def test_before_the_request(self, model):
        wanted = request()
        await model.abort(wanted.request_id)
        assert await collect(model, wanted) == ([], TokensCompleted(finish_reason="abort"))

    async def test_abort_of_an_unknown_request_does_nothing(self, model):
        await model.abort("no-such-request")

    async def test_a_caller_that_goes_away_frees_its_place(self, model):
        endless = [request(max_tokens=1500) for _ in range(16)]  # max_num_seqs of model.tiny.json
        streams = [model.generate(wanted, voice()) for wanted in endless]
        await asyncio.gather(*map(anext, streams))
        await asyncio.gather(*(stream.aclose() for stream in streams))
        async with asyncio.timeout(20):
            assert (await collect(model, request(max_tokens=3)))[1].generated_tokens == 3


async def test_eight_at_once_with_aborts_at_random_say_what_they_say_alone(model):
    dice = random.Random(0)
    wanted = [
        (
            {
                "seed": number if number % 2 else None,
                "text": TEXT[: dice.randint(10, len(TEXT))],
                "guidance_weight": dice.choice([0.0, 0.24, 0.5, 1.0]),
                "exaggeration": dice.random(),
                "max_tokens": 60,
            },
            voice(number % 3),
        )
        for number in range(24)
    ]

    def make(fields):
        own = dict(fields)
        seed = own.pop("seed")
        sampling = SpeechSampling(temperature=0.0) if seed is None else SpeechSampling(seed=seed)
        return request(**own, sampling=sampling)

    alone = [(await collect(model, make(fields), who))[0] for fields, who in wanted]
    places = asyncio.Semaphore(8)
    completed = aborted = 0

    async def speak(number):
        nonlocal completed, aborted
        fields, who = wanted[number]
        own = make(fields)
        stop_after = dice.randint(1, 20) if dice.random() < 0.5 else None
        tokens = []
        async with places, aclosing(model.generate(own, who)) as stream:
            async for event, drawn in stream:
                reason = getattr(event, "finish_reason", None)
                tokens += drawn.tolist()
                if stop_after is not None and len(tokens) >= stop_after:
                    stop_after = None
                    await model.abort(own.request_id)
        if reason == "abort":
            aborted += 1
            assert tokens == alone[number][: len(tokens)]
        else:
            completed += 1
            assert tokens == alone[number]

    await asyncio.gather(*(speak(number) for number in range(24)))
    assert completed > 8
    assert aborted  # an abort may come after the end


async def test_too_many_are_refused_and_the_others_served(model):
    outcomes = await asyncio.gather(
        *(collect(model, request(max_tokens=20)) for _ in range(2 * MAX_REQUESTS)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, OverloadedError)]
    served = [outcome for outcome in outcomes if not isinstance(outcome, OverloadedError)]
    assert refused
    assert len(served) >= MAX_REQUESTS
    assert len({tuple(tokens) for tokens, _ in served}) == 1
