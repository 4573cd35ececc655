"""What the tests of the ports do, from inside a model."""

import asyncio
import json
import time
import uuid
from contextlib import aclosing

import numpy as np

from parley.errors import ParleyError
from parley.inference import ModelRequest, SequenceFlags, tensor_bytes, text_tensor


def _stream_request(timeout_s=10.0, **asked):
    return ModelRequest(
        "probe_stream", {"REQUEST": text_tensor(json.dumps(asked))}, ("EVENT", "AUDIO"), timeout_s=timeout_s
    )


def _call_request(sequence, start=False, end=False, timeout_s=10.0, samples=3, **asked):
    return ModelRequest(
        "probe_call",
        {
            "REQUEST": text_tensor(json.dumps(asked), batched=True),
            "AUDIO": np.arange(samples, dtype=np.int16).reshape(1, -1),
        },
        ("REPLY", "AUDIO_OUT"),
        sequence=SequenceFlags(sequence, start=start, end=end),
        timeout_s=timeout_s,
    )


async def _outcome(awaitable):
    try:
        await awaitable
    except ParleyError as error:
        return {"code": error.code, "text": str(error)}
    return {"code": None, "text": ""}


async def _count(port, stream, count, take=None, **asked):
    """The numbers of a stream; stops listening after ``take``."""
    numbers = []
    async with aclosing(port.stream(_stream_request(stream=stream, count=count, **asked))) as responses:
        async for response in responses:
            event = json.loads(tensor_bytes(response["EVENT"]))
            assert event["stream"] == stream, "a response of another stream"
            assert response["AUDIO"].tolist() == [event["n"]] * (event["n"] % 7)
            numbers.append(event["n"])
            if take is not None and len(numbers) >= take:
                break
    return numbers


async def stream(port, **asked):
    return await _count(port, "one", **asked)


async def stream_failure(port, **asked):
    return await _outcome(_count(port, "one", **asked))


async def unknown_models(port):
    call = ModelRequest("no_such_model", {"X": text_tensor("x")}, ("Y",), timeout_s=5)

    async def listen():
        async for _ in port.stream(call):
            pass

    return [await _outcome(port.infer(call)), await _outcome(listen())]


async def too_many(port, streams):
    """Starts more streams than the port allows; the rest must still be served."""
    running = [_outcome(_count(port, str(i), 2, first_delay_s=0.5)) for i in range(streams)]
    codes = [outcome["code"] for outcome in await asyncio.gather(*running)]
    later = await _count(port, "later", 2)
    return {"refused": codes.count("overloaded"), "served": codes.count(None), "later": later}


async def sequence(port, chunks):
    """One sequence; every chunk with audio of another length, the last two without any."""
    name = f"sequence-{uuid.uuid4().hex}"
    replies = []
    for n in range(chunks):
        samples = 0 if n >= chunks - 2 else n + 1
        response = await port.infer(_call_request(name, n == 0, n == chunks - 1, samples=samples, n=n))
        assert response["AUDIO_OUT"].shape == (1, samples)
        assert response["AUDIO_OUT"].reshape(-1).tolist() == list(range(samples))
        replies.append(json.loads(tensor_bytes(response["REPLY"])))
    return {"name": name, "replies": replies}


async def call_failures(port):
    name = f"failing-{uuid.uuid4().hex}"
    outcomes = {
        "not started": await _outcome(port.infer(_call_request(f"{name}-0"))),
        "model error": await _outcome(port.infer(_call_request(name, start=True, fail=True))),
        "late": await _outcome(port.infer(_call_request(name, delay_s=0.5, timeout_s=0.1))),
    }
    # A sequence that is left open holds up the server's exit until it is idle for long enough.
    await port.infer(_call_request(name, end=True))
    return outcomes


async def calls_beside_slow_streams(port, streams):
    """How many streams still wait for their first response when ten ordinary calls have been answered."""
    slow = [asyncio.ensure_future(_count(port, str(i), 1, first_delay_s=5.0)) for i in range(streams)]
    await asyncio.sleep(0.2)
    name = f"beside-{uuid.uuid4().hex}"
    for n in range(10):
        await port.infer(_call_request(name, n == 0, n == 9, n=n))
    still_waiting = sum(not task.done() for task in slow)
    await asyncio.gather(*slow)
    return {"still_waiting": still_waiting}


async def stress(port, *, users, seconds, count=20, delay_s=0.0, think_s=0.0):
    """Users that stream, call and hang up at the same time; every response is checked."""
    end = time.monotonic() + seconds
    totals = {"streams": 0, "cut": 0, "calls": 0}

    async def talk(user):
        rounds = 0
        while time.monotonic() < end:
            rounds += 1
            take = 3 if (user + rounds) % 5 == 0 else None
            numbers = await _count(port, f"{user}/{rounds}", count, take, delay_s=delay_s)
            assert numbers == list(range(take or count))
            totals["cut" if take else "streams"] += 1
            await asyncio.sleep(think_s)

    async def call(user):
        name = f"stress-{user}-{uuid.uuid4().hex}"
        n = 0
        while time.monotonic() < end:
            response = await port.infer(_call_request(name, start=n == 0, n=n))
            assert json.loads(tensor_bytes(response["REPLY"]))["n"] == n
            n += 1
            totals["calls"] += 1
            await asyncio.sleep(think_s or 0.02)
        await port.infer(_call_request(name, end=True, n=n))

    await asyncio.gather(*map(talk, range(users)), *map(call, range(users)))
    return totals


SCENARIOS = {
    function.__name__: function
    for function in (
        stream,
        stream_failure,
        unknown_models,
        too_many,
        sequence,
        call_failures,
        calls_beside_slow_streams,
        stress,
    )
}
