"""Callers by gRPC and by the gateway's WebSocket for locust: ``make load``; perf/README.md.

locust counts and reports. Each of its users is a process of ``load_calls.py``, which holds calls on asyncio.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import gevent
from locust import User, events, task
from locust.exception import StopUser
from locust.stats import CSV_STATS_INTERVAL_SEC, StatsError

_ROOT = Path(__file__).parents[1]
_CALLS = [str(_ROOT / ".venv" / "bin" / "python"), str(_ROOT / "perf" / "load_calls.py")]
_END_S = 60.0
_FOR_CALLS = ("callers", "interrupt", "script")
_processes: list[subprocess.Popen[bytes]] = []


@events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    add = parser.add_argument_group("callers").add_argument
    add("--server", default="127.0.0.1:8001", metavar="HOST:PORT", help="Triton's gRPC endpoint")
    add("--gateway", default="http://127.0.0.1:8080", metavar="URL", help="of the gateway")
    add("--script", default=str(_ROOT / "examples/open_conversation.toml"), help="what is said, in turns")
    add("--callers", type=int, default=2, help="of each of locust's users")
    add("--arrivals-per-minute", type=float, default=0.0, help="calls begin at this rate, however many last")
    add("--interrupt", type=float, default=0.2, help="probability that an answer is spoken over")


@events.test_stopping.add_listener
def _hang_up(**_: Any) -> None:
    for process in _processes:
        if process.stdin:
            process.stdin.close()


@events.quitting.add_listener
def _judge(environment: Any, **_: Any) -> None:
    """The exit status: 1 where a call was lost, none was accepted, or a caller failed itself."""
    _hang_up()
    broken = len(environment.runner.exceptions) + sum(bool(one.wait(_END_S)) for one in _processes)
    # locust writes its CSV files at this interval, and not at the end: the last calls would be missing.
    gevent.sleep(2 * CSV_STATS_INTERVAL_SEC)
    calls = sum(entry.num_requests for entry in environment.stats.entries.values() if entry.name == "call")
    failed: Counter[str] = Counter()
    for error in environment.stats.errors.values():
        if error.name == "call":
            failed[StatsError.parse_error(error.error).partition("(")[0]] += error.occurrences
    lost, refused = failed["LostError"], failed["RefusedError"]
    print(f"{calls} calls, {lost} lost, {refused} refused")
    environment.process_exit_code = 1 if lost or broken or refused >= calls else 0


class AnyProcess(User):
    """Holds calls in a process until the run is over, and reports what they measure."""

    abstract = True
    way = ""
    option = ""
    """That has the address which is called."""

    @task
    def work(self) -> None:
        """Fire an event for each measurement."""
        given = self.environment.parsed_options
        options = {name: getattr(given, name) for name in _FOR_CALLS}
        # The arrivals of all processes are one Poisson process.
        options["arrivals_per_s"] = given.arrivals_per_minute / 60 / max(1, given.num_users or 1)
        options |= {"process": len(_processes), "server": getattr(given, self.option)}
        with subprocess.Popen(_CALLS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            _processes.append(process)
            process.stdin.write(json.dumps(options).encode() + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                row = json.loads(line)
                error = type(row["error"], (Exception,), {})(row["text"]) if row["error"] else None
                self.environment.events.request.fire(
                    request_type=self.way,
                    name=row["name"],
                    response_time=row["ms"],
                    response_length=0,
                    exception=error,
                    context={},
                )
        raise StopUser


class GrpcProcess(AnyProcess):
    """Calls by gRPC, directly to the server."""

    way, option = "grpc", "server"


class WebSocketProcess(AnyProcess):
    """Calls through the gateway."""

    way, option = "websocket", "gateway"
