"""Servers, gateways and a Redis: on this machine, or each in a node of a :class:`harness.network.Network`.

::

    with local_server("soak") as server, local_gateway(server.address) as gateway:
        call(gateway.url)

    with Network() as network:
        server = Server(network.add("worker-1"), TINY_PROFILE, folder)
        await server.start()
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.network import Host, NetworkError
from parley.errors import DeadlineExceededError, ParleyError
from parley.launcher.cleanup import remove_stale
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.launcher.processes import Stub, find_stubs

PARLEY = ROOT / ".venv" / "bin" / "parley"
_STATES = ROOT / ".server"
UNLIMITED_RATES = {
    f"PARLEY_GATEWAY_RATES_{name}": "1000000/minute"
    for name in ("KEY_REQUESTS", "KEY_SESSIONS", "IP_REQUESTS", "IP_SESSIONS")
}
"""Settings of a gateway whose clients all have one address."""
_POLL_S = 0.1
_SERVER_READY_S, _GATEWAY_READY_S, _REDIS_READY_S = 180.0, 60.0, 15.0
_STOP_S, _KILL_S, _CONNECT_S = 60.0, 5.0, 1.0
_GRPC, _HTTP, _METRICS = 8001, 8000, 8002
_GATEWAY, _GATEWAY_METRICS, _REDIS = 8080, 9100, 6379


class ThisMachine(Host):
    """This machine; its programs listen on the loopback."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "127.0.0.1", ports_are_free=False)

    def kill(self) -> None:
        """End all of its programs: a launcher ends its server at the second signal at once."""
        while self._processes:
            process = self._processes.pop()
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_KILL_S)


