"""Requests for speech tokens: tensors, events, refusals and ends."""

import asyncio
import threading
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from t3_fakes import SHAPE, Engine, Prompts, service, tokens, utterance

from parley.errors import ContextTooLongError, InferenceError, InvalidMessageError, OverloadedError
from parley.inference import struct_tensor, tensor_struct, text_tensor
from parley.triton.model_traces import ModelTraces
from parley_torch.models.t3 import SpeechTokenHandler
from parley_torch.tts.t3.messages import (
    AbortTokens,
    SpeechSampling,
    SpeechTokensEvent,
    SpeechTokensRequest,
    TokensCompleted,
    TokensDrawn,
)
from parley_torch.tts.t3.request import TokenSampling


async def collect(service, utterance):
    return [(event, new.tolist()) async for event, new in service.generate(utterance)]


async def test_tokens_are_sent_without_marks():
    engine = Engine(tokens(1, 2), tokens(6561), tokens(3, 6700, 4), tokens(6562, finish="stop"))
    events = await collect(service(engine), utterance())
    assert events[:-1] == [(TokensDrawn(offset=0), [1, 2]), (TokensDrawn(offset=2), [3, 4])]
    assert events[-1] == (
        TokensCompleted(finish_reason="stop", generated_tokens=7, spoken_tokens=4),
        [],
    )


async def test_all_chunks_but_the_last_have_the_requested_size():
    steps = [tokens(number) for number in range(7)]
    engine = Engine(*steps, tokens(7, 8, finish="length"))
    events = await collect(service(engine), utterance(chunk_tokens=3))
    assert [new for _, new in events] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], []]
    assert [event.offset for event, _ in events[:-1]] == [0, 3, 6]


async def test_background_requests_have_a_lower_priority():
    engine = Engine(tokens(1), tokens(6562, finish="stop"))
    await collect(service(engine), utterance())
    await collect(service(engine), utterance(background=True))
    assert [asked.priority for asked in engine.requests] == [0, 1]


async def test_waiting_tokens_are_sent_at_the_end():
    engine = Engine(tokens(1), tokens(6562, finish="stop"))
    events = await collect(service(engine), utterance(chunk_tokens=3))
    assert [new for _, new in events] == [[1], []]


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("original", TokenSampling(0.8, 0.7, 0, 0.05, 1.2, 5)),
        ("multilingual", TokenSampling(0.8, 0.7, 0, 0.05, 2.0, 5)),
        ("turbo", TokenSampling(0.8, 0.7, 1000, 0.0, 1.2, 5)),
    ],
)
async def test_missing_values_are_those_of_the_checkpoint(variant, expected):
    made = service(engine := Engine(tokens(6562, finish="stop")), shape=replace(SHAPE, variant=variant))
    await collect(made, utterance(sampling=SpeechSampling(seed=5, top_p=0.7)))
    assert engine.requests[0].sampling == expected


async def test_text_tokens_replace_text():
    prompts = Prompts()
    engine = Engine(tokens(6562, finish="stop"))
    request = utterance(text="", text_tokens=[255, 7, 0], exaggeration=0.8, guidance_weight=0.3)
    await collect(service(engine, prompts=prompts), request)
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
    made = service(engine)
    with pytest.raises(InvalidMessageError):
        await collect(made, utterance(**fields))
    assert not engine.requests
    assert made.active == 0


async def test_turbo_has_no_min_p():
    turbo = service(Engine(), shape=replace(SHAPE, variant="turbo"))
    with pytest.raises(InvalidMessageError, match="min_p"):
        await collect(turbo, utterance(sampling=SpeechSampling(min_p=0.1)))


async def test_an_abort_while_running():
    engine = Engine(tokens(1), None)
    made = service(engine)
    running = asyncio.ensure_future(collect(made, utterance()))
    await engine.running.wait()
    await made.abort("r")
    events = await running
    assert events[-1][0].finish_reason == "abort"
    assert engine.aborted == ["r"]


async def test_an_abort_does_not_meet_a_later_request_of_the_same_name():
    made = service(engine := Engine(None))
    running = asyncio.ensure_future(collect(made, utterance()))
    await engine.running.wait()
    await made.abort("r")
    await running
    made._engine = Engine(tokens(6562, finish="stop"))
    assert (await collect(made, utterance()))[-1][0].finish_reason == "stop"


async def test_an_abort_before_the_request_and_while_its_prompt_is_computed():
    started, go = threading.Event(), threading.Event()

    def hold():
        started.set()
        assert go.wait(10)

    engine = Engine(tokens(1), None)
    made = service(engine, prompts=Prompts(hold))
    await made.abort("r")
    assert await collect(made, utterance()) == [(TokensCompleted(finish_reason="abort"), [])]
    running = asyncio.ensure_future(collect(made, utterance()))
    await asyncio.to_thread(started.wait, 10)
    await made.abort("r")
    go.set()
    assert await running == [(TokensCompleted(finish_reason="abort"), [])]
    assert not engine.requests


