"""The connection of a call, by gRPC or by the gateway's WebSocket, in greenlets of gevent.

The names of the two are the types of locust's rows. A line is used by one greenlet that sends and one that
receives.
"""

from __future__ import annotations

import json
import socket
import struct
import uuid
from typing import Any, Literal, Protocol

import grpc
import numpy as np
import requests
import websocket
from gevent.queue import Full, Queue
from tritonclient.grpc import service_pb2_grpc

from load.state import LostError, RefusedError
from parley import protocol
from parley.errors import InvalidMessageError, SessionNotFoundError, from_wire
from parley_client.errors import UnknownEventError
from parley_client.events import CallEvent, read_event
from parley_client.transport import Frame, ServerReply, to_reply, to_request

_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_LONGEST_CALL_S = 1_800.0
_SEND_S = 10.0
_QUEUED = 64
_OPEN_S = 20.0
_SILENCE_S = 60.0
"""The gateway sends a ping each 20 s."""
_SUBPROTOCOL = "parley.v1"


class Line(Protocol):
    """One call's connection. Every method may raise a :class:`load.state.CallError`."""

    kind: Literal["grpc", "websocket"]

    def open(self, start: protocol.Start) -> None:
        """Begin the call; the first event is ``connected`` or the refusal."""
        ...

    def send_audio(self, chunk: bytes) -> None:
        """Send a chunk of PCM16."""
        ...

    def send_message(self, message: protocol.ClientMessage) -> None:
        """Send a message."""
        ...

    def receive(self) -> CallEvent | None:
        """The next event; None: the server has ended the connection in order."""
        ...

    def hang_up(self) -> None:
        """End the call; what the server still sends can be received."""
        ...

    def vanish(self) -> None:
        """Drop the call without END."""
        ...

    def close(self) -> None:
        """Free everything. Raises nothing."""
        ...


def open_channel(server: str) -> grpc.Channel:
    """The channel that all calls of a process share."""
    return grpc.insecure_channel(
        server,
        options=[
            ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.enable_http_proxy", 0),
        ],
    )


class GrpcLine:
    """One ``ModelStreamInfer`` call with one sequence.

    Args:
        channel: to the server; shared.
        cancels: a caller who vanishes cancels its stream. Otherwise it half-closes the stream without END,
            and the server closes the session when it was idle for too long: Triton before 25.04 may not
            survive a stream that is cancelled while it is being ended.
    """

    kind: Literal["grpc", "websocket"] = "grpc"

    def __init__(self, channel: grpc.Channel, *, cancels: bool = False) -> None:
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._cancels = cancels
        self._call_id = f"load-{uuid.uuid4().hex}"
        self._requests: Queue[Any] = Queue(_QUEUED)
        self._number = 0
        self._rpc: Any = None
        self._is_connected = self._is_finished = False

    def open(self, start: protocol.Start) -> None:
        """See :class:`Line`."""
        self._put(Frame("start", message=protocol.encode(start), start=True))
        self._rpc = self._stub.ModelStreamInfer(iter(self._requests.get, None), timeout=_LONGEST_CALL_S)

    def send_audio(self, chunk: bytes) -> None:
        """See :class:`Line`."""
        self._put(Frame(self._next_id(), audio=chunk))

    def send_message(self, message: protocol.ClientMessage) -> None:
        """See :class:`Line`."""
        self._put(Frame(self._next_id(), message=protocol.encode(message)))

    def receive(self) -> CallEvent | None:
        """See :class:`Line`."""
        while True:
            try:
                reply = to_reply(next(self._rpc))
            except StopIteration:
                return None
            except grpc.RpcError as error:
                raise LostError(error.code().name.lower()) from error
            event = self._event_of(reply)
            if event is not None:
                self._is_connected = self._is_connected or isinstance(event, protocol.Connected)
                return event

    def _event_of(self, reply: ServerReply) -> CallEvent | None:
        """The event of a reply; None: it has none, or an unknown one."""
        if reply.error and not self._is_finished:
            error = from_wire(reply.error)
            is_gone = isinstance(error, SessionNotFoundError) or reply.request_id in ("start", "")
            if self._is_connected and is_gone:
                raise LostError(error.code)
            return protocol.ErrorEvent.of(error)
        return _read(reply) if reply.event else None

    def hang_up(self) -> None:
        """See :class:`Line`."""
        if not self._is_finished:
            self._put(Frame("end", end=True))
            self._half_close()

    def vanish(self) -> None:
        """See :class:`Line`."""
        if self._cancels:
            self._is_finished = True
            self._rpc.cancel()
        self._half_close()

    def close(self) -> None:
        """See :class:`Line`."""
        if self._rpc is not None:
            self._rpc.cancel()  # nothing happens if it has ended
        # The greenlet of gRPC that takes the requests waits for one.
        while not self._requests.empty():
            self._requests.get_nowait()
        self._requests.put_nowait(None)

    def _half_close(self) -> None:
        self._is_finished = True
        self._put_item(None)

    def _next_id(self) -> str:
        self._number += 1
        return str(self._number)

    def _put(self, frame: Frame) -> None:
        self._put_item(to_request(frame, self._call_id))

    def _put_item(self, item: Any) -> None:
        try:
            self._requests.put(item, timeout=_SEND_S)
        except Full as error:
            raise LostError("the server takes no requests") from error


