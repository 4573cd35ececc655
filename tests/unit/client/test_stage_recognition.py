import asyncio

import numpy as np
import pytest

from parley.asr.messages import AsrOptions, OnsetEvent, SpeechStoppedEvent, TranscriptEvent
from parley.engines import recognizers
from parley.errors import (
    InvalidAudioError,
    InvalidInputError,
    InvalidMessageError,
    ModelUnavailableError,
    OverloadedError,
    UnsupportedLanguageError,
)
from parley_client import CallEndedError, SlowConsumerError
from parley_client.errors import StreamLostError
from parley_stages import FinalizedEvent, Recognition, RecognitionLimits, recognition

STOPPED = SpeechStoppedEvent(utterance=1, at_ms=1, detected_at_ms=2)
FINAL = TranscriptEvent(utterance=1, text="hello", is_final=True)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(recognition, "_MAX_POLL_S", 0.001)
    monkeypatch.setattr(recognizers, "_RETRY_S", 0.001)


def pushed(fake):
    return [(samples, message) for start, end, samples, message in fake.heard if not start and not end]


async def test_audio_is_heard_in_order_and_the_stream_is_ended(fake, server):
    audio = np.arange(20_000, dtype=np.int16)
    async with Recognition(server, AsrOptions(language="en", words=False), model="m") as stream:
        for at in range(0, len(audio), 333):
            stream.send(audio[at : at + 333].tobytes())
        stream.end()
        assert [event async for event in stream] == []
    (start, *_, end) = fake.heard
    assert start[:2] == (True, False)
    assert start[3].options == AsrOptions(language="en", words=False)
    assert end[:2] == (False, True)
    assert np.array_equal(np.concatenate([samples for samples, _ in pushed(fake)]), audio)
    assert pushed(fake)[-1][1].flush


async def test_audio_during_a_request_is_sent_together(fake, server):
    async with Recognition(server) as stream:
        fake.may_hear.clear()
        fake.hearing.clear()
        stream.send(np.zeros(512, np.int16))
        await fake.hearing.wait()
        for _ in range(30):
            stream.send(np.zeros(160, np.int16))
        fake.may_hear.set()
        stream.end()
        assert [event async for event in stream] == []
    assert [len(samples) for samples, _ in pushed(fake)] == [512, 4800, 0]


async def test_pieces_wait_for_a_chunk_but_not_at_the_end_of_speech(fake, server):
    async with Recognition(server, chunk_ms=128) as stream:
        fake.hearing.clear()
        for _ in range(5):
            stream.send(np.zeros(500, np.int16))  # 156 ms in all
        await fake.hearing.wait()
        stream.send(np.zeros(200, np.int16))
        stream.finalize()
        assert await anext(stream) == FinalizedEvent(at_ms=168)
        stream.send(np.zeros(300, np.int16))
        stream.end()
        assert [event async for event in stream] == []
    # Whole windows; then what was left, without a wait, in the request that ends the utterance.
    assert [(len(samples), message.flush) for samples, message in pushed(fake)] == [
        (2048, False),
        (652, True),
        (300, False),
        (0, True),
    ]


@pytest.mark.parametrize("chunk_ms", [-1, 501])
async def test_a_chunk_has_limits(server, chunk_ms):
    with pytest.raises(InvalidInputError, match="0 to 500"):
        Recognition(server, chunk_ms=chunk_ms)


async def test_small_pieces_wait_for_a_window(fake, server):
    async with Recognition(server) as stream:
        stream.send(np.zeros(100, np.int16))
        stream.finalize()
        stream.send(np.zeros(700, np.int16))
        stream.end()
        events = [event async for event in stream]
    assert events == [FinalizedEvent(at_ms=6)]
    assert [(len(samples), message.flush) for samples, message in pushed(fake)] == [
        (100, True),
        (700, False),
        (0, True),
    ]


