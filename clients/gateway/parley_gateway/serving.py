"""Runs a gateway: socket, TLS, signals, drain."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI

from parley.timeouts import failure_of, first_to_end
from parley_client.cli import PARLEY
from parley_gateway.app import create_app, create_health_app, create_metrics_app
from parley_gateway.certificate import ServedCertificate
from parley_gateway.connections import (
    BACKLOG,
    SIDE_CONNECTIONS,
    ConnectionLimiter,
    Listener,
    raise_descriptor_limit,
    reserved_descriptors,
)
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.gateway import Gateway
from parley_gateway.protocols import HttpProtocol, WebSocketProtocol
from parley_gateway.read_budget import ReadBudget
from parley_gateway.security.addresses import is_loopback
from parley_gateway.settings import Settings

_LOG = logging.getLogger(__name__)


def check_exposure(settings: Settings, *, authenticated: bool) -> None:
    """Check that the gateway may listen on its address; ``authenticated``: keys or JWTs are needed.

    Raises:
        GatewaySettingsError: others than this machine would reach it without credentials.
    """
    security, host, public_url = settings.security, settings.listen.host, settings.listen.public_url
    if not is_loopback(host):
        where = host or "all addresses"
    elif public_url and not is_loopback(urlsplit(public_url).hostname or ""):
        where = f"{host}, reached as {public_url} (listen.public_url),"
    elif security.trusted_proxies:
        where = f"{host}, behind a proxy (security.trusted_proxies),"
    else:
        return
    if not authenticated and not security.insecure_allow_anonymous:
        raise GatewaySettingsError(
            f"listening on {where} without authentication is refused: make a key with "
            f"`{PARLEY} gateway keys new >> FILE` and name the FILE as security.keys_file "
            "(PARLEY_GATEWAY_SECURITY_KEYS_FILE), or give jwt.issuer (docs/security.md); "
            "or say security.insecure_allow_anonymous if no authentication is intended"
        )
    if not authenticated and settings.calls.folder:
        raise GatewaySettingsError(
            f"listening on {where} with calls.folder needs authentication: all could hear all recorded calls"
        )
    if not authenticated:
        _LOG.warning("requests to %s need no credentials", where)
    if not settings.listen.is_encrypted:
        _LOG.warning("connections to %s are not encrypted: keys and speech can be read on the way", where)


_log = logging.getLogger("parley.gateway")
_TICK_S = 0.02
# Requests that are no calls, after the drain (seconds).
_REQUESTS_S = 5
# What the kernel holds for a client that does not read: a second or two of audio, not a minute.
_SEND_BUFFER = 131_072


@dataclass(frozen=True)
class Running:
    """A gateway that listens."""

    gateway: Gateway
    url: str
    """Where it is reached, without a path."""
    health_url: str = ""
    """Where only probes are answered; empty: nowhere."""
    metrics_url: str = ""
    """Where only metrics are answered; empty: nowhere."""
    certificate: ServedCertificate | None = None
    """None: connections are not encrypted here."""

    def reload(self) -> None:
        """Read keys and certificate again now, without waiting until their files are looked at."""
        self.gateway.guard.reload()
        if self.certificate is not None:
            self.certificate.reload()


class _Server(uvicorn.Server):
    """Leaves signals to the caller."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    settings: Settings, on_ready: Callable[[Running], None], *, app: FastAPI | None = None
) -> None:
    """Listen until a signal ends it: the first lets calls finish, the second ends at once.

    Raises:
        GatewaySettingsError: the settings cannot be used, for example because the address is taken.
    """
    stop, now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        async with running(settings, now, app=app) as one:
            await one.gateway.decoders.start()
            loop.add_signal_handler(signal.SIGHUP, one.reload)
            # A full collection holds the event loop, and so all calls: 100 ms with what is imported and
            # prepared by now, a few milliseconds with what calls add to it.
            gc.collect()
            gc.freeze()
            on_ready(one)
            await stop.wait()
            _log.info("shutting down: %d calls are open", one.gateway.calls.count)
            await _first(one.gateway.calls.drain(settings.listen.drain_s), now.wait())
    finally:
        gc.unfreeze()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


@asynccontextmanager
async def running(
    settings: Settings, now: asyncio.Event | None = None, *, app: FastAPI | None = None
) -> AsyncIterator[Running]:
    """A gateway that listens as long as the block runs; calls that are open then are ended.

    Args:
        settings: All of them; port 0 takes any free one.
        now: Set: leave without waiting for anything.
        app: The gateway; None: made of the settings.

    Raises:
        GatewaySettingsError: the settings cannot be used.
    """
    now = now or asyncio.Event()
    app = app or create_app(settings)
    gateway: Gateway = app.state.gateway
    listen = settings.listen
    check_exposure(settings, authenticated=gateway.guard.authenticated)
    _fit_descriptors(gateway)
    certificate = ServedCertificate(listen) if listen.certificate else None
    if certificate is not None:
        expiry = gateway.metrics.certificate_expires.labels(listen.certificate)
        expiry.set_function(lambda: certificate.expires_s)
    port = partial(_port, settings, now, certificate)
    try:
        async with (
            port(app, gateway.connections, host=listen.host, port=listen.port) as url,
            AsyncExitStack() as stack,
        ):
            urls = []
            for number, host, create in (
                (listen.health_port, listen.host, create_health_app),
                (listen.metrics_port, listen.metrics_host or listen.host, create_metrics_app),
            ):
                if number is None:
                    urls.append("")
                    continue
                # Of its own, so that no flood at another port takes its places.
                limiter = ConnectionLimiter(
                    SIDE_CONNECTIONS, SIDE_CONNECTIONS, gateway.guard.addresses, gateway.metrics
                )
                side = port(create(gateway, limiter), limiter, host=host, port=number)
                urls.append(await stack.enter_async_context(side))
            if listen.metrics_port is not None and not is_loopback(listen.metrics_host or listen.host):
                _LOG.warning("requests to %s/metrics need no credentials", urls[-1])
            for beside in gateway.beside:
                await stack.enter_async_context(beside())
            yield Running(gateway, url, urls[0], urls[1], certificate)
            await _first(gateway.calls.drain(0.0), now.wait())
    finally:
        # A forced exit may not reach the lifespan's end.
        await gateway.decoders.aclose()


