"""Callers by gRPC and by the gateway's WebSocket for locust: ``make load``.

They hold conversations with recordings in real time, interrupt, hang up, or vanish. docs/load.md says what
each row of the report means. gevent is late by more than 100 ms when the processors are busy: load comes from
here, published latency from the drivers that use asyncio.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from random import Random
from typing import Any

import gevent
import grpc
import grpc.experimental.gevent
from gevent.event import Event
from gevent.pool import Group
from load.caller import Caller, OverdueError, Surroundings
from load.lines import GrpcLine, Line, SocketLine, open_channel
from load.plan import CHUNKS_MS, Habits, arrival_gaps, make_plan
from load.recordings import Repertoire, load_repertoire
from load.state import Row
from locust import User, between, events, task
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

_RECORDINGS = Path(__file__).parents[1] / "tests" / "data" / "open_conversation"
_OVER = "calls_over"
"""A worker's message: all of its calls have ended."""
_END_S = 40.0
"""Hanging up, and an answer that is waited for, have limits of their own below this."""
_STRAYS_S = 15.0
_LONGEST_CALL_S = 1_800.0
_REPORT_S = 4.0
"""Workers report each 3 s."""
_ANY = "any"
_log = logging.getLogger("parley.load")


class Run:
    """The run of this process: what its callers share."""

    options: Any
    """Of the command line."""
    habits: Habits
    repertoire: Repertoire
    """What the callers can say."""
    channel: grpc.Channel
    """To the server."""

    def __init__(self) -> None:
        self.timer: gevent.Greenlet | None = None
        """Ends the run."""
        self.stopping = Event()
        self.callers = Group()
        """The greenlets that hold calls."""
        self.strays = Group()
        self.reported = 0
        """Workers whose calls have ended; counted by the master."""
        self.all_reported = Event()
        self._count = 0

    def prepare(self, options: Any) -> None:
        """Make what calls need; after the fork of the workers, because gRPC does not survive one.

        Raises:
            ValueError: wrong options.
        """
        self.habits = Habits(
            turns=(options.turns_from, options.turns_to),
            interrupt=options.interrupt,
            early=options.early,
            vanish=options.vanish,
            chunk_ms=None if options.chunk_ms == _ANY else int(options.chunk_ms),
        )
        self.repertoire = load_repertoire(Path(options.recordings))
        grpc.experimental.gevent.init_gevent()
        self.channel = open_channel(options.server)

    def next_random(self, environment: Any) -> Random:
        """A generator for one call; those of a run with the same seed are the same."""
        self._count += 1
        worker = getattr(environment.runner, "worker_index", 0)
        return Random(f"{self.options.seed}-{worker}-{self._count}")


RUN = Run()


@events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    group = parser.add_argument_group("callers")
    add = group.add_argument
    add("--server", default="127.0.0.1:8001", metavar="HOST:PORT", help="Triton's gRPC endpoint")
    add("--gateway", default="http://127.0.0.1:8080", metavar="URL", help="of the gateway")
    add("--recordings", default=str(_RECORDINGS), metavar="FOLDER", help="what the callers say")
    add("--minutes", type=float, default=0.0, help="then all callers hang up; 0: locust's own --run-time")
    add("--arrivals-per-minute", type=float, default=0.0, help="calls begin at this rate, however many last")
    add("--turns-from", type=int, default=2, help="fewest questions of a call")
    add("--turns-to", type=int, default=5, help="most questions of a call")
    add("--interrupt", type=float, default=0.2, help="probability that an answer is spoken over")
    add("--early", type=float, default=0.1, help="probability that a call is hung up in the middle")
    add("--vanish", type=float, default=0.1, help="probability that a connection is dropped in the middle")
    add("--cancel-streams", action="store_true", help="vanish by cancelling: for Triton 25.04 and later")
    add("--chunk-ms", choices=[*map(str, CHUNKS_MS), _ANY], default=_ANY, help="of the microphones")
    add("--seed", type=int, default=1, help="of what the callers do")


@events.init.add_listener
def _prepare(environment: Any, **_: Any) -> None:
    RUN.options = environment.parsed_options
    if isinstance(environment.runner, MasterRunner):
        environment.runner.register_message(_OVER, _note_over)
    else:
        RUN.prepare(RUN.options)


# --- the end of a run ---------------------------------------------------------------------------------


