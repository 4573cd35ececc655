"""What ``make cluster`` does to an installation, and what has to come of it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from harness.caller import Callers
from harness.judge import MOST_UNANSWERED, Check, Outcome
from harness.network import NodeThread
from harness.servers import Gateway, Server

from cluster.judging import Disturbance, judge, retryable_codes
from cluster.session_logs import GatewayLogs, ServerLog, open_sessions
from cluster.site import DRAIN_S, Site, degrees_of
from parley.errors import DeadlineExceededError
from parley_client.cli.script import ScriptTurn
from parley_gateway.servers import ServerSettings

_LOG = "triton.log"
"""Of a server: which sessions it has. It begins anew with each start."""
_BEFORE_S, _AFTER_S = 15.0, 15.0
_END_S = 120.0
_POLL_S = 0.5
_PARTITION_S = 15.0
_LOSS_S = 25.0
_UNANSWERED_30 = 0.25
"""With 30 % each way half of all packets have no answer: TCP's waits exceed those of the callers."""
_REDIS_S = 15.0
_SILENT_CALLERS = 2
_RESET_S = 0.3
_DRAIN_DEADLINE_S, _EMPTY_S = 10.0, 20.0
"""After how long calls leave a server that drains wherever they are, and until when it has to be empty."""
_NOTICED_S = 60.0
"""Within so long a gateway notices that a client is gone: a ping every 20 s, and 20 s for its answer."""
_IDLE_S = 90.0
"""Within so long the last session ends after the last call: servers end silent ones after 60 s."""
_SLOW_START_S = ServerSettings().slow_start_s
_CLOCK_S = 1.0
"""By how much Prometheus' times may be off."""


