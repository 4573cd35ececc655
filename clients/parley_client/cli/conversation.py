"""Holds a scripted conversation in real time, as a person with a headset would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from parley.errors import OverloadedError, ParleyError
from parley.timeouts import is_set_within
from parley_client.audio.files import Pcm
from parley_client.audio.microphone import DEFAULT_CHUNK_MS, PacedMicrophone
from parley_client.audio.recording import CallRecording
from parley_client.call import Call
from parley_client.cli.script import ScriptTurn
from parley_client.cli.turns import TurnReport, TurnTracker
from parley_client.cli.view import CallView
from parley_client.errors import CallEndedError, ClientError
from parley_client.events import CallEvent

_INTERVAL_S = 0.2

_POLL_S = 0.01
_SPEECH_GRACE_S = 10.0
_NOTICE_S = 5.0  # the server reports speech as soon as it has begun
_NOTHING_HEARD_S = 1.5  # the agent does not answer an empty transcript, unless something was open
DEFAULT_TURN_TIMEOUT_S = 20.0


class PlaybackMarks:
    """Reports playback of a response periodically while it is played, and at once when it falls silent.

    The last mark of a response that was played to its end is complete; one that is paused stands still.
    """

    def __init__(self, call: Call, played_ms: Callable[[str], float]) -> None:
        self._call = call
        self._played_ms = played_ms
        self._playing: str | None = None
        self._next_s = 0.0

    def update(self, playing: str | None, now: float) -> None:
        """Call this often.

        Args:
            playing: The response that is being played; None: nothing is, or the loudspeaker is paused.
            now: Seconds, monotonic.
        """
        if playing is not None and not self._played_ms(playing):
            playing = None  # it is still to begin
        if self._playing is not None and playing != self._playing:
            if not self._report(self._playing):
                return
        elif playing is not None and now >= self._next_s and self._report(playing):
            self._next_s = now + _INTERVAL_S
        self._playing = playing

    def _report(self, response_id: str) -> bool:
        """Whether the mark was sent, or is not needed any more."""
        try:
            self._call.report_playback(response_id, self._played_ms(response_id))
        except OverloadedError:
            return False  # the queue is full; a later mark says more
        except ClientError:
            pass  # the call has ended; its reader gets the reason
        return True


class ScriptedConversation:
    """A call in which the user speaks recorded clips and listens to the answers.

    An agent that speaks first is heard out before the first turn.

    Args:
        call: An open call.
        view: Shows the call; None: nothing is shown.
        chunk_ms: Length of the microphone's chunks (milliseconds).
        turn_timeout_s: Longest wait for an answer to be complete (seconds); a turn that takes
            longer gets a ``problem``, and the conversation goes on.
        record: Keep the whole call in :attr:`recording`.
        on_event: Gets every event of the call.
    """

    def __init__(
        self,
        call: Call,
        view: CallView | None = None,
        *,
        chunk_ms: int = DEFAULT_CHUNK_MS,
        turn_timeout_s: float = DEFAULT_TURN_TIMEOUT_S,
        record: bool = True,
        on_event: Callable[[CallEvent], object] = lambda _: None,
    ) -> None:
        self._on_event = on_event
        self._call = call
        self._view = view
        self._turn_timeout_s = turn_timeout_s
        self.microphone = PacedMicrophone(self._send, chunk_ms=chunk_ms)
        self.recording = CallRecording(self.microphone.began_s) if record else None
        self.tracker = TurnTracker(self.recording.add_agent if self.recording else None)
        self._may_play = asyncio.Event()
        self._may_play.set()
        self._marks = PlaybackMarks(call, self.tracker.playout.played_ms)

    async def run(self, turns: Iterable[ScriptTurn]) -> list[TurnReport]:
        """Speak the turns one after the other and listen to the last answer.

        The next turn is taken from ``turns`` when the one before has been spoken, and is not answered yet.

        Raises:
            ParleyError: the call broke.
        """
        failure: ParleyError | None = None
        self.tracker.began_s = self.microphone.restart()
        if self.recording is not None:
            self.recording.began_s = self.tracker.began_s
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(self.microphone.run(), name="microphone"),
                    group.create_task(self._listen(), name="listener"),
                    group.create_task(self._keep_playing(), name="loudspeaker"),
                ]
                await self._direct(turns)
                for helper in helpers:
                    helper.cancel()
        except* ParleyError as failures:
            failure = _first(failures)
        finally:
            for report in self.tracker.reports:
                self._judge(report)
        if failure is not None:
            # Not raised above: Python before 3.11.4 wraps what `except*` raises in another group.
            raise failure
        return self.tracker.reports

    def _judge(self, report: TurnReport) -> None:
        """Add what the server reported as failed to the report's problem."""
        failure = report.failure
        is_mute = report.audio_ms == 0 and report.answer.strip() and not report.interrupted
        if not failure and is_mute and self._call.output == "audio":
            failure = "its answer has no audio"
        if failure not in report.problem:
            report.problem = "; ".join(filter(None, (report.problem, failure)))

    # --- what the user does ---------------------------------------------------------------

    async def _direct(self, turns: Iterable[ScriptTurn]) -> None:
        is_greeted = self._call.greets and await is_set_within(self.tracker.greeted, self._turn_timeout_s)
        if is_greeted:
            await self._wait_for_playout()
        before: TurnReport | None = None
        for turn in turns:
            if before is not None:
                await self._wait_for_cue(before, turn)
            elif is_greeted:
                await asyncio.sleep(turn.pause_ms / 1000)
            before = self._enter(turn) if turn.write or turn.press else await self._speak(turn)
        if before is not None:
            await self._wait_for_answer(before)

    async def _wait_for_cue(self, before: TurnReport, turn: ScriptTurn) -> None:
        """Wait until the next turn is to be spoken."""
        if turn.barge_in_ms is None:
            await self._wait_for_answer(before)
            await asyncio.sleep(turn.pause_ms / 1000)
            return
        if not await is_set_within(before.speaking, self._turn_timeout_s):
            before.problem = "no answer to speak over"
            return
        heard_s = time.perf_counter() - (before.answered_s or time.perf_counter())
        await asyncio.sleep(max(0.0, turn.barge_in_ms / 1000 - heard_s))

    async def _speak(self, turn: ScriptTurn) -> TurnReport:
        report = TurnReport(turn.name, said=turn.text)
        self.tracker.begin(report)
        spoken = self.microphone.speak(turn.samples)
        report.speech_began_s, report.speech_ended_s = spoken.began_s, spoken.ended_s
        if self._view is not None:
            # Not when the clip's first sound is due: events are shown by the time at which they come.
            self._view.begin_turn(turn, time.perf_counter() - self.microphone.began_s)
        length = spoken.ended_s - self.microphone.began_s
        if not await is_set_within(spoken.ended, length + _SPEECH_GRACE_S):
            report.problem = "could not be sent in time"
        return report

    def _enter(self, turn: ScriptTurn) -> TurnReport:
        """Type or press keys."""
        report, now = TurnReport(turn.name, said=turn.write or turn.press), time.perf_counter()
        self.tracker.enter(report, now)
        if self._view is not None:
            self._view.begin_turn(turn, now - self.microphone.began_s)
        if turn.write:
            self._call.send_text(turn.write)
        else:
            self._call.send_dtmf(turn.press)
        return report

    async def _wait_for_answer(self, report: TurnReport) -> None:
        """Wait until the server is done with the turn and its audio has been played."""
        if report.problem:
            return
        if not await is_set_within(report.noticed, min(_NOTICE_S, self._turn_timeout_s)):
            report.problem = "no speech was noticed in it"
            return
        if not await is_set_within(report.transcribed, self._turn_timeout_s):
            report.problem = f"not heard within {self._turn_timeout_s:g} s"
            return
        if not report.heard and not await is_set_within(report.settled, _NOTHING_HEARD_S):
            report.problem = "heard, but no word of it understood"
            return
        if not await self._settled(report):
            report.problem = f"no complete answer within {self._turn_timeout_s:g} s"
            return
        if not await self._wait_for_playout():
            report.problem = f"paused, and nothing more was heard for {self._turn_timeout_s:g} s"

    async def _settled(self, report: TurnReport) -> bool:
        """Wait for the complete answer, or for that of the turn before if it went on."""
        if not await is_set_within(report.settled, self._turn_timeout_s):
            return False
        if report.cut_itself and await is_set_within(
            report.answered_again, min(_NOTICE_S, self._turn_timeout_s)
        ):
            return await is_set_within(report.settled, self._turn_timeout_s)
        if report.goes_on is None:
            return True
        if not await is_set_within(report.goes_on.settled, self._turn_timeout_s):
            return False
        # It may have been interrupted while it was awaited.
        return await is_set_within(report.settled, self._turn_timeout_s)

    async def _wait_for_playout(self) -> bool:
        """Wait until all audio was played; False: the loudspeaker stayed paused for too long."""
        playout = self.tracker.playout
        limit_s = self._turn_timeout_s + playout.queued_s(time.perf_counter())
        try:
            async with asyncio.timeout(limit_s):
                while playout.paused or playout.queued_s(time.perf_counter()) > 0:
                    await self._may_play.wait()
                    await asyncio.sleep(playout.queued_s(time.perf_counter()))
        except TimeoutError:
            return False
        self._mark_playback()
        return True

    async def _send(self, chunk: Pcm) -> None:
        if self.recording is not None:
            self.recording.add_user(chunk)
        await self._call.send_audio(chunk)

    # --- what the user hears --------------------------------------------------------------

    async def _listen(self) -> None:
        async for event in self._call:
            now = time.perf_counter()
            self._on_event(event)
            self.tracker.on_event(event, now)
            self._update_pause()
            if self._view is not None:
                self._view.show(event, now - self.microphone.began_s)
        reason = self._call.closed.reason if self._call.closed else "unknown"
        raise CallEndedError(f"the server ended the call ({reason}) before the script was over")

    def _update_pause(self) -> None:
        if self.tracker.playout.paused:
            self._may_play.clear()
        else:
            self._may_play.set()
        self._mark_playback()

    async def _keep_playing(self) -> None:
        """Let the loudspeaker's time pass, and report to the server what has been played."""
        while True:
            await asyncio.sleep(_POLL_S)
            self._mark_playback()

    def _mark_playback(self) -> None:
        now = time.perf_counter()
        self._marks.update(self.tracker.playout.playing(now), now)


def _first(failures: BaseExceptionGroup[ParleyError]) -> ParleyError:
    """The failure that came first: the others are its consequences."""
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, ParleyError)
    return found
