import asyncio
import threading

import numpy as np
import pytest
from fake_pb_utils import Iterator, failure, response

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
)
from parley.inference import ModelRequest, SequenceFlags, text_tensor
from parley.serving.bls import InProcessPort, infer_blocking


def request(**fields):
    return ModelRequest("m", {"X": np.array([1], np.int16)}, ("Y",), **{"timeout_s": 5, **fields})


@pytest.fixture
async def port(pb_utils):
    port = InProcessPort(pb_utils, max_calls=2, max_streams=2, room=2)
    yield port
    await port.close()


async def take(stream, count):
    return [(await anext(stream))["Y"].tolist() for _ in range(count)]


async def wait_until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.001)


class TestInfer:
    async def test_sends_the_request_and_reads_the_response(self, port, model):
        flags = SequenceFlags("s", start=True, end=True)
        model.answer(response(Y=[1, 2]))
        result = await port.infer(request(sequence=flags, request_id="id"))
        assert result["Y"].tolist() == [1, 2]
        sent = model.requests[0].fields
        assert (sent["model_name"], sent["request_id"]) == ("m", "id")
        assert (sent["correlation_id"], sent["flags"]) == ("s", 3)
        assert sent["requested_output_names"] == ["Y"]
        assert sent["inputs"][0].as_numpy().tolist() == [1]

    async def test_result_is_a_copy(self, port, model):
        shared = np.array([1])
        model.answer(response(Y=shared))
        result = await port.infer(request())
        shared[0] = 99
        assert result["Y"].tolist() == [1]

    async def test_strings_stay_bytes(self, port, model):
        model.answer(response(Y=text_tensor("ä")))
        assert (await port.infer(request()))["Y"].tolist() == ["ä".encode()]

    async def test_errors_are_mapped(self, port, model):
        model.answer(failure("overloaded: full"))
        with pytest.raises(OverloadedError, match="full"):
            await port.infer(request())
        model.answer(failure("Model 'm' is not ready."))
        with pytest.raises(ModelUnavailableError):
            await port.infer(request())

    async def test_deadline_and_its_place(self, port, model):
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                await port.infer(request(timeout_s=0.01))
        # Triton still works on both: there is no room for a third.
        with pytest.raises(OverloadedError):
            await port.infer(request())
        model.answer(response(Y=[1]))
        model.answer(failure("inference_failed: late"))
        await wait_until(model.answers.empty)
        model.answer(response(Y=[3]))
        async with asyncio.timeout(5):
            while True:
                try:
                    assert (await port.infer(request()))["Y"].tolist() == [3]
                    break
                except OverloadedError:
                    await asyncio.sleep(0.001)

    async def test_refuses_calls_after_close(self, port):
        await port.close()
        with pytest.raises(ShuttingDownError):
            await port.infer(request())


