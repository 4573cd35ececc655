"""Blocking connections to a Triton; no two canaries use one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import DeadlineExceededError, ModelUnavailableError, ParleyError, from_wire
from parley.grpc_messages import read_response, to_message
from parley.inference import ModelRequest, ModelResponse
from parley.tls import TlsOptions

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    # A canary must not be answered by a proxy.
    ("grpc.enable_http_proxy", 0),
    # Nor share a connection that another canary has found broken.
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True)
class TlsAddress:
    """An address that is spoken to by TLS."""

    address: str
    """``host:port`` of gRPC."""
    credentials: grpc.ChannelCredentials
    name: str = ""
    """The name in the server's certificate; empty: the host of ``address``."""

    def channel_options(self) -> list[tuple[str, Any]]:
        """Arguments of a gRPC channel to this address."""
        return [("grpc.ssl_target_name_override", self.name)] if self.name else []


ServerAddress: TypeAlias = str | TlsAddress
"""``host:port`` of gRPC, which is spoken to without TLS, or an address with it."""


def address_of(address: str, tls: TlsOptions | None) -> ServerAddress:
    """An address, and how it is spoken to.

    Raises:
        InvalidInputError: a file of ``tls`` cannot be used.
    """
    return TlsAddress(address, tls.credentials(), tls.server_name) if tls else address


def open_blocking_channel(address: ServerAddress) -> grpc.Channel:
    """A channel that shares no connection with another one; its caller closes it."""
    if isinstance(address, str):
        return grpc.insecure_channel(address, options=_OPTIONS)
    options = [*_OPTIONS, *address.channel_options()]
    return grpc.secure_channel(address.address, address.credentials, options=options)


class ChannelPool:
    """Channels to one server, which canary after canary uses. Safe to use from several threads.

    A channel serves one canary at a time, and is closed after one that failed.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[grpc.Channel] = []
        self._closed = False

    def take(self) -> grpc.Channel:
        """A channel that no other canary uses; :meth:`put_back` or its ``close`` follows."""
        with self._lock:
            return self._idle.pop() if self._idle else open_blocking_channel(self._address)

    def put_back(self, channel: grpc.Channel) -> None:
        """Keep a channel whose canary was answered for the next one."""
        with self._lock:
            if not self._closed:
                self._idle.append(channel)
                return
        channel.close()

    def close(self) -> None:
        """Close all channels; those in use when they are put back."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()


CanaryAddress: TypeAlias = ServerAddress | ChannelPool
"""The server that a canary calls, on a channel of its own or on one of a pool."""


class CanaryConnection:
    """A channel that no other canary uses meanwhile, with one deadline for everything."""

    def __init__(self, address: CanaryAddress, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._end = time.monotonic() + deadline_s
        self._pool = address if isinstance(address, ChannelPool) else None
        self._channel = address.take() if isinstance(address, ChannelPool) else open_blocking_channel(address)
        self.stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: type[BaseException] | None, *_: object) -> None:
        if self._pool is None or problem is not None:
            self._channel.close()
        else:
            self._pool.put_back(self._channel)

    @property
    def left_s(self) -> float:
        """Time until the deadline (seconds)."""
        return max(0.001, self._end - time.monotonic())

    def infer(self, request: ModelRequest) -> ModelResponse:
        """The answer of a model that is not decoupled.

        Raises:
            ParleyError: what the model answered, or why there is no answer.
        """
        try:
            return read_response(self.stub.ModelInfer(to_message(request), timeout=self.left_s))
        except grpc.RpcError as error:
            raise self.error_of(error) from error

    def stream(self, requests: Iterable[ModelRequest]) -> list[ModelResponse]:
        """All answers of a decoupled model, without the empty final ones.

        The stream is read to its end, whatever the answers are: one that is cancelled while the server ends
        it can take Triton 24.10 with it, or keep the model loaded until the exit timeout.

        Raises:
            ParleyError: the first error among the answers, or why there is no further answer.
        """
        failure: ParleyError | None = None
        answers = []
        try:
            for answer in self.stub.ModelStreamInfer(map(to_message, requests), timeout=self.left_s):
                if answer.error_message:
                    failure = failure or from_wire(answer.error_message)
                elif answer.infer_response.outputs:
                    answers.append(answer.infer_response)
        except grpc.RpcError as error:
            raise failure or self.error_of(error) from error
        if failure is not None:
            raise failure
        return [read_response(answer) for answer in answers]

    def statistics(self) -> Any:
        """Triton's ``ModelStatisticsResponse`` for every loaded model.

        Raises:
            ParleyError: the server does not answer.
        """
        try:
            return self.stub.ModelStatistics(service_pb2.ModelStatisticsRequest(), timeout=self.left_s)
        except grpc.RpcError as error:
            raise self.error_of(error) from error

    def error_of(self, error: Any) -> ParleyError:
        """What a failed call means."""
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceededError(f"no answer within {self._deadline_s:g} s")
        text = error.details() or error.code().name
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND):
            return ModelUnavailableError(text)
        return from_wire(text)
