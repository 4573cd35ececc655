"""A scripted conversation with a fake agent, and how events become turn reports."""

from __future__ import annotations

import asyncio
import io
import json

import msgspec
import numpy as np
import pytest
from fake_agent import CONNECTED, FakeAgent, polite, serve
from rich.console import Console
from rich.text import Text

from parley import protocol
from parley.errors import ModelUnavailableError
from parley_client import NO_RETRY, AgentAudio, CallEndedError, CallLostError, connect
from parley_client.audio.files import speech_span
from parley_client.audio.microphone import PacedMicrophone
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.output import STAGES, by_stage, latency_table, print_reports, print_slowness
from parley_client.cli.script import ScriptTurn
from parley_client.cli.turns import TurnReport, TurnTracker, percentile
from parley_client.cli.view import CallView, make_console
from parley_client.events import Reconnected, Reconnecting

RATE = 22_050


def clip(ms=60):
    return np.full(16 * ms, 1000, np.int16)


def write(stream, turn, text):
    stream.say(protocol.ResponseText(turn=turn, response_id=f"r{turn}", text=text))


def speak(stream, turn, count):
    event = protocol.Audio(turn=turn, response_id=f"r{turn}", offset_ms=0, sample_rate=RATE, samples=count)
    stream.say(event, np.full(count, 700, np.int16))


def finish(stream, turn, audio_ms, **figures):
    stream.say(protocol.ResponseDone(turn=turn, response_id=f"r{turn}", audio_ms=audio_ms))
    stream.say(protocol.TurnMetrics(turn=turn, **figures))


