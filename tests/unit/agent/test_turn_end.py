"""When the user's turn is over: pauses inside sentences, and models that do not answer."""

from __future__ import annotations

import math

import pytest
from agent_fakes import FakeCall, open_call, says, utterance

from parley.agent.config import AgentConfig
from parley.asr.messages import TranscriptEvent
from parley.errors import InferenceError, ModelUnavailableError
from parley.protocol import (
    AgentState,
    Control,
    ErrorEvent,
    Interrupted,
    SpeechStarted,
    SpeechStopped,
    Start,
    Transcript,
    TurnDecision,
    TurnMetrics,
    TurnOptions,
)

NORMAL = Start(turn=TurnOptions(eagerness="normal"))
STORY = "Once there was a robot in a house by the sea, and it was happy. It waved at all the boats."


def decisions(call):
    return [(event.decision, event.reason) for event in call.outlet.of(TurnDecision)]


async def answered(call: FakeCall, start: Start = NORMAL, *, turns: int = 1) -> FakeCall:
    """The call after so many turns of the agent."""
    await call.start(start)
    await call.end(TurnMetrics, turns)
    return call


async def test_a_pause_inside_a_sentence_is_not_the_end_of_a_turn():
    call = FakeCall(hears=[(200, 1_000, "set a timer for"), (2_200, 3_000, "ten minutes")])
    await answered(call)
    assert call.chat.prompt()[1:] == [("user", "set a timer for ten minutes")]
    assert len(call.chat.requests) == 1
    assert decisions(call) == [
        ("wait", "text_unfinished"),
        ("resume", "spoke_again"),
        ("commit", "sounds_complete"),
    ]
    assert call.outlet.finals == ["set a timer for", "ten minutes"]
    assert call.outlet.of(Interrupted) == []
    assert call.outlet.states == ["listening", "processing", "speaking", "listening"]


async def test_with_the_setting_off_every_pause_is_the_end_of_a_turn():
    call = FakeCall(AgentConfig(eagerness="normal"))
    call.hears((200, 1_000, "set a timer for"), (2_200, 3_000, "ten minutes"))
    await answered(call, Start(turn=TurnOptions(eagerness="off")), turns=2)
    assert len(call.chat.requests) == 2
    assert decisions(call) == []
    assert call.turn_model.heard == []
    assert call.outlet.of(TurnMetrics)[0].end_of_turn_ms is None


async def test_the_server_s_choice_counts_where_the_client_makes_none():
    call = FakeCall(AgentConfig(eagerness="patient"), hears=[(200, 1_000, "hello there")])
    await answered(call, Start())
    assert decisions(call) == [("wait", "sounds_complete"), ("commit", "waited")]
    assert call.outlet.of(TurnDecision)[0].needed_ms == 1_000


async def test_complete_turn_is_answered_after_its_score():
    call = FakeCall(hears=[(200, 1_000, "what time is it")])
    await answered(call, Start(turn=TurnOptions(eagerness="normal", complete_ms=0)))
    (commit,) = call.outlet.of(TurnDecision)
    assert (commit.decision, commit.reason, commit.text) == ("commit", "sounds_complete", "what time is it")
    assert (commit.probability, commit.utterance, commit.needed_ms) == (0.9, 1, 0)
    final = next(event for event in call.outlet.of(Transcript) if event.is_final)
    assert call.at_ms(commit) == pytest.approx(call.at_ms(final) + 10)
    (metrics,) = call.outlet.of(TurnMetrics)
    # As without a decision: 1300 ms of audio are complete in the chunk of 1320 ms; one push takes 5 ms.
    assert metrics.asr_final_ms == 25
    assert metrics.end_of_turn_ms == 10
    # The answer was begun while the pause was being judged.
    assert (metrics.speculations, metrics.speculated, metrics.llm_first_token_ms) == (1, True, 10)


async def test_incomplete_turn_waits():
    call = FakeCall()
    call.turn_model.scores.append(0.0)
    call.hears((200, 1_000, "set a timer"))
    await answered(call, Start(turn=TurnOptions(eagerness="normal", incomplete_ms=1_500)))
    wait, commit = call.outlet.of(TurnDecision)
    assert (wait.decision, wait.reason, wait.needed_ms) == ("wait", "sounds_incomplete", 1_500)
    assert (commit.decision, commit.reason) == ("commit", "waited")
    # Silence is counted from the end of speech, which was heard one chunk after it was said.
    assert call.at_ms(commit) == pytest.approx(1_000 + 1_500, abs=25)
    assert commit.silence_ms == 1_500
    states = [sent.event.state for sent in call.outlet.sent if isinstance(sent.event, AgentState)]
    assert states[:2] == ["listening", "processing"]


