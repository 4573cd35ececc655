"""The one API through which the agent reaches other models.

Triton's in-process calls (BLS) have upstream crashes that a model cannot work around, so the
logic depends only on this interface. :mod:`parley.triton.model_client` implements it in-process,
:mod:`parley.triton.grpc_client` over gRPC on the same machine, and the tests with a fake.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.chance import random_hex
from parley.errors import DeadlineExceededError, InferenceError, InvalidMessageError

Tensor: TypeAlias = NDArray[Any]
StructT = TypeVar("StructT")
MessageT = TypeVar("MessageT", bound=msgspec.Struct)


@dataclass(frozen=True)
class SequenceFlags:
    """Marks a request as part of a Triton sequence."""

    correlation_id: str | int
    start: bool = False
    end: bool = False


@dataclass(frozen=True)
class ModelRequest:
    """One request to a model of the repository."""

    model: str
    inputs: Mapping[str, Tensor]
    """Tensors by name, with the batch dimension where the model has one."""
    outputs: tuple[str, ...]
    """Names of the requested output tensors; over gRPC, empty requests all."""
    request_id: str = ""
    sequence: SequenceFlags | None = None
    timeout_s: float = 30.0
    """Seconds until the first response (``infer``) or the next one (``stream``) is overdue."""
    frees: bool = False
    """Whether the request ends other work of the model (an abort, a stop, the END of a sequence). A client
    counts such requests apart, so that a full one does not refuse what would free it."""


_SESSION_BYTES = 48
_ENGINE_NAME = re.compile(r"(?P<session>.+)-[0-9a-f]{32}(?:[-.].*)?", re.DOTALL)


def make_engine_name(session_id: str) -> str:
    """The beginning of all ids of requests and sequences that a session sends to models.

    It is unique also where a client reuses an id: engines must not mix up old and new requests. The session's
    id is cut to 48 bytes, because ids with suffixes must fit into Triton's limit.
    """
    return f"{session_id.encode()[:_SESSION_BYTES].decode(errors='ignore')}-{random_hex(16)}"


def session_of(name: str) -> str:
    """The session's id in a name of :func:`make_engine_name` with any suffix; empty: it is another name."""
    found = _ENGINE_NAME.fullmatch(name)
    return found["session"] if found else ""


def overdue(request: ModelRequest) -> DeadlineExceededError:
    """The error of a request whose response did not come in time."""
    return DeadlineExceededError(f"{request.model} did not answer within {request.timeout_s:g} s")


ModelResponse: TypeAlias = Mapping[str, Tensor]


class ModelClient(Protocol):
    """Calls models. Every failure is raised as a :class:`parley.errors.ParleyError`."""

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelResponse, None]:
        """The responses of a decoupled model, in order, without the empty final one.

        Closing the generator early does not stop the model; only a request of its own does
        (see each engine's ``abort``), because Triton 24.10 cannot cancel such a call.
        """
        ...

    async def close(self) -> None:
        """Free what the client holds; calls still under way are cancelled."""
        ...


