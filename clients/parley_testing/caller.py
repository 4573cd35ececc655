"""A caller: performs the exchanges of a scenario, in real time, and writes everything down."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import ModelUnavailableError, ParleyError
from parley_client.audio.files import Pcm
from parley_client.audio.microphone import PacedMicrophone
from parley_client.call import Call
from parley_client.cli.advice import TOOL_TAKEN
from parley_client.cli.conversation import PlaybackMarks
from parley_client.errors import CallEndedError
from parley_client.events import AgentAudio, CallEvent, Reconnected, Reconnecting
from parley_client.options import Backoff, Deadlines
from parley_client.tools import ToolTable
from parley_client.transport import TritonTransport
from parley_testing.devices import EchoPath, Loudspeaker, Mixer
from parley_testing.line import Line
from parley_testing.log import Act, CallLog, Event, Halt, Sound
from parley_testing.rendering import Studio, background_gain
from parley_testing.scenario import Background, Exchange, Scenario, make_table

_POLL_S = 0.01
_NO_ANSWER_S = 6.0
"""Longest wait for the answer to a turn to begin to be complete, beyond what its tools take."""
_UNANSWERED_S = 1.5
"""So long after something that needs no answer the caller waits for one all the same."""
_SETTLED_S = 0.35
_CUE_S = 15.0
_HANG_UP_S = 60.0
"""Longest wait for an agent that has to end the call."""
_LONGEST_S = 40.0
"""Longest wait for the end of an answer: an agent that hears itself may talk for ever."""
_DEADLINES = Deadlines(connect_s=30.0)
_RETRY = Backoff(attempts=10, initial_s=2.0, factor=1.0, max_s=2.0)
"""While the agent of a call is being read."""
_REPLACEABLE = "Start it with PARLEY_VOICE_AGENT_REPLACEABLE_TOOLS=true, so that scenarios replace its tools"
_STAGGER_S = 0.7  # between the beginnings of calls that run at once


class Activity:
    """Follows the events of one call. Times are seconds of the call.

    Args:
        is_text: the agent writes: an answer is heard when its text comes.
    """

    def __init__(self, *, is_text: bool = False) -> None:
        self._is_text = is_text
        self._state = "listening"
        self._hearing = False  # speech has begun and its final text is still to come
        self._waiting = False  # the agent waits for more of the turn
        self._open: set[int] = set()
        self._closed: dict[int, float] = {}
        self._responses: dict[str, float] = {}
        self._sounded: dict[int, float] = {}
        self._last_busy = 0.0

    @property
    def busy(self) -> bool:
        """Whether the server hears, thinks, waits or speaks."""
        return self._hearing or self._waiting or bool(self._open) or self._state != "listening"

    def on_event(self, event: Event, now: float) -> None:
        """Update the state by an event that arrives."""
        match event:
            case protocol.AgentState():
                self._state = event.state
            case protocol.SpeechStarted():
                self._hearing = True
            case protocol.Transcript(is_final=True):
                self._hearing = False
            case protocol.TurnDecision():
                self._waiting = event.decision == "wait"
                self._hearing = event.decision == "resume"
            case protocol.TurnMetrics():
                self._open.discard(event.turn)
                self._closed[event.turn] = now
            case (
                Sound()
                | protocol.ResponseText()
                | protocol.ToolRequest()
                | protocol.ToolRun()
                | protocol.ResponseDone()
            ):
                if event.turn not in self._closed:
                    self._open.add(event.turn)
                self._note_answer(event, now)
            case _:
                pass
        if self.busy:
            self._last_busy = now

    def _note_answer(self, event: Event, now: float) -> None:
        if isinstance(event, Sound):
            self._responses.setdefault(event.response_id, now)
        if isinstance(event, protocol.ResponseText if self._is_text else Sound):
            self._sounded.setdefault(event.turn, now)

    def extend_busy(self, now: float) -> None:
        """Something else was going on."""
        self._last_busy = max(self._last_busy, now)

    def idle_s(self, now: float) -> float:
        """How long nothing has been going on."""
        return 0.0 if self.busy else now - self._last_busy

    def answered(self, began: float, ended: float) -> bool:
        """Whether an answer that was first heard after ``began`` was done with after ``ended``.

        One that was heard before, and that is interrupted now, answers something else.
        """
        return any(
            at >= ended and self._sounded.get(turn, -1.0) >= began for turn, at in self._closed.items()
        )

    def response_began(self, response_id: str) -> float:
        """When the first audio of a response came."""
        return self._responses.get(response_id, 0.0)


Improvise: TypeAlias = Callable[[CallLog], Awaitable[Exchange | None]]
"""What the caller does next, after all that has happened; None: nothing more."""


class Caller:
    """One call. Of a session whose output is text, the caller writes and has no devices.

    Args:
        call: open; hung up by its owner.
        scenario: what is to be done.
        studio: has its sounds.
        seed: of the room's noise, and of lost packets.
        improvise: goes on after the exchanges of the scenario; None: they are all.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        call: Call,
        scenario: Scenario,
        studio: Studio,
        seed: int = 0,
        *,
        improvise: Improvise | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._is_text = scenario.start.output == "text"
        self._improvise = improvise
        self._call = call
        self._scenario = scenario
        self._studio = studio
        self._log = CallLog(scenario)
        self._mixer = Mixer(seed)
        self._clock = clock
        self._microphone = PacedMicrophone(self._record, clock=clock)
        echo = scenario.caller.echo
        self._loudspeaker = Loudspeaker(None if echo is None else EchoPath(echo, self._mixer).heard)
        person = scenario.caller
        self._line = Line(telephone=person.telephone, loss=person.loss, seed=seed)
        self._activity = Activity(is_text=self._is_text)
        self._marks = PlaybackMarks(call, self._loudspeaker.played_ms)
        self._tools_s = sum(script.delay_ms for script in scenario.tools) / 1000

    async def run(self) -> CallLog:
        """Perform all exchanges, wait for the last answer, and say what happened.

        A call that breaks ends the log with its failure.
        """
        helpers: list[asyncio.Task[None]] = []
        self._microphone.restart()
        try:
            async with asyncio.TaskGroup() as group:
                helpers.append(group.create_task(self._listen(), name="listener"))
                if not self._is_text:
                    helpers += [
                        group.create_task(self._microphone.run(), name="microphone"),
                        group.create_task(self._play(), name="loudspeaker"),
                    ]
                await self._perform_all()
                for helper in helpers:
                    helper.cancel()
        except* ParleyError as failures:
            self._log.failure = "; ".join(
                error.to_wire() for error in failures.exceptions if isinstance(error, ParleyError)
            )
        self._log.ledger, self._log.late = self._loudspeaker.ledger, self._loudspeaker.late
        self._log.microphone_late_ms = 1000 * self._microphone.worst_late_s
        self._log.ended_s = self._now()
        return self._log

    # --- what the caller does -------------------------------------------------------------

    async def _perform_all(self) -> None:
        self._set_background(self._scenario.caller.background)
        before: Act | None = None
        async for exchange in self._exchanges():
            problem = await self._await_cue(exchange, before)
            if problem:
                now = self._now()
                self._log.acts.append(Act(exchange, now, now, problem=problem, staged=False))
                continue
            before = await self._perform(exchange)
        if before is not None:
            await self._until_settled(before, _SETTLED_S)
        if self._scenario.expect.ended_by == "agent":
            await asyncio.sleep(_HANG_UP_S)  # the end of the call ends this

    async def _exchanges(self) -> AsyncIterator[Exchange]:
        for exchange in self._scenario.exchanges:
            yield exchange
        while self._improvise is not None:
            await self._until_settled(self._log.acts[-1] if self._log.acts else None, _SETTLED_S)
            improvised = await self._improvise(self._log)
            if improvised is None:
                return
            yield improvised

    async def _await_cue(self, exchange: Exchange, before: Act | None) -> str:
        """Wait until the exchange is to begin; the reason if that moment never comes."""
        wait_s = exchange.cue.ms / 1000
        if exchange.cue.after == "agent":
            return await self._await_answer(exchange.cue.ms)
        if exchange.cue.after == "caller":
            await self._sleep_until((before.ended_s if before else 0.0) + wait_s)
            return ""
        await self._until_settled(before, max(wait_s, _SETTLED_S))
        return ""

    async def _await_answer(self, heard_ms: float) -> str:
        """Wait until ``heard_ms`` of the answer were played."""
        turn = next((act for act in reversed(self._log.acts) if act.exchange.is_turn), None)
        since = turn.began_s if turn else 0.0

        def reached() -> bool:
            playing = self._loudspeaker.playing(self._now())
            begun = playing is not None and self._activity.response_began(playing) >= since
            return begun and self._loudspeaker.played_ms(playing or "") >= heard_ms

        def over() -> bool:
            return reached() or (self._activity.answered(since, since) and not self._busy())

        if not await self._until(over, _CUE_S):
            return "no answer to speak over"
        return "" if reached() else "the answer was over before"

    async def _perform(self, exchange: Exchange) -> Act:
        if exchange.background is not None:
            self._set_background(exchange.background)
        now = self._now()
        over = self._loudspeaker.playing(now) or ""
        act = Act(exchange, now, now, over=over, over_ms=self._loudspeaker.played_ms(over))
        self._log.acts.append(act)
        clip = self._studio.clip(exchange, self._scenario.caller)
        if clip is not None:
            placed = self._mixer.place(clip)
            act.began_s, act.ended_s, act.pauses = placed.began_s, placed.ended_s, placed.pauses
            await self._sleep_until(placed.ended_s)
        elif exchange.kind == "quiet":
            act.ended_s = now + exchange.quiet_ms / 1000
            await self._sleep_until(act.ended_s)
        elif exchange.kind == "text":
            self._call.send_text(exchange.content)
        else:
            self._call.send_dtmf(exchange.content)
        return act

    async def _until_settled(self, act: Act | None, quiet_s: float) -> None:
        """Wait until nothing has happened for ``quiet_s``, and the act was answered if it is to be."""

        def settled() -> bool:
            now = self._now()
            if self._busy():
                self._activity.extend_busy(now)
                return False
            if act is None:
                return self._activity.idle_s(now) >= quiet_s
            patience = _NO_ANSWER_S + self._tools_s if act.exchange.answered is True else _UNANSWERED_S
            answered = act.exchange.answered is True and self._activity.answered(act.began_s, act.ended_s)
            if answered and self._is_text:
                return True
            return self._activity.idle_s(now) >= quiet_s and (answered or now - act.ended_s >= patience)

        if not await self._until(settled, _LONGEST_S + self._tools_s) and act is not None:
            act.problem = "the agent was never done with it"

    def _busy(self) -> bool:
        return self._activity.busy or self._loudspeaker.queued_ms(self._now()) > 0

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        limit = self._now() + timeout_s
        while not condition():
            if self._now() >= limit:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def _sleep_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._now()))

    def _set_background(self, background: Background | None) -> None:
        loop: NDArray[np.float64] | None = None
        if background is not None:
            gain = background_gain(background.snr_db, self._scenario.caller)
            loop = self._studio.loop(background.sound) * gain
        self._mixer.set_background(loop)

    # --- what the caller hears ------------------------------------------------------------

    async def _listen(self) -> None:
        async for event in self._call:
            self._on_event(event, self._now())
        reason = self._log.closed = self._call.closed.reason if self._call.closed else "unknown"
        raise CallEndedError(f"the server ended the call ({reason})")

    def _on_event(self, event: CallEvent, now: float) -> None:
        if isinstance(event, Reconnecting | Reconnected):
            return  # these calls do not move
        speaker = self._loudspeaker
        if isinstance(event, AgentAudio):
            sound = Sound(event.turn, event.response_id, event.offset_ms, event.duration_ms, event.text)
            self._log.events.append((now, sound))
            self._activity.on_event(sound, now)
            speaker.push(event, now)
            return
        self._log.events.append((now, event))
        self._activity.on_event(event, now)
        if isinstance(event, protocol.Paused | protocol.Interrupted):
            sounding = not speaker.halted and speaker.playing(now) == event.response_id
            self._log.halts.append(Halt(now, event.response_id, speaker.queued_ms(now), sounding))
        if isinstance(event, protocol.Paused):
            speaker.pause(event.response_id, now)
            self._marks.update(None, now)
        elif isinstance(event, protocol.Resumed):
            speaker.resume(event.response_id, now)
        elif isinstance(event, protocol.Interrupted):
            speaker.interrupt(event.response_id, now)

    async def _play(self) -> None:
        """Let the loudspeaker's time pass, and report to the server what has been played."""
        while True:
            await asyncio.sleep(_POLL_S)
            now = self._now()
            self._marks.update(self._loudspeaker.playing(now), now)

    async def _record(self, _silence: Pcm) -> None:
        """Send the next chunk of what sounds, the loudspeaker's echo included."""
        self._loudspeaker.advance(self._now())
        await self._call.send_audio(self._line.send(self._mixer.next_chunk()))

    def _now(self) -> float:
        return self._clock() - self._microphone.began_s


