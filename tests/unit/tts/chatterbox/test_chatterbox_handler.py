"""Tensors in and out, and normalisation beside the event loop."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from chatterbox_fakes import PER_TOKEN, Rig

from parley.errors import InvalidMessageError, SessionNotFoundError
from parley.inference import struct_tensor, tensor_struct, text_tensor
from parley.models.chatterbox import ChatterboxHandler, ThreadNormalizer
from parley.tts.chatterbox.token_queue import TokenQueue
from parley.tts.messages import AbortSpeech, MoreText, SpeakRequest, SpeechChunk
from parley.tts.normalization.normalizer import TextNormalizer


class Answers:
    """Stands in for a responder."""

    def __init__(self):
        self.sent = []
        self.begun = asyncio.Event()

    def send(self, outputs):
        self.sent.append((tensor_struct(outputs["CHUNK"], SpeechChunk), outputs["AUDIO"]))
        self.begun.set()
        return True

    @property
    def samples(self):
        return sum(len(audio) for _, audio in self.sent)


@pytest.fixture
def rig():
    return Rig()


@pytest.fixture
def handle(rig):
    handler = ChatterboxHandler(rig.service)

    async def handle(message):
        answers = Answers()
        await handler(answers, {"REQUEST": struct_tensor(message)})
        return answers

    handle.handler = handler
    return handle


async def test_a_whole_text(handle):
    answers = await handle(SpeakRequest(request_id="a", text="Hello there."))
    assert answers.samples == 24 * PER_TOKEN
    assert {audio.dtype for _, audio in answers.sent} == {np.dtype(np.int16)}
    assert len([mark for chunk, _ in answers.sent for mark in chunk.words]) == 2


async def test_a_text_that_is_being_written(handle):
    answers = Answers()
    request = {"REQUEST": struct_tensor(SpeakRequest(request_id="a", final=False))}
    speaking = asyncio.create_task(handle.handler(answers, request))
    await answers.begun.wait()
    assert (await handle(MoreText(request_id="a", text="Hello", first=0))).sent == []
    with pytest.raises(InvalidMessageError):
        await handle(MoreText(request_id="a", text=" there", first=4))
    assert (await handle(MoreText(request_id="a", text=" there", first=5, final=True))).sent == []
    await speaking
    assert answers.samples == 2 * (len("Hello") + len("there")) * PER_TOKEN


async def test_a_stop(handle, rig):
    rig.tokens.token_s = 1.0
    answers = Answers()
    request = {"REQUEST": struct_tensor(SpeakRequest(request_id="a", text="Hello there."))}
    speaking = asyncio.create_task(handle.handler(answers, request))
    await answers.begun.wait()
    assert (await handle(AbortSpeech(request_id="a"))).sent == []
    await speaking
    assert 0 < answers.samples < 24 * PER_TOKEN
    rig.assert_idle()


async def test_text_for_nobody(handle):
    with pytest.raises(SessionNotFoundError):
        await handle(MoreText(request_id="a", text="Hello", first=0))


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"op": "fly"}', b'{"op": "speak"}', b"[" * 10_000])
async def test_garbage(handle, raw):
    with pytest.raises(InvalidMessageError):
        await handle.handler(Answers(), {"REQUEST": text_tensor(raw)})


async def test_tokens_that_came_together_are_taken_together():
    tokens = TokenQueue()
    for part in ([1, 2], [], [3]):
        tokens.put(np.array(part, np.int32))
    assert [part.tolist() if isinstance(part, np.ndarray) else part for part in await tokens.take()] == [
        [1, 2, 3],
        False,
    ]
    waiting = asyncio.create_task(tokens.take())
    await asyncio.sleep(0)
    tokens.end()
    taken, complete = await waiting
    assert (taken.tolist(), complete, tokens.drawn) == ([], True, 3)


class TestThreadNormalizer:
    """These run threads: real time passes, though the loop's does not."""

    def test_writes_out(self):
        normalizer = ThreadNormalizer(TextNormalizer({"en": lambda _: "five"}, tags=False), limit_s=5)
        spoken = asyncio.run(normalizer.normalize("5", "en"))
        normalizer.close()
        assert spoken.text == "five"

    def test_a_text_that_takes_too_long_is_said_as_it_is(self, caplog):
        release = threading.Event()

        def grammar(text):
            release.wait(10)
            return text

        normalizer = ThreadNormalizer(TextNormalizer({"en": grammar}, tags=False), limit_s=0.01)
        spoken = asyncio.run(normalizer.normalize("5 [laugh] cats", "en"))
        release.set()
        normalizer.close()
        assert spoken.text == "5 cats"
        assert len(spoken.words) == 3
        assert "too long" in caplog.text
        assert "cats" not in caplog.text