async def test_wishes_for_the_same_text_are_one(server):
    async with Recognition(server) as stream:
        stream.send(np.zeros(100, np.int16))
        wishes = [stream.finalize(), stream.finalize()]
        stream.send(np.zeros(100, np.int16))
        wishes.append(stream.finalize())
        stream.end()
        events = [event async for event in stream]
    assert wishes == [True, False, True]
    assert events == [FinalizedEvent(at_ms=6), FinalizedEvent(at_ms=12)]


async def test_events_come_in_order_and_typed(fake, server):
    events = iter([[OnsetEvent(at_ms=3)], [STOPPED, FINAL]])
    fake.hear = lambda _: next(events)
    async with Recognition(server) as stream:
        stream.send(np.zeros(512, np.int16))
        stream.end()
        assert [event async for event in stream] == [OnsetEvent(at_ms=3), STOPPED, FINAL]


async def test_a_final_text_that_comes_late_is_asked_for(fake, server):
    replies = iter([[STOPPED], [], [], [FINAL], []])
    fake.hear = lambda _: next(replies)
    async with Recognition(server) as stream:
        stream.send(np.zeros(512, np.int16))
        stream.finalize()
        assert [await anext(stream) for _ in range(3)] == [STOPPED, FINAL, FinalizedEvent(at_ms=32)]
    assert [message.flush for _, message in pushed(fake)] == [True, False, False, False]


async def test_a_final_text_that_comes_late_is_asked_for_in_silence(fake, server):
    replies = iter([[STOPPED], [], [FINAL]])
    fake.hear = lambda _: next(replies)
    async with Recognition(server) as stream:
        stream.send(np.zeros(512, np.int16))
        assert [await anext(stream), await anext(stream)] == [STOPPED, FINAL]


async def test_an_idle_stream_is_kept_open(fake, server, monkeypatch):
    monkeypatch.setattr(recognizers, "_KEEP_OPEN_S", 0.001)
    enough = asyncio.Event()

    def hear(_):
        if len(pushed(fake)) == 3:
            enough.set()
        return []

    fake.hear = hear
    async with Recognition(server):
        await enough.wait()
    assert all(len(samples) == 0 and not message.flush for samples, message in pushed(fake))


async def test_a_busy_model_is_asked_again(fake, server):
    replies = iter(["overloaded: busy", "overloaded: busy", [OnsetEvent(at_ms=1)], []])
    fake.hear = lambda _: next(replies)
    async with Recognition(server) as stream:
        stream.send(np.full(512, 7, np.int16))
        stream.end()
        assert [event async for event in stream] == [OnsetEvent(at_ms=1)]
    assert [samples.tolist() for samples, _ in pushed(fake)][:3] == [[7] * 512] * 3


async def test_a_model_that_is_busy_at_the_end_of_an_utterance_is_asked_again(fake, server):
    busy = ["overloaded: busy"] * 2
    fake.hear = lambda heard: (busy.pop() if busy else [STOPPED, FINAL]) if heard[3].flush else []
    async with Recognition(server) as stream:
        stream.send(np.full(512, 7, np.int16))
        stream.finalize()
        assert [await anext(stream) for _ in range(3)] == [STOPPED, FINAL, FinalizedEvent(at_ms=32)]
    assert [message.flush for _, message in pushed(fake)] == [True, True, True]


async def test_a_model_that_stays_busy_loses_the_stream(fake, server):
    fake.hear = lambda heard: "overloaded: busy" if heard[3].flush else []
    async with Recognition(server) as stream:
        stream.finalize()
        with pytest.raises(StreamLostError, match="overloaded"):
            await anext(stream)
    assert len(pushed(fake)) == 3


async def test_too_much_audio_is_refused_and_room_can_be_waited_for(fake, server):
    async with Recognition(server, limits=RecognitionLimits(audio_s=0.1)) as stream:
        fake.may_hear.clear()
        fake.hearing.clear()
        stream.send(np.zeros(1600, np.int16))
        with pytest.raises(OverloadedError):
            stream.send(np.zeros(1600, np.int16))
        audio = np.arange(5000, dtype=np.int16)
        sending = asyncio.create_task(stream.send_all(audio))
        await fake.hearing.wait()
        assert not sending.done()
        fake.may_hear.set()
        await sending
        stream.end()
        assert [event async for event in stream] == []
    assert np.array_equal(np.concatenate([samples for samples, _ in pushed(fake)])[1600:], audio)