@pytest.mark.parametrize(
    ("server", "session", "needed_ms"),
    [(True, None, [240, 295]), (True, False, [240, 240]), (False, None, [240, 240])],
)
async def test_call_waits_longer_after_a_caller_was_cut_off(server, session, needed_ms):
    call = FakeCall(AgentConfig(turn_adapts=server))
    call.hears((200, 1_000, "set a timer"), (1_300, 2_000, "for ten minutes"))
    await answered(call, Start(turn=TurnOptions(eagerness="normal", adapts=session)), turns=2)
    commits = [one for one in call.outlet.of(TurnDecision) if one.decision == "commit"]
    assert [one.needed_ms for one in commits] == needed_ms


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ModelUnavailableError("gone"), "model_unavailable"),
        (InferenceError("broken"), "inference_failed"),
        (RuntimeError("unexpected"), "internal_error"),
        (math.nan, "inference_failed"),
        (1.5, "inference_failed"),
    ],
)
async def test_without_a_score_the_silence_counts(failure, code):
    call = FakeCall()
    call.turn_model.scores.append(failure)
    call.hears((200, 1_000, "what time is it"))
    await answered(call)
    assert decisions(call) == [("commit", "not_scored")]
    assert call.unscored == [code]
    assert call.outlet.codes == []
    assert call.chat.prompt()[1:] == [("user", "what time is it")]


async def test_a_late_score_is_not_waited_for():
    call = FakeCall()
    call.turn_model.takes_s = 30
    call.hears((200, 1_000, "what time is it"))
    await answered(call, Start(turn=TurnOptions(eagerness="normal", complete_ms=0)))
    (commit,) = call.outlet.of(TurnDecision)
    assert commit.reason == "not_scored"
    assert call.at_ms(commit) == pytest.approx(1_325 + 300)
    assert call.unscored == ["deadline_exceeded"]


async def test_words_count_without_a_score_too():
    call = FakeCall()
    call.turn_model.scores += [InferenceError("x"), InferenceError("x")]
    call.hears((200, 1_000, "my phone number is five five"), (2_500, 3_000, "five one two three four"))
    await answered(call)
    assert decisions(call) == [
        ("wait", "text_unfinished"),
        ("resume", "spoke_again"),
        ("commit", "not_scored"),
    ]
    assert call.outlet.of(TurnDecision)[0].cue == "digits"
    assert call.chat.prompt()[1:] == [("user", "my phone number is 5551234")]


async def test_the_model_hears_the_turn_so_far_with_the_silence_after_it():
    call = FakeCall(hears=[(1_000, 2_000, "set a timer for"), (3_000, 4_000, "ten minutes")])
    await answered(call)
    first, second = (len(speech) / 16 for speech in call.turn_model.heard)
    # From half a second before the first sound to the end of the pause, which is noticed in windows of 32 ms.
    assert first == pytest.approx(500 + 1_000 + 300, abs=40)
    assert second == pytest.approx(500 + 3_000 + 300, abs=40)


async def test_the_model_hears_eight_seconds_at_most():
    call = FakeCall(hears=[(1_000, 12_000, "hello")])
    await answered(call)
    assert [len(speech) for speech in call.turn_model.heard] == [8 * 16_000]


async def test_finished_turn_leaves_no_state():
    call = await open_call(NORMAL, hears=[(200, 1_000, "hello there"), (4_000, 5_000, "what time is it")])
    session = call.host._sessions["call"]
    await call.wait_for(TurnMetrics, 2)
    assert not session._conversation._endpointer.close()
    await call.end()
    second = len(call.turn_model.heard[1]) / 16
    assert second == pytest.approx(500 + 1_000 + 300, abs=40)