@dataclass(frozen=True)
class CallJob:
    """One call that is to be made."""

    scenario: Scenario
    seed: int = 0
    """Of the room's noise: a repetition does not sound quite the same."""


async def run_calls(
    server: str,
    jobs: Sequence[CallJob],
    studio: Studio,
    *,
    parallel: int,
    turn: protocol.TurnOptions | None,
    on_done: Callable[[CallLog], None] = lambda _: None,
    improvise: Callable[[CallJob], Improvise | None] = lambda _: None,
) -> list[CallLog]:
    """Make the calls, at most ``parallel`` at a time, in their order.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
        jobs: what calls.
        studio: has the sounds of their scenarios.
        parallel: how many at once.
        turn: for the sessions whose scenario says nothing about it; None: the server's choice.
        on_done: called with each call that is over.
        improvise: makes what goes on after the exchanges of a job.
    """
    waiting = list(reversed(jobs))
    logs: list[CallLog] = []

    async def work(number: int) -> None:
        if jobs[0].scenario.start.output == "audio":
            await asyncio.sleep(number * _STAGGER_S)
        while waiting:
            job = waiting.pop()
            log = await _call(server, job, studio, turn, improvise(job))
            logs.append(log)
            on_done(log)

    async with asyncio.TaskGroup() as group:
        for number in range(parallel):
            group.create_task(work(number), name=f"caller {number + 1}")
    return logs


