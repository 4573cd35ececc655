"""A caller who holds one call in real time, in greenlets of gevent."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import gevent
from gevent.event import Event
from gevent.pool import Group

from load.lines import Line
from load.microphone import Microphone
from load.plan import Plan, Sentence
from load.state import Answer, CallError, CallState, LostError, RefusedError, Row, Speech
from parley import protocol
from parley_client.audio.playout import PlayoutClock
from parley_client.cli.conversation import PlaybackMarks
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.events import AgentAudio, CallEvent
from parley_client.tools import ToolTable

GREETING = "Good day."
_CONNECT_S = 30.0
_ANSWER_S = 20.0
_MAYBE_S = 3.0
"""How long a caller waits for an answer to a command, which may have none."""
_HEARD_S = 90.0
_CLOSE_S = 10.0
_STREAM_END_S = 2.0
_IDLE_S = 75.0
"""The server closes a session of which nothing comes after 60 s, unless it is configured otherwise."""

_TOOLS = ToolTable(DEMO_TOOLS).definitions
_OUTPUTS = {"get_weather": {"temperature": 8, "sky": "foggy"}, "get_time": {"time": "20:54"}}
_DONE = {"ok": True}


class OverdueError(gevent.GreenletExit):
    """Kills the greenlet of a call that did not end in time; the call counts as lost."""


class _LeavingError(Exception):
    """The caller leaves now."""


@dataclass(frozen=True)
class Surroundings:
    """What a caller has from the run that it belongs to."""

    report: Callable[[Row], None]
    """Gets every measurement."""
    is_stopping: Callable[[], bool]
    """Whether the run is over, so that callers hang up."""
    strays: Group
    """Gets the greenlets of calls that the server has still to end, after the caller has vanished."""


class Caller:
    """One call.

    Args:
        line: its connection, which the caller owns.
        plan: what the caller does.
        around: the run.
    """

    def __init__(self, line: Line, plan: Plan, around: Surroundings) -> None:
        self._line = line
        self._plan = plan
        self._around = around
        self._began_s = time.monotonic()
        self._state = CallState(around.report, self._began_s)
        self._playout = PlayoutClock()
        self._marks = PlaybackMarks(self, self._playout.played_ms)  # type: ignore[arg-type]  # of a Call
        self._microphone = Microphone(plan.chunk_ms, self._began_s)
        self._changed = Event()
        self._failure: Exception | None = None
        self._leaves_at_s: float | None = None
        self._ends = False
        self._has_vanished = False
        self._listening: gevent.Greenlet | None = None
        self._speaking: gevent.Greenlet | None = None

    def hold(self) -> None:
        """Hold the call to its end; whatever comes of it is reported.

        Only what is wrong with the caller itself is raised.
        """
        error: CallError | None = None
        try:
            self._open()
            with suppress(_LeavingError):
                self._converse()
            self._end()
        except CallError as failure:
            error = failure
        except OverdueError:
            self._around.report(Row("call", error=LostError("did not end in time")))
            raise
        finally:
            self._free()
        self._around.report(Row("call", 1000 * (time.monotonic() - self._began_s), error))

    # --- what the caller does -----------------------------------------------------------------------------

    def _open(self) -> None:
        self._line.open(protocol.Start(greeting=GREETING, tools=_TOOLS))
        self._listening = gevent.spawn(self._listen)
        state = self._state
        if not self._wait(lambda: bool(state.connected or state.refusal), _CONNECT_S, leaves=False):
            raise LostError("no connected event")
        if state.refusal:
            self._ends = True
            # Only END frees the place of a session, also of one that was refused.
            with suppress(CallError):
                self._line.hang_up()
                self._wait(lambda: bool(state.closed), _CLOSE_S, leaves=False)
            raise RefusedError(state.refusal)
        self._microphone = Microphone(self._plan.chunk_ms, time.monotonic())
        self._speaking = gevent.spawn(self._speak)

    def _converse(self) -> None:
        state, plan = self._state, self._plan
        self._wait(lambda: state.greeting is not None, _ANSWER_S)
        state.settle_greeting()
        greeting = state.greeting
        if greeting is not None:
            self._hear_out(lambda: greeting.is_over)
        for number, sentence in enumerate(plan.sentences):
            speech = self._say(sentence)
            if plan.ending != "complete" and number == plan.leaves_in:
                self._leaves_at_s = time.monotonic() + plan.leaves_after_s
            following = plan.sentences[number + 1] if number + 1 < len(plan.sentences) else None
            self._hear(speech, following)

    def _say(self, sentence: Sentence) -> Speech:
        self._wait(lambda: False, sentence.pause_s if sentence.over_ms is None else 0.0)
        over = self._playout.playing(time.monotonic())
        return self._state.say(
            self._microphone.say(sentence.recording),
            expects_answer=sentence.expects_answer,
            over=over,
            heard_ms=self._playout.played_ms(over) if over else 0.0,
        )

    def _hear(self, speech: Speech, following: Sentence | None) -> None:
        """Wait until the answer was heard, or so much of it that the next sentence is spoken over it."""
        state = self._state
        limit_s = _ANSWER_S if speech.expects_answer else _MAYBE_S
        limit_s += max(0.0, speech.spoken.ended_s - time.monotonic())
        self._wait(lambda: state.is_answered(speech, time.monotonic()), limit_s)
        if speech.answer is not None and following is not None and following.over_ms is not None:
            answer, over_ms = speech.answer, following.over_ms
            self._wait(lambda: self._is_heard(answer, over_ms), _HEARD_S)
        else:
            self._hear_out(lambda: speech.answer is None or speech.answer.is_over)
        state.settle(speech)

    def _is_heard(self, answer: Answer, over_ms: int) -> bool:
        """Whether so much of an answer was heard, or all of it."""
        now = time.monotonic()
        playing = self._playout.playing(now)
        if playing is not None and self._playout.played_ms(playing) >= over_ms:
            return True
        return answer.is_over and self._is_quiet(now)

    def _hear_out(self, is_over: Callable[[], bool]) -> None:
        """Wait until an answer is over and was heard."""
        if not self._wait(lambda: is_over() and self._is_quiet(time.monotonic()), _HEARD_S):
            raise LostError("an answer did not end")

    def _is_quiet(self, now: float) -> bool:
        self._playout.advance(now)
        return not self._playout.paused and self._playout.queued_s(now) <= 0

    def _end(self) -> None:
        self._ends = True
        if self._speaking is not None:
            self._speaking.kill(timeout=_STREAM_END_S)
        self._around.report(Row("microphone", 1000 * self._microphone.worst_late_s))
        if self._plan.ending == "vanish" and not self._around.is_stopping():
            self._vanish()
            return
        self._line.hang_up()
        state = self._state
        if not self._wait(lambda: bool(state.closed), _CLOSE_S, leaves=False):
            raise LostError("no closed event")
        if state.closed not in ("ended", "hangup"):
            raise LostError(state.closed)

    def _vanish(self) -> None:
        line, listening = self._line, self._listening
        line.vanish()
        self._has_vanished = True

        def wait_for_end() -> None:
            try:
                if listening is not None:
                    listening.join(timeout=_IDLE_S)
            finally:
                _stop(listening)
                line.close()

        self._around.strays.spawn(wait_for_end)

    def _free(self) -> None:
        self._ends = True
        _stop(self._speaking)
        if self._has_vanished:
            return
        if self._listening is not None:
            # Triton before 25.04 may not survive a stream that is cancelled while it ends.
            self._listening.join(timeout=_STREAM_END_S)
            _stop(self._listening)
        self._line.close()

    def _wait(self, is_there: Callable[[], bool], limit_s: float, *, leaves: bool = True) -> bool:
        """Wait until something is there; returns whether it is, within the limit.

        Raises:
            CallError: the call broke.
            Exception: another greenlet of the call failed.
            _LeavingError: with ``leaves``: the caller leaves first.
        """
        until_s = time.monotonic() + limit_s
        while not is_there():
            if self._failure is not None:
                raise self._failure
            now = time.monotonic()
            if leaves and (self._around.is_stopping() or self._is_leaving(now)):
                raise _LeavingError
            if now >= until_s:
                return False
            self._changed.clear()
            self._changed.wait(until_s - now)
        return True

    def _is_leaving(self, now: float) -> bool:
        return self._leaves_at_s is not None and now >= self._leaves_at_s

    # --- the microphone, the loudspeaker and what is heard ------------------------------------------------

    def _speak(self) -> None:
        """Send chunk after chunk, at the pace of a microphone."""
        try:
            while True:
                gevent.sleep(max(0.0, self._microphone.due_s - time.monotonic()))
                now = time.monotonic()
                self._line.send_audio(self._microphone.next_chunk(now))
                self._marks.update(self._playout.playing(now), now)
                self._changed.set()
        except Exception as error:  # noqa: BLE001 - the greenlet that waits raises it
            self._fail(error)

    def _listen(self) -> None:
        """Take events until the connection ends."""
        try:
            while (event := self._line.receive()) is not None:
                self._on_event(event, time.monotonic())
            if not self._state.closed:
                self._fail(LostError("the stream ended"))
        except Exception as error:  # noqa: BLE001 - the greenlet that waits raises it
            self._fail(error)

    def _on_event(self, event: CallEvent, now: float) -> None:
        if self._has_vanished:
            return
        self._state.on_event(event, now)
        match event:
            case AgentAudio():
                self._playout.push(event, now)
            case protocol.Paused():
                self._playout.pause(event.response_id, now)
            case protocol.Resumed():
                self._playout.resume(event.response_id, now)
            case protocol.Interrupted():
                self._playout.interrupt(event.response_id, now)
            case protocol.ToolRequest() if not self._ends:
                output = _OUTPUTS.get(event.name, _DONE)
                self._line.send_message(protocol.ToolResponse(call_id=event.call_id, output=output))
            case protocol.Closed() if not self._ends and self._state.connected:
                self._fail(LostError(event.reason))
            case _:
                pass
        self._changed.set()

    def report_playback(self, response_id: str, played_ms: float) -> None:
        """Send a mark; called by the marks."""
        self._line.send_message(protocol.Playback(response_id=response_id, played_ms=round(played_ms)))

    def _fail(self, error: Exception) -> None:
        """The first failure counts: the others are its consequences."""
        if self._failure is None and not (self._ends and self._state.closed):
            self._failure = error
        self._changed.set()


def _stop(greenlet: gevent.Greenlet | None) -> None:
    if greenlet is not None:
        greenlet.kill(timeout=_STREAM_END_S)
