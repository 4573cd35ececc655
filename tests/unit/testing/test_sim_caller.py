import asyncio
from dataclasses import replace

import numpy as np
import pytest
from fake_line import FakeLine
from simulate.scores import score
from tapes import said

from parley import protocol
from parley_testing.caller import Activity, Caller
from parley_testing.log import Sound
from parley_testing.rendering import Clip
from parley_testing.scenario import Background, Scenario
from parley_testing.scenario import Caller as Person
from parley_testing.turns import read_turns


def final(text: str = "hello") -> protocol.Transcript:
    return protocol.Transcript(utterance=1, text=text, is_final=True, confidence=1.0)


def decision(kind) -> protocol.TurnDecision:
    return protocol.TurnDecision(utterance=1, decision=kind, reason="waited", text="hello")


def test_a_turn_from_its_first_sound_to_its_end():
    activity = Activity()
    assert not activity.busy
    activity.on_event(protocol.SpeechStarted(at_ms=0), 1.0)
    assert activity.busy
    activity.on_event(final(), 2.0)
    assert not activity.busy
    activity.on_event(decision("wait"), 2.1)
    assert activity.busy
    activity.on_event(decision("commit"), 2.5)
    activity.on_event(protocol.AgentState(state="processing"), 2.5)
    activity.on_event(protocol.ResponseText(turn=1, response_id="r1", text="Hi"), 2.6)
    activity.on_event(Sound(1, "r1", 0, 100), 2.7)
    activity.on_event(protocol.TurnMetrics(turn=1), 3.0)
    assert activity.busy
    activity.on_event(protocol.AgentState(state="listening"), 3.0)
    assert not activity.busy
    assert activity.idle_s(3.4) > 0.39
    assert activity.answered(2.6, 2.9)
    assert not activity.answered(2.6, 3.1)
    assert activity.response_began("r1") == 2.7


def test_a_turn_that_was_not_heard_answers_nothing():
    activity = Activity()
    activity.on_event(protocol.ResponseText(turn=1, response_id="r1", text="Hi"), 1.0)
    activity.on_event(protocol.TurnMetrics(turn=1), 2.0)
    assert not activity.busy
    assert not activity.answered(0.0, 0.0)


def test_an_answer_that_a_turn_interrupts_does_not_answer_it():
    activity = Activity()
    activity.on_event(Sound(1, "r1", 0, 100), 1.0)
    activity.on_event(protocol.TurnMetrics(turn=1, interrupted=True), 2.5)
    assert not activity.answered(2.0, 2.0)
    activity.on_event(Sound(2, "r2", 0, 100), 3.0)
    activity.on_event(protocol.TurnMetrics(turn=2), 4.0)
    assert activity.answered(2.0, 2.0)


def test_an_event_of_a_turn_that_is_over_does_not_open_it_again():
    activity = Activity()
    activity.on_event(protocol.TurnMetrics(turn=1), 1.0)
    activity.on_event(protocol.ResponseDone(turn=1, response_id="r1", audio_ms=0), 1.1)
    assert not activity.busy


def test_a_user_who_goes_on_is_heard_until_the_next_final_text():
    activity = Activity()
    activity.on_event(decision("wait"), 1.0)
    activity.on_event(decision("resume"), 1.2)
    assert activity.busy
    activity.on_event(final(), 2.0)
    assert not activity.busy


def test_something_else_may_keep_it_busy():
    activity = Activity()
    activity.extend_busy(5.0)
    assert activity.idle_s(5.5) == 0.5


STORY = "once upon a time there was a robot that lived in a big house by the sea and counted boats"


class FakeStudio:
    """Everything sounds like 500 ms of a tone."""

    def clip(self, exchange, caller):
        return None if exchange.kind in ("text", "quiet") else Clip(np.full(8_000, 5_000, np.int16), 0, 8_000)

    def loop(self, name):
        return np.ones(1_000)