async def test_the_agent_is_interrupted_as_ever():
    call = FakeCall()
    call.hears((200, 1_000, "tell me a story"), (3_000, 3_500, "stop"))
    call.chat.answers += [says(STORY), says("Okay.")]
    await answered(call, turns=2)
    (cut,) = call.outlet.of(Interrupted)
    assert call.at_ms(cut) == pytest.approx(call.at_ms(call.outlet.of(SpeechStarted)[1]) + 200, abs=45)
    assert 0 < len(cut.spoken_text) < len(STORY)
    assert call.chat.prompt()[1:] == [
        ("user", "tell me a story"),
        ("assistant", f"{cut.spoken_text}…"),
        ("user", "stop"),
    ]


async def test_speech_after_the_commit_interrupts_and_joins_the_turn():
    call = FakeCall(hears=[(200, 1_000, "set a timer"), (1_300, 2_000, "for ten minutes")])
    await answered(call, turns=2)
    assert decisions(call) == [("commit", "sounds_complete"), ("commit", "sounds_complete")]
    assert len(call.outlet.of(Interrupted)) == 1
    assert call.chat.prompt()[1:] == [("user", "set a timer for ten minutes")]


@pytest.mark.parametrize("at_ms", [1_326, 1_700])
async def test_a_call_may_end_while_a_pause_is_scored_or_waited_for(at_ms):
    call = FakeCall()
    call.turn_model.takes_s = 0.2
    call.hears((200, 1_000, "set a timer for"))
    await call.start(NORMAL)
    await call.until(at_ms)
    assert bool(call.turn_model.running) == (at_ms < 1_500)
    call.send(Control(action="hangup"))
    await call.check_nothing_left()
    assert call.chat.requests == []


async def test_a_final_text_that_is_lost_with_its_recogniser_is_not_waited_for():
    call = FakeCall()
    begun, stopped, _ = utterance(1, 200, 1_000, "never sent")
    call.recognition.script.extend([begun, stopped])  # the text was to come in a later reply
    await call.start(NORMAL)
    await call.wait_for(SpeechStopped)
    call.recognition.push_failures.append(InferenceError("lost"))
    call.recognition.script.extend(utterance(1, 500, 1_000, "the second"))
    await call.end(TurnMetrics)
    assert call.outlet.finals == ["", "the second"]
    assert call.chat.prompt()[1:] == [("user", "the second")]


# --- pieces that the recogniser reads together --------------------------------------------------


def reads_again(call: FakeCall, *, before: str, text: str, first: int = 1) -> None:
    """The last utterance of the script is read together with those from ``first`` on."""
    at, event = call.recognition.script.pop()
    anew = TranscriptEvent(
        utterance=event.utterance, text=text, is_final=True, confidence=0.9, first=first, before=before
    )
    call.recognition.script.append((at, anew))


async def test_text_decoded_with_its_turn_is_answered():
    call = FakeCall(hears=[(200, 1_000, "set a timer for the"), (2_200, 3_000, "then minutes")])
    reads_again(call, before="set a timer for", text="ten minutes")
    await answered(call)
    assert call.chat.prompt()[1:] == [("user", "set a timer for ten minutes")]
    assert call.outlet.of(TurnDecision)[-1].text == "set a timer for ten minutes"
    final = call.outlet.of(Transcript)[-1]
    assert (final.text, final.first, final.before) == ("ten minutes", 1, "set a timer for")


async def test_end_of_turn_reaches_the_recogniser():
    call = FakeCall(hears=[(200, 1_000, "set a timer for"), (2_200, 3_000, "ten minutes")])
    await answered(call)
    assert len(call.recognition.turns_over) == 1
    assert call.recognition.turns_over[0] >= 3_300, "not in the pause within the turn"