class Scene:
    """Callers at an installation, and what is found out about them while it is disturbed.

    Args:
        name: Of the scenario.
        site: The installation.
        turns: What callers say.
        callers: How many.
        turns_per_call: After so many a caller hangs up, and calls again.
    """

    def __init__(
        self, name: str, site: Site, turns: Sequence[ScriptTurn], callers: int, turns_per_call: int
    ) -> None:
        self.site = site
        self.disturbance = Disturbance()
        self.figures: dict[str, float] = {}
        self.checks: list[Check] = []
        self.began_at = math.nan
        """Seconds of ``time.time``: of the first call."""
        self._name = name
        self._turns = turns
        self.turns_per_call = turns_per_call
        self._count = callers
        self._callers = self.make_callers(0)
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """What became of the calls, once :meth:`calls` is over."""
        assert self._outcome is not None
        return self._outcome

    def make_callers(self, count: int) -> Callers:
        """Callers who are judged only if they are the scene's own."""
        return Callers(
            self.site.connect,
            self._turns,
            count,
            turns_per_call=self.turns_per_call,
            read_history=self.site.read_history,
        )

    @asynccontextmanager
    async def calls(self, *, after_s: float = _AFTER_S) -> AsyncIterator[None]:
        """Callers hold calls; what is done meanwhile is the disturbance.

        Args:
            after_s: How long they go on after it (seconds).

        Raises:
            DeadlineExceededError: calls do not end.
        """
        self._callers = self.make_callers(self._count)
        thread = NodeThread(self.site.callers_node, self._callers.run)
        self.began_at = time.time()
        thread.start()
        try:
            await asyncio.sleep(_BEFORE_S)
            self.disturbance.began_s, self.disturbance.began_at = time.perf_counter(), time.time()
            yield
            self.disturbance.ended_s = time.perf_counter()
            await asyncio.sleep(after_s)
            thread.call(self._callers.stop)
            await thread.join(_END_S)
        finally:
            await asyncio.to_thread(thread.cancel)
        logs = GatewayLogs.read(gateway.log_path for gateway in self.site.gateways)
        self._outcome = judge(self._name, self._callers.reports, self.disturbance, logs, degrees_of)
        self._outcome.figures |= self.figures
        self.figures = self._outcome.figures
        before = [at for moves in logs.moves.values() for at, _ in moves]
        early = sum(self.began_at <= at < self.disturbance.began_at for at in before)
        if early:
            self.figures["moves before, because the machine was busy"] = early
        self.checks = self._outcome.checks = self._outcome.checks + self.checks
        await self._ask_prometheus()

    def busiest(self) -> Server:
        """The server that has the most calls now."""
        return max(self.site.workers, key=lambda worker: len(ServerLog(worker.state(_LOG)).open))

    def affect(self, log: ServerLog) -> int:
        """The disturbance may touch the calls that a server has had since a moment; returns how many."""
        assert self.disturbance.affected is not None
        self.disturbance.affected |= log.sessions()
        return len(log.sessions())

    def affect_gateway(self, gateway: Gateway) -> None:
        """The disturbance may touch the calls that a gateway has had."""
        assert self.disturbance.affected is not None
        self.disturbance.affected |= set(GatewayLogs.read([gateway.log_path]).calls.values())

    def check(self, name: str, counted: float, problems: Iterable[str] = ()) -> None:
        """Add a check."""
        self.checks.append(Check(name, int(counted) if math.isfinite(counted) else 0, list(problems)))

    async def increase(self, selector: str) -> float:
        """By how much counters have grown since the first call, as Prometheus saw it."""
        span_s = math.ceil(time.time() - self.began_at)
        value = await self.site.prometheus.value(f"sum(increase({selector}[{span_s}s]))")
        return 0.0 if math.isnan(value) else value

    async def wait_until(self, is_so: Callable[[], Awaitable[bool]], limit_s: float) -> float:
        """Wait for something; returns how long that took (seconds), infinite if it did not come in time."""
        began = time.perf_counter()
        while (waited := time.perf_counter() - began) < limit_s:
            if await is_so():
                return waited
            await asyncio.sleep(_POLL_S)
        return math.inf

    async def wait_for_moves(self, log: ServerLog, limit_s: float) -> None:
        """Wait until all calls of a server have moved away or ended."""

        async def are_gone() -> bool:
            logs = GatewayLogs.read(gateway.log_path for gateway in self.site.gateways)
            still = {report.session_id for report in self._callers.reports if math.isnan(report.ended_s)}
            here = {call for session in still for call in logs.calls_of(session)} & log.open
            return here <= logs.moves.keys()

        await self.wait_until(are_gone, limit_s)

    async def _ask_prometheus(self) -> None:
        """Compare what the callers say with what gateways and servers say of themselves."""
        site, outcome = self.site, self.outcome
        opened = await self.increase("parley_gateway_calls_opened_total")
        lost = await self.increase("parley_gateway_calls_lost_total")
        own = sum(not self.disturbance.may_lose(one) for one in self._callers.reports if one.lost)
        self.figures["moves, by Prometheus"] = round(
            await self.increase('parley_gateway_moves_total{outcome="moved"}')
        )
        problems = [f"{lost:.0f} by Prometheus"] if round(lost) and not own else []
        self.check("Prometheus knows of no lost call either", opened, problems)
        codes = await site.prometheus.query("sum by (code) (parley_gateway_refusals_total)")
        bad = {code.partition("=")[2] for code in codes} - retryable_codes()
        self.check("gateways have refused nothing for good", opened, sorted(bad))
        waited = await self.wait_until(self._is_empty, _IDLE_S)
        self.figures["sessions are gone after, s"] = waited
        left = [] if math.isfinite(waited) else ["sessions without a call are left"]
        self.check("every session ends", outcome.calls, left)

    async def _is_empty(self) -> bool:
        return await self.site.prometheus.value("sum(voice_agent_active_sessions) or vector(0)") == 0


def _sessions_of(workers: Sequence[Server]) -> str:
    """Prometheus' series of the sessions that servers have."""
    return f'voice_agent_active_sessions{{instance=~"{"|".join(worker.metrics for worker in workers)}"}}'


async def _drain(scene: Scene, worker: Server) -> float:
    """Drain a server; returns after how long it was empty (seconds)."""
    began = time.perf_counter()
    name = f"a server that drains is empty within {_EMPTY_S:g} s"
    try:
        await worker.drain(int(_EMPTY_S), deadline_s=_DRAIN_DEADLINE_S)
    except DeadlineExceededError as error:
        scene.check(name, 1, [str(error)])
        return math.inf
    scene.check(name, 1)
    return time.perf_counter() - began


