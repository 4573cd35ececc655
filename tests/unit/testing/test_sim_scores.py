import json
from io import StringIO

import pytest
from rich.console import Console
from simulate.report import print_cases, print_table, summary
from simulate.scores import STEPS, score
from tapes import Tape, said

from parley.protocol import ToolRequest, TurnMetrics
from parley_testing.log import Act, Sound
from parley_testing.scenario import Caller, Echo, ExpectedCall, ToolScript
from parley_testing.turns import read_turns


def test_a_turn_that_went_well():
    tape = Tape()
    tape.act(said("what's the weather in [500] paris", answer=("foggy",), heard=("paris",)), 1.0, 3.0)
    tape.heard("what's the weather in", 2.0, 2.2, 2.25)
    tape.decided(2.3, "what's the weather in", "wait")
    tape.decided(2.4, "what's the weather in", "resume")
    tape.heard("paris", 2.98, 3.2, 3.25)
    tape.decided(3.3, "what's the weather in paris")
    tape.speaks(1, 3.4, "It's foggy in Paris.")
    scores = score([tape.log])
    assert (scores.cut_off.count, scores.cut_off.of) == (0, 1)
    assert (scores.paused_cut_off.count, scores.paused_cut_off.of) == (0, 1)
    assert (scores.missed.count, scores.missed.of) == (0, 1)
    assert scores.latency == pytest.approx([400])
    assert scores.latency_from_detection == pytest.approx([200])
    assert (scores.words_wrong, scores.words) == (0, 5)
    assert (scores.answers.count, scores.answers.of) == (0, 1)
    assert (scores.keywords.count, scores.keywords.of) == (0, 1)
    assert (scores.history.count, scores.history.of) == (0, 1)
    assert scores.tools.of == 0


@pytest.mark.parametrize(
    ("figures", "steps"),
    [
        ({"llm_first_token_ms": 90, "first_segment_ms": 120}, [100, 40, 60, 90, 30, 80]),
        ({}, [100, 40, 60, 0, 0, 200]),  # the answer was prepared
        ({"llm_first_token_ms": 250, "first_segment_ms": 300}, [100, 40, 60, 200, 0, 0]),  # a filler sounded
    ],
)
def test_an_answer_waits_for_one_step_after_the_other(figures, steps):
    tape = Tape()
    tape.act(said("what's the weather"), 1.0, 3.0)
    tape.heard("what's the weather", 2.98, 3.1, 3.14)
    tape.decided(3.2, "what's the weather")
    tape.speaks(1, 3.4, "Foggy.", done=False)
    metrics = TurnMetrics(turn=1, asr_final_ms=40, end_of_turn_ms=60, first_audio_ms=300, **figures)
    tape.add(5.0, metrics)
    scores = score([tape.log])
    assert list(scores.steps) == list(STEPS)
    assert [one for values in scores.steps.values() for one in values] == pytest.approx(steps)


def test_an_answer_has_each_fact_in_one_of_its_wordings():
    tape = Tape()
    wanted = (("100", "212"), ("boil*",))
    for number, answer in enumerate(("It boils at two hundred and twelve degrees.", "At 100 °C.", "Soon!")):
        at = 10.0 * number
        tape.act(said("at what temperature does water boil", answer=wanted), at + 1.0, at + 3.0)
        tape.heard("At what temperature does water boil?", at + 2.98, at + 3.2, at + 3.25)
        tape.decided(at + 3.3, "At what temperature does water boil?")
        tape.speaks(number, at + 3.4, answer)
    scores = score([tape.log])
    assert (scores.answers.rest, scores.answers.of) == (1, 3)
    assert "boil* not in 'At 100 °C.'" in scores.answers.cases[0]
    assert "100 | 212; boil* not in 'Soon!'" in scores.answers.cases[1]
    assert (scores.words_wrong, scores.words) == (0, 18)


def test_silence_inside_an_answer_is_a_gap():
    tape = Tape()
    tape.speaks(1, 3.0, "there is no gap in it", done=False)
    tape.speaks(2, 9.0, "one", done=False)
    tape.add(9.25, Sound(2, "r2", 100, 100, "two"))
    tape.add(9.36, Sound(2, "r2", 200, 100, "three"))
    scores = score([tape.log])
    assert scores.gaps.of == 2
    assert scores.gaps.cases == ["call: 160 ms in 'one'"]