async def test_half_a_sample_is_refused(server):
    async with Recognition(server) as stream:
        with pytest.raises(InvalidAudioError):
            stream.send(b"123")


async def test_audio_after_the_end_is_refused(server):
    async with Recognition(server) as stream:
        stream.end()
        with pytest.raises(CallEndedError):
            stream.send(bytes(2))
        with pytest.raises(CallEndedError):
            stream.finalize()


@pytest.mark.parametrize(
    ("said", "kind"),
    [("invalid_message: vad", InvalidMessageError), ("unsupported_language: xx", UnsupportedLanguageError)],
)
async def test_refusal_of_the_model_is_raised_at_opening(fake, server, said, kind):
    fake.refusal = said
    with pytest.raises(kind):
        async with Recognition(server):
            pytest.fail("it was opened")
    await fake.ended.wait()


async def test_a_stream_that_breaks_may_be_tried_again(fake, server):
    fake.hear = lambda _: "session_not_found: who?"
    async with Recognition(server) as stream:
        stream.send(np.zeros(512, np.int16))
        with pytest.raises(StreamLostError, match=r"who\? \(session_not_found\)") as caught:
            await anext(stream)
        with pytest.raises(StreamLostError):
            stream.send(bytes(2))
    assert caught.value.retryable
    assert caught.value.code == "stream_lost"


async def test_audio_that_the_model_refuses_is_no_reason_to_try_again(fake, server):
    fake.hear = lambda _: "invalid_audio: too long"
    async with Recognition(server) as stream:
        stream.send(np.zeros(512, np.int16))
        with pytest.raises(InvalidAudioError):
            await anext(stream)


async def test_a_server_that_dies_loses_the_stream(fake, server):
    async with Recognition(server) as stream:
        await fake.stop()
        stream.send(np.zeros(512, np.int16))
        with pytest.raises(StreamLostError) as caught:
            await anext(stream)
    assert isinstance(caught.value.__cause__, ModelUnavailableError)


async def test_a_model_that_says_nothing_loses_the_stream(fake, server):
    async with Recognition(server, limits=RecognitionLimits(answer_s=0.05)) as stream:
        fake.may_hear.clear()
        stream.send(np.zeros(512, np.int16))
        with pytest.raises(StreamLostError, match="deadline_exceeded"):
            await anext(stream)
        fake.may_hear.set()


async def test_a_reader_that_does_not_read_ends_the_stream(fake, server):
    fake.hear = lambda _: [OnsetEvent(at_ms=1)] * 3
    async with Recognition(server, limits=RecognitionLimits(events=2, consumer_s=0.01)) as stream:
        stream.send(np.zeros(512, np.int16))
        await fake.ended.wait()
        with pytest.raises(SlowConsumerError):
            async for _ in stream:
                pass


async def test_a_stream_is_ended_although_its_user_is_cancelled(fake, server):
    fake.may_hear.clear()

    async def use():
        async with Recognition(server) as stream:
            await anext(stream)

    for _ in range(2):  # while it is opened, and while it is used
        fake.hearing.clear()
        fake.ended.clear()
        user = asyncio.create_task(use())
        await fake.hearing.wait()
        user.cancel()
        fake.may_hear.set()
        with pytest.raises(asyncio.CancelledError):
            await user
        await fake.ended.wait()


async def test_a_task_that_waits_for_room_hears_of_the_end(fake, server):
    stream = Recognition(server, limits=RecognitionLimits(audio_s=0.1))
    await stream.open()
    fake.may_hear.clear()
    fake.hearing.clear()
    stream.send(np.zeros(512, np.int16))
    await fake.hearing.wait()
    sending = asyncio.create_task(stream.send_all(np.zeros(16_000, np.int16)))
    closing = asyncio.create_task(stream.close())
    await asyncio.wait([sending, closing], timeout=0)
    fake.may_hear.set()
    await closing
    with pytest.raises(CallEndedError):
        await sending