async def test_admission():
    engine = Engine(None)
    made = service(engine, max_requests=1)
    running = asyncio.ensure_future(collect(made, utterance()))
    await engine.running.wait()
    with pytest.raises(InvalidMessageError, match="in use"):
        await collect(made, utterance())
    with pytest.raises(OverloadedError):
        await collect(made, utterance(request_id="other"))
    await made.abort("r")
    await running
    assert made.active == 0


async def test_failures_of_the_engine_are_passed_on():
    made = service(Engine(tokens(1), InferenceError("broken")))
    with pytest.raises(InferenceError, match="broken"):
        await collect(made, utterance())
    with pytest.raises(InferenceError, match="without a reason"):
        await collect(service(Engine(tokens(1))), utterance())
    assert made.active == 0


def test_reports_are_joined_with_their_tokens():
    joined = tokens(1, 2) + tokens(3, finish="stop")
    assert joined == tokens(1, 2, 3, finish="stop")
    assert np.array(joined.token_ids).sum() == 6


SPEAKER = np.ones(256, np.float32)


class Answers:
    """Stands in for a responder."""

    def __init__(self, *, open_for=100):
        self.sent = []
        self._open_for = open_for

    def send(self, outputs):
        self.sent.append(outputs)
        return len(self.sent) < self._open_for


def inputs(**tensors):
    request = SpeechTokensRequest(request_id="r", text="Hi.")
    given = {"REQUEST": struct_tensor(request), "SPEAKER_EMBEDDING": SPEAKER, **tensors}
    return {name: value for name, value in given.items() if value is not None}


def without_text():
    return struct_tensor(SpeechTokensRequest(request_id="r"))


async def test_events_carry_their_tokens():
    answers = Answers()
    handler = SpeechTokenHandler(
        service(Engine(tokens(4, 5), tokens(6562, finish="stop"))), ModelTraces("t3", None)
    )
    await handler(answers, inputs())
    events = [msgspec.json.decode(sent["EVENT"][0], type=SpeechTokensEvent) for sent in answers.sent]
    assert events[0] == TokensDrawn(offset=0)
    assert [sent["TOKENS"].tolist() for sent in answers.sent] == [[4, 5], []]
    assert {sent["TOKENS"].dtype for sent in answers.sent} == {np.dtype(np.int32)}


async def test_a_request_without_an_id_gets_one():
    engine = Engine(tokens(6562, finish="stop"))
    message = struct_tensor(SpeechTokensRequest(text="Hi."))
    await SpeechTokenHandler(service(engine), ModelTraces("t3", None))(Answers(), inputs(REQUEST=message))
    assert engine.requests[0].request_id


async def test_text_tokens():
    engine = Engine(tokens(6562, finish="stop"))
    sent = inputs(REQUEST=without_text(), TEXT_TOKENS=np.array([255, 9, 0], np.int32))
    await SpeechTokenHandler(service(engine), ModelTraces("t3", None))(Answers(), sent)
    assert len(engine.requests[0].prompt.ids) == 36 + 3


async def test_an_abort_gets_no_event():
    engine, answers = Engine(), Answers()
    await SpeechTokenHandler(service(engine), ModelTraces("t3", None))(
        answers, {"REQUEST": struct_tensor(AbortTokens(request_id="x"))}
    )
    assert answers.sent == []


async def test_cancelled_client_gets_no_more_tokens():
    answers = Answers(open_for=1)
    handler = SpeechTokenHandler(
        service(Engine(tokens(4), tokens(5), tokens(6562, finish="stop"))), ModelTraces("t3", None)
    )
    await handler(answers, inputs())
    assert len(answers.sent) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"REQUEST": text_tensor(b"")},
        {"REQUEST": text_tensor(b"{")},
        {"REQUEST": text_tensor(b"\xff")},
        {"REQUEST": text_tensor(b"[" * 10_000)},
        {"SPEAKER_EMBEDDING": None},
        {"SPEAKER_EMBEDDING": np.ones(192, np.float32)},
        {"SPEAKER_EMBEDDING": np.full(256, np.nan, np.float32)},
        {"PROMPT_TOKENS": np.array([6561], np.int32)},
        {"PROMPT_TOKENS": np.array([-1], np.int32)},
        {"TEXT_TOKENS": np.array([1], np.int32)},
        {"REQUEST": without_text(), "TEXT_TOKENS": np.zeros(0, np.int32)},
    ],
)
async def test_requests_that_cannot_be_served(wrong):
    engine = Engine(tokens(6562, finish="stop"))
    with pytest.raises(InvalidMessageError):
        await SpeechTokenHandler(service(engine), ModelTraces("t3", None))(Answers(), inputs(**wrong))
    assert not engine.requests


def test_messages_survive_the_wire():
    request = SpeechTokensRequest(request_id="r", text="Hi.", guidance_weight=0.24)
    assert tensor_struct(struct_tensor(request), SpeechTokensRequest) == request