class TinyAgent:
    """Takes sound for a turn when silence follows, answers each with audio, and can be interrupted."""

    def __init__(self, answer_ms=60, answers=True, understands=True) -> None:
        self.understands = understands
        self.answer_ms = answer_ms
        self.answers = answers
        self.turn = 0
        self.speaking = False
        self.open_answer = False
        self.heard_samples = 0
        self.played: list[protocol.Playback] = []

    async def __call__(self, stream):
        await stream.begin()
        while (frame := await stream.frames.get()) is not None:
            if frame.message:
                self.played.append(protocol.decode_message(frame.message))
            loud = any(frame.audio)
            self.heard_samples += len(frame.audio) // 2
            if loud and not self.speaking:
                self.speaking = True
                stream.say(protocol.SpeechStarted(at_ms=0))
                if self.open_answer:
                    self.interrupt(stream)
            elif frame.audio and not loud and self.speaking:
                self.speaking = False
                self.answer(stream)
            if frame.end:
                stream.hang_up()
            stream.acknowledge(frame)
        stream.end()

    def interrupt(self, stream):
        self.open_answer = False
        stream.say(
            protocol.Interrupted(turn=self.turn, response_id=f"r{self.turn}", played_ms=1, spoken_text="so")
        )
        stream.say(protocol.TurnMetrics(turn=self.turn, interrupted=True))

    def answer(self, stream):
        self.turn += 1
        turn = self.turn
        stream.say(protocol.SpeechStopped(at_ms=1, detected_at_ms=self.heard_samples // 16))
        text = f"said {turn}" if self.understands else ""
        stream.say(protocol.Transcript(utterance=turn, text=text, is_final=True, confidence=1))
        if not self.answers:
            return
        stream.say(protocol.ToolRequest(turn=turn, call_id=f"c{turn}", name="t", arguments={}))
        write(stream, turn, f"answer {turn}")
        speak(stream, turn, RATE * self.answer_ms // 1000)
        self.open_answer = self.answer_ms > 1000
        if not self.open_answer:
            finish(stream, turn, self.answer_ms, asr_final_ms=5.0)


class Watcher:
    def __init__(self):
        self.turns, self.events = [], []
        self.begun = asyncio.Event()

    def begin_turn(self, turn, at_s):
        self.turns.append(turn.name)
        self.begun.set()

    def show(self, event, at_s):
        self.events.append(event)


def line(agent):
    return connect(transport=FakeAgent(agent), retry=NO_RETRY, tools=[protocol.Tool(name="t")])


async def test_turns_are_spoken_answered_and_measured():
    agent, watcher = TinyAgent(), Watcher()
    async with line(agent) as call:
        conversation = ScriptedConversation(call, watcher, chunk_ms=10)
        turns = [ScriptTurn(name, clip(), pause_ms=20) for name in ("one", "two")]
        reports = await conversation.run(turns)
    assert [report.name for report in reports] == watcher.turns == ["one", "two"]
    assert [report.heard for report in reports] == ["said 1", "said 2"]
    assert [report.answer for report in reports] == ["answer 1", "answer 2"]
    for report in reports:
        assert report.problem == ""
        assert report.metrics.asr_final_ms == 5.0
        assert [request.name for request in report.tools] == ["t"]
        assert 0 <= report.stages["detection"] <= report.voice_to_voice_ms < 1000
        assert report.stages["barge_in_stop"] is None
        assert report.speech_began_s < report.speech_ended_s <= report.detected_s <= report.answered_s
    assert reports[1].speech_began_s > reports[0].answered_s + 0.06  # only after the answer was heard
    assert agent.played[-1].response_id == "r2"
    assert agent.played[-1].played_ms == pytest.approx(60, abs=1)
    user, heard = conversation.recording.tracks(16_000)
    first, last = speech_span(heard)
    assert first / 16_000 == pytest.approx(reports[0].answered_s - conversation.microphone.began_s, abs=0.002)
    assert last > first
    assert np.count_nonzero(user) == 2 * 16 * 60


async def test_a_turn_speaks_over_the_answer_before_it():
    async with line(TinyAgent(answer_ms=5000)) as call:
        conversation = ScriptedConversation(call, chunk_ms=10, turn_timeout_s=1.0)
        story, stop = await conversation.run(
            [ScriptTurn("story", clip()), ScriptTurn("stop", clip(), barge_in_ms=100)]
        )
    assert (story.interrupted, story.answer) == (True, "so")
    assert stop.barge_in
    assert 0 <= stop.stages["barge_in_stop"] < 500
    assert 0.085 <= stop.speech_began_s - story.answered_s < 0.5
    heard_s = conversation.tracker.playout.played_ms("r1") / 1000
    assert heard_s == pytest.approx(stop.silenced_s - story.answered_s, abs=0.01)


class Reading(TinyAgent):
    """Greets, and answers what is typed and pressed."""

    greeting_ms = 150

    async def __call__(self, stream):
        await stream.frames.get()
        stream.say(msgspec.structs.replace(CONNECTED, greets=True))
        speak(stream, 0, RATE * self.greeting_ms // 1000)
        finish(stream, 0, self.greeting_ms)
        self.entered = []
        while (frame := await stream.frames.get()) is not None:
            message = protocol.decode_message(frame.message) if frame.message else None
            if isinstance(message, protocol.Text | protocol.Dtmf):
                self.entered.append(message)
                self.answer(stream)
            if frame.end:
                stream.hang_up()
            stream.acknowledge(frame)
        stream.end()

    def answer(self, stream):
        self.turn += 1
        write(stream, self.turn, f"answer {self.turn}")
        speak(stream, self.turn, 100)
        finish(stream, self.turn, 5)


async def test_turns_are_typed_and_pressed_after_the_greeting_was_heard():
    agent, watcher = Reading(), Watcher()
    silent = np.zeros(0, np.int16)
    async with line(agent) as call:
        conversation = ScriptedConversation(call, watcher, chunk_ms=10, turn_timeout_s=2.0)
        reports = await conversation.run(
            [
                ScriptTurn("typed", silent, write="two coffees", pause_ms=0),
                ScriptTurn("keys", silent, press="12#", pause_ms=0),
            ]
        )
    assert agent.entered == [protocol.Text(text="two coffees"), protocol.Dtmf(digits="12#")]
    assert [(report.heard, report.answer, report.problem) for report in reports] == [
        ("two coffees", "answer 1", ""),
        ("12#", "answer 2", ""),
    ]
    assert watcher.turns == ["typed", "keys"]
    assert conversation.tracker.playout.played_ms("r0") == pytest.approx(150, abs=0.1)
    assert reports[0].speech_began_s - conversation.microphone.began_s >= 0.15
    assert 0 <= reports[0].voice_to_voice_ms < 1000


class Doubtful(TinyAgent):
    """Pauses when the user speaks over it, and goes on as soon as there is silence."""

    def __init__(self, **options) -> None:
        super().__init__(answer_ms=1500, **options)
        self.paused = self.resumed = 0

    def interrupt(self, stream):
        self.paused += 1
        stream.say(
            protocol.Paused(turn=self.turn, response_id=f"r{self.turn}", at_ms=self.heard_samples // 16)
        )

    def answer(self, stream):
        if self.paused == self.resumed:
            super().answer(stream)
            return
        self.resumed += 1
        stream.say(
            protocol.Resumed(turn=self.turn, response_id=f"r{self.turn}", reason="backchannel", text="mhm")
        )
        finish(stream, self.turn, 1500)


async def test_an_mhm_pauses_the_answer_which_is_then_heard_to_its_end():
    agent = Doubtful()
    async with line(agent) as call:
        conversation = ScriptedConversation(call, chunk_ms=10, turn_timeout_s=3.0)
        story, mhm = await conversation.run(
            [ScriptTurn("story", clip()), ScriptTurn("mhm", clip(200), barge_in_ms=100)]
        )
    assert agent.paused == agent.resumed == 1
    assert (story.problem, mhm.problem) == ("", "")
    assert (story.interrupted, mhm.barge_in) == (False, False)
    assert story.answer == "answer 1"
    assert agent.played[-1] == protocol.Playback(response_id="r1", played_ms=1500)
    _, heard = conversation.recording.tracks(16_000)
    silent = np.flatnonzero(np.diff(np.flatnonzero(heard)) > 160)
    assert len(silent) <= 1  # as long as the mhm: none if the machine was so busy that it came at once
    assert np.count_nonzero(heard) == pytest.approx(1500 * 16, abs=64)


async def test_a_pause_that_never_ends_is_a_problem_and_the_conversation_goes_on():
    class Undecided(Doubtful):
        def answer(self, stream):
            if not self.paused:
                TinyAgent.answer(self, stream)
            else:
                stream.say(protocol.Transcript(utterance=2, text="mhm", is_final=True, confidence=1))
                write(stream, 2, "Yes?")
                stream.say(protocol.TurnMetrics(turn=2))

    async with line(Undecided()) as call:
        reports = await ScriptedConversation(call, chunk_ms=10, turn_timeout_s=0.5).run(
            [ScriptTurn("story", clip()), ScriptTurn("mhm", clip(), barge_in_ms=50)]
        )
    assert reports[1].problem == "paused, and nothing more was heard for 0.5 s"


async def test_a_missing_answer_is_a_problem_and_the_conversation_goes_on():
    async with line(TinyAgent(answers=False)) as call:
        conversation = ScriptedConversation(call, chunk_ms=10, turn_timeout_s=0.1)
        reports = await conversation.run(
            [ScriptTurn("one", clip(), pause_ms=0), ScriptTurn("two", clip(), barge_in_ms=10)]
        )
    assert [report.problem for report in reports] == [
        "no answer to speak over",
        "no complete answer within 0.1 s",
    ]


async def test_words_that_are_not_understood_are_not_waited_for(monkeypatch):
    monkeypatch.setattr("parley_client.cli.conversation._NOTHING_HEARD_S", 0.02)
    async with line(TinyAgent(answers=False, understands=False)) as call:
        (report,) = await ScriptedConversation(call, chunk_ms=10).run([ScriptTurn("one", clip())])
    assert report.problem == "heard, but no word of it understood"


async def test_a_deaf_agent_is_a_problem():
    async with line(polite) as call:
        conversation = ScriptedConversation(call, chunk_ms=10, turn_timeout_s=0.05)
        (report,) = await conversation.run([ScriptTurn("one", clip())])
    assert report.problem == "no speech was noticed in it"


async def test_speech_without_a_transcript_is_a_problem():
    async def notices(stream):
        sent = []

        def on_frame(frame):
            if any(frame.audio) and not sent:
                sent.append(stream.say(protocol.SpeechStarted(at_ms=0)))

        await serve(stream, on_frame)

    async with line(notices) as call:
        conversation = ScriptedConversation(call, chunk_ms=10, turn_timeout_s=0.05)
        (report,) = await conversation.run([ScriptTurn("one", clip())])
    assert report.problem == "not heard within 0.05 s"


async def test_silence_is_not_waited_for_as_long_as_an_answer(monkeypatch):
    monkeypatch.setattr("parley_client.cli.conversation._NOTICE_S", 0.05)
    async with line(polite) as call, asyncio.timeout(5):
        (report,) = await ScriptedConversation(call, chunk_ms=10).run([ScriptTurn("one", clip() * 0)])
    assert report.problem == "no speech was noticed in it"


async def test_a_lost_call_ends_the_conversation():
    async def breaks(stream):
        await stream.begin()
        for _ in range(3):
            await stream.frames.get()
        stream.fail(ModelUnavailableError("gone"))

    async with line(breaks) as call:
        with pytest.raises(CallLostError, match="gone"):
            await ScriptedConversation(call, chunk_ms=10).run([ScriptTurn("one", clip())])


async def test_a_call_that_the_server_ends_ends_the_conversation():
    async def closes(stream):
        await stream.begin()
        await stream.frames.get()
        stream.close("shutdown")

    async with line(closes) as call:
        with pytest.raises(CallEndedError, match="shutdown"):
            await ScriptedConversation(call, chunk_ms=10).run([ScriptTurn("one", clip())])


async def test_cancelling_a_conversation_leaves_no_task_behind():
    before, watcher = asyncio.all_tasks(), Watcher()
    async with line(TinyAgent(answer_ms=5000)) as call:
        conversation = ScriptedConversation(call, watcher, chunk_ms=10)
        task = asyncio.create_task(conversation.run([ScriptTurn("one", clip())]))
        await watcher.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == before


# --- what failed ------------------------------------------------------------------------------


def error(code="model_unavailable", message="the model espeak is not loaded"):
    return protocol.ErrorEvent(code=code, message=message, retryable=True)


class Failing(TinyAgent):
    """Writes its answers, says less than all of them, and may tell of an error first."""

    def __init__(self, *errors, samples=0):
        super().__init__()
        self.errors, self.samples = errors, samples

    def answer(self, stream):
        self.turn += 1
        turn = self.turn
        stream.say(protocol.SpeechStopped(at_ms=1, detected_at_ms=self.heard_samples // 16))
        stream.say(protocol.Transcript(utterance=turn, text="hello", is_final=True, confidence=1))
        write(stream, turn, "Hi!")
        for event in self.errors:
            stream.say(event)
        if self.samples:
            speak(stream, turn, self.samples)
        finish(stream, turn, 1000 * self.samples // RATE)


async def problem_of(agent, **options):
    call = connect(transport=FakeAgent(agent), retry=NO_RETRY, **options)
    async with call as opened:
        conversation = ScriptedConversation(opened, chunk_ms=10, turn_timeout_s=5.0)
        (report,) = await conversation.run([ScriptTurn("one", clip())])
    return report.problem


async def test_an_error_of_the_server_is_the_turns_problem():
    problem = "the model espeak is not loaded (model_unavailable)"
    assert await problem_of(Failing(error())) == problem
    apologised = Failing(error("deadline_exceeded", "no token within 20 s"), error(), samples=300)
    assert await problem_of(apologised) == "no token within 20 s (deadline_exceeded)"


async def test_an_answer_without_audio_is_a_problem_where_it_was_to_be_heard():
    assert await problem_of(Failing()) == "its answer has no audio"
    assert await problem_of(Failing(), output="text") == ""


@pytest.mark.parametrize(
    "code",
    [
        *("asr_fallback", "tts_fallback", "tool_timeout", "invalid_tool_call", "unknown_tool_call"),
        *("invalid_message", "unsupported_voice", "unsupported_language", "unsupported_sample_rate"),
    ],
)
async def test_errors_that_no_turn_fails_of(code):
    assert await problem_of(Failing(error(code), samples=300)) == ""


async def test_failure_is_reported_with_the_missing_event():
    class Mute(TinyAgent):
        def answer(self, stream):
            super().answer(stream)
            stream.say(error())

    async with line(Mute(answers=False)) as call:
        conversation = ScriptedConversation(call, chunk_ms=10, turn_timeout_s=0.2)
        (report,) = await conversation.run([ScriptTurn("one", clip())])
    assert report.problem == (
        "no complete answer within 0.2 s; the model espeak is not loaded (model_unavailable)"
    )


async def test_updates_change_how_the_agent_answers():
    async with line(polite) as call:
        assert call.output == "audio"
        call.update(protocol.Update(voice="b"))
        assert call.output == "audio"
        call.update(protocol.Update(output="text"))
        assert call.output == "text"


def test_a_failure_is_of_the_turn_that_waits_for_its_answer():
    tracker, story = answered("story")
    tracker.begin(TurnReport("stop"))
    tracker.on_event(error(), 1.5)
    assert [report.failure != "" for report in tracker.reports] == [True, False]
    tracker.on_event(protocol.TurnMetrics(turn=1), 1.6)
    tracker.on_event(error("overloaded"), 1.7)
    assert tracker.reports[1].failure.endswith("(overloaded)")
    assert story.failure.endswith("(model_unavailable)")


def test_failure_before_the_first_turn_is_reported():
    tracker = TurnTracker()
    tracker.on_event(error(), 0.1)
    hello = TurnReport("hello")
    tracker.begin(hello)
    assert [report.name for report in tracker.reports] == ["before the first turn", "hello"]
    assert (tracker.reports[0].failure != "", hello.failure) == (True, "")


# --- tracker --------------------------------------------------------------------------------


def audio(turn, count=1000, response=None):
    return AgentAudio(turn, response or f"r{turn}", 0, 1000, np.ones(count, np.int16), "")


def final(text, utterance=1):
    return protocol.Transcript(utterance=utterance, text=text, is_final=True, confidence=1)


def test_a_transcript_replaces_those_before_that_it_was_recognised_with():
    tracker = TurnTracker()
    report = TurnReport("first")
    tracker.begin(report)
    tracker.on_event(final("Nine five."), 1.0)
    joined = protocol.Transcript(
        utterance=2, text="one.", is_final=True, confidence=0.9, first=1, before="My number is 95"
    )
    tracker.on_event(joined, 2.0)
    assert report.heard == "My number is 95 one."


def test_late_audio_belongs_to_its_own_turn():
    tracker = TurnTracker()
    story, stop = TurnReport("story"), TurnReport("stop")
    tracker.begin(story)
    tracker.on_event(final("tell me a story"), 1.0)
    tracker.on_event(protocol.ResponseText(turn=4, response_id="r4", text="Once "), 1.1)
    tracker.on_event(audio(4), 1.2)
    tracker.begin(stop)
    tracker.on_event(protocol.ResponseText(turn=4, response_id="r4", text="upon"), 1.3)
    assert (story.answer, stop.answer) == ("Once upon", "")
    tracker.on_event(protocol.Interrupted(turn=4, response_id="r4", played_ms=300, spoken_text="Once"), 1.5)
    tracker.on_event(protocol.TurnMetrics(turn=4, interrupted=True), 1.5)
    tracker.on_event(final("stop"), 2.0)
    tracker.on_event(protocol.ResponseText(turn=5, response_id="r5", text="Okay."), 2.1)
    assert (story.answer, story.interrupted, story.metrics.turn) == ("Once", True, 4)
    assert (stop.answer, stop.barge_in, stop.silenced_s) == ("Okay.", True, 1.5)
    assert not stop.settled.is_set()


def test_an_interruption_of_an_answer_that_is_not_heard_is_no_barge_in():
    tracker = TurnTracker()
    tracker.begin(TurnReport("one"))
    tracker.on_event(final("one"), 1.0)
    tracker.on_event(protocol.ResponseText(turn=1, response_id="r1", text="a"), 1.1)
    late = TurnReport("two")
    tracker.begin(late)
    tracker.on_event(protocol.Interrupted(turn=1, response_id="r1", played_ms=0, spoken_text=""), 1.2)
    assert (late.barge_in, late.stages["barge_in_stop"]) == (False, None)


@pytest.mark.parametrize("is_over", [False, True])
def test_interruption_in_a_gap_of_the_audio_stops_nothing(is_over):
    tracker, _ = answered("story")
    if is_over:
        tracker.on_event(protocol.ResponseDone(turn=1, response_id="r1", audio_ms=1000), 2.0)
    stop = TurnReport("stop", speech_began_s=4.0)
    tracker.begin(stop)
    tracker.on_event(interrupted(1), 5.0)
    assert (stop.barge_in, "barge_in_stop" in stop.invalid_stages) == (not is_over, not is_over)
    assert stop.stages["barge_in_stop"] is None
    if not is_over:
        row = next(line for line in shown([measured("usual"), stop], width=100) if "stop" in line)
        assert row.split()[-1] == "-"


def test_a_clip_that_is_heard_in_two_parts_is_settled_by_the_last():
    tracker = TurnTracker()
    report = TurnReport("one")
    tracker.begin(report)
    tracker.on_event(final("what's the"), 1.0)
    tracker.on_event(protocol.ResponseText(turn=1, response_id="r1", text="What?"), 1.1)
    tracker.on_event(protocol.TurnMetrics(turn=1, interrupted=True), 1.2)
    tracker.on_event(final("weather", 2), 1.5)
    tracker.on_event(protocol.ResponseText(turn=2, response_id="r2", text="Sunny."), 1.6)
    assert (report.heard, report.answer, report.settled.is_set()) == ("what's the weather", "Sunny.", False)


async def test_a_clip_whose_second_part_cuts_the_answer_to_its_first_is_heard_out():
    class Hasty(TinyAgent):
        """Answers "Thank you." before "Goodbye." is said."""

        def answer(self, stream):
            self.turn += 1
            stream.say(protocol.Transcript(utterance=1, text="Thank you.", is_final=True, confidence=1))
            stream.say(protocol.ResponseText(turn=1, response_id="r1", text="You are welcome!"))
            stream.say(protocol.Transcript(utterance=2, text="Goodbye.", is_final=True, confidence=1))
            stream.say(protocol.Interrupted(turn=1, response_id="r1", played_ms=0, spoken_text=""))
            stream.say(protocol.TurnMetrics(turn=1, interrupted=True))
            self.last = asyncio.get_running_loop().call_later(0.3, self.answer_again, stream)

        def answer_again(self, stream):
            write(stream, 2, "Bye!")
            finish(stream, 2, 0)

    async with line(Hasty()) as call:
        (thanks,) = await ScriptedConversation(call, chunk_ms=10, turn_timeout_s=3.0).run(
            [ScriptTurn("thanks", clip())]
        )
    assert (thanks.heard, thanks.answer) == ("Thank you. Goodbye.", "Bye!")


def heard_answer(tracker, turn, at):
    tracker.on_event(protocol.ResponseText(turn=turn, response_id=f"r{turn}", text="Once upon a time."), at)
    tracker.on_event(audio(turn), at)


def paused(turn):
    return protocol.Paused(turn=turn, response_id=f"r{turn}", at_ms=0)


def resumed(turn, text="mhm"):
    return protocol.Resumed(turn=turn, response_id=f"r{turn}", reason="backchannel", text=text)


def interrupted(turn):
    return protocol.Interrupted(turn=turn, response_id=f"r{turn}", played_ms=1, spoken_text="Once")


def answered(name, turn=1):
    """A tracker in which a turn is being answered."""
    tracker, report = TurnTracker(), TurnReport(name)
    tracker.begin(report)
    tracker.on_event(final(name), 1.0)
    heard_answer(tracker, turn, 1.0)
    return tracker, report


def test_an_mhm_is_settled_when_the_agent_goes_on():
    tracker, story = answered("story")
    mhm = TurnReport("mhm")
    tracker.begin(mhm)
    tracker.on_event(paused(1), 1.2)
    tracker.on_event(final("mhm"), 1.5)
    tracker.on_event(resumed(1), 1.5)
    assert mhm.settled.is_set()
    assert (mhm.resumed.reason, mhm.heard, mhm.barge_in) == ("backchannel", "mhm", False)
    assert tracker.answered_by("r1") is story
    assert (story.interrupted, story.resumed, story.settled.is_set()) == (False, None, False)
    tracker.on_event(protocol.ResponseText(turn=2, response_id="r2", text="Still there?"), 9.0)
    assert (mhm.answer, story.answer) == ("", "Once upon a time.")


def test_a_cough_needs_no_transcript():
    tracker, _ = answered("story")
    cough = TurnReport("cough")
    tracker.begin(cough)
    tracker.on_event(paused(1), 1.2)
    tracker.on_event(protocol.Resumed(turn=1, response_id="r1", reason="noise"), 1.3)
    for step in (cough.noticed, cough.transcribed, cough.settled):
        assert step.is_set()


def ignored(text="mhm"):
    return protocol.SpeechIgnored(reason="backchannel", text=text)


def test_words_that_are_ignored_are_settled_where_nothing_paused():
    tracker, story = answered("story")
    mhm = TurnReport("mhm")
    tracker.begin(mhm)
    tracker.on_event(final("mhm"), 1.5)
    tracker.on_event(ignored(), 1.5)
    assert mhm.settled.is_set()
    assert (mhm.resumed, mhm.goes_on, mhm.heard) == (ignored(), story, "mhm")
    assert not story.settled.is_set()
    tracker.on_event(protocol.ResponseText(turn=2, response_id="r2", text="Still there?"), 9.0)
    assert (mhm.answer, story.answer) == ("", "Once upon a time.")


def test_words_ignored_after_the_answer_began_settle_nothing():
    tracker, story = answered("story")
    tracker.on_event(ignored(), 1.5)
    assert (story.resumed, story.settled.is_set()) == (None, False)


def test_words_that_are_ignored_before_any_answer_are_settled():
    tracker, mhm = TurnTracker(), TurnReport("mhm")
    tracker.on_event(ignored(), 0.1)
    tracker.begin(mhm)
    tracker.on_event(ignored(), 1.5)
    assert (mhm.settled.is_set(), mhm.goes_on, mhm.heard) == (True, None, "mhm")


async def test_an_mhm_that_is_ignored_waits_for_the_answer_that_goes_on():
    class Deaf(Doubtful):
        def interrupt(self, stream):
            self.paused += 1

        def answer(self, stream):
            if not self.paused:
                TinyAgent.answer(self, stream)
                return
            stream.say(protocol.Transcript(utterance=2, text="mhm", is_final=True, confidence=1))
            stream.say(ignored())
            finish(stream, 1, 1500)

    async with line(Deaf()) as call:
        story, mhm = await ScriptedConversation(call, chunk_ms=10, turn_timeout_s=3.0).run(
            [ScriptTurn("story", clip()), ScriptTurn("mhm", clip(200), barge_in_ms=100)]
        )
    assert (story.problem, mhm.problem) == ("", "")
    assert story.settled.is_set()


def test_an_answer_that_paused_of_itself_settles_nothing():
    tracker, story = answered("story")
    tracker.on_event(paused(1), 1.2)
    tracker.on_event(resumed(1), 1.3)
    assert (story.resumed, story.settled.is_set()) == (None, False)


def test_the_silence_of_an_interrupted_answer_begins_with_its_pause():
    tracker, story = answered("story")
    stop = TurnReport("stop")
    tracker.begin(stop)
    tracker.on_event(paused(1), 1.25)
    tracker.on_event(interrupted(1), 1.75)
    assert (story.interrupted, story.answer) == (True, "Once")
    assert (stop.barge_in, stop.silenced_s) == (True, pytest.approx(1.25))


def test_an_interruption_after_a_false_alarm_counts():
    tracker, _ = answered("story")
    stop = TurnReport("stop")
    tracker.begin(stop)
    tracker.on_event(paused(1), 1.1)
    tracker.on_event(resumed(1), 1.2)
    assert stop.settled.is_set()
    tracker.on_event(interrupted(1), 1.4)
    assert (stop.resumed, stop.settled.is_set(), stop.barge_in) == (None, False, True)
    assert stop.silenced_s == pytest.approx(1.4)


def test_greeting_is_not_counted_as_an_answer():
    tracker, hello = TurnTracker(), TurnReport("hello")
    tracker.begin(hello)
    tracker.on_event(audio(1), 0.1)
    tracker.on_event(protocol.ResponseDone(turn=1, response_id="r1", audio_ms=1000), 0.2)
    assert not tracker.greeted.is_set()  # its end is still to be heard
    tracker.on_event(protocol.TurnMetrics(turn=1), 1.2)
    assert (tracker.greeted.is_set(), hello.settled.is_set(), hello.speaking.is_set()) == (True, False, False)
    tracker.on_event(final("hello"), 2.0)
    tracker.on_event(protocol.ResponseText(turn=2, response_id="r2", text="Hi!"), 2.1)
    tracker.on_event(protocol.TurnMetrics(turn=2, speculations=2, speculated=True), 2.2)
    assert (hello.answer, hello.metrics.turn) == ("Hi!", 2)


def test_answer_ended_by_max_tokens_is_incomplete_unless_interrupted():
    tracker, story = answered("story")
    tracker.on_event(
        protocol.ResponseDone(turn=1, response_id="r1", audio_ms=1000, finish_reason="length"), 1.1
    )
    assert story.incomplete
    tracker.on_event(interrupted(1), 1.4)
    assert not story.incomplete


def test_unrequested_speech_does_not_replace_an_answer():
    tracker, story = answered("story")
    tracker.on_event(protocol.TurnMetrics(turn=1), 2.0)
    heard_answer(tracker, 2, 12.0)
    tracker.on_event(protocol.TurnMetrics(turn=2), 13.0)
    assert (story.answer, story.metrics.turn) == ("Once upon a time.", 1)


def test_typed_text_is_answered_like_speech():
    tracker, story = answered("story")
    typed = TurnReport("typed", said="never mind")
    tracker.enter(typed, 1.5)
    tracker.on_event(
        protocol.Interrupted(turn=1, response_id="r1", played_ms=5, spoken_text="", reason="input"), 1.6
    )
    heard_answer(tracker, 2, 1.9)
    tracker.playout.advance(2.0)
    assert (typed.heard, typed.answer) == ("never mind", "Once upon a time.")
    assert typed.voice_to_voice_ms == pytest.approx(400)
    assert (typed.stages["detection"], typed.stages["barge_in_stop"]) == (None, pytest.approx(100))
    assert story.interrupted


def test_tools_of_the_server_are_in_the_report():
    tracker, story = answered("story")
    run = protocol.ToolRun(turn=1, call_id="c", name="find", arguments={}, is_error=False, duration_ms=1)
    tracker.on_event(run, 1.1)
    assert story.tools == [run]


def test_an_agent_that_speaks_first_is_heard():
    heard = []
    tracker = TurnTracker(heard.append)
    tracker.on_event(audio(0), 1.0)
    tracker.playout.advance(3.0)
    assert len(heard[0].samples) == 1000


def test_percentiles_are_values_that_were_measured():
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.95)) == (50.0, 95.0)
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([], 0.5) is None


# --- what is shown --------------------------------------------------------------------------


def test_without_a_terminal_only_finished_lines_are_printed(capsys):
    with CallView(make_console()) as view:
        view.begin_turn(ScriptTurn("stop", clip(), text="stop [now]", barge_in_ms=100), 0.5)
        for at, event in enumerate(
            [
                protocol.Transcript(utterance=1, text="sto", is_final=False, confidence=0.5),
                final("stop"),
                protocol.ResponseText(turn=1, response_id="r", text="All "),
                protocol.ResponseText(turn=1, response_id="r", text="right."),
                protocol.ToolRequest(turn=1, call_id="c", name="add", arguments={"a": 1, "b": "x"}),
                protocol.ResponseText(turn=1, response_id="r", text="It is long"),
                protocol.Interrupted(turn=1, response_id="r", played_ms=4, spoken_text="It is"),
                protocol.TurnDecision(
                    utterance=2,
                    decision="wait",
                    reason="text_unfinished",
                    text="and",
                    cue_words="and",
                    needed_ms=2_000,
                ),
                protocol.TurnDecision(utterance=2, decision="commit", reason="waited", text="and"),
                protocol.ErrorEvent(code="overloaded", message="full", retryable=True),
                protocol.Closed(reason="ended"),
            ]
        ):
            view.show(event, float(at))
        view.show_tool_answer(
            protocol.ToolRequest(turn=1, call_id="c", name="add", arguments={}),
            protocol.ToolResponse(call_id="c", output={"sum": 3}),
        )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "0.50s microphone: “stop [now]” (speaks over the agent)",
        "1.00s you stop (100% sure)",
        "2.00s agent All right.",
        '4.00s tool add(a=1, b="x")',
        "6.00s agent interrupted (words); heard of it: It is",
        "7.00s waits for more: text_unfinished “and”",
        "9.00s error full (overloaded, may pass)",
        "10.00s call closed: ended",
        f"10.00s add → {json.dumps({'sum': 3})}",
    ]


@pytest.mark.parametrize("aloud", [True, False])
def test_the_line_of_an_answer_has_the_time_of_its_beginning(capsys, aloud):
    with CallView(make_console()) as view:
        view.show(text(" "), 0.5)
        view.show(text("One moment, "), 1.0)
        if aloud:
            view.show(said(1000, "One moment,"), 1.5)
        view.show(text("please."), 2.0)
        view.show(protocol.ToolRequest(turn=1, call_id="c", name="t", arguments={}), 3.0)
        if aloud:
            view.show(said(1000, "please.", 1000), 3.1)
        view.show(text("It is eight."), 4.0)
        if aloud:
            view.show(said(1000, "It is eight.", 2000), 4.5)
        view.show(DONE, 6.0)
    first, second = ("1.50s", "4.50s") if aloud else ("1.00s", "4.00s")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [f"{first} agent One moment, please.", "3.00s tool t()", f"{second} agent It is eight."]


def test_events_of_an_answer_are_one_line_each(capsys):
    run = protocol.ToolRun(
        turn=1, call_id="c1", name="find", arguments={"q": "tea"}, is_error=False, duration_ms=12.4
    )
    request = protocol.ToolRequest(turn=1, call_id="c2", name="ring", arguments={})
    with CallView(make_console()) as view:
        for event in (
            paused(1),
            resumed(1),
            protocol.Resumed(turn=1, response_id="r1", reason="echo", text="once [upon]"),
            protocol.Resumed(turn=1, response_id="r1", reason="too_short"),
            protocol.SpeechIgnored(reason="too_few_words", text="and [then]"),
            protocol.Interrupted(turn=1, response_id="r1", played_ms=0, spoken_text="", reason="command"),
            protocol.StepChanged(step="book", previous="greet"),
            final(""),
            run,
            msgspec.structs.replace(run, is_error=True),
            request,
            protocol.ToolCancelled(turn=1, call_id="c2", reason="interrupted"),
            protocol.ToolCancelled(turn=1, call_id="c3", reason="timeout"),
            protocol.Closed(reason="silence"),
            protocol.Closed(reason="agent_ended", agent_reason="said [bye]"),
            protocol.Closed(
                reason="transferred",
                transfer=protocol.Transfer(name="desk", to="+4930", summary="[two] coffees"),
            ),
        ):
            view.show(event, 1.0)
        view.begin_turn(ScriptTurn("typed", clip(0), write="[two] coffees"), 2.0)
        view.begin_turn(ScriptTurn("keys", clip(0), press="12#", barge_in_ms=5), 2.0)
    lines = [" ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "agent paused",
        "agent goes on (mhm)",
        "agent goes on (echo: once [upon])",
        "agent goes on (too short)",
        "not answered (too few words: and [then])",
        "agent interrupted (command); heard of it: nothing",
        "step book",
        'tool find(q="tea") (on the server, 12 ms)',
        'tool find(q="tea") (failed on the server, 12 ms)',
        "tool ring()",
        "ring cancelled (interrupted)",
        "tool cancelled (timeout)",
        "call closed: silence",
        "call closed: agent_ended: said [bye]",
        "the call goes to desk (+4930): [two] coffees",
        "keyboard: “[two] coffees”",
        "keys: 12# (speaks over the agent)",
    ]


def test_open_text_is_shown_at_the_end(capsys):
    with CallView(make_console()) as view:
        view.show(protocol.ResponseText(turn=1, response_id="r", text="Once upon "), 1.0)
        view.show(protocol.Transcript(utterance=1, text="wai", is_final=False, confidence=0.5), 1.5)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == ["1.50s you wai…", "1.50s agent cut off; heard of it: nothing"]


def said(number, text, offset_ms=0):
    return AgentAudio(1, "r", offset_ms, 1000, np.ones(number, np.int16), text)


def text(words):
    return protocol.ResponseText(turn=1, response_id="r", text=words)


DONE = protocol.ResponseDone(turn=1, response_id="r", audio_ms=2000)
STORY = (text("Once upon a time, "), said(1000, "Once upon"), text("there was …"))


@pytest.mark.parametrize(
    ("events", "played_ms", "shown"),
    [
        pytest.param((*STORY, DONE), 2000, ["Once upon a time, there was …"], id="heard"),
        pytest.param(STORY, 900, ["cut off; heard of it: Once upon"], id="without its end"),
        pytest.param(STORY, 0, ["cut off; heard of it: nothing"], id="before it was heard"),
        pytest.param(
            (*STORY, said(1000, "a time, there was …", 1000), DONE),
            800,
            ["Once upon a time, there was …", "cut off; heard of it: Once upon"],
            id="while the rest of it was played",
        ),
        pytest.param(
            (text("All right."), said(1000, "All right.")), 1000, ["All right."], id="but for its end"
        ),
        pytest.param((text("Yes."), msgspec.structs.replace(DONE, audio_ms=0)), 0, ["Yes. (not heard)"]),
        pytest.param(
            (*STORY, error(), DONE),
            1000,
            [
                "the model espeak is not loaded (model_unavailable, may pass)",
                "cut off; heard of it: Once upon",
            ],
            id="a voice that failed",
        ),
        pytest.param(
            (text("Yes."), said(1000, "Yes."), error("no_answer"), DONE),
            1000,
            ["the model espeak is not loaded (no_answer, may pass)", "Yes."],
            id="an error of something else",
        ),
        pytest.param(
            (
                text("Hm."),
                protocol.ToolRequest(turn=1, call_id="c", name="t", arguments={}),
                msgspec.structs.replace(DONE, audio_ms=0),
            ),
            0,
            ["Hm.", "t()", "cut off; heard of it: nothing"],
            id="before a tool",
        ),
    ],
)
def test_partly_heard_answer_is_marked_with_the_heard_part(capsys, events, played_ms, shown):
    with CallView(make_console()) as view:
        view.use_playback({"r": played_ms}.__getitem__)
        for event in events:
            view.show(event, 1.0)
    assert [line[17:].strip() for line in capsys.readouterr().out.splitlines()] == shown


def test_answers_that_were_begun_early_are_counted():
    first, second = measured("one"), measured("two")
    first.metrics = protocol.TurnMetrics(turn=1, speculations=2, speculated=True)
    second.metrics = protocol.TurnMetrics(turn=2, speculations=1)
    assert shown([first, second])[-1] == "Answers begun early: 3, used: 1"


def test_the_latency_table_has_a_row_for_each_turn_and_both_percentiles():
    reports = [
        TurnReport(str(n), speech_ended_s=1.0, detected_s=1.3, answered_s=1.3 + n / 10) for n in (1, 2)
    ]
    table = latency_table(reports)
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns["turn"] == ["1", "2", "p50 of 2", "p95 of 2"]
    assert columns["voice→\nvoice"] == ["400", "500", "400", "500"]
    assert columns["then\nvoice"] == ["100", "200", "100", "200"]
    assert columns["barge\nin"] == ["", "", "", ""]
    assert by_stage(reports)["detection"] == pytest.approx([300, 300])


def shown(reports, width=80, **options):
    out = io.StringIO()
    print_reports(Console(file=out, width=width, _environ={}), reports, **options)
    return out.getvalue().splitlines()


def measured(name):
    metrics = protocol.TurnMetrics(
        turn=1,
        asr_final_ms=1234.0,
        end_of_turn_ms=1234.0,
        llm_first_token_ms=1234.0,
        llm_total_ms=12345.0,
        tool_ms=1234.0,
        tts_first_audio_ms=1234.0,
        first_audio_ms=1234.0,
    )
    times = {"speech_began_s": 1.0, "speech_ended_s": 2.0, "detected_s": 3.2, "answered_s": 4.3}
    return TurnReport(name, **times, barge_in=True, silenced_s=2.1, metrics=metrics)


def test_the_whole_report_can_be_read_in_80_columns():
    lines = shown([measured("11-whats-my-name"), measured("12-music")], explain=True)
    assert not any("…" in line for line in lines)
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if "11-whats" in line)
    cells = "2300 1200 1100 1234 1234 1234 12345 1234 1234 1234 1100".split()
    assert row.split() == ["11-whats-my-name", *cells]
    explained = lines[next(n for n, line in enumerate(lines) if "voice→voice" in line) :]
    assert {len(line) - len(line.lstrip()) for line in explained if line.startswith(" " * 13)} == {14}


def test_missing_measurements_are_shown_and_not_counted():
    usual, moved, early, silent = (
        measured("usual"),
        measured("moved"),
        measured("early"),
        TurnReport("silent"),
    )
    moved.moved = True
    early.answered_s = 1.5
    silent.problem = "no speech was noticed in it"
    reports = [usual, measured("other"), moved, early, silent]
    lines = shown(reports, width=100, explain=True)
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert rows["moved"] == ["-"] * len(STAGES)
    assert rows["early"][:3] == ["-", "1200", "-"]
    assert rows["silent"] == ["-"]
    assert rows["p50"][:4] == ["of", "3", "2300", "1200"]
    assert rows["p95"][:4] == ["of", "3", "2300", "1200"]
    assert any("no valid measurement, and not in p50 and p95" in line for line in lines)
    assert by_stage(reports)["voice_to_voice"] == pytest.approx([2300, 2300])


@pytest.mark.parametrize(("slow_ms", "is_shown"), [(2_299, True), (2_300, False)])
def test_slowness_is_shown_where_the_median_is_above_the_limit(slow_ms, is_shown):
    out = io.StringIO()
    slowest = measured("slowest")
    slowest.answered_s = 99.0
    print_slowness(Console(file=out, width=200), [measured("one"), measured("two"), slowest], slow_ms)
    assert ("half of the answers began 2300 ms after the end of speech" in out.getvalue()) == is_shown


def test_slowness_without_a_measurement_is_not_shown():
    out = io.StringIO()
    print_slowness(Console(file=out), [TurnReport("silent")], 1.0)
    assert out.getvalue() == ""


def test_turns_in_which_the_call_moves_have_no_measurement():
    tracker = TurnTracker()
    done, going_on, begun, later = (TurnReport(name) for name in ("done", "going on", "begun", "later"))
    tracker.begin(done)
    done.settled.set()
    tracker.begin(going_on)
    tracker.on_event(Reconnecting("lost"), 1.0)
    tracker.begin(begun)
    tracker.on_event(Reconnected(gap_ms=300.0, reason="lost"), 2.0)
    tracker.begin(later)
    assert [report.moved for report in tracker.reports] == [False, True, True, False]


async def test_all_lines_of_a_call_have_one_clock(monkeypatch):
    """A microphone that is behind has spoken its clip, by its own clock, before events that came already."""
    speak = PacedMicrophone.speak

    def late(microphone, samples):
        spoken = speak(microphone, samples)
        spoken.began_s -= 10
        return spoken

    monkeypatch.setattr(PacedMicrophone, "speak", late)
    times = []

    class Clock(Watcher):
        def begin_turn(self, turn, at_s):
            times.append(at_s)

        def show(self, event, at_s):
            times.append(at_s)

    async with line(TinyAgent()) as call:
        conversation = ScriptedConversation(call, Clock(), chunk_ms=10)
        await conversation.run([ScriptTurn(name, clip(), pause_ms=20) for name in ("one", "two")])
    assert len(times) > 10
    assert times == sorted(times)


def test_single_turn_is_reported_without_percentiles():
    report = TurnReport("one", speech_ended_s=1.0, detected_s=1.3, answered_s=1.5)
    assert shown([report]) == ["Latency (ms): voice→voice 500, end heard 300, then voice 200"]
    explained = shown([report], explain=True)
    assert not any("p50" in line for line in explained)
    assert any("true end of the user's speech" in line for line in explained)


def test_without_any_measurement_only_the_problem_is_shown():
    assert shown([TurnReport("silence", problem="no speech")], explain=True) == ["silence: no speech"]


def test_names_of_files_are_not_markup():
    report = measured("take [/2]")
    report.problem = "no [complete] answer"
    lines = shown([report], explain=True)
    assert sum("take [/2]" in line for line in lines) == 2
    assert "no [complete] answer" in lines[-1]


def test_a_long_line_of_the_call_keeps_its_indent():
    out = io.StringIO()
    heard = "Once upon a time, a little robot lived in a big house by the sea, and it was happy."
    with CallView(Console(file=out, width=80, _environ={})) as view:
        view.show(protocol.Interrupted(turn=1, response_id="r", played_ms=4, spoken_text=heard), 1.0)
    first, second = out.getvalue().splitlines()
    assert first.startswith("   1.00s   agent  interrupted (words); heard of it: Once")
    assert second[:18].isspace()
    assert not second[18].isspace()
    assert f"{first} {second.strip()}".endswith(heard)


def test_on_a_terminal_partial_texts_are_updated_in_place():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, _environ={})
    with CallView(console) as view:
        view.show(protocol.AgentState(state="listening"), 0.1)
        view.show(protocol.Transcript(utterance=1, text="what ti", is_final=False, confidence=0.5), 0.2)
        view._live.refresh()
        assert "[listening] you: what ti…" in Text.from_ansi(out.getvalue()).plain
        view.show(protocol.ResponseText(turn=1, response_id="r", text="It is"), 0.3)
        view.show(final("what time is it"), 0.4)
        view._live.refresh()
        assert "[listening] agent: It is" in Text.from_ansi(out.getvalue()).plain
        view.show_typing("and in Oslo")
        view._live.refresh()
        assert "agent: It is  > and in Oslo" in Text.from_ansi(out.getvalue()).plain
    assert "what time is it" in Text.from_ansi(out.getvalue()).plain