class TestStream:
    async def test_responses_in_order_without_the_empty_final_one(self, port, model):
        iterator = Iterator()
        model.answer(iterator)
        for n in range(5):
            iterator.items.put(response(Y=[n]))
        iterator.items.put(response())
        iterator.items.put(Iterator.END)
        assert [r["Y"].tolist() async for r in port.stream(request())] == [[n] for n in range(5)]

    async def test_a_slow_reader_holds_the_thread_back(self, port, model):
        iterator = Iterator()
        model.answer(iterator)
        for n in range(10):
            iterator.items.put(response(Y=[n]))
        iterator.items.put(Iterator.END)
        stream = port.stream(request())
        assert await take(stream, 1) == [[0]]
        # One was read, two wait for the reader, one is in the thread's hands.
        await wait_until(lambda: iterator.items.qsize() <= 7)
        assert iterator.items.qsize() >= 6
        assert await take(stream, 9) == [[n] for n in range(1, 10)]
        await stream.aclose()

    async def test_errors_end_the_stream(self, port, model):
        iterator = Iterator()
        model.answer(iterator)
        iterator.items.put(response(Y=[0]))
        iterator.items.put(failure("overloaded: full"))
        iterator.items.put(Iterator.END)
        stream = port.stream(request())
        assert await take(stream, 1) == [[0]]
        with pytest.raises(OverloadedError):
            await anext(stream)

    async def test_failures_of_triton_itself_end_the_stream(self, port, model):
        iterator = Iterator()
        model.answer(iterator)
        iterator.items.put(RuntimeError("broken pipe"))
        with pytest.raises(InferenceError, match="broken pipe"):
            await anext(port.stream(request()))

    async def test_closing_early_reads_the_rest_elsewhere(self, port, model):
        iterator = Iterator()
        model.answer(iterator)
        for n in range(50):
            iterator.items.put(response(Y=[n]))
        stream = port.stream(request())
        assert await take(stream, 1) == [[0]]
        await stream.aclose()
        await wait_until(iterator.items.empty)
        assert not iterator.ended.is_set()
        iterator.items.put(Iterator.END)
        await wait_until(iterator.ended.is_set)

    async def test_late_response_is_a_missed_deadline(self, port, model):
        iterator = Iterator()
        model.answer(iterator)
        iterator.items.put(response(Y=[0]))
        stream = port.stream(request(timeout_s=0.05))
        assert await take(stream, 1) == [[0]]
        with pytest.raises(DeadlineExceededError):
            await anext(stream)
        iterator.items.put(Iterator.END)
        await wait_until(iterator.ended.is_set)

    async def test_a_stream_that_begins_after_its_deadline_is_read_to_its_end(self, port, model):
        with pytest.raises(DeadlineExceededError):
            await anext(port.stream(request(timeout_s=0.01)))
        iterator = Iterator()
        iterator.items.put(response(Y=[0]))
        iterator.items.put(Iterator.END)
        model.answer(iterator)
        await wait_until(iterator.ended.is_set)

    async def test_places_are_taken_until_the_model_ends(self, port, model):
        iterators = [Iterator(), Iterator()]
        for iterator in iterators:
            model.answer(iterator)
            iterator.items.put(response(Y=[0]))
            stream = port.stream(request())
            await take(stream, 1)
            await stream.aclose()
        with pytest.raises(OverloadedError):
            await anext(port.stream(request()))
        iterators[0].items.put(Iterator.END)
        await wait_until(iterators[0].ended.is_set)
        third = Iterator()
        third.items.put(response(Y=[3]))
        third.items.put(Iterator.END)
        model.answer(third)
        async with asyncio.timeout(5):
            while True:
                try:
                    assert [r["Y"].tolist() async for r in port.stream(request())] == [[3]]
                    break
                except OverloadedError:
                    await asyncio.sleep(0.001)
        iterators[1].items.put(Iterator.END)

    async def test_what_stops_a_stream_needs_none_of_the_places_of_streams(self, port, model):
        iterators = [Iterator() for _ in range(4)]
        for number, iterator in enumerate(iterators):
            model.answer(iterator)
            iterator.items.put(response(Y=[number]))
            await take(port.stream(request(frees=number >= 2)), 1)
        for frees in (False, True):
            with pytest.raises(OverloadedError):
                await anext(port.stream(request(frees=frees)))
        for iterator in iterators:
            iterator.items.put(Iterator.END)
            await wait_until(iterator.ended.is_set)

    async def test_a_stream_is_read_to_its_end_after_close(self, port, model):
        iterator = Iterator()
        stream = port.stream(request())
        first = asyncio.ensure_future(anext(stream))
        await wait_until(lambda: model.requests)
        await port.close()
        model.answer(iterator)
        iterator.items.put(response(Y=[0]))
        iterator.items.put(Iterator.END)
        assert (await first)["Y"].tolist() == [0]
        await stream.aclose()
        await wait_until(iterator.ended.is_set)

    async def test_slow_streams_do_not_hold_up_calls(self, port, model):
        waiting = [asyncio.ensure_future(anext(port.stream(request(timeout_s=0.2)))) for _ in range(2)]
        await wait_until(lambda: len(model.requests) == 2)
        assert len([t for t in threading.enumerate() if t.name.startswith("bls")]) >= 2
        call = asyncio.ensure_future(port.infer(request(timeout_s=0.2)))
        await wait_until(lambda: len([t for t in threading.enumerate() if t.name.startswith("bls")]) >= 3)
        for task in (*waiting, call):
            with pytest.raises(DeadlineExceededError):
                await task
        ended = Iterator()
        ended.items.put(Iterator.END)
        ended.items.put(Iterator.END)
        for _ in range(3):  # whoever asked gets an iterator; the call only drops it
            model.answer(ended)
        await wait_until(model.answers.empty)


def test_blocking_call(pb_utils, model):
    model.answer(response(Y=[1]))
    assert infer_blocking(pb_utils, request())["Y"].tolist() == [1]
    model.answer(failure("overloaded: full"))
    with pytest.raises(OverloadedError):
        infer_blocking(pb_utils, request())


async def test_another_event_loop_is_refused(port, model):
    model.answer(response(Y=[1]))
    await port.infer(request())

    def elsewhere():
        with pytest.raises(InferenceError, match="same event loop"):
            asyncio.run(port.infer(request()))

    await asyncio.to_thread(elsewhere)