class BlockingModelClient(Protocol):
    """:class:`ModelClient` for synchronous code: Triton's ``execute``, in a process of its own."""

    def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model; every failure is a :class:`parley.errors.ParleyError`."""
        ...

    def close(self) -> None:
        """Free what the client holds."""
        ...


def text_tensor(text: str | bytes, *, batched: bool = False) -> Tensor:
    """A TYPE_STRING tensor of one element: shape [1], or [1, 1] when ``batched``."""
    raw = text.encode() if isinstance(text, str) else text
    return np.array([[raw]] if batched else [raw], dtype=np.object_)


def tensor_bytes(tensor: Tensor) -> bytes:
    """The only element of a TYPE_STRING tensor."""
    if tensor.size != 1:
        raise InferenceError(f"expected one string, got {tensor.size}")
    element = tensor.reshape(-1)[0]
    return element.encode() if isinstance(element, str) else bytes(element)


def decode_request(
    message: Tensor | bytes, decoder: msgspec.json.Decoder[StructT], default: StructT | None = None
) -> StructT:
    """Read a request to a model.

    Args:
        message: JSON, or a TYPE_STRING tensor of one element that holds it.
        decoder: for the messages that the model takes.
        default: what an empty text stands for; None: it is an error.

    Raises:
        InvalidMessageError: it is none of these messages, or the tensor has not one element.
    """
    if isinstance(message, bytes):
        raw = message
    elif message.size == 1:
        raw = tensor_bytes(message)
    else:
        raise InvalidMessageError(f"the request has {message.size} messages; it must have one")
    if not raw:
        if default is None:
            raise InvalidMessageError("the request is empty; it must be a message in JSON")
        return default
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidMessageError(f"request cannot be read: {error}") from error


def with_id(message: MessageT, field: str = "request_id") -> MessageT:
    """The message; where its caller left out its id, with one that no other request has.

    Raises:
        InvalidMessageError: more is to follow, which needs the id.
    """
    if getattr(message, field):
        return message
    if not getattr(message, "final", True):
        raise InvalidMessageError(f"{field} is empty, and more is to follow")
    return msgspec.structs.replace(message, **{field: random_hex(16)})


def struct_tensor(value: Any, *, batched: bool = False) -> Tensor:
    """A message as a TYPE_STRING tensor holding JSON."""
    return text_tensor(msgspec.json.encode(value), batched=batched)


def decode_struct(tensor: Tensor, decoder: msgspec.json.Decoder[StructT]) -> StructT:
    """Read a model's message back from a TYPE_STRING tensor.

    Raises:
        InferenceError: the decoder does not accept the message.
    """
    try:
        return decoder.decode(tensor_bytes(tensor))
    except msgspec.MsgspecError as error:
        raise InferenceError(f"a model sent a message that cannot be read: {error}") from error


def tensor_struct(tensor: Tensor, kind: type[StructT]) -> StructT:
    """Read a message of type ``kind`` back from a TYPE_STRING tensor; see :func:`decode_struct`."""
    return decode_struct(tensor, msgspec.json.Decoder(kind))


class DecoupledModel(Generic[StructT]):
    """Calls of a decoupled model with a JSON message in ``REQUEST`` and JSON events in its responses.

    Every failure is raised as a :class:`parley.errors.ParleyError`. The first of ``outputs`` holds the event;
    ``timeout_s`` limits the wait for the first event and for each next one.
    """

    def __init__(
        self,
        client: ModelClient,
        name: str,
        outputs: Sequence[str],
        events: msgspec.json.Decoder[StructT],
        *,
        timeout_s: float,
    ) -> None:
        self.name = name
        self._client = client
        self._outputs = tuple(outputs)
        self._events = events
        self._timeout_s = timeout_s

    async def stream(
        self, message: msgspec.Struct, tensors: Mapping[str, Tensor] | None = None
    ) -> AsyncGenerator[tuple[StructT, ModelResponse], None]:
        """Send a request and stream its events, each with all tensors of its response.

        Closing the generator early does not stop the model: send the message that does.
        """
        request = self._request(message, tensors, self._timeout_s, frees=False)
        async with aclosing(self._client.stream(request)) as responses:
            async for response in responses:
                yield decode_struct(response[self._outputs[0]], self._events), response

    async def send(
        self,
        message: msgspec.Struct,
        tensors: Mapping[str, Tensor] | None = None,
        *,
        timeout_s: float,
        frees: bool = False,
    ) -> None:
        """Send a message without events, and wait until the model has processed it.

        ``frees``: the message ends other work; see :attr:`ModelRequest.frees`.
        """
        request = self._request(message, tensors, timeout_s, frees=frees)
        async with aclosing(self._client.stream(request)) as responses:
            async for _ in responses:
                pass

    def _request(
        self, message: msgspec.Struct, tensors: Mapping[str, Tensor] | None, timeout_s: float, *, frees: bool
    ) -> ModelRequest:
        return ModelRequest(
            self.name,
            {"REQUEST": struct_tensor(message), **(tensors or {})},
            self._outputs,
            request_id=getattr(message, "request_id", ""),
            timeout_s=timeout_s,
            frees=frees,
        )
