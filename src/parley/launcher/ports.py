"""Choosing free ports and naming who holds a busy one."""

from __future__ import annotations

import dataclasses
import socket
from contextlib import ExitStack

import psutil

from parley.launcher.errors import PortBusyError
from parley.launcher.options import ServerOptions


def join_address(address: str, port: int) -> str:
    """``host:port``; an IPv6 address gets brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def settle_ports(options: ServerOptions) -> ServerOptions:
    """Replace every port 0 by a free one and check that the others are free.

    Raises:
        PortBusyError: another program listens on a port that was asked for.
    """
    wanted = {
        "grpc_port": options.grpc_address,
        "http_port": options.http_address,
        "metrics_port": options.http_address,
    }
    chosen: dict[str, int] = {}
    with ExitStack() as held:  # all are held until all are chosen, so they differ
        for name, address in wanted.items():
            port: int = getattr(options, name)
            listener = held.enter_context(socket.socket(_family(address), socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen(1)
            except OSError as error:
                raise PortBusyError(_explain(name, address, port, error)) from error
            chosen[name] = listener.getsockname()[1]
    return dataclasses.replace(options, **chosen)  # type: ignore[arg-type]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _explain(name: str, address: str, port: int, error: OSError) -> str:
    kind = name.removesuffix("_port")
    flag = f"--{kind}-port"
    return (
        f"The {kind} port {join_address(address, port)} cannot be used ({error.strerror}){_holder(port)}. "
        f"Stop that program, or choose another port with {flag} N ({flag} 0 takes any free one)."
    )


def _holder(port: int) -> str:
    """`` by process 12 (name)`` if this user may know it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid is None:
                break
            try:
                return f": process {connection.pid} ({psutil.Process(connection.pid).name()}) listens there"
            except psutil.NoSuchProcess:
                break
    return ""
