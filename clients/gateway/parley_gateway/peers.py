"""The other gateways behind the same address: what only one of them can answer is passed on to it.

A session, the settings of a client secret and a WebRTC call are in the memory of one gateway, which their ids
name. A balancer that does not know that sends a request anywhere; the gateway that gets it authenticates
the caller and passes the request on. It is passed on once: the other gateway answers, whatever it is.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from parley.timeouts import cancel_all, failure_of, first_to_end, loop_time
from parley_gateway.calls import Calls
from parley_gateway.metrics import Metrics
from parley_gateway.security.guard import Guard
from parley_gateway.security.peer_seal import HEADER
from parley_gateway.servers.discovery import resolve_name
from parley_gateway.servers.settings import DNS, split_address
from parley_gateway.settings_sections import ListenSettings

_log = logging.getLogger("parley.gateway")
INSTANCE_HEADER = "parley-instance"
"""Of the answer to ``/healthz``: the gateway's name in its ids."""
_FRESH_S = 5.0
"""How long addresses count before they are asked again: one may belong to another program later."""
_AGAIN_S = 1.0
"""Between two times that all gateways are asked."""
_ASK_S = 2.0
_OPEN_S = 30.0
"""Until the other gateway has opened a call."""
_ANSWER_S = 30.0
_OTHERS_S = 5.0  # for all of them together: a webhook waits, and Twilio's has 15 s
_PING_S = 10.0
"""A gateway whose machine is gone closes nothing."""
_CLOSE_S = 5.0
_MAX_GATEWAYS = 256
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Of the other gateway, which is believed."""
_LOST = (1011, "call_lost")
_GOING_AWAY = (1001, "going_away")
_SLOW = (1013, "slow_reader")
_NO_CODE = (1005, 1006)
_DROPPED = frozenset(
    # Of a connection and not of a request; the origin was checked here.
    b"connection host keep-alive origin proxy-authorization te trailer transfer-encoding upgrade "
    b"content-length forwarded x-forwarded-for x-forwarded-proto sec-websocket-extensions sec-websocket-key "
    b"sec-websocket-protocol sec-websocket-version".split()
)
_ANSWERED = ("content-type", "retry-after", "location", "cache-control", "www-authenticate")


@dataclass(frozen=True, slots=True)
class _Trust:
    """What is believed of the other gateways; without a context, there is no TLS."""

    context: ssl.SSLContext | None = None
    name: str = ""
    """That their certificates have to name; empty: the one certificate is believed, and no other."""

    @property
    def extensions(self) -> dict[str, Any]:
        """Of requests."""
        return {"sni_hostname": self.name} if self.name else {}

    @property
    def arguments(self) -> dict[str, Any]:
        """Of WebSockets."""
        if self.context is None:
            return {}
        return {"ssl": self.context} | ({"server_hostname": self.name} if self.name else {})

    def client(self, timeout_s: float) -> httpx2.AsyncClient:
        """For requests."""
        # Without TLS nothing is verified: authorities would be read for nothing, which takes long.
        context = self.context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return httpx2.AsyncClient(verify=context, timeout=timeout_s, trust_env=False, follow_redirects=False)


def read_trust(file: Path) -> _Trust:
    """Trust the gateways that have this certificate, or a renewed one.

    The file may hold a chain, whose authorities sign certificates of strangers too: so what they have signed
    has to name what the first certificate names.

    Raises:
        OSError: the file cannot be read, or is no certificate.
    """
    try:
        pem = file.read_bytes()
        own = x509.load_pem_x509_certificates(pem)[0]
        name = _name_in(own)
        believed = x509.load_pem_x509_certificates(pem) if name else [own]
        context = ssl.create_default_context(
            cadata=b"".join(one.public_bytes(Encoding.DER) for one in believed)
        )
    except ValueError as error:
        raise OSError(f"{file} cannot be used: {error}") from error
    context.check_hostname = bool(name)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return _Trust(context, name)


def _name_in(certificate: x509.Certificate) -> str:
    """A name that a certificate is valid for; empty: it has none."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    hosts = [name.replace("*", "parley", 1) for name in names.get_values_for_type(x509.DNSName)]
    return [*hosts, *map(str, names.get_values_for_type(x509.IPAddress)), ""][0]