def test_a_commit_before_the_end_is_a_false_cut_off():
    tape = Tape()
    tape.act(said("set a timer for [700] ten minutes"), 1.0, 3.0)
    tape.heard("set a timer for", 1.8, 2.0, 2.05)
    tape.decided(2.1, "set a timer for")
    tape.heard("ten minutes", 2.98, 3.2, 3.25)
    tape.decided(3.3, "ten minutes")
    tape.speaks(1, 3.4, "For what?")
    scores = score([tape.log])
    assert scores.paused_cut_off.count == scores.cut_off.count == 1
    assert scores.cut_off_aloud.count == 0
    assert scores.latency == []
    assert "'set a timer for'" in scores.cut_off.cases[0]


def test_a_cut_off_that_was_heard():
    tape = Tape()
    tape.act(said("set a timer for [900] ten minutes"), 1.0, 3.0)
    tape.heard("set a timer for", 1.8, 2.0, 2.05)
    tape.decided(2.1, "set a timer for")
    tape.speaks(1, 2.3, "For how many minutes?", done=False, heard_ms=200)
    tape.interrupted(1, 2.6, "For how")
    tape.heard("ten minutes", 2.98, 3.2, 3.25)
    tape.decided(3.3, "ten minutes")
    tape.speaks(2, 3.4, "Okay.")
    scores = score([tape.log])
    assert scores.cut_off_aloud.count == 1
    assert scores.missed.count == 0
    assert scores.wrongful.count == 0


def test_rest_of_a_question_may_stop_the_answer_to_its_part():
    tape = Tape()
    tape.act(said("set a timer for [900] ten minutes"), 1.0, 3.0)
    tape.heard("set a timer for", 1.8, 2.0, 2.05)
    tape.decided(2.9, "set a timer for")
    tape.speaks(1, 3.1, "For how many minutes?", done=False, heard_ms=100)
    tape.heard("ten minutes", 2.98, 3.2, 3.25)
    tape.interrupted(1, 3.25, "For")
    tape.decided(3.3, "ten minutes")
    tape.speaks(2, 3.4, "Okay.")
    scores = score([tape.log])
    assert scores.cut_off.count == 1
    assert scores.wrongful.count == 0


def test_without_decisions_every_final_text_is_a_commit():
    tape = Tape()
    tape.act(said("tell me [700] a story"), 1.0, 3.0)
    tape.heard("tell me", 1.8, 2.1, 2.15)
    tape.speaks(1, 2.3, "Sorry?", done=False, heard_ms=100)
    tape.interrupted(1, 2.5, "Sorry?")
    tape.heard("a story", 3.0, 3.3, 3.35)
    tape.speaks(2, 3.45, "Once upon a time.")
    reading = read_turns(tape.log)
    assert [commit.text for commit in reading.commits] == ["tell me", "a story"]
    assert score([tape.log]).cut_off.count == 1


def test_a_commit_after_the_end_is_none_however_early_its_speech_seemed_to_end():
    tape = Tape()
    tape.act(said("thank you"), 1.0, 1.6)
    tape.heard("thank you", 1.45, 1.65, 1.7)
    tape.decided(1.72, "thank you")
    tape.speaks(1, 1.9, "You're welcome!")
    assert score([tape.log]).cut_off.count == 0


def test_a_late_commit_of_the_turn_before_is_not_held_against_the_next():
    tape = Tape()
    tape.act(said("hello", answered="maybe"), 1.0, 1.5)
    tape.act(said("how are you", "caller+600"), 2.1, 3.0)
    tape.heard("hello", 1.5, 1.7, 2.15)
    tape.decided(2.2, "hello")
    tape.heard("how are you", 2.95, 3.2, 3.3)
    tape.decided(3.35, "how are you")
    tape.speaks(1, 3.5, "I'm doing well.")
    scores = score([tape.log])
    assert scores.cut_off.count == 0
    assert scores.missed.of == 1


