"""Requests for speech tokens: what is sent, what is refused, and how they end."""

import asyncio
import threading

import numpy as np
import pytest
from t3_fakes import SHAPE, Engine, Prompts, service, tokens, utterance

from parley.errors import ContextTooLongError, InferenceError, InvalidMessageError, OverloadedError
from parley.tts.t3.messages import SpeechSampling, TokensCompleted, TokensDrawn
from parley.tts.t3.request import Drawing


async def collect(answers, wanted):
    return [(event, drawn.tolist()) async for event, drawn in answers.generate(wanted)]


async def test_tokens_are_sent_as_they_are_drawn_without_the_marks_among_them():
    engine = Engine(tokens(1, 2), tokens(6561), tokens(3, 6700, 4), tokens(6562, finish="stop"))
    events = await collect(service(engine), utterance())
    assert events[:-1] == [(TokensDrawn(offset=0), [1, 2]), (TokensDrawn(offset=2), [3, 4])]
    assert events[-1] == (
        TokensCompleted(finish_reason="stop", prompt_positions=44, generated_tokens=7, spoken_tokens=4),
        [],
    )


async def test_chunks_have_at_least_the_size_that_is_asked_for_but_for_the_last():
    steps = [tokens(number) for number in range(7)]
    engine = Engine(*steps, tokens(7, 8, finish="length"))
    events = await collect(service(engine), utterance(chunk_tokens=3))
    assert [drawn for _, drawn in events] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], []]
    assert [event.offset for event, _ in events[:-1]] == [0, 3, 6]


async def test_what_waits_is_sent_when_the_end_comes_alone():
    engine = Engine(tokens(1), tokens(6562, finish="stop"))
    events = await collect(service(engine), utterance(chunk_tokens=3))
    assert [drawn for _, drawn in events] == [[1], []]


async def test_what_the_request_leaves_open_is_as_the_checkpoint_was_published_with():
    engine = Engine(tokens(6562, finish="stop"))
    await collect(service(engine), utterance(sampling=SpeechSampling(seed=5, top_p=0.7)))
    assert engine.requests[0].drawing == Drawing(0.8, 0.7, 0, 0.05, 1.2, 5)


async def test_text_tokens_take_the_place_of_text():
    prompts = Prompts()
    engine = Engine(tokens(6562, finish="stop"))
    wanted = utterance(text="", text_tokens=[255, 7, 0], exaggeration=0.8, guidance_weight=0.3)
    await collect(service(engine, prompts=prompts), wanted)
    assert prompts.asked[0][1:] == ([255, 7, 0], 0.8, 0.3)


async def test_speech_takes_what_the_context_leaves():
    engine = Engine(tokens(6562, finish="stop"))
    await collect(service(engine, max_length=100), utterance(max_tokens=1000))
    assert engine.requests[0].max_tokens == 100 - 44
    with pytest.raises(ContextTooLongError):
        await collect(service(engine, max_length=44), utterance())
    with pytest.raises(ContextTooLongError):
        await collect(service(engine), utterance(text="a" * 2020))


@pytest.mark.parametrize(
    "fields",
    [
        {"request_id": ""},
        {"exaggeration": float("nan")},
        {"exaggeration": 2.1},
        {"guidance_weight": -0.1},
        {"guidance_weight": 1.01},
        {"max_tokens": 0},
        {"chunk_tokens": 0},
        {"text_tokens": [704]},
        {"text_tokens": [-1]},
        {"sampling": SpeechSampling(temperature=float("nan"))},
        {"sampling": SpeechSampling(top_p=0.0)},
        {"sampling": SpeechSampling(top_k=-1)},
        {"sampling": SpeechSampling(min_p=1.5)},
        {"sampling": SpeechSampling(repetition_penalty=0.5)},
        {"sampling": SpeechSampling(seed=-1)},
    ],
)
async def test_values_out_of_range_are_refused(fields):
    engine = Engine(tokens(6562, finish="stop"))
    answers = service(engine)
    with pytest.raises(InvalidMessageError):
        await collect(answers, utterance(**fields))
    assert not engine.requests
    assert answers.active == 0


async def test_turbo_knows_no_min_p():
    from dataclasses import replace

    turbo = service(Engine(), shape=replace(SHAPE, variant="turbo"))
    with pytest.raises(InvalidMessageError, match="min_p"):
        await collect(turbo, utterance(sampling=SpeechSampling(min_p=0.1)))


async def test_an_abort_while_running():
    engine = Engine(tokens(1), None)
    answers = service(engine)
    running = asyncio.ensure_future(collect(answers, utterance()))
    await engine.running.wait()
    await answers.abort("r")
    events = await running
    assert events[-1][0].finish_reason == "abort"
    assert engine.aborted == ["r"]


async def test_an_abort_does_not_meet_a_later_request_of_the_same_name():
    answers = service(engine := Engine(None))
    running = asyncio.ensure_future(collect(answers, utterance()))
    await engine.running.wait()
    await answers.abort("r")
    await running
    answers._engine = Engine(tokens(6562, finish="stop"))
    assert (await collect(answers, utterance()))[-1][0].finish_reason == "stop"


async def test_an_abort_before_the_request_and_while_its_prompt_is_computed():
    started, go = threading.Event(), threading.Event()

    def hold():
        started.set()
        assert go.wait(10)

    engine = Engine(tokens(1), None)
    answers = service(engine, prompts=Prompts(hold))
    await answers.abort("r")
    assert await collect(answers, utterance()) == [(TokensCompleted(finish_reason="abort"), [])]
    running = asyncio.ensure_future(collect(answers, utterance()))
    await asyncio.to_thread(started.wait, 10)
    await answers.abort("r")
    go.set()
    assert await running == [(TokensCompleted(finish_reason="abort"), [])]
    assert not engine.requests


async def test_admission():
    engine = Engine(None)
    answers = service(engine, max_requests=1)
    running = asyncio.ensure_future(collect(answers, utterance()))
    await engine.running.wait()
    with pytest.raises(InvalidMessageError, match="in use"):
        await collect(answers, utterance())
    with pytest.raises(OverloadedError):
        await collect(answers, utterance(request_id="other"))
    await answers.abort("r")
    await running
    assert answers.active == 0


async def test_failures_of_the_engine_are_passed_on():
    answers = service(Engine(tokens(1), InferenceError("broken")))
    with pytest.raises(InferenceError, match="broken"):
        await collect(answers, utterance())
    with pytest.raises(InferenceError, match="without a reason"):
        await collect(service(Engine(tokens(1))), utterance())
    assert answers.active == 0


def test_reports_that_wait_are_joined_with_their_tokens():
    joined = tokens(1, 2) + tokens(3, finish="stop")
    assert joined == tokens(1, 2, 3, finish="stop")
    assert np.array(joined.token_ids).sum() == 6