class Program:
    """One program at a time on a host."""

    def __init__(self, host: Host, name: str, folder: Path) -> None:
        self.host = host
        self.log_path = folder / f"{name}.log"
        self._name = name
        self._log_begin = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of its process, which is the leader of its session; 0: it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def session(self) -> int:
        """The session of its last start, whose children may have outlived it; 0: it was not started."""
        return self._process.pid if self._process is not None else 0

    @property
    def status(self) -> int | None:
        """With which it has ended; None: it runs, or was not started."""
        return self._process.poll() if self._process is not None else None

    async def launch(
        self,
        command: Sequence[str | Path],
        is_ready: Callable[[], object],
        *,
        ready_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it, and wait until it is ready.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: it was not ready in time.
        """
        with self.log_path.open("ab") as log:
            self._log_begin = log.tell()
            self._process = self.host.start(command, log=log, environment=environment)
        try:
            async with asyncio.timeout(ready_s):
                while not is_ready():
                    if self._process.poll() is not None:
                        raise ParleyError(f"{self._name} has ended: {self._last_words()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            late = f"{self._name} was not ready within {ready_s:g} s: {self._last_words()}"
            raise DeadlineExceededError(late) from error

    def find_line(self, begin: str) -> str:
        """The first whole line since its last start that begins with a text; empty: there is none."""
        text = self.log_path.read_bytes()[self._log_begin :].decode(errors="replace")
        return next((line for line in text.splitlines(keepends=True) if line.startswith(begin)), "").rstrip()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens where it does not run."""
        if self._process is not None and self.pid:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End everything on its host at once (SIGKILL)."""
        self.host.kill()

    async def stop(self, within_s: float = _STOP_S) -> None:
        """End it politely (SIGTERM); a gateway waits for its calls for ``listen.drain_s``.

        Raises:
            DeadlineExceededError: it has not ended in time.
        """
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, within_s)
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceededError(f"{self._name} has not ended within {within_s:g} s") from error

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return f"{self.log_path}: {' / '.join(lines[-3:])}"


@asynccontextmanager
async def local_program(
    name: str,
    command: Sequence[str | Path],
    is_ready: Callable[[], object],
    folder: Path,
    *,
    ready_s: float,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Program]:
    """A program on this machine, until the block is left; the arguments are those of :class:`Program`.

    Raises:
        ParleyError: it did not start.
    """
    machine = ThisMachine(name)
    program = Program(machine, name, folder)
    try:
        await program.launch(command, is_ready, ready_s=ready_s, environment=environment)
        yield program
    finally:
        await asyncio.to_thread(machine.kill)


class Server(Program):
    """A Triton with the model repository, under the launcher's supervision (``scripts/serve``).

    Args:
        host: Where it runs.
        profile: Of its models.
        folder: For its log.
        wrapper: A program that starts it, with its command as arguments.
        environment: Beside the own one.
        ready_s: The longest time that it may take to start (seconds).
    """

    def __init__(
        self,
        host: Host,
        profile: str,
        folder: Path,
        *,
        wrapper: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        ready_s: float = _SERVER_READY_S,
    ) -> None:
        super().__init__(host, host.name, folder)
        self.address = f"{host.address}:{_GRPC}"
        """Of its gRPC endpoint. On this machine this and the next two are those of the last start."""
        self.http = f"{host.address}:{_HTTP}"
        self.metrics = f"{host.address}:{_METRICS}"
        self.state_name = f"perf-{host.name}"
        """Folder of its state in ``.server``."""
        self._profile = profile
        self._wrapper = wrapper
        self._environment = environment
        self._ready_s = ready_s

    async def start(self) -> None:
        """Start it, and wait until its models have answered.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: not in time.
        """
        command: list[str | Path] = [*self._wrapper, ROOT / "scripts" / "serve", "--profile", self._profile]
        command += ["--no-fetch", "--name", self.state_name]
        if self.host.ports_are_free:
            for name, port in (("grpc", _GRPC), ("http", _HTTP), ("metrics", _METRICS)):
                command += [f"--{name}-address", self.host.address, f"--{name}-port", str(port)]
        else:
            command.append("--any-port")
        await self.launch(
            command,
            lambda: self.find_line("ready grpc="),
            ready_s=self._ready_s,
            environment=self._environment,
        )
        found = dict(part.split("=") for part in self.find_line("ready grpc=").split()[1:])
        self.address, self.http, self.metrics = found["grpc"], found["http"], found["metrics"]

    @property
    def triton_pid(self) -> int:
        """Of ``tritonserver``; another one after the supervisor has replaced it. 0: not known now."""
        try:
            return int(json.loads(self.state("server.json").read_text())["session"])
        except (OSError, ValueError, KeyError):
            return 0

    def state(self, name: str) -> Path:
        """A file of its state."""
        return _STATES / self.state_name / name

    def record(self) -> dict[str, Any]:
        """The supervisor's; empty while it is not written yet."""
        try:
            found: dict[str, Any] = json.loads(self.state("supervisor.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def stubs(self, model: str = "") -> list[Stub]:
        """Living processes of a model; empty: of all models."""
        pid = self.triton_pid
        return [stub for stub in find_stubs(pid) if model in ("", stub.model)] if pid else []

    async def drain(self, wait_s: int) -> None:
        """Ask its calls to move, and wait until they have, for ``wait_s`` at most.

        Raises:
            DeadlineExceededError: some have not.
        """
        options = ["--name", self.state_name, "--deadline", "60", "--wait", str(wait_s)]
        process = await asyncio.create_subprocess_exec(
            PARLEY,
            "drain",
            *options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            if await process.wait():
                raise DeadlineExceededError(f"{self.host.name} has calls after {wait_s} s")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@contextmanager
def remove_left() -> Iterator[None]:
    """Remove afterwards what killed servers have left: folders of their state, and shared memory."""
    before = set(_STATES.glob("perf-*"))
    try:
        yield
    finally:
        for folder in set(_STATES.glob("perf-*")) - before:
            shutil.rmtree(folder, ignore_errors=True)
        remove_stale()


@contextmanager
def local_server(
    name: str, environment: Mapping[str, str] | None = None, profile: str = TINY_PROFILE
) -> Iterator[Server]:
    """A server on free ports of this machine; its log is in the folder of its state.

    Raises:
        ParleyError: it did not start.
    """
    host = ThisMachine(name)
    folder = _STATES / f"perf-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(host, profile, folder, environment=environment)
    try:
        asyncio.run(server.start())
        yield server
    finally:
        try:
            asyncio.run(server.stop())
        finally:
            server.kill()


def write_servers(file: Path, servers: Mapping[str, str] | Sequence[str]) -> Path:
    """Replace the list of gateways (``servers.file``) as a whole, as an operator or a controller does.

    ``servers`` are gRPC addresses; with the URLs of their metrics where those are elsewhere.
    """
    if isinstance(servers, Mapping):
        listed = json.dumps([{"address": one, "metrics": url} for one, url in servers.items()])
    else:
        listed = "\n".join(servers) + "\n"
    new = file.with_suffix(".new")
    new.write_text(listed)
    return new.replace(file)


class Gateway(Program):
    """A gateway without authentication.

    Args:
        host: Where it runs; in a node its name is the gateway's in the ids of sessions.
        servers: The file of its servers.
        folder: For its log.
        settings: Environment variables beside those that it needs.
        command: Starts it, and says when it is ready.
    """

    def __init__(
        self,
        host: Host,
        servers: Path,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        command: Sequence[str | Path] = (PARLEY, "gateway"),
    ) -> None:
        super().__init__(host, host.name, folder)
        self.address = f"{host.address}:{_GATEWAY}"
        """On this machine it is known when the gateway has started; so is :attr:`url`."""
        self.url = f"http://{self.address}"
        self._command = command
        listen = {"PORT": "0"}
        if host.ports_are_free:
            listen = {"PORT": str(_GATEWAY), "METRICS_PORT": str(_GATEWAY_METRICS), "INSTANCE": host.name}
        self._environment = {
            **{f"PARLEY_GATEWAY_LISTEN_{name}": value for name, value in listen.items()},
            "PARLEY_GATEWAY_LISTEN_HOST": host.address,
            "PARLEY_GATEWAY_SERVERS_FILE": str(servers),
            # The network ends at this machine.
            "PARLEY_GATEWAY_SECURITY_INSECURE_ALLOW_ANONYMOUS": "true",
            "PARLEY_GATEWAY_REALTIME_WEBRTC": "false",
            **(settings or {}),
        }

    async def start(self) -> None:
        """Start it, and wait until it listens.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: not within a minute.
        """
        await self.launch(
            self._command,
            lambda: self.find_line("ready http="),
            ready_s=_GATEWAY_READY_S,
            environment=self._environment,
        )
        self.url = self.find_line("ready http=").split()[1].removeprefix("http=")
        self.address = self.url.rpartition("/")[2]


@contextmanager
def local_gateway(
    server: str,
    settings: Mapping[str, str] | None = None,
    command: Sequence[str | Path] = (PARLEY, "gateway"),
) -> Iterator[Gateway]:
    """A gateway on a free port of this machine, without limits of rates.

    Raises:
        ParleyError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="parley-gateway-") as name:
        folder, host = Path(name), ThisMachine("gateway")
        servers = write_servers(folder / "servers", [server])
        gateway = Gateway(host, servers, folder, {**UNLIMITED_RATES, **(settings or {})}, command)
        try:
            asyncio.run(gateway.start())
            yield gateway
        finally:
            try:
                asyncio.run(gateway.stop())
            finally:
                gateway.kill()


class Redis(Program):
    """A redis-server that keeps nothing on a disk.

    Raises:
        NetworkError: there is no redis-server.
    """

    def __init__(self, host: Host, folder: Path) -> None:
        if shutil.which("redis-server") is None:
            raise NetworkError("`redis-server` is missing. Run, as root on Debian: scripts/setup --cluster")
        super().__init__(host, host.name, folder)
        self.url = f"redis://{host.address}:{_REDIS}/0"
        self._folder = folder

    async def start(self) -> None:
        """Start it, empty, and wait until it answers.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: not in time.
        """
        options = {
            "bind": self.host.address,
            "port": str(_REDIS),
            "protected-mode": "no",
            "save": "",
            "appendonly": "no",
            "dir": str(self._folder),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        await self.launch(["redis-server", *arguments], self.answers, ready_s=_REDIS_READY_S)

    def answers(self) -> bool:
        """Whether it answers."""
        with (
            suppress(OSError),
            socket.create_connection((self.host.address, _REDIS), _CONNECT_S) as connection,
        ):
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False
