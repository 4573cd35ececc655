"""Callers who hold a number of calls at once, and what becomes of their turns."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from parley.errors import ParleyError
from parley.protocol import INPUT_SAMPLE_RATE
from parley.timeouts import is_set_within
from parley_client.call import Call
from parley_client.cli.capacity.search import Verdict
from parley_client.cli.capacity.tail import Tail, tail_of
from parley_client.cli.capacity.usage import UsageMeter
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.script import ScriptTurn
from parley_client.cli.turns import TurnReport

LOOKS = (0.25, 0.5, 1.0, 2.0)
"""After these shares of the wanted turns a level is judged, until its verdict is sure."""
_STAGGER_S = 0.43
"""Between the beginnings of two calls: callers are not in step with each other."""
_HEARING_S = 20.0
"""For the deadline of a level: to hear the answer of a turn, and to call again."""
_UNCOUNTED_TURNS = 3
"""For the deadline of a level: turns of a caller that begin before the count, or are over after it."""


@dataclass
class LevelResult:
    """What a number of calls at once measured."""

    calls: int
    waits_ms: list[float] = field(default_factory=list)
    """True end of speech to first audio; infinite where a turn had no answer, or one before its end."""
    unanswered: int = 0
    """Turns without an answer, or with an error of the server's."""
    cut_off: int = 0
    """Turns that were answered before their end: the agent spoke over the user."""
    refused: list[str] = field(default_factory=list)
    """Codes of calls that were not accepted."""
    lost: list[str] = field(default_factory=list)
    """Codes of calls that broke."""
    overdue_s: float | None = None
    """The deadline by which the level was not over (seconds); None: it was."""
    late_ms: float = 0.0
    """By how much the latest chunk of all microphones left after its time: the callers' fault."""
    wall_s: float = 0.0
    cpus: float | None = None
    """Busy processors of the server in the mean while turns counted; None: not known."""
    gpus: float | None = None
    """Busy GPUs in the mean while turns counted; None: not known."""
    verdict: Verdict = Verdict.UNSURE

    @property
    def tail(self) -> Tail | None:
        """The 95th percentile of the waits; None: there are none."""
        return tail_of(self.waits_ms) if self.waits_ms else None

    @property
    def turns(self) -> int:
        """All that count."""
        return len(self.waits_ms)

    def add(self, report: TurnReport) -> None:
        """Count a turn that is over."""
        wait_ms = report.voice_to_voice_ms
        if report.problem or wait_ms is None:
            self.unanswered += 1
            self.waits_ms.append(math.inf)
        elif wait_ms < 0:
            self.cut_off += 1
            self.waits_ms.append(math.inf)
        else:
            self.waits_ms.append(wait_ms)

    def judge(self, limit_ms: float) -> Verdict:
        """Whether the level is held.

        That takes an end within the deadline, no call refused or lost, and a percentile that is surely within
        the limit.
        """
        if self.refused or self.lost or self.overdue_s is not None:
            return Verdict.BROKEN
        tail = self.tail
        if tail is None:
            return Verdict.UNSURE
        if tail.high <= limit_ms:
            return Verdict.HELD
        return Verdict.BROKEN if tail.low > limit_ms else Verdict.UNSURE


@dataclass(frozen=True)
class CallPlan:
    """What every caller does."""

    connect: Callable[[], AbstractAsyncContextManager[Call]]
    """Opens a call; tries once, so that a refusal is seen."""
    turns: Sequence[ScriptTurn]
    """Of one call; then the caller hangs up and calls again."""
    chunk_ms: int
    turn_timeout_s: float

    def deadline_s(self, calls: int, turns: int) -> float:
        """How long a level may last: each of its turns its speech, its pause, its timeout and its answer."""
        longest = max(turn.pause_ms / 1000 + len(turn.samples) / INPUT_SAMPLE_RATE for turn in self.turns)
        of_a_caller = math.ceil(turns * LOOKS[-1] / calls) + _UNCOUNTED_TURNS
        return calls * _STAGGER_S + of_a_caller * (longest + self.turn_timeout_s + _HEARING_S)


