"""Final texts that another model writes: asked for as soon as they may be there."""

import asyncio

import numpy as np
import pytest
from agent_fakes import now

from parley.agent.audio_recognition import AudioRecognition
from parley.agent.config import AgentConfig
from parley.asr.messages import (
    AsrOptions,
    AsrReply,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)

ENDED = [
    SpeechStartedEvent(utterance=1, at_ms=0),
    SpeechStoppedEvent(utterance=1, at_ms=10, detected_at_ms=20),
]


class Recognizer:
    """Has heard an utterance with the first piece, and has its text after a time."""

    model = "fake_asr"

    def __init__(self, text_after_s):
        self.text_after_s = text_after_s
        self.pushes = []

    async def check(self, options):
        pass

    async def start(self, options):
        self.began = None

    async def push(self, audio):
        self.pushes.append((now(), len(audio)))
        if self.began is None:
            self.began = now()
            return AsrReply(events=ENDED)
        if self.text_after_s is None or now() - self.began < self.text_after_s:
            return AsrReply()
        self.text_after_s = None
        return AsrReply(events=[TranscriptEvent(utterance=1, text="hello", is_final=True)])

    def begin_turn(self):
        raise AssertionError("not expected")

    async def close(self):
        pass


class Handler:
    """Notes when the text was there."""

    def __init__(self):
        self.heard_at = asyncio.get_running_loop().create_future()

    def on_transcript(self, event):
        self.heard_at.set_result(now())

    def on_speech_started(self, event):
        pass

    def on_speech_stopped(self, event, detected_at):
        pass

    def on_audio_processed(self, piece):
        pass


async def open_recognition(recognizer, handler):
    listener = AudioRecognition(lambda *_: recognizer, "call", AsrOptions(), handler, AgentConfig())
    await listener.open()
    return listener, asyncio.create_task(listener.run())


async def listen(recognizer):
    """Hear one window of audio, and nothing after it."""
    handler = Handler()
    listener, running = await open_recognition(recognizer, handler)
    listener.push_audio(np.zeros(512, np.int16))
    return handler, running


async def stop(running):
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_text_later_than_the_requested_end_is_requested():
    recognizer = Recognizer(0.0)

    async def flush():
        recognizer.began = now()
        return AsrReply(events=ENDED)

    recognizer.flush = flush
    handler = Handler()
    listener, running = await open_recognition(recognizer, handler)
    listener.end_utterance()
    async with asyncio.timeout(5):
        await handler.heard_at
    assert [length for _, length in recognizer.pushes] == [0]
    await stop(running)


async def test_a_late_text_is_asked_for_without_waiting_for_more_audio():
    recognizer = Recognizer(0.015)
    began = now()
    handler, running = await listen(recognizer)
    assert await handler.heard_at - began == pytest.approx(0.016, abs=0.002)
    assert [length for _, length in recognizer.pushes] == [512, 0]
    await asyncio.sleep(5)
    assert len(recognizer.pushes) == 2, "nothing is asked when nothing is to come"
    await stop(running)


async def test_slow_recogniser_is_polled_less_often():
    recognizer = Recognizer(2.0)
    handler, running = await listen(recognizer)
    await handler.heard_at
    times = [at for at, _ in recognizer.pushes]
    gaps = np.diff(times)
    assert gaps[:5] == pytest.approx([0.016, 0.032, 0.064, 0.128, 0.256], abs=0.002)
    assert gaps[5:] == pytest.approx([0.256] * len(gaps[5:]), abs=0.002)
    await stop(running)


class Behind:
    """Has a late text at the end of the utterance, and another utterance behind it."""

    model = "fake_asr"

    def __init__(self, text_after_s):
        self.text_after_s = text_after_s
        self.began = None

    async def check(self, options):
        pass

    async def start(self, options):
        pass

    async def push(self, audio):
        if self.began is None or self.text_after_s is None or now() - self.began < self.text_after_s:
            return AsrReply()
        self.text_after_s = None
        second = TranscriptEvent(utterance=2, text="two", is_final=True)
        return AsrReply(
            events=[
                TranscriptEvent(utterance=1, text="one", is_final=True),
                SpeechStartedEvent(utterance=2, at_ms=30),
                SpeechStoppedEvent(utterance=2, at_ms=40, detected_at_ms=50),
                second,
            ]
        )

    async def flush(self):
        self.began = now()
        return AsrReply(events=ENDED)

    async def close(self):
        pass


class Order(Handler):
    """Notes the texts, and when the end was there."""

    def __init__(self):
        self.heard = []

    def on_transcript(self, event):
        self.heard.append(event.text)

    def ended(self, utterance):
        self.heard.append(utterance)


@pytest.mark.parametrize(("text_after_s", "heard"), [(0.5, ["one", "two", 2]), (60.0, [1])])
async def test_an_end_waits_for_what_is_hidden_behind_a_late_text_but_not_for_ever(text_after_s, heard):
    handler = Order()
    listener, running = await open_recognition(Behind(text_after_s), handler)
    listener.end_utterance(on_finished=handler.ended)
    await asyncio.sleep(10)
    assert handler.heard == heard
    await stop(running)
