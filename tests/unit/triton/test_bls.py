import asyncio
import threading

import numpy as np
import pytest
from fake_pb_utils import failure, response

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
)
from parley.inference import ModelRequest, SequenceFlags, text_tensor
from parley.triton.model_client import InProcessClient, infer_blocking


def request(**fields):
    return ModelRequest("m", {"X": np.array([1], np.int16)}, ("Y",), **{"timeout_s": 5, **fields})


@pytest.fixture
async def port(pb_utils):
    port = InProcessClient(pb_utils, max_calls=2)
    yield port
    await port.close()


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


async def test_slow_calls_have_threads_of_their_own(pb_utils, model):
    # The default executor of a loop has as few as six.
    port = InProcessClient(pb_utils, max_calls=40)
    calls = [asyncio.ensure_future(port.infer(request())) for _ in range(40)]
    await wait_until(lambda: len([t for t in threading.enumerate() if t.name.startswith("bls")]) == 40)
    for n in range(40):
        model.answer(response(Y=[n]))
    answers = [answer["Y"].tolist() for answer in await asyncio.gather(*calls)]
    assert sorted(answers) == [[n] for n in range(40)]
    await port.close()


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