async def _open(transport: TritonTransport, start: protocol.Start, table: ToolTable) -> Call:
    """A call that is open; one instance of a server may read a new agent a moment after another.

    Raises:
        ParleyError: the server refuses it.
    """
    waits = _RETRY.waits(random.Random())
    while True:
        call_id = str(uuid.uuid4())
        stream = await transport.open(call_id, _DEADLINES.connect_s)
        call = Call(stream, call_id, start, tools=table, deadlines=_DEADLINES)
        try:
            await call.open()
        except BaseException as error:
            await call.aclose()
            wait_s = next(waits, None)
            if wait_s is None or not isinstance(error, ModelUnavailableError):
                raise
            await asyncio.sleep(_RETRY.at_least(wait_s, error.retry_after_s))
        else:
            return call


async def _call(
    server: str,
    job: CallJob,
    studio: Studio,
    turn: protocol.TurnOptions | None,
    improvise: Improvise | None,
) -> CallLog:
    table = make_table(job.scenario.tools)
    definitions = [script.definition for script in job.scenario.tools]
    start = msgspec.structs.replace(job.scenario.start, tools=definitions, test=True)
    if turn is not None and start.turn == protocol.TurnOptions():
        start = msgspec.structs.replace(start, turn=turn)
    transport = TritonTransport(server)
    try:
        call = await _open(transport, start, table)
        try:
            return await Caller(call, job.scenario, studio, job.seed, improvise=improvise).run()
        finally:
            await call.aclose()
    except ParleyError as error:
        advice = f". {_REPLACEABLE}" if TOOL_TAKEN in str(error) else ""
        return CallLog(job.scenario, failure=f"{error.to_wire()}{advice}")
    finally:
        await transport.close()