class SocketLine:
    """A session of the gateway: created by REST, held over one WebSocket.

    Args:
        gateway: address, ``http://host:port``.
        key: API key; empty: none.
    """

    kind: Literal["grpc", "websocket"] = "websocket"

    def __init__(self, gateway: str, key: str = "") -> None:
        self._gateway = gateway
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._socket: websocket.WebSocket | None = None

    def open(self, start: protocol.Start) -> None:
        """See :class:`Line`."""
        url = self._create(start)
        try:
            self._socket = websocket.create_connection(
                url,
                timeout=_OPEN_S,
                header=self._headers,
                subprotocols=[_SUBPROTOCOL],
                http_no_proxy=["*"],
                sockopt=((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),),
            )
        except websocket.WebSocketBadStatusException as error:
            raise RefusedError(_code_of(error.resp_body, error.status_code)) from error
        except (websocket.WebSocketException, OSError) as error:
            raise LostError("no WebSocket") from error
        self._socket.settimeout(_SILENCE_S)

    def _create(self, start: protocol.Start) -> str:
        """Create the session; returns the address of its stream."""
        body = json.loads(protocol.encode(start))
        del body["type"]
        with requests.Session() as http:
            http.trust_env = False
            try:
                created = http.post(
                    f"{self._gateway}/v1/sessions", json=body, headers=self._headers, timeout=_OPEN_S
                )
            except requests.RequestException as error:
                raise LostError("no answer to POST") from error
        if not created.ok:
            raise RefusedError(_code_of(created.content, created.status_code))
        return str(created.json()["stream_url"])

    def send_audio(self, chunk: bytes) -> None:
        """See :class:`Line`."""
        self._send(chunk, websocket.ABNF.OPCODE_BINARY)

    def send_message(self, message: protocol.ClientMessage) -> None:
        """See :class:`Line`."""
        self._send(protocol.encode(message), websocket.ABNF.OPCODE_TEXT)

    def receive(self) -> CallEvent | None:
        """See :class:`Line`."""
        while True:
            kind, data = self._receive()
            if kind == websocket.ABNF.OPCODE_CLOSE:
                code = struct.unpack("!H", data[:2])[0] if len(data) >= 2 else 1005
                if code == websocket.STATUS_NORMAL:
                    return None
                raise LostError(data[2:].decode(errors="replace") or f"closed with {code}")
            if kind != websocket.ABNF.OPCODE_TEXT:
                continue
            event = self._event_of(data)
            if event is not None:
                return event

    def _event_of(self, data: bytes) -> CallEvent | None:
        message = json.loads(data)
        samples = b""
        if message["type"] == "audio" and message["samples"]:
            kind, samples = self._receive()
            if kind != websocket.ABNF.OPCODE_BINARY:
                raise LostError("audio without samples")
        return _read(ServerReply(event=data, audio=np.frombuffer(samples, "<i2")))

    def hang_up(self) -> None:
        """See :class:`Line`."""
        self.send_message(protocol.Control(action="hangup"))

    def vanish(self) -> None:
        """See :class:`Line`."""
        if self._socket is not None and self._socket.sock is not None:
            # With this option closing sends RST, and nothing of WebSocket or TCP's own farewell.
            self._socket.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.shutdown()

    def close(self) -> None:
        """See :class:`Line`."""
        if self._socket is not None:
            self._socket.shutdown()

    def _receive(self) -> tuple[int, bytes]:
        assert self._socket is not None
        try:
            return self._socket.recv_data()
        except websocket.WebSocketTimeoutException as error:
            raise LostError("nothing came") from error
        except (websocket.WebSocketException, OSError, AttributeError) as error:
            # A WebSocket that another greenlet has closed has no socket any more.
            raise LostError("the WebSocket broke") from error

    def _send(self, data: bytes, kind: int) -> None:
        assert self._socket is not None
        try:
            self._socket.send(data, kind)
        except websocket.WebSocketTimeoutException as error:
            raise LostError("the gateway takes no messages") from error
        except (websocket.WebSocketException, OSError, AttributeError) as error:
            raise LostError("the WebSocket broke") from error


def _read(reply: ServerReply) -> CallEvent | None:
    """The event; None: its type is unknown, as that of the gateway's ``state`` is here."""
    try:
        return read_event(reply)
    except UnknownEventError:
        return None
    except InvalidMessageError as error:
        raise LostError("an event that cannot be read") from error


def _code_of(body: bytes | None, status: int) -> str:
    """The code of the gateway's error; otherwise the status of HTTP."""
    try:
        return str(json.loads(body or b"")["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"
