"""The gRPC channel to a Triton: opening it, and what its failures mean."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    ModelUnavailableError,
    NotPermittedError,
    OverloadedError,
    ParleyError,
    from_wire,
)
from parley_client.errors import (
    ConnectError,
    NoGrpcError,
    NoServerError,
    TlsError,
    UnknownHostError,
    WrongPortError,
)

_STATUS: dict[grpc.StatusCode, type[ParleyError]] = {
    grpc.StatusCode.UNAVAILABLE: ModelUnavailableError,
    grpc.StatusCode.NOT_FOUND: ModelUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    # None of these gets better by itself.
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInputError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidInputError,
    grpc.StatusCode.UNIMPLEMENTED: InvalidInputError,
    grpc.StatusCode.UNAUTHENTICATED: NotPermittedError,
    grpc.StatusCode.PERMISSION_DENIED: NotPermittedError,
}
# Triton's words for a model that it does not have, has failed to load, or is loading.
_UNKNOWN_MODEL = re.compile(r"unknown model: '([^']+)'(.*)", re.DOTALL)
# gRPC's words for a write to a stream that the server has ended, when its status was not read before.
_ENDED_EARLY = "Internal error from Core"
# In gRPC's words for a port that answers a gRPC greeting with an HTTP/1 error page.
_NOT_GRPC = ("HTTP/2", "http1", "SETTINGS")
# And for one that takes the connection and closes it, as Triton's own HTTP ports do.
_CLOSED = ("Socket closed", "Connection reset by peer", "Connection closed by peer")
_OTHER_PORT = "is it Triton's HTTP or metrics port? The gRPC port is mostly 8001"
_WANTS_TLS = "Or does it demand TLS, or a certificate of its clients?"
# In gRPC's words for a TLS handshake that fails here, and what follows the name of the server then.
_TLS_FAILURES = (
    (re.compile("Hostname Verification Check failed"), "has a certificate for another name"),
    (re.compile("WRONG_VERSION_NUMBER"), "does not speak TLS"),
    (re.compile(r"CERTIFICATE_VERIFY_FAILED: ([^:]+)"), "has a certificate that is not trusted"),
    (re.compile(r"handshake failed.*?: (.+?)(?:: OK)?$"), "and this client cannot agree on TLS"),
)
_DIAGNOSIS_S = 2.0


def open_channel(
    server: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, Any]]
) -> grpc.aio.Channel:
    """A channel to ``host:port``; it connects when it is used."""
    if credentials is None:
        return grpc.aio.insecure_channel(server, options=options)
    return grpc.aio.secure_channel(server, credentials, options=options)


async def connect_channel(channel: grpc.aio.Channel, server: str, timeout_s: float) -> None:
    """Wait for the connection.

    Raises:
        ConnectError: not within ``timeout_s``; otherwise as :func:`wait_until_connected`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await wait_until_connected(channel, server)
    except TimeoutError as error:
        raise ConnectError(f"no connection to {server} within {timeout_s:g} s") from error


async def wait_until_connected(channel: grpc.aio.Channel, server: str) -> None:
    """Wait for the connection; unlike ``channel_ready``, give up when it is refused.

    The caller owns the deadline.

    Raises:
        NoServerError: nothing listens there.
        NoGrpcError: something listens that closes the connection.
        TlsError: TLS failed here.
        WrongPortError: something listens that does not speak gRPC.
    """
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise await _refusal(channel, server)
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


async def _refusal(channel: grpc.aio.Channel, server: str) -> ParleyError:
    """Why there is no connection; only a call returns the reason."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    details = ""
    try:
        await stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=_DIAGNOSIS_S)
    except grpc.aio.AioRpcError as error:
        details = error.details() or ""
    except grpc.aio.UsageError:  # the channel is closed
        pass
    if any(words in details for words in _NOT_GRPC):
        return WrongPortError(f"{server} does not speak gRPC; {_OTHER_PORT}")
    if any(words in details for words in _CLOSED):
        return NoGrpcError(f"{server} closes connections at once; {_OTHER_PORT}. {_WANTS_TLS}")
    for pattern, problem in _TLS_FAILURES:
        if found := pattern.search(details):
            why = f": {found[1]}" if found.groups() else ""
            return TlsError(f"{server} {problem}{why}")
    if is_unknown_host(details):
        return UnknownHostError(f"the host of {server} has no address")
    return NoServerError(f"nothing answers at {server}")


def is_unknown_host(details: str) -> bool:
    """Whether gRPC found no address for a name."""
    return "lookup" in details or "DNS resolution failed" in details


def error_of(failure: grpc.aio.AioRpcError) -> ParleyError:
    """The project's error for a failed call."""
    return error_of_status(failure.code(), failure.details() or "")


def error_of_status(code: grpc.StatusCode, details: str) -> ParleyError:
    """The project's error for the status of a failed call: what a model said, or what the status means."""
    said = error_of_text(details)
    if type(said) is not InferenceError:
        return said
    if details.startswith(_ENDED_EARLY):
        return InferenceError("the server ended the stream before it took the request")
    kind = _STATUS.get(code)
    return kind(details or code.name) if kind else said


def error_of_text(text: str) -> ParleyError:
    """The project's error behind an error message of Triton."""
    missing = _UNKNOWN_MODEL.search(text)
    if missing is None:
        return from_wire(text)
    model, why = missing.groups()
    if "ready" in why:
        return ModelUnavailableError(f"the model {model} is still loading, or has been unloaded")
    failed = ": it failed to load, as the server's log says" if "versions" in why else ""
    return ModelUnavailableError(f"the model {model} is not loaded by this server{failed}")