def test_a_turn_without_an_answer_is_missed():
    tape = Tape()
    tape.act(said("hello"), 1.0, 1.5)
    tape.act(said("good night"), 9.0, 9.5)
    tape.heard("good night", 9.5, 9.7, 9.75)
    tape.decided(9.8, "good night")
    scores = score([tape.log])
    assert scores.missed.count == scores.missed.of == 2
    assert "not heard" in scores.missed.cases[0]
    assert "heard 'good night', said nothing" in scores.missed.cases[1]


def test_an_answer_to_a_cough_is_not_wanted():
    tape = Tape()
    tape.act(said("cough", kind="sound"), 1.0, 1.4)
    tape.heard("hi", 1.4, 1.6, 1.65)
    tape.decided(1.7, "hi")
    tape.speaks(1, 1.8, "Hello!")
    scores = score([tape.log])
    assert scores.uncalled.count == scores.uncalled.of == 1


def story(tape: Tape, **options) -> Act:
    act = tape.act(said("tell me a story"), 1.0, 2.0)
    tape.heard("tell me a story", 2.0, 2.2, 2.25)
    tape.decided(2.3, "tell me a story")
    tape.speaks(1, 2.5, "Once upon a time there was a robot that counted boats", **options)
    return act


def test_a_backchannel_that_stops_the_agent_is_a_wrongful_interruption():
    tape = Tape()
    story(tape, done=False, heard_ms=350)
    tape.act(said("mhm", "agent+300", kind="backchannel"), 2.8, 3.1, over="r1", over_ms=300)
    tape.interrupted(1, 3.0, "Once upon a")
    scores = score([tape.log])
    assert scores.wrongful.count == scores.wrongful.of == 1
    assert scores.missed_interruptions.of == 0
    assert scores.stop_sent == []


def test_a_backchannel_that_halts_it_for_a_moment_is_not():
    tape = Tape()
    story(tape)
    tape.act(said("mhm", "agent+300", kind="backchannel"), 2.8, 3.1, over="r1", over_ms=300)
    tape.act(said("yes", "agent+900", kind="backchannel"), 3.9, 4.1, over="r1", over_ms=900)
    tape.paused(1, 2.9, 3.3)
    scores = score([tape.log])
    assert (scores.wrongful.count, scores.wrongful.of) == (0, 2)
    assert (scores.halted.count, scores.halted.of) == (1, 2)
    assert scores.halt_ms == pytest.approx([400])


def test_an_echo_that_stops_the_agent_is_a_wrongful_interruption():
    tape = Tape(Caller(echo=Echo()))
    story(tape, done=False, heard_ms=350)
    tape.interrupted(1, 3.0, "Once upon a")
    scores = score([tape.log])
    assert scores.wrongful_echo.count == scores.wrongful_echo.of == 1
    assert scores.wrongful.of == 0


def test_an_interruption_and_its_times():
    tape = Tape()
    story(tape, done=False, heard_ms=600)
    tape.act(said("stop", "agent+300"), 2.505, 2.9, over="r1", over_ms=300)
    tape.paused(1, 2.58, None)
    tape.interrupted(1, 2.8, "Once upon a time there was", queued_ms=420)
    scores = score([tape.log])
    assert (scores.missed_interruptions.count, scores.missed_interruptions.of) == (0, 1)
    assert scores.wrongful.count == 0
    # The last of the eleven pieces came 10 ms after the first, at 2.51.
    assert scores.stop_sent == pytest.approx([5], abs=0.1)
    assert scores.stop_heard == pytest.approx([295])
    assert scores.stop_queued == [420]


def test_sound_that_stopped_before_counts_from_the_halt():
    tape = Tape()
    story(tape, done=False, heard_ms=600)
    tape.act(said("stop", "agent+300"), 2.6, 2.9, over="r1", over_ms=300)
    tape.paused(1, 2.7, None)
    tape.interrupted(1, 2.9, "Once upon a time there was")
    tape.log.halts[-1] = type(tape.log.halts[-1])(2.9, "r1", 0.0, was_playing=False)
    scores = score([tape.log])
    assert scores.stop_sent == [0.0]
    assert scores.stop_heard == pytest.approx([100])
    assert scores.stop_queued == [300]


