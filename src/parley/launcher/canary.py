"""Asking a model something real, because Triton's ready endpoint says nothing about it.

After a model's process has died, Triton 24.10 still reports the model as ready and requests to
it hang. So readiness is an answer to a request that costs almost nothing and goes through the
model's own code.
"""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Collection
from typing import Self

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from parley.inference import text_tensor
from parley.protocol import Closed, Connected, Start, decode_event, encode

CanaryCall = Callable[[str, float], str]
"""Takes ``host:port`` and a deadline (seconds); returns what it saw; raises on failure."""


class CanaryError(RuntimeError):
    """The model answered wrongly or not in time."""


def _input(name: str, kind: str, value: NDArray[np.generic]) -> triton.InferInput:
    tensor = triton.InferInput(name, list(value.shape), kind)
    tensor.set_data_from_numpy(value)
    return tensor


class _Stream:
    """One bidirectional stream whose answers are read with a deadline."""

    def __init__(self, address: str, deadline_s: float) -> None:
        self._client = triton.InferenceServerClient(address)
        self._answers: queue.Queue[tuple[triton.InferResult | None, Exception | None]] = queue.Queue()
        self._deadline_s = deadline_s
        self._client.start_stream(
            lambda result, error: self._answers.put((result, error)), stream_timeout=deadline_s
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Triton 24.10 sometimes forgets a stream that is cancelled just as it ends, and keeps its model
        # loaded until the exit timeout: one that was answered is left to end by itself.
        self._client.stop_stream(cancel_requests=kind is not None)
        self._client.close()

    def send(self, model: str, inputs: list[triton.InferInput], **sequence: object) -> None:
        self._client.async_stream_infer(
            model, inputs, request_id=uuid.uuid4().hex, enable_empty_final_response=True, **sequence
        )

    def receive(self) -> triton.InferResult:
        try:
            result, error = self._answers.get(timeout=self._deadline_s)
        except queue.Empty:
            raise CanaryError(f"no answer within {self._deadline_s:g} s") from None
        if error is not None or result is None:
            raise CanaryError(str(error))
        return result


def _is_final(result: triton.InferResult) -> bool:
    parameters = result.get_response().parameters
    return "triton_final_response" in parameters and bool(parameters["triton_final_response"].bool_param)


def call_voice_agent(address: str, deadline_s: float) -> str:
    """Open a conversation and end it at once: ``connected`` … ``closed``."""
    session = f"canary-{uuid.uuid4().hex}"
    nothing = np.zeros((1, 0), dtype=np.uint8)
    with _Stream(address, deadline_s) as stream:
        # Without a prompt there is nothing for the language model to read ahead. Triton 24.10 sometimes
        # keeps qwen3 loaded until the exit timeout when that is broken off as it begins.
        for message, start in ((encode(Start(system_prompt="")), True), (b"", False)):
            inputs = [
                _input("MESSAGE", "BYTES", text_tensor(message, batched=True)),
                _input("AUDIO", "UINT8", nothing),
            ]
            stream.send(
                "voice_agent", inputs, sequence_id=session, sequence_start=start, sequence_end=not start
            )
        seen: list[str] = []
        finals = 0
        while finals < 2:
            result = stream.receive()
            finals += _is_final(result)
            events = result.as_numpy("EVENT")
            if events is None or events.size == 0:
                continue
            event = decode_event(events.reshape(-1)[0])
            seen.append(type(event).__name__)
            if isinstance(event, Connected) and len(seen) > 1:
                raise CanaryError(f"voice_agent sent {seen}: connected must come first")
    if Connected.__name__ not in seen or Closed.__name__ not in seen:
        raise CanaryError(f"voice_agent sent {seen or 'nothing'} instead of connected and closed")
    return "voice_agent opened and closed a session"


def _call_abort(model: str) -> CanaryCall:
    """Abort a request that does not exist: answered by an empty final response."""

    def call(address: str, deadline_s: float) -> str:
        request = text_tensor(b'{"op":"abort","request_id":"canary"}')
        with _Stream(address, deadline_s) as stream:
            stream.send(model, [_input("REQUEST", "BYTES", request)])
            while not _is_final(stream.receive()):
                pass
        return f"{model} answered"

    return call


def _call_recognizer(model: str) -> CanaryCall:
    """One stream of no audio, begun and ended by the same request."""

    def call(address: str, deadline_s: float) -> str:
        client = triton.InferenceServerClient(address)
        try:
            inputs = [
                _input("AUDIO", "INT16", np.zeros((1, 0), dtype=np.int16)),
                _input("REQUEST", "BYTES", text_tensor(b"{}", batched=True)),
            ]
            client.infer(
                model,
                inputs,
                sequence_id=f"canary-{uuid.uuid4().hex}",
                sequence_start=True,
                sequence_end=True,
                client_timeout=deadline_s,
            )
        finally:
            client.close()
        return f"{model} answered"

    return call


CANARIES: dict[str, CanaryCall] = {
    "voice_agent": call_voice_agent,
    "parakeet_tdt": _call_recognizer("parakeet_tdt"),
    "nemotron_streaming": _call_recognizer("nemotron_streaming"),
    "qwen3": _call_abort("qwen3"),
    "espeak": _call_abort("espeak"),
}


def call_canaries(address: str, models: Collection[str], deadline_s: float) -> list[str]:
    """Call every loaded model that has a canary, the smallest first.

    Args:
        address: ``host:port`` of gRPC.
        models: names of the loaded models.
        deadline_s: for each call (seconds).

    Returns:
        What each call saw; empty if no loaded model has a canary.

    Raises:
        CanaryError: a model answered wrongly, with an error, or not in time.
    """
    seen: list[str] = []
    for model in reversed(CANARIES):
        if model not in models:
            continue
        try:
            seen.append(CANARIES[model](address, deadline_s))
        except (triton.InferenceServerException, CanaryError) as error:
            raise CanaryError(f"{model}: {error}") from error
    return seen