async def hold_level(
    plan: CallPlan, calls: int, turns: int, limit_ms: float, usage: UsageMeter | None = None
) -> LevelResult:
    """Hold calls until the verdict is sure, or twice the wanted turns were held.

    Turns count from when each caller has been connected once. At the end every caller finishes the turn that
    it is in, so that slow turns are not left out. A level that is not over by its deadline is given up, and
    broken.

    Args:
        plan: what callers do.
        calls: how many at once.
        turns: after which a level that is well within the limit is surely held.
        limit_ms: of the 95th percentile.
        usage: measures while turns count, and no longer: neither while calls begin, nor while they end.
    """
    usage = usage or UsageMeter(None)
    result = LevelResult(calls)
    level = _Level(plan, result)
    deadline_s = plan.deadline_s(calls, turns)
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
            for number in range(calls):
                group.create_task(level.call_again(number), name=f"caller {number}")
            try:
                if await level.wait_for_count():
                    async with usage:
                        await _look(level, result, turns, limit_ms)
            finally:
                level.stop()
    except TimeoutError:
        result.overdue_s = deadline_s
    result.wall_s = time.monotonic() - began_s
    result.cpus, result.gpus = usage.cpus, usage.busy_gpus
    # Turns that were finished at the end may have changed it.
    result.verdict = result.judge(limit_ms)
    return result


async def _look(level: _Level, result: LevelResult, turns: int, limit_ms: float) -> None:
    """Judge the level at every look, until its verdict is sure."""
    for share in LOOKS:
        await level.wait_for(math.ceil(turns * share))
        if result.judge(limit_ms) != Verdict.UNSURE:
            return


class _Level:
    """The callers of a level, and the gate behind which their turns count."""

    def __init__(self, plan: CallPlan, result: LevelResult) -> None:
        self._plan = plan
        self._result = result
        self._connected: set[int] = set()
        """Numbers of the callers that have been connected."""
        self._counts_from_s = math.inf
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let every caller finish its turn, and hang up."""
        self._stopping.set()
        self._changed.set()

    async def wait_for_count(self) -> bool:
        """Wait until turns count; False: a call was refused or lost before."""
        await self._wait_until(lambda: math.isfinite(self._counts_from_s))
        return not self._stopping.is_set()

    async def wait_for(self, turns: int) -> None:
        """Until so many turns count, or a call was refused or lost."""
        await self._wait_until(lambda: self._result.turns >= turns)

    async def _wait_until(self, is_true: Callable[[], bool]) -> None:
        while not is_true() and not self._stopping.is_set():
            self._changed.clear()
            await self._changed.wait()

    async def call_again(self, number: int) -> None:
        """Call until the level ends."""
        await is_set_within(self._stopping, number * _STAGGER_S)
        while not self._stopping.is_set():
            await self._call(number)

    async def _call(self, number: int) -> None:
        is_connected = False
        try:
            async with self._plan.connect() as call:
                is_connected = True
                self._on_connected(number)
                await self._converse(call, number)
                await call.hang_up()
        except ParleyError as error:
            (self._result.lost if is_connected else self._result.refused).append(error.code)
            self.stop()

    def _on_connected(self, number: int) -> None:
        """Begin the count with the last caller's first call.

        A count that waited for all calls to be open at once might never begin, because callers hang up and
        call again.
        """
        self._connected.add(number)
        if math.isinf(self._counts_from_s) and len(self._connected) == self._result.calls:
            self._counts_from_s = time.perf_counter()
            self._changed.set()

    async def _converse(self, call: Call, number: int) -> None:
        plan = self._plan
        conversation = ScriptedConversation(
            call, chunk_ms=plan.chunk_ms, turn_timeout_s=plan.turn_timeout_s, record=False
        )
        try:
            reports = await conversation.run(self._turns(conversation.tracker.reports, number))
        finally:
            late_ms = 1000 * conversation.microphone.worst_late_s
            self._result.late_ms = max(self._result.late_ms, late_ms)
        self._count(reports[-1:])

    def _turns(self, reports: Sequence[TurnReport], number: int) -> Iterator[ScriptTurn]:
        """The turns of a call, until the level ends.

        A turn is asked for while the one before it is being answered; the one before that is over: it counts.
        """
        turns = self._plan.turns
        for index in range(len(turns)):
            self._count(reports[index - 2 : index - 1] if index > 1 else ())
            if self._stopping.is_set():
                return
            yield turns[(number + index) % len(turns)]
        self._count(reports[len(turns) - 2 : len(turns) - 1] if len(turns) > 1 else ())

    def _count(self, reports: Sequence[TurnReport]) -> None:
        for report in reports:
            if (report.speech_began_s or 0.0) >= self._counts_from_s:
                self._result.add(report)
                self._changed.set()