@asynccontextmanager
async def _port(
    settings: Settings,
    now: asyncio.Event,
    certificate: ServedCertificate | None,
    app: FastAPI,
    connections: ConnectionLimiter,
    *,
    host: str,
    port: int,
) -> AsyncIterator[str]:
    """Answer at a port as long as the block runs; gives its URL."""
    with closing(_listener(settings, host, port)) as listener:
        listener.limiter = connections
        server = _Server(_configuration(app, settings, connections, certificate))
        serving = asyncio.get_running_loop().create_task(server.serve([listener]), name=f"gateway-{port}")
        try:
            # uvicorn has no callback for its start.
            while not server.started and not serving.done():  # noqa: ASYNC110
                await asyncio.sleep(_TICK_S)
            if serving.done():
                await serving
                raise GatewaySettingsError("the gateway could not start; its log says why")
            yield _url(host, listener, encrypted=certificate is not None)
        finally:
            server.should_exit = True
            server.force_exit = now.is_set()
            await _stopped(serving)
            if server.force_exit and server.started:
                # uvicorn leaves it out; its task would be cancelled with the loop, and log a traceback.
                with suppress(TimeoutError):
                    await asyncio.wait_for(server.lifespan.shutdown(), _REQUESTS_S)


async def _stopped(serving: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait([serving], timeout=2.0 * _REQUESTS_S)
    if not done:
        _log.error("the gateway did not stop by itself")
        serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Until the first of them is over; raises what one of them has raised."""
    async with first_to_end(*waits) as tasks:
        pass
    for task in tasks:
        if failure := failure_of(task):
            raise failure


def _fit_descriptors(gateway: Gateway) -> None:
    settings = gateway.settings
    reserved = reserved_descriptors(
        servers=settings.servers.max_connected,
        calls=settings.calls.limit if settings.realtime.webrtc else 0,
        stage_requests=settings.stages.requests,
        side_ports=sum(
            port is not None for port in (settings.listen.health_port, settings.listen.metrics_port)
        ),
    )
    gateway.connections.fit(raise_descriptor_limit(), reserved)


def _listener(settings: Settings, host: str, port: int) -> Listener:
    """The listening socket; connections inherit what is set on it."""
    listen = settings.listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = Listener(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer that acknowledges nothing is gone, whatever still waits to be sent to it.
        unacknowledged_ms = int(settings.limits.ping_timeout_s * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacknowledged_ms)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        names = {listen.health_port: "listen.health_port", listen.metrics_port: "listen.metrics_port"}
        other = "--listen PORT" if port == listen.port else names[port]
        raise GatewaySettingsError(
            f"cannot listen on {host}:{port}: {error.strerror or error}"
            + (f"; `ss -ltnp` shows the process, {other} chooses another" if taken else "")
        ) from error
    return listener


def _configuration(
    app: FastAPI,
    settings: Settings,
    connections: ConnectionLimiter,
    certificate: ServedCertificate | None,
) -> uvicorn.Config:
    limits, budget = settings.limits, ReadBudget()
    configuration = uvicorn.Config(
        app,
        # uvicorn's annotations name classes; it only calls them.
        http=cast("Any", partial(HttpProtocol, limiter=connections, budget=budget)),
        ws=cast("Any", partial(WebSocketProtocol, budget=budget)),
        ws_max_size=limits.frame_bytes,
        ws_ping_interval=limits.ping_interval_s,
        ws_ping_timeout=limits.ping_timeout_s,
        # Speech does not get smaller, and every frame would wait for the compressor.
        ws_per_message_deflate=False,
        h11_max_incomplete_event_size=limits.header_bytes,
        backlog=BACKLOG,
        timeout_keep_alive=int(limits.keep_alive_s),
        timeout_graceful_shutdown=_REQUESTS_S,
        lifespan="on",
        server_header=False,
        proxy_headers=False,
        log_config=None,
        access_log=False,
        ssl_context_factory=(lambda *_: certificate.context) if certificate else None,
    )
    # Its lines about WebSockets hold whole URLs.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    configuration.load()
    return configuration


def _url(host: str, listener: socket.socket, *, encrypted: bool) -> str:
    scheme = "https" if encrypted else "http"
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"
