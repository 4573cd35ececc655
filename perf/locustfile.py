"""Callers by gRPC and by the gateway's WebSocket for locust: ``make load``; perf/README.md.

locust counts and reports. The calls are held by processes of ``load_calls.py``, on asyncio.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import gevent
from gevent.event import AsyncResult, Event
from gevent.pool import Group
from locust import User, between, events, task
from locust.stats import StatsError

_ROOT = Path(__file__).parents[1]
_CALLS = [str(_ROOT / ".venv" / "bin" / "python"), str(_ROOT / "perf" / "load_calls.py")]
_LONGEST_CALL_S = 1_800.0
_END_S = 60.0
_FOR_CALLS = ("turns_from", "turns_to", "interrupt", "early", "chunk_ms", "seed", "recordings")


class CallProcess:
    """One process that holds calls."""

    def __init__(self, options: Any) -> None:
        given = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in _FOR_CALLS]
        self._process = subprocess.Popen([*_CALLS, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._waiting: dict[int, AsyncResult] = {}
        self._reader = gevent.spawn(self._read)

    def hold(self, number: int, server: str) -> list[dict[str, Any]]:
        """Hold a call to its end; its rows, as ``load_calls.Row`` has them."""
        result = self._waiting[number] = AsyncResult()
        self._write({"number": number, "server": server})
        rows: list[dict[str, Any]] = result.get(timeout=_LONGEST_CALL_S)
        return rows

    def stop(self) -> None:
        """Let no caller begin another turn."""
        self._write({})

    @property
    def has_died(self) -> bool:
        """Whether it has ended by itself, and its calls with it."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(_END_S)

    def _write(self, wanted: dict[str, object]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            held = json.loads(line)
            self._waiting.pop(held["number"]).set(held["rows"])
        for result in self._waiting.values():
            result.set_exception(RuntimeError("the process of the calls has ended"))


class Run:
    """What the callers share."""

    processes: tuple[CallProcess, ...] = ()
    stopping = Event()
    numbers = itertools.count(1)


@events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    add = parser.add_argument_group("callers").add_argument
    add("--server", default="127.0.0.1:8001", metavar="HOST:PORT", help="Triton's gRPC endpoint")
    add("--gateway", default="http://127.0.0.1:8080", metavar="URL", help="of the gateway")
    add("--recordings", default=str(_ROOT / "tests/data/open_conversation"), help="what is said: a folder")
    add("--call-processes", type=int, default=2, help="that hold the calls")
    add("--arrivals-per-minute", type=float, default=0.0, help="calls begin at this rate, however many last")
    add("--turns-from", type=int, default=2, help="fewest questions of a call")
    add("--turns-to", type=int, default=5, help="most questions of a call")
    add("--interrupt", type=float, default=0.2, help="probability that an answer is spoken over")
    add("--early", type=float, default=0.1, help="probability that a call is hung up in the middle")
    add("--chunk-ms", type=int, default=0, help="of the microphones; 0: 20 or 100, drawn for each call")
    add("--seed", type=int, default=1, help="of what the callers do")


@events.test_start.add_listener
def _begin(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    Run.stopping.clear()
    Run.processes = tuple(CallProcess(options) for _ in range(options.call_processes))


@events.test_stopping.add_listener
def _hang_up(**_: Any) -> None:
    Run.stopping.set()
    for process in Run.processes:
        process.stop()


@events.quitting.add_listener
def _judge(environment: Any, **_: Any) -> None:
    """The exit status: 1 where a call was lost, none was accepted, or a caller failed itself."""
    broken = len(environment.runner.exceptions) + sum(process.has_died for process in Run.processes)
    for process in Run.processes:
        process.close()
    calls = sum(entry.num_requests for entry in environment.stats.entries.values() if entry.name == "call")
    failed: Counter[str] = Counter()
    for error in environment.stats.errors.values():
        if error.name == "call":
            failed[StatsError.parse_error(error.error).partition("(")[0]] += error.occurrences
    lost, refused = failed["LostError"], failed["RefusedError"]
    print(f"{calls} calls, {lost} lost, {refused} refused")
    environment.process_exit_code = 1 if lost or broken or refused >= calls else 0


class AnyCaller(User):
    """Calls again and again, or at a rate of arrivals."""

    abstract = True
    wait_time = between(0.5, 2.0)
    way = ""

    def address(self) -> str:
        """Of the server that is called."""
        raise NotImplementedError

    @task
    def work(self) -> None:
        """Hold a call; with a rate of arrivals: begin calls until the run is over."""
        options, calls = self.environment.parsed_options, Group()
        if not options.arrivals_per_minute:
            self.call()
            return
        # The arrivals of all users are one Poisson process.
        rate = options.arrivals_per_minute / 60 / max(1, options.num_users or 1)
        random = Random(f"{options.seed}-{self.way}-{next(Run.numbers)}")
        while not Run.stopping.wait(random.expovariate(rate)):
            calls.spawn(self.call)
        calls.join()

    def call(self) -> None:
        """Hold one call and report it."""
        number = next(Run.numbers)
        for row in Run.processes[number % len(Run.processes)].hold(number, self.address()):
            error = type(row["error"], (Exception,), {})(row["text"]) if row["error"] else None
            self.environment.events.request.fire(
                request_type=self.way,
                name=row["name"],
                response_time=row["ms"],
                response_length=0,
                exception=error,
                context={},
            )


class GrpcCaller(AnyCaller):
    """By gRPC, directly to the server."""

    way = "grpc"

    def address(self) -> str:
        """See :class:`AnyCaller`."""
        return str(self.environment.parsed_options.server)


class WebSocketCaller(AnyCaller):
    """Through the gateway."""

    way = "websocket"

    def address(self) -> str:
        """See :class:`AnyCaller`."""
        return str(self.environment.parsed_options.gateway)
