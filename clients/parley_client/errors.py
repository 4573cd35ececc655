"""What can go wrong on the client's side, beside the server's own errors.

::

    ParleyError (parley.errors)
    └── ClientError
        ├── ConnectError        connect_failed    retryable
        │   ├── NoServerError
        │   │   └── UnknownHostError
        │   ├── NoGrpcError
        │   ├── ServersRefusedError (code of the refusal)
        │   ├── WrongPortError  (not retryable)
        │   └── TlsError        (not retryable)
        ├── CallLostError       call_lost         retryable (as a new call)
        │   └── CallRefusedError (code of the refusal)
        ├── NotResumableError   not_resumable
        ├── StreamLostError     stream_lost       retryable (as a new stream)
        ├── UnknownEventError   unknown_event
        ├── CallEndedError      call_ended
        ├── SlowConsumerError   slow_consumer
        ├── AudioFileError      audio_file
        ├── AudioDeviceError    audio_device
        ├── ScriptError         script
        ├── OutputClosedError   output_closed
        ├── UsageError          usage
        └── ToolDefinitionError tool_definition

``GatewayRefusalError`` (:mod:`parley_client.gateway_transport`) is a ``ConnectError`` with a gateway's code.

An error that the server reports keeps its own class and code from :mod:`parley.errors`.
"""

from __future__ import annotations

from collections.abc import Sequence

from parley.errors import ParleyError


class ClientError(ParleyError):
    """Base of the errors that arise in the client."""

    code = "client_error"


class ConnectError(ClientError):
    """No call could be opened: no server can be reached, or :class:`ServersRefusedError`."""

    code = "connect_failed"
    retryable = True


class NoServerError(ConnectError):
    """No server listens at the address."""


class UnknownHostError(NoServerError):
    """The host of the address has no IP address."""


class NoGrpcError(ConnectError):
    """The service at the address closes connections at once: another one, or one that is stopping."""


class WrongPortError(ConnectError):
    """The service at the address does not speak gRPC."""

    retryable = False


class ServersRefusedError(ConnectError):
    """Servers were reached, and none of them took the call; ``__cause__`` is the last refusal."""

    def __init__(self, servers: Sequence[str], refusal: ParleyError) -> None:
        super().__init__(f"no call with {', '.join(servers)}: {refusal}", retry_after_s=refusal.retry_after_s)
        self.servers = tuple(servers)
        # Of one error, where other classes have one for all.
        self.code = refusal.code  # type: ignore[misc]
        self.__cause__ = refusal


class TlsError(ConnectError):
    """The server's certificate is not believed, or the server speaks no TLS."""

    retryable = False


class CallLostError(ClientError):
    """The stream broke before the server said ``closed``, and no other server took the call.

    The conversation is gone: connecting again opens a *new* call.
    """

    code = "call_lost"
    retryable = True


class CallRefusedError(CallLostError):
    """Every server has refused to go on with the call, and would again; ``__cause__`` is the last refusal."""

    retryable = False

    def __init__(self, refusal: ParleyError) -> None:
        super().__init__(str(refusal))
        # Of one error, where other classes have one for all.
        self.code = refusal.code  # type: ignore[misc]
        self.__cause__ = refusal


class NotResumableError(ClientError):
    """No other server could go on with the session: there is no checkpoint of it, or it is too large."""

    code = "not_resumable"


class StreamLostError(ClientError):
    """A stream of audio broke: audio without a final text is lost; ``__cause__`` is the reason."""

    code = "stream_lost"
    retryable = True


class UnknownEventError(ClientError):
    """An event of an unknown type, from a newer server."""

    code = "unknown_event"

    def __init__(self, kind: str) -> None:
        super().__init__(f"unknown event type {kind!r}")
        self.kind = kind


class CallEndedError(ClientError):
    """Something was sent after the call had ended."""

    code = "call_ended"


class SlowConsumerError(ClientError):
    """Events were not read for so long that the call was given up."""

    code = "slow_consumer"


class AudioFileError(ClientError):
    """An audio file cannot be read or written."""

    code = "audio_file"


class AudioDeviceError(ClientError):
    """No microphone or loudspeaker can be used; the message says what to do."""

    code = "audio_device"


class TraceFileError(ClientError):
    """A file with traces or events, or a server of traces, cannot be read or written."""

    code = "trace_file"


class ScriptError(ClientError):
    """A conversation script is not valid."""

    code = "script"


class OutputClosedError(ClientError):
    """The reader of the program's output has closed it, as ``head`` does."""

    code = "output_closed"


class UsageError(ClientError):
    """Arguments of the command that do not go together."""

    code = "usage"


class ToolDefinitionError(ClientError):
    """A function cannot be offered as a tool."""

    code = "tool_definition"