def test_interruption_without_effect_counts_as_missed_unless_the_answer_was_nearly_over():
    tape = Tape()
    story(tape)
    tape.act(said("stop", "agent+300"), 2.8, 3.1, over="r1", over_ms=300)
    tape.act(said("stop", "agent+1000"), 3.5, 3.8, over="r1", over_ms=1_000)
    scores = score([tape.log])
    assert scores.missed_interruptions.count == scores.missed_interruptions.of == 1


def test_tools():
    tape = Tape()
    tape.act(said("timer", tools=(ExpectedCall("set_timer", {"minutes": 10}),)), 1.0, 2.0)
    tape.heard("timer", 2.0, 2.2, 2.25)
    tape.decided(2.3, "timer")
    tape.add(2.4, ToolRequest(turn=1, call_id="c1", name="set_timer", arguments={"minutes": 10}))
    tape.speaks(1, 2.5, "Okay.")
    tape.act(said("other", tools=(ExpectedCall("set_timer", {"minutes": 10}),)), 5.0, 6.0)
    tape.heard("other", 6.0, 6.2, 6.25)
    tape.decided(6.3, "other")
    tape.add(6.4, ToolRequest(turn=2, call_id="c2", name="set_timer", arguments={"minutes": 12}))
    tape.speaks(2, 6.5, "Okay.")
    tape.act(said("thanks"), 9.0, 9.5)
    tape.heard("thanks", 9.5, 9.7, 9.75)
    tape.decided(9.8, "thanks")
    tape.add(9.9, ToolRequest(turn=3, call_id="c3", name="get_time", arguments={}))
    tape.speaks(3, 9.95, "Welcome.")
    scores = score([tape.log])
    assert (scores.tools.count, scores.tools.of) == (2, 3)
    assert "'minutes': 12" in scores.tools.cases[0]


def test_a_slow_tool_is_no_latency_of_the_agent():
    tape = Tape(tools=(ToolScript(name="get_time", delay_ms=2_000),))
    story(tape)
    assert score([tape.log]).latency == []


def test_typed_text_is_answered_by_what_follows_it():
    tape = Tape()
    story(tape)
    tape.log.acts.append(Act(said("What time is it?", kind="text"), 6.0, 6.0))
    tape.speaks(2, 6.3, "It's late.")
    reading = read_turns(tape.log)
    assert reading.answers[1].act is tape.log.acts[1]
    scores = score([tape.log])
    assert scores.missed.count == 0
    assert len(scores.latency) == 1  # of the story: typed text has no end of speech


def test_speculations_and_what_could_not_be_tried():
    tape = Tape()
    story(tape, done=False)
    tape.add(4.0, TurnMetrics(turn=1, speculations=3, speculated=True))
    tape.log.acts.append(Act(said("stop", "agent+99000"), 5.0, 5.0, problem="too late", staged=False))
    tape.log.failure = "lost"
    scores = score([tape.log])
    assert (scores.speculations, scores.speculated) == (3, 1)
    assert scores.not_staged == ["call 1 (stop): too late"]
    assert scores.broken == ["call: lost"]
    assert scores.missed_interruptions.of == 0
    assert scores.exchanges == 2


def test_figures_for_people_and_for_programs():
    tape = Tape()
    story(tape, done=False, heard_ms=350)
    tape.act(said("mhm", "agent+300", kind="backchannel"), 2.8, 3.1, over="r1", over_ms=300)
    tape.interrupted(1, 3.0, "Once upon a")
    scores = score([tape.log])
    console = Console(record=True, width=120, file=StringIO())
    print_cases(console, scores, all_of_them=False)
    print_table(console, scores, (450.0, 700.0))
    text = console.export_text()
    assert "call 1 (mhm): stopped after 'Once upon a'" in text
    assert "1 of 1 (100.0 %)" in text
    assert "500 / 500" in text
    assert "≤ 450 / ≤ 700" in text
    figures = summary(scores)
    assert figures["exchanges"] == 2
    assert figures["wrongful interruptions, backchannels and noise"]["count"] == 1
    assert figures["end of speech to first audio"]["p95"] == pytest.approx(500)
    assert json.loads(json.dumps(figures)) == figures
