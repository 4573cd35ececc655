"""Tensors of ``t3``: requests in, events and tokens out."""

import msgspec
import numpy as np
import pytest
from t3_fakes import Engine, service, tokens

from parley.errors import InvalidMessageError
from parley.inference import struct_tensor, tensor_struct, text_tensor
from parley.models.t3 import SpeechTokenHandler
from parley.tts.t3.messages import AbortTokens, SpeechTokensEvent, SpeechTokensRequest, TokensDrawn

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
    handler = SpeechTokenHandler(service(Engine(tokens(4, 5), tokens(6562, finish="stop"))))
    await handler(answers, inputs())
    events = [msgspec.json.decode(sent["EVENT"][0], type=SpeechTokensEvent) for sent in answers.sent]
    assert events[0] == TokensDrawn(offset=0)
    assert [sent["TOKENS"].tolist() for sent in answers.sent] == [[4, 5], []]
    assert {sent["TOKENS"].dtype for sent in answers.sent} == {np.dtype(np.int32)}


async def test_text_tokens():
    engine = Engine(tokens(6562, finish="stop"))
    sent = inputs(REQUEST=without_text(), TEXT_TOKENS=np.array([255, 9, 0], np.int32))
    await SpeechTokenHandler(service(engine))(Answers(), sent)
    assert len(engine.requests[0].prompt.ids) == 36 + 3


async def test_an_abort_is_answered_by_nothing():
    engine, answers = Engine(), Answers()
    await SpeechTokenHandler(service(engine))(
        answers, {"REQUEST": struct_tensor(AbortTokens(request_id="x"))}
    )
    assert answers.sent == []


async def test_nothing_more_is_sent_to_a_caller_that_has_gone():
    answers = Answers(open_for=1)
    handler = SpeechTokenHandler(service(Engine(tokens(4), tokens(5), tokens(6562, finish="stop"))))
    await handler(answers, inputs())
    assert len(answers.sent) == 1


@pytest.mark.parametrize(
    "wrong",
    [
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
        await SpeechTokenHandler(service(engine))(Answers(), inputs(**wrong))
    assert not engine.requests


def test_messages_survive_the_wire():
    request = SpeechTokensRequest(request_id="r", text="Hi.", guidance_weight=0.24)
    assert tensor_struct(struct_tensor(request), SpeechTokensRequest) == request