async def hold(line: FakeLine, *exchanges, person: Person | None = None):
    exchanges = tuple(replace(one, index=index) for index, one in enumerate(exchanges))
    scenario = Scenario("call", "A call", protocol.Start(), person or Person(), (), exchanges)
    loop = asyncio.get_running_loop()
    return await Caller(line, scenario, FakeStudio(), clock=loop.time).run()


async def test_turns_follow_each_other_when_the_answer_was_heard():
    line = FakeLine("hello there")
    log = await hold(line, said("beep"), said("beep", "idle+1000"))
    first, second = log.acts
    answers = read_turns(log).answers
    assert [answer.act for answer in answers] == [first, second]
    heard_s = answers[0].first_sound_s + 0.2
    assert second.began_s == pytest.approx(heard_s + 1.0, abs=0.06)
    assert first.ended_s - first.began_s == pytest.approx(0.5)
    scores = score([log])
    assert scores.latency == pytest.approx([200, 200], abs=40)
    assert (scores.missed.count, scores.history.count) == (0, 0)
    assert line.marks[-1] == ("r2", 200.0)


async def test_an_interruption_comes_when_so_much_was_heard():
    line = FakeLine(STORY)
    log = await hold(line, said("beep"), said("beep", "agent+700"))
    _, stop = log.acts
    assert stop.over == "r1"
    assert stop.over_ms == pytest.approx(700, abs=50)
    assert read_turns(log).answers[0].interruption is not None
    assert log.ledger["r1"].heard_ms == pytest.approx(760, abs=60)
    scores = score([log])
    assert (scores.missed_interruptions.count, scores.missed_interruptions.of) == (0, 1)
    assert scores.stop_sent[0] < 100


async def test_a_pause_halts_the_loudspeaker_and_nothing_is_lost():
    line = FakeLine(STORY, pauses=True)
    log = await hold(line, said("beep"), said("beep", "agent+700", kind="backchannel"))
    assert log.ledger["r1"].heard_ms == 100 * len(STORY.split())
    scores = score([log])
    assert (scores.wrongful.count, scores.wrongful.of) == (0, 1)
    assert (scores.halted.count, scores.history.count) == (1, 0)
    assert scores.halt_ms == pytest.approx([300], abs=40)


async def test_next_line_of_the_caller_does_not_wait_for_the_agent():
    log = await hold(FakeLine(STORY), said("beep"), said("beep", "caller+400"))
    first, second = log.acts
    assert second.began_s == pytest.approx(first.ended_s + 0.4, abs=0.04)


async def test_an_interruption_of_an_answer_that_is_over_is_not_performed():
    log = await hold(FakeLine("hello there"), said("beep"), said("beep", "agent+700"))
    assert [act.staged for act in log.acts] == [True, False]
    assert log.acts[1].problem == "the answer was over before"
    assert score([log]).not_staged == ["call 2 (beep): the answer was over before"]


async def test_a_caller_who_is_not_heard_goes_on_after_a_while():
    log = await hold(FakeLine("hello", deaf=True), said("beep"), said("beep"))
    first, second = log.acts
    assert 5.0 < second.began_s - first.ended_s < 8.0
    assert score([log]).missed.count == 2


async def test_typed_text_is_sent():
    line = FakeLine("hello there")
    log = await hold(line, said("What time is it?", kind="text"))
    assert line.typed == ["What time is it?"]
    assert score([log]).missed.count == 0


async def test_a_background_is_in_the_microphone():
    line = FakeLine("hello", deaf=True)
    noisy = Person(level_db=-20, background=Background("street", snr_db=0))
    await hold(line, said("beep"), person=noisy)
    assert np.abs(line.sent[20]).mean() > 3_000


async def test_a_call_that_breaks_ends_with_its_failure():
    log = await hold(FakeLine(STORY, hangs_up_after_s=1.0), said("beep"), said("beep"))
    assert log.failure == "call_ended: the server ended the call (shutdown)"
    assert score([log]).broken
    assert len(log.acts) == 1