@pytest.mark.parametrize("eagerness", ["off", "normal"])
async def test_end_of_every_turn_reaches_the_recogniser(eagerness):
    call = FakeCall(hears=[(200, 1_000, "what time is it"), (5_200, 6_000, "thank you")])
    await answered(call, Start(turn=TurnOptions(eagerness=eagerness)), turns=2)
    assert {at // 1_000 for at in call.recognition.turns_over} == {1, 6}


async def test_false_interruption_is_not_decoded_with_the_next_turn():
    call = FakeCall(hears=[(200, 1_000, "tell me a story"), (3_000, 3_300, "mhm")], answers=[says(STORY)])
    await call.start(NORMAL)
    await call.end(TurnMetrics)
    assert call.outlet.of(Interrupted) == []
    assert {at // 1_000 for at in call.recognition.turns_over} == {1, 3}


async def test_utterances_after_a_failure_keep_their_numbers_distinct():
    """A new stream counts its utterances from 1."""
    call = await open_call(NORMAL, hears=[(200, 1_000, "hello there")])
    await call.wait_for(TurnMetrics)
    call.recognition.push_failures.append(ModelUnavailableError("gone"))
    await call.wait_for(ErrorEvent)
    call.hears((1_200, 2_000, "set a timer for the"), (3_200, 4_000, "ten minutes"))
    reads_again(call, before="set a timer for", text="ten minutes")
    await call.end(TurnMetrics, 2)
    assert call.outlet.of(Transcript)[-1].first == 2
    assert call.chat.prompt()[-1] == ("user", "set a timer for ten minutes")


async def test_words_that_the_language_model_would_continue_are_not_answered():
    call = FakeCall(
        hears=[(200, 1_000, "i went to the market"), (1_900, 2_600, "and bought apples")], reads_turns=True
    )
    call.chat.endings = {"i went to the market": 0.01}
    await answered(call)
    assert call.chat.prompt()[1:] == [("user", "i went to the market and bought apples")]
    judged = [one for one in call.outlet.of(TurnDecision) if one.text_probability is not None]
    assert [(one.decision, one.reason, one.text_probability) for one in judged] == [
        ("wait", "text_unfinished", 0.01),
        ("resume", "spoke_again", 0.01),
        ("commit", "sounds_complete", 1.0),
    ]
    asked = [request.messages[-1].content for request in call.chat.read]
    assert asked == ["i went to the market", "i went to the market and bought apples"]


@pytest.mark.parametrize("failure", [InferenceError("no log probabilities"), math.nan, None])
async def test_without_the_language_model_s_answer_the_sound_decides(failure):
    """It fails, answers nonsense, or is late."""
    call = FakeCall(hears=[(200, 1_000, "hello there")], reads_turns=True)
    call.chat.endings = {"hello there": 1.0 if failure is None else failure}
    call.chat.read_s = 5.0 if failure is None else 0.05
    await answered(call)
    assert decisions(call)[-1] == ("commit", "sounds_complete")
    assert call.chat.running == set()


@pytest.mark.parametrize(("text", "per_turn"), [("hello there", 3), ("hello there,", 3), ("hello there", 0)])
async def test_words_are_judged_by_the_answer_that_is_begun_to_them(text, per_turn):
    """It is begun before their sound is judged, but behind a comma; without it they are asked about alone."""
    config = AgentConfig(speculations_per_turn=per_turn)
    call = FakeCall(config, hears=[(200, 1_000, text)], reads_turns=True)
    call.chat.endings, call.chat.reads = {text: 0.8}, True
    await answered(call)
    assert [one.text_probability for one in call.outlet.of(TurnDecision)][-1] == 0.8
    assert [request.reads_turn for request in call.chat.requests] == [per_turn > 0]
    assert len(call.chat.read) == (0 if per_turn else 1)


async def test_an_answer_that_does_not_say_it_makes_the_question_no_later():
    call = FakeCall(hears=[(200, 1_000, "hello there")], reads_turns=True)
    call.chat.endings, call.chat.first_s = {"hello there": 0.8}, 0.9
    await answered(call)
    commit = call.outlet.of(TurnDecision)[-1]
    assert (commit.decision, commit.text_probability) == ("commit", 0.8)
    assert call.at_ms(commit) < 1_500
    assert len(call.chat.read) == 1


async def test_words_are_asked_about_where_their_answer_fails():
    """It is begun again when the turn is over."""
    call = FakeCall(hears=[(200, 1_000, "hello there")], reads_turns=True)
    call.chat.answers.append([InferenceError("broken")])
    call.chat.endings = {"hello there": 0.8}
    await answered(call)
    assert call.outlet.of(TurnDecision)[-1].text_probability == 0.8
    assert len(call.chat.read) == 1


async def test_words_are_judged_behind_the_history_in_english_only():
    call = FakeCall(hears=[(200, 1_000, "hello there")], reads_turns=True)
    await answered(call, Start(turn=TurnOptions(eagerness="normal"), language="de"))
    assert call.chat.read == []