async def scale_out(scene: Scene) -> None:
    """A further server appears in the file, and gets calls by slow start."""
    site, new, old = scene.site, scene.site.workers[-1], scene.site.workers[:-1]
    site.list_servers(old)
    await new.stop()
    scene.turns_per_call = 1  # many new calls
    async with scene.calls(after_s=_SLOW_START_S + _AFTER_S):
        await new.start()
        listed_at = time.time()
        site.list_servers(site.workers)
    sessions = await site.prometheus.history(f"sum({_sessions_of([new])})", listed_at)
    others = await site.prometheus.history(f"max(sum by (instance) ({_sessions_of(old)}))", listed_at)
    first_s = next((at - listed_at for at, value in sessions if value > 0), math.inf)
    scene.figures["first call after, s"] = first_s
    scene.figures["most calls at once"] = most = max((value for _, value in sessions), default=0.0)
    scene.check("the new server gets calls", most)
    # It counts as so small at first that one call would fill it more than one more would fill the others.
    fullest = max((value for at, value in others if at < listed_at + _SLOW_START_S), default=0.0)
    least_s = _SLOW_START_S / (fullest + 1)
    opened = await site.prometheus.history("sum(parley_gateway_calls_opened_total)", listed_at)
    early = [value for at, value in opened if at <= listed_at + least_s]
    problems = (
        [] if first_s >= least_s - _CLOCK_S else [f"a call after {first_s:.1f} s instead of {least_s:.1f}"]
    )
    scene.check("slow start keeps calls away at first", early[-1] - early[0] if early else 0, problems)


async def scale_in(scene: Scene) -> None:
    """A server is drained: its calls move, and it is empty in seconds."""
    site = scene.site
    async with scene.calls():
        worker = scene.busiest()
        log = ServerLog(worker.state(_LOG))
        scene.figures["empty after, s"] = await _drain(scene, worker)
        scene.check("the server had calls, which have left it", scene.affect(log))
        site.list_servers([one for one in site.workers if one is not worker])
        await worker.stop()
    site.list_servers(site.workers)
    await worker.start()


async def rolling(scene: Scene) -> None:
    """Every server is drained and restarted, one after the other."""
    scene.disturbance.affected = None
    async with scene.calls():
        held, empty_s = 0, 0.0
        for worker in scene.site.workers:
            held += len(ServerLog(worker.state(_LOG)).open)
            empty_s = max(empty_s, await _drain(scene, worker))
            await worker.stop()
            await worker.start()
        scene.figures["empty after at most, s"] = empty_s
        scene.check("the servers had calls, which have left them", held)


async def rolling_gateway(scene: Scene) -> None:
    """A gateway leaves nginx and is restarted; it asks its calls to go on at the other one."""
    site, gateway = scene.site, scene.site.gateways[0]
    async with scene.calls():
        calls = await site.prometheus.value(f'sum(parley_gateway_calls{{instance="{gateway.metrics}"}})')
        scene.check("the gateway had calls", calls)
        site.balancer.reload(site.gateway_addresses, leaving={gateway.name})
        began = time.perf_counter()
        await gateway.stop(DRAIN_S + 30.0)
        scene.figures["empty after, s"] = time.perf_counter() - began
        scene.affect_gateway(gateway)
        await gateway.start()
        site.balancer.reload(site.gateway_addresses)


async def gateway_loss(scene: Scene) -> None:
    """A gateway is killed: its calls go on at the other one."""
    site, gateway = scene.site, scene.site.gateways[0]
    async with scene.calls():
        calls = await site.prometheus.value(f'sum(parley_gateway_calls{{instance="{gateway.metrics}"}})')
        scene.check("the gateway had calls", calls)
        gateway.kill()
        scene.affect_gateway(gateway)
        await asyncio.sleep(_AFTER_S)
    scene.check("calls go on at the other gateway", scene.figures["calls that changed their gateway"])
    await gateway.start()


async def node_loss(scene: Scene) -> None:
    """A server's node is gone from one moment to the next: no process, no packet, no farewell."""
    async with scene.calls():
        worker = scene.busiest()
        log = ServerLog(worker.state(_LOG))
        scene.site.node_of(worker).cut()
        worker.kill()
        await scene.wait_for_moves(log, _PARTITION_S)
        scene.check("the server had calls", scene.affect(log))
    scene.site.node_of(worker).mend()
    await worker.start()


async def partition(scene: Scene) -> None:
    """A server and the gateways do not reach each other; Prometheus still reaches both."""
    site = scene.site
    async with scene.calls():
        worker = scene.busiest()
        log = ServerLog(worker.state(_LOG))
        before = scene.site.node_of(worker).dropped()
        scene.site.node_of(worker).separate(scene.site.node_of(gateway) for gateway in site.gateways)
        try:
            await asyncio.sleep(_PARTITION_S)
            up = await site.prometheus.value(f'up{{instance="{worker.metrics}"}}')
        finally:
            scene.site.node_of(worker).separate(())
        scene.figures["packets lost"] = scene.site.node_of(worker).dropped() - before
        scene.check("packets were lost", scene.figures["packets lost"])
        scene.check("the server had calls", scene.affect(log))
        scene.check("Prometheus reached the server", 1, [] if up else ["it did not"])