@events.test_start.add_listener
def _begin(environment: Any, **_: Any) -> None:
    RUN.stopping.clear()
    RUN.all_reported.clear()
    RUN.reported = 0
    if RUN.options.minutes:
        ends = _quit_when_over if _is_leader(environment) else _stop_callers
        # Not in the runner's own group of greenlets, which ends them while it quits.
        RUN.timer = gevent.spawn_later(60 * RUN.options.minutes, ends, environment)


def _is_leader(environment: Any) -> bool:
    return not isinstance(environment.runner, WorkerRunner)


@events.test_stopping.add_listener
def _hang_up(**_: Any) -> None:
    RUN.stopping.set()


def _stop_callers(environment: Any) -> None:
    """Let the callers of this process hang up, and report it to the master."""
    _end_calls()
    environment.runner.send_message(_OVER)


def _end_calls() -> None:
    RUN.stopping.set()
    if not RUN.callers.join(timeout=_END_S):
        RUN.callers.kill(OverdueError, timeout=_REPORT_S)
    RUN.strays.join(timeout=_STRAYS_S)


def _note_over(environment: Any, **_: Any) -> None:
    RUN.reported += 1
    if RUN.reported >= environment.runner.worker_count:
        RUN.all_reported.set()


def _quit_when_over(environment: Any) -> None:
    """End the run when no call lasts any more.

    locust's own --run-time gives its workers half a second: what they report of their last calls is lost.
    """
    if isinstance(environment.runner, MasterRunner):
        if not RUN.all_reported.wait(_END_S + 2 * _STRAYS_S):
            _log.error("not all workers have reported the end of their calls")
        gevent.sleep(_REPORT_S)
    else:
        _end_calls()
    environment.runner.quit()


@events.quitting.add_listener
def _free(**_: Any) -> None:
    if RUN.timer is not None and RUN.timer is not gevent.getcurrent():
        RUN.timer.kill(timeout=_REPORT_S)
    RUN.strays.kill(timeout=_REPORT_S)


# --- callers ------------------------------------------------------------------------------------------


class AnyCaller(User):
    """Calls again and again, or at a rate of arrivals."""

    abstract = True
    wait_time = between(0.5, 2.0)

    def dial(self) -> Line:
        """A connection for one call."""
        raise NotImplementedError

    @task
    def work(self) -> None:
        """Hold a call; with a rate of arrivals: take calls until the run is over."""
        if RUN.stopping.is_set():
            raise StopUser
        if RUN.options.arrivals_per_minute:
            self._take_arrivals()
            raise StopUser
        call = RUN.callers.spawn(self.call)
        try:
            call.join(timeout=_LONGEST_CALL_S)
        finally:
            call.kill()

    def _take_arrivals(self) -> None:
        """Begin calls at this user's share of the rate: those of all users are one Poisson process."""
        share = RUN.options.arrivals_per_minute / max(1, RUN.options.num_users or 1)
        due_s = time.monotonic()
        calls = Group()
        try:
            for gap_s in arrival_gaps(RUN.next_random(self.environment), share):
                due_s += gap_s
                if RUN.stopping.wait(max(0.0, due_s - time.monotonic())):
                    break
                call = gevent.Greenlet(self.call)
                RUN.callers.add(call)
                calls.start(call)
            calls.join(timeout=_END_S)
        finally:
            calls.kill()

    def call(self) -> None:
        """Hold one call and report it."""
        plan = make_plan(RUN.next_random(self.environment), RUN.habits, RUN.repertoire)
        line = self.dial()

        def report(row: Row) -> None:
            self.environment.events.request.fire(
                request_type=line.kind,
                name=row.name,
                response_time=row.ms,
                response_length=0,
                exception=row.error,
                context={},
            )

        try:
            Caller(line, plan, Surroundings(report, RUN.stopping.is_set, RUN.strays)).hold()
        except Exception as error:  # noqa: BLE001 - locust shows it among the exceptions
            self.environment.events.user_error.fire(
                user_instance=self, exception=error, tb=error.__traceback__
            )


class GrpcCaller(AnyCaller):
    """By gRPC, directly to the server."""

    def dial(self) -> Line:
        """See :class:`AnyCaller`."""
        return GrpcLine(RUN.channel, cancels=RUN.options.cancel_streams)


class WebSocketCaller(AnyCaller):
    """Through the gateway."""

    def dial(self) -> Line:
        """See :class:`AnyCaller`."""
        return SocketLine(RUN.options.gateway, os.environ.get("PARLEY_KEY", ""))
