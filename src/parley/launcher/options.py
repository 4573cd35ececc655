"""Options and ports of the embedded server."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import parley
from parley.launcher.errors import PortBusyError
from parley.launcher.tls import ServerTls
from parley.runtime import gpu_plan
from parley.runtime.gpu_loading import START_TIMEOUT_S

ROOT = Path(parley.__file__).resolve().parents[2]
"""The checkout: ``scripts/serve`` and the tests work on it."""
GPU_PROFILE = gpu_plan.GPU_PROFILE
"""The profile whose configurations are each model's ``config.pbtxt``."""
TINY_PROFILE = "tiny"
"""The profile whose weights are part of the project: tests and measurements run on it."""
OPEN_PROFILE = "open"
"""Real models for a CPU, downloaded once."""
DEFAULT_PROFILE = OPEN_PROFILE


READY_TIMEOUT_S = 300.0
GPU_READY_TIMEOUT_S = START_TIMEOUT_S + 60.0
"""The same for the profile gpu: as long as a second model on vLLM may load, and a minute for the canaries."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of one embedded server."""

    model_repository: Path = ROOT / "model_repository"
    profile: str = TINY_PROFILE
    """:data:`GPU_PROFILE`, or the name of a custom configuration in the models' ``configs/``."""
    load_models: tuple[str, ...] = ()
    """Only these models are loaded; empty: all of the profile."""
    state_dir: Path = ROOT / ".server" / "default"
    """Log, backend links and lock; never shared by two servers."""
    cache_dir: Path = ROOT / ".cache"
    """Survives restarts (what was compiled, vLLM's model registry)."""
    grpc_port: int = 8001
    """0: any free port; so for the other two."""
    http_port: int = 8000
    metrics_port: int = 8002
    grpc_address: str = "127.0.0.1"
    http_address: str = "127.0.0.1"
    """It has health only."""
    metrics_address: str = "127.0.0.1"
    tls: ServerTls | None = None
    """Of gRPC; None: none. The other two ports have none."""
    ready_timeout_s: float = READY_TIMEOUT_S
    """From the start to the canary's answer."""
    exit_timeout_s: int = 20
    """Time for models to end their sessions before the server is killed."""
    shm_region_bytes: int = 1 << 20
    """Initial shared memory of one model instance; it grows by 1 MiB when needed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Overrides the inherited environment."""
    triton: Path | None = None
    """Folder of an installed Triton, such as ``/opt/tritonserver``; None: that of nvidia-pytriton."""
    extra_flags: tuple[str, ...] = ()
    """Passed on to ``tritonserver`` unchanged."""


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Addresses of a started server, each ``host:port``."""

    grpc: str
    http: str
    metrics: str

    def line(self) -> str:
        """The line on standard output that programs parse for the ports."""
        return f"ready grpc={self.grpc} http={self.http} metrics={self.metrics}"


def join_address(address: str, port: int) -> str:
    """``host:port``; an IPv6 address gets brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def choose_ports(options: ServerOptions) -> ServerOptions:
    """Replace every port 0 by a free one and check that the others are free.

    Raises:
        PortBusyError: another program listens on a given port.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as held:  # all are held until all are chosen, so they differ
        for name, address in _addresses(options).items():
            port: int = getattr(options, name)
            try:
                listener = held.enter_context(_listen(address, port))
            except OSError as error:
                raise PortBusyError(_explain(name, address, port, error)) from error
            chosen[name] = listener.getsockname()[1]
    return dataclasses.replace(options, **chosen)  # type: ignore[arg-type]


def leave_busy_ports(options: ServerOptions) -> ServerOptions:
    """Replace every port that another program listens on by 0, which is any free one."""
    free: dict[str, int] = {}
    for name, address in _addresses(options).items():
        port: int = getattr(options, name)
        try:
            _listen(address, port).close()
        except OSError:
            port = 0
        free[name] = port
    return dataclasses.replace(options, **free)  # type: ignore[arg-type]


def _addresses(options: ServerOptions) -> dict[str, str]:
    """Where each port is opened, by the port's name."""
    return {
        "grpc_port": options.grpc_address,
        "http_port": options.http_address,
        "metrics_port": options.metrics_address,
    }


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener


def _explain(name: str, address: str, port: int, error: OSError) -> str:
    kind = name.removesuffix("_port")
    flag = f"--{kind}-port"
    return (
        f"The {kind} port {join_address(address, port)} cannot be used ({error.strerror}){_holder(port)}. "
        f"Stop that program, or choose another port with {flag} N ({flag} 0 takes any free one, "
        "--any-port free ones for all three)."
    )


def _holder(port: int) -> str:
    """``: process 12 (name) listens there``; empty where this user may not see it."""
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