def loss(percent: float, most_unanswered: float = MOST_UNANSWERED) -> Callable[[Scene], Awaitable[None]]:
    """Every server's link loses packets in both directions.

    Args:
        percent: Of the packets.
        most_unanswered: Of all turns, the part that may stay without an answer.
    """

    async def lose(scene: Scene) -> None:
        nodes = [scene.site.node_of(worker) for worker in scene.site.workers]
        scene.disturbance.affected = None
        scene.disturbance.most_unanswered = most_unanswered
        async with scene.calls():
            before = sum(node.dropped() for node in nodes)
            try:
                for node in nodes:
                    node.lose(percent)
                await asyncio.sleep(_LOSS_S)
            finally:
                for node in nodes:
                    node.lose(0)
            scene.figures["packets lost"] = sum(node.dropped() for node in nodes) - before
            scene.check("packets were lost", scene.figures["packets lost"])

    return lose


async def reset(scene: Scene) -> None:
    """Every TCP connection of a server is reset."""
    async with scene.calls():
        worker = scene.busiest()
        log = ServerLog(worker.state(_LOG))
        scene.site.node_of(worker).reset(on=True)
        try:
            await asyncio.sleep(_RESET_S)
        finally:
            scene.site.node_of(worker).reset(on=False)
        await scene.wait_for_moves(log, _PARTITION_S)
        scene.check("the server had calls", scene.affect(log))


async def half_open(scene: Scene) -> None:
    """Some callers' network is cut: their calls are ended, and no others."""
    site = scene.site
    silent = scene.make_callers(_SILENT_CALLERS)
    thread = NodeThread(site.other_callers_node, silent.run)
    thread.start()
    try:
        async with scene.calls():
            site.other_callers_node.cut()
            logs = GatewayLogs.read(gateway.log_path for gateway in site.gateways)
            open_ones = {one.session_id for one in silent.reports if math.isnan(one.ended_s)}
            theirs = {call for session, call in logs.calls.items() if session in open_ones}
            scene.check("there were callers who vanished", len(theirs))

            async def are_gone() -> bool:
                texts = [worker.state(_LOG).read_text(errors="replace") for worker in site.workers]
                return not any(theirs & open_sessions(text) for text in texts)

            waited = await scene.wait_until(are_gone, _NOTICED_S)
            scene.figures["noticed after, s"] = waited
            late = [] if math.isfinite(waited) else ["their sessions are still open"]
            scene.check(f"their calls are ended within {_NOTICED_S:g} s", len(theirs), late)
    finally:
        site.other_callers_node.mend()
        await asyncio.to_thread(thread.cancel)


async def redis_loss(scene: Scene) -> None:
    """Redis is killed, and comes back empty: calls go on, and new ones are taken."""
    site = scene.site
    async with scene.calls():
        used = site.redis.keys()
        scene.check("gateways count in Redis", used)
        site.redis.kill()
        opened = await scene.increase("parley_gateway_calls_opened_total")
        await asyncio.sleep(_REDIS_S)
        more = await scene.increase("parley_gateway_calls_opened_total") - opened
        scene.check("calls are opened without it", round(more))
        await site.redis.start()


@dataclass(frozen=True)
class Scenario:
    """A disturbance by its name."""

    run: Callable[[Scene], Awaitable[None]]
    promise: str = ""
    """What of "no call is lost" cannot be promised; empty: nothing."""


SCENARIOS: dict[str, Scenario] = {
    "scale-out": Scenario(scale_out),
    "scale-in": Scenario(scale_in),
    "rolling": Scenario(rolling),
    "rolling-gateway": Scenario(rolling_gateway),
    "node-loss": Scenario(node_loss),
    "partition": Scenario(partition),
    "reset": Scenario(reset),
    "loss-5": Scenario(loss(5)),
    "loss-15": Scenario(loss(15)),
    "loss-30": Scenario(loss(30, _UNANSWERED_30), "turns in which a caller gives up after 5 s"),
    "half-open": Scenario(half_open, "calls whose clients have vanished"),
    "redis-loss": Scenario(redis_loss),
    "gateway-loss": Scenario(gateway_loss),
}