class Peers:
    """Finds the other gateways, and passes requests on to them."""

    def __init__(
        self,
        settings: ListenSettings,
        guard: Guard,
        calls: Calls,
        metrics: Metrics,
        *,
        stall_s: float,
    ) -> None:
        self._sources = settings.peers
        self._certificate = settings.certificate
        self._guard = guard
        self._calls = calls
        self._metrics = metrics
        self._stall_s = stall_s
        self._asking = asyncio.Lock()
        self._asked_at = -_FRESH_S
        self._addresses: Mapping[str, str] = {}

    async def find(self, connection: HTTPConnection, instance: str) -> str | None:
        """Where the gateway of this name is; None: nowhere, or the request was passed on before."""
        if not self._sources or HEADER in connection.headers or instance == self._guard.instance:
            return None
        if instance not in self._addresses or loop_time() - self._asked_at >= _FRESH_S:
            # Otherwise without waiting for gateways that do not answer.
            await self._look_for(instance)
        return self._addresses.get(instance)

    async def _look_for(self, instance: str) -> None:
        async with self._asking:
            age_s = loop_time() - self._asked_at
            if age_s >= _FRESH_S or (instance not in self._addresses and age_s >= _AGAIN_S):
                self._addresses = await self._ask_all()
                self._asked_at = loop_time()

    async def ask_others(self, request: Request) -> Response | None:
        """The answer of the other gateway that has one (status 200); None: none has.

        For what is in the memory of a gateway that no id names.
        """
        if not self._sources or HEADER in request.headers:
            return None
        await request.body()  # read once, for all of them
        await self._look_for("")
        others = [instance for instance in self._addresses if instance != self._guard.instance]
        asking = [asyncio.create_task(self.pass_on(request, instance)) for instance in others]
        try:
            for done in asyncio.as_completed(asking, timeout=_OTHERS_S):
                answer = await done
                if answer is not None and answer.status_code == HTTPStatus.OK:
                    return answer
        except TimeoutError:
            pass
        finally:
            await cancel_all(asking)
        return None

    async def pass_on(self, request: Request, instance: str) -> Response | None:
        """The answer of another gateway to a request; None: it cannot be reached."""
        address = await self.find(request, instance)
        if address is None:
            return None
        body = await request.body()
        try:
            trust = self._trust()
            async with asyncio.timeout(_ANSWER_S), trust.client(_ANSWER_S) as client:
                answer = await client.request(
                    request.method,
                    self._url("http", address, request),
                    # As bytes: clients may send others than those of ASCII.
                    headers=[
                        (name.encode(), value.encode("latin-1")) for name, value in self._headers(request)
                    ],
                    content=body,
                    extensions=trust.extensions,
                )
        except (OSError, TimeoutError, httpx2.HTTPError) as error:
            self._on_unreachable(instance, address, error)
            return None
        self._metrics.passed_on.labels("answered").inc()
        return Response(answer.content, answer.status_code, _select(answer.headers))

    async def pass_on_websocket(self, websocket: WebSocket, instance: str) -> bool:
        """Let another gateway serve a WebSocket that is not accepted yet, until it is closed.

        Returns:
            Whether it did; otherwise the WebSocket is as it was.
        """
        address = await self.find(websocket, instance)
        if address is None:
            return False
        try:
            stream = await connect(
                self._url("ws", address, websocket),
                additional_headers=self._headers(websocket),
                subprotocols=[Subprotocol(name) for name in websocket.scope.get("subprotocols", [])] or None,
                user_agent_header=None,
                compression=None,
                proxy=None,
                ping_interval=_PING_S,
                # Pongs wait behind messages that the client does not take.
                ping_timeout=_PING_S + self._stall_s,
                open_timeout=_OPEN_S,
                close_timeout=_CLOSE_S,
                max_size=_MAX_MESSAGE_BYTES,
                **self._trust().arguments,
            )
        except InvalidStatus as error:
            refusal = error.response
            self._metrics.passed_on.labels("answered").inc()
            await websocket.send_denial_response(
                Response(bytes(refusal.body), refusal.status_code, _select(dict(refusal.headers.raw_items())))
            )
            return True
        except (OSError, TimeoutError, WebSocketException) as error:
            self._on_unreachable(instance, address, error)
            return False
        self._metrics.passed_on.labels("answered").inc()
        with self._calls.attend():
            try:
                await websocket.accept(stream.subprotocol)
                await self._carry(websocket, stream)
            finally:
                await stream.close()
        return True

    async def _carry(self, websocket: WebSocket, stream: ClientConnection) -> None:
        """Carry messages both ways until one side closes, or the process ends."""
        ways = (_send_up(websocket, stream), _send_down(websocket, stream, self._stall_s))
        async with first_to_end(*ways, self._calls.going_away.wait()) as (up, down, _):
            pass
        for task in (up, down):
            if failure := failure_of(task):
                _log.info("a stream that was passed on broke: %s", failure)
        if up.cancelled():  # the client is still there
            code, reason = stream.close_code, stream.close_reason or ""
            if self._calls.going_away.is_set():
                code, reason = _GOING_AWAY
            elif code is None or code in _NO_CODE:
                code, reason = _LOST
            if isinstance(failure_of(down), TimeoutError):
                code, reason = _SLOW
            with suppress(RuntimeError, OSError, TimeoutError):  # it has left at this moment
                async with asyncio.timeout(_CLOSE_S):
                    await websocket.close(code, reason)

    async def _ask_all(self) -> dict[str, str]:
        """The addresses of all gateways that answer, by name."""
        addresses: list[str] = []
        for source in self._sources:
            if not source.startswith(DNS):
                addresses.append(source)
                continue
            try:
                async with asyncio.timeout(_ASK_S):
                    addresses += await resolve_name(*split_address(source.removeprefix(DNS)))
            except (OSError, TimeoutError) as error:
                _log.warning("%s cannot be resolved: %s", source, error or "no answer")
        try:
            trust = self._trust()
        except OSError as error:
            _log.warning("no other gateway can be asked: %s", error)
            return {}
        async with trust.client(_ASK_S) as client:
            asked = addresses[:_MAX_GATEWAYS]
            names = await asyncio.gather(*(self._ask(client, trust, address) for address in asked))
        return {name: address for name, address in zip(names, asked, strict=True) if name}

    async def _ask(self, client: httpx2.AsyncClient, trust: _Trust, address: str) -> str:
        """The name of the gateway at an address; empty: none answers."""
        try:
            async with asyncio.timeout(_ASK_S):
                url = f"{self._scheme('http')}://{address}/healthz"
                answer = await client.get(url, extensions=trust.extensions)
        except (OSError, TimeoutError, httpx2.HTTPError):
            return ""
        return str(answer.headers.get(INSTANCE_HEADER, ""))

    def _trust(self) -> _Trust:
        """Raises OSError: the certificate cannot be used, as while it is being replaced."""
        return read_trust(Path(self._certificate)) if self._certificate else _Trust()

    def _scheme(self, plain: str) -> str:
        return f"{plain}s" if self._certificate else plain

    def _url(self, plain: str, address: str, connection: HTTPConnection) -> str:
        query = f"?{connection.url.query}" if connection.url.query else ""
        path = connection.scope.get("raw_path", connection.url.path.encode()).decode("ascii")
        return f"{self._scheme(plain)}://{address}{path}{query}"

    def _headers(self, connection: HTTPConnection) -> list[tuple[str, str]]:
        address = self._guard.addresses.of(connection)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in connection.headers.raw
            if name not in _DROPPED
        ]
        return [*headers, (HEADER, self._guard.peer_seal.make(address, connection.url.path))]

    def _on_unreachable(self, instance: str, address: str, error: Exception) -> None:
        self._metrics.passed_on.labels("failed").inc()
        self._addresses = {name: at for name, at in self._addresses.items() if name != instance}
        _log.warning("the gateway %s at %s cannot be reached: %s", instance, address, error or "no answer")


async def _send_up(websocket: WebSocket, stream: ClientConnection) -> None:
    """From the client, until it leaves."""
    while (event := await websocket.receive())["type"] == "websocket.receive":
        text = event.get("text")
        with suppress(ConnectionClosed):  # the other direction says how
            await stream.send(text if text is not None else event["bytes"])


async def _send_down(websocket: WebSocket, stream: ClientConnection, stall_s: float) -> None:
    """To the client, until the other gateway has closed; raises TimeoutError if the client takes nothing."""
    with suppress(ConnectionClosed):
        while True:
            message = await stream.recv()
            async with asyncio.timeout(stall_s):
                if isinstance(message, str):
                    await websocket.send_text(message)
                else:
                    await websocket.send_bytes(message)


def _select(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of an answer that are passed on."""
    lowered = {name.lower(): value for name, value in headers.items()}
    return {name: lowered[name] for name in _ANSWERED if name in lowered}
