"""When a turn is over: the policy's decisions, and what must hold of any order of events."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from parley.errors import InvalidMessageError
from parley.protocol import TurnOptions
from parley.turns.cues import Cue
from parley.turns.endpointing import (
    CommitTurn,
    EndpointingPolicy,
    PrepareResponse,
    ReadTurn,
    Resume,
    ScoreTurn,
    WaitForMore,
    judge,
)
from parley.turns.settings import PRESETS, choose_settings

NORMAL = dataclasses.replace(PRESETS["normal"], complete_ms=300)
UNFINISHED = Cue("preposition", "for")
FINISHED = Cue("phrase", "yes", finished=True)

probabilities = st.none() | st.floats(0, 1)
PERHAPS = Cue("digits", "three four five")

texts = st.sampled_from(["", "set a timer for", "ten minutes", "yes", "and"])
cues = st.sampled_from([None, UNFINISHED, PERHAPS, FINISHED])


def turn(text, probability, *, policy=None, ended_at=10.0, at=10.3, utterance=1):
    """One utterance up to the policy's decision about the pause after it."""
    policy = policy or EndpointingPolicy(NORMAL, "en")
    began = policy.on_speech_started(ended_at - 1)
    (score,) = policy.on_speech_stopped(ended_at, at)
    assert isinstance(score, ScoreTurn)
    assert decided(policy.on_transcript(utterance, text, at)) == []
    return policy, began, decided(policy.on_score(score.pause, probability, at))


def decided(outputs):
    """Without what may be begun before anything is decided."""
    return [output for output in outputs if not isinstance(output, PrepareResponse)]


def said(output):
    decision = output.decision
    return decision.decision, decision.reason, decision.text


# --- single decisions ---------------------------------------------------------------------


def test_what_sounds_complete_is_committed_at_once():
    _, _, (commit,) = turn("what's the weather in paris", 0.9)
    assert isinstance(commit, CommitTurn)
    assert said(commit) == ("commit", "sounds_complete", "what's the weather in paris")
    assert (commit.decision.probability, commit.decision.silence_ms, commit.decision.needed_ms) == (
        0.9,
        300,
        300,
    )


def test_what_sounds_incomplete_is_waited_for_in_proportion():
    policy, _, (wait,) = turn("set a timer for ten minutes", 0.1)
    assert said(wait) == ("wait", "sounds_incomplete", "set a timer for ten minutes")
    assert wait.until == pytest.approx(10 + 1.5)
    assert policy.tick(11.49) == []
    (commit,) = policy.tick(11.5)
    assert said(commit) == ("commit", "waited", "set a timer for ten minutes")
    assert (commit.decision.silence_ms, commit.decision.needed_ms) == (1_500, 1_500)
    assert policy.tick(20) == []


def test_words_that_something_has_to_follow_are_waited_for_however_they_sound():
    _, _, (wait,) = turn("set a timer for", 0.99)
    assert said(wait) == ("wait", "text_unfinished", "set a timer for")
    assert (wait.decision.cue, wait.decision.cue_words, wait.decision.probability) == (
        "preposition",
        "for",
        0.99,
    )
    assert wait.until == pytest.approx(12)


@pytest.mark.parametrize(("probability", "begun"), [(0.9, True), (0.1, False)])
def test_an_answer_is_begun_for_a_guess_that_is_soon_decided(probability, begun):
    policy = EndpointingPolicy(NORMAL, "en")
    policy.on_speech_started(9)
    (score,) = policy.on_speech_stopped(10, 10.2)
    assert policy.on_transcript(1, "my order number is three four five", 10.2) == []
    outputs = policy.on_score(score.pause, probability, 10.2)
    assert any(isinstance(output, PrepareResponse) for output in outputs) == begun
    assert isinstance(outputs[-1], WaitForMore)


def test_how_many_digits_follow_is_a_guess():
    """Half a number that sounds whole is waited for, but not for long; one that does not is a half."""
    _, _, (wait,) = turn("my order number is three four five", 0.9)
    assert said(wait) == ("wait", "text_unfinished", "my order number is three four five")
    assert wait.decision.needed_ms == 980
    for probability in (0.1, 0.49, None):
        _, _, (wait,) = turn("my order number is three four five", probability)
        assert wait.decision.needed_ms == NORMAL.unfinished_ms


@pytest.mark.parametrize(
    "groups",
    [
        ("My number is 555.", "123", "4567."),
        ("my number is five five five", "one two three", "four five six seven"),
        ("My phone number is 866.", "four fifty", "sixty-one fifty-two."),
        ("The code is one two.", "Three four."),
        ("Triple five.", "one two one two"),
        ("My name is spelled.", "S-M-I-T-H"),
    ],
)
def test_policy_with_pauses_between_digits_or_letters_makes_one_turn(groups):
    policy, at = EndpointingPolicy(PRESETS["normal"], "en"), 10.0
    for number, group in enumerate(groups[:-1], 1):
        _, _, (wait,) = turn(group, 0.95, policy=policy, ended_at=at, at=at + 0.2, utterance=number)
        assert policy.tick(at + 0.8) == [], wait
        (resume,) = policy.on_speech_started(at + 0.8)
        assert isinstance(resume, Resume)
        at += 2.0
    _, _, (output,) = turn(groups[-1], 0.95, policy=policy, ended_at=at, at=at + 0.3, utterance=len(groups))
    assert output.decision.text == " ".join(groups)


def test_a_comma_of_the_recogniser_is_a_guess():
    for probability, needed_ms in ((0.5, 640), (0.75, 470), (0.9, 368)):
        _, _, (wait,) = turn("And in London,", probability)
        assert wait.decision.needed_ms == needed_ms
    _, _, (commit,) = turn("And in London,", 1.0)
    assert said(commit) == ("commit", "sounds_complete", "And in London,")
    _, _, (wait,) = turn("And in London,", 0.1)
    assert wait.decision.needed_ms == NORMAL.unfinished_ms


def test_words_that_are_complete_shorten_the_wait():
    _, _, (wait,) = turn("no", 0.0)
    assert said(wait) == ("wait", "text_finished", "no")
    assert wait.decision.needed_ms == (NORMAL.complete_ms + NORMAL.incomplete_ms) / 2
    _, _, (commit,) = turn("no", 0.8)
    assert said(commit) == ("commit", "sounds_complete", "no")


def test_without_a_score_the_silence_counts():
    _, _, (commit,) = turn("what time is it", None)
    assert said(commit) == ("commit", "not_scored", "what time is it")
    _, _, (wait,) = turn("set a timer for", None)
    assert said(wait) == ("wait", "text_unfinished", "set a timer for")


def test_policy_without_a_model_requests_no_score():
    policy = EndpointingPolicy(NORMAL, "en", scored=False)
    policy.on_speech_started(1)
    assert policy.on_speech_stopped(2, 2.3) == []
    (commit,) = policy.on_transcript(1, "hello there", 2.3)
    assert said(commit) == ("commit", "not_scored", "hello there")


def read_turn(text, probability, *, policy=None, at=10.3):
    """A pause that the language model is asked about, up to the score of its sound."""
    policy = policy or EndpointingPolicy(NORMAL, "en", read=True)
    policy.on_speech_started(9)
    (score,) = policy.on_speech_stopped(10, at)
    assert decided(policy.on_transcript(1, text, at)) == []
    asked, *outputs = decided(policy.on_score(score.pause, probability, at))
    assert asked == ReadTurn(text)
    return policy, outputs


def test_words_that_the_language_model_would_continue_are_waited_for():
    policy, (wait,) = read_turn("i went to the market", 0.95)
    assert wait.until == 10.3, "long enough by its sound"
    assert policy.tick(10.35) == [], "the words are judged still"
    (wait,) = policy.on_read("i went to the market", 0.01, 10.4)
    assert said(wait) == ("wait", "text_unfinished", "i went to the market")
    assert (wait.decision.probability, wait.decision.text_probability) == (0.95, 0.01)
    assert wait.decision.needed_ms > 700
    (commit,) = policy.tick(wait.until)
    assert commit.decision.reason == "waited"


def test_words_that_end_a_sentence_shorten_the_wait_for_a_doubtful_sound():
    _, _, (alone,) = turn("what time is it in lima", 0.2)
    policy, _ = read_turn("what time is it in lima", 0.2)
    (read,) = policy.on_read("what time is it in lima", 0.95, 10.35)
    assert read.decision.needed_ms < alone.decision.needed_ms


def test_without_an_answer_of_the_language_model_the_sound_decides():
    policy, _ = read_turn("what time is it", 0.9)
    (commit,) = policy.on_read("what time is it", None, 10.6)
    assert said(commit) == ("commit", "sounds_complete", "what time is it")
    assert commit.decision.text_probability is None


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("What time is it in Lima?", True),
        ("What time is it in Lima", True),
        ("My daughter has a cold,", True),
        ("Yes.", False),
        ("Set a timer for", False),
    ],
)
@pytest.mark.parametrize("probability", [0.985, None])
def test_the_language_model_is_not_asked_where_the_rules_decide(text, probability, asked):
    policy = EndpointingPolicy(NORMAL, "en", read=True)
    policy.on_speech_started(9)
    (score,) = policy.on_speech_stopped(10, 10.3)
    policy.on_transcript(1, text, 10.3)
    outputs = policy.on_score(score.pause, probability, 10.3)
    assert (ReadTurn(text) in outputs) == asked


def test_what_the_language_model_said_of_fewer_words_is_forgotten():
    policy, _ = read_turn("i went to the market", 0.95)
    policy.on_read("i went to the market", 0.01, 10.4)
    policy.on_speech_started(10.6)
    (score,) = policy.on_speech_stopped(11, 11.3)
    policy.on_transcript(2, "and bought two apples.", 11.3)
    _, wait = decided(policy.on_score(score.pause, 0.99, 11.3))
    assert said(wait) == ("wait", "sounds_complete", "i went to the market and bought two apples.")
    assert wait.decision.text_probability is None


def test_words_are_judged_once_and_not_if_something_is_certain_to_follow():
    policy, _ = read_turn("what time is it", 0.9)
    policy.on_speech_started(10.5)
    assert policy.on_read("what time is it", 0.9, 10.6) == [], "the user speaks"
    (score,) = policy.on_speech_stopped(10.8, 11.0)
    assert decided(policy.on_transcript(2, "", 11.0)) == [], "a noise: the words are the same"
    (commit,) = policy.on_score(score.pause, 0.1, 11.0)
    assert commit.decision.text_probability == 0.9
    policy.on_speech_started(12)
    policy.on_speech_stopped(13, 13.2)
    assert policy.on_transcript(3, "set a timer for", 13.2) == []
    assert policy.on_read("what time is it", 0.1, 13.3) == [], "an answer about the turn before"


def test_speech_in_the_pause_belongs_to_the_turn():
    policy, _, _ = turn("set a timer for", 0.9)
    (resume,) = policy.on_speech_started(10.8)
    assert isinstance(resume, Resume)
    assert said(resume) == ("resume", "spoke_again", "set a timer for")
    assert policy.tick(30) == []
    _, began, (commit,) = turn("ten minutes", 0.9, policy=policy, ended_at=31.5, at=31.8, utterance=2)
    assert began == []
    assert said(commit) == ("commit", "sounds_complete", "set a timer for ten minutes")
    assert commit.decision.utterance == 2
    # The next turn has nothing of this one.
    _, _, (commit,) = turn("thanks", 0.9, policy=policy, ended_at=40, at=40.3)
    assert commit.decision.text == "thanks"


def test_a_noise_in_the_pause_does_not_make_it_longer():
    policy, _, (wait,) = turn("set a timer for", 0.9)
    policy.on_speech_started(11.5)
    policy.on_speech_stopped(11.6, 11.9)
    (again,) = policy.on_transcript(2, "", 11.9) + policy.on_score(2, 0.1, 11.9)
    assert again.until == wait.until
    assert again.decision.probability == 0.9
    policy.on_speech_started(12.0)
    policy.on_speech_stopped(12.2, 12.5)
    (commit,) = policy.on_transcript(3, " ", 12.5) + policy.on_score(3, 0.1, 12.5)
    assert (commit.decision.decision, commit.decision.text) == ("commit", "set a timer for")


def test_an_answer_is_prepared_once_for_words_that_may_be_all():
    policy = EndpointingPolicy(NORMAL, "en")
    policy.on_speech_started(1)
    (score,) = policy.on_speech_stopped(2, 2.2)
    assert policy.on_transcript(1, "set a timer", 2.25) == [PrepareResponse("set a timer")]
    (wait,) = policy.on_score(score.pause, 0.1, 2.26)
    assert isinstance(wait, WaitForMore)
    assert [type(output) for output in policy.on_speech_started(2.8)] == [Resume]
    policy.on_speech_stopped(3.2, 3.4)
    assert policy.on_transcript(2, "for the", 3.45) == [], "something has to follow"


def test_a_sound_that_may_be_speech_holds_the_end_back():
    policy, _, (wait,) = turn("set a timer", 0.3)
    policy.on_onset()
    assert policy.tick(wait.until) == []
    (commit,) = policy.on_onset_cancelled(wait.until + 0.1)
    assert said(commit) == ("commit", "waited", "set a timer")


def test_a_noise_alone_ends_at_once():
    policy = EndpointingPolicy(NORMAL, "en")
    policy.on_speech_started(1)
    (score,) = policy.on_speech_stopped(2, 2.3)
    (commit,) = policy.on_transcript(1, "", 2.3)
    assert said(commit) == ("commit", "no_words", "")
    assert policy.on_score(score.pause, 0.9, 2.4) == []


def test_the_text_may_come_after_the_score_and_after_the_next_words_have_begun():
    policy = EndpointingPolicy(NORMAL, "en")
    policy.on_speech_started(1)
    (first,) = policy.on_speech_stopped(2, 2.3)
    assert policy.on_score(first.pause, 0.9, 2.4) == []
    policy.on_speech_started(2.45)
    assert policy.on_transcript(1, "my name is", 2.5) == []
    (second,) = policy.on_speech_stopped(3, 3.3)
    assert policy.on_score(first.pause, 0.9, 3.3) == [], "an answer about another pause"
    assert policy.on_transcript(2, "anna", 3.4) == [PrepareResponse("my name is anna")]
    (commit,) = policy.on_score(second.pause, 0.9, 3.4)
    assert commit.decision.text == "my name is anna"


def test_the_limit_ends_any_pause():
    policy = EndpointingPolicy(dataclasses.replace(NORMAL, limit_ms=900), "en")
    _, _, (wait,) = turn("set a timer for", 0.0, policy=policy)
    assert wait.decision.needed_ms == 900
    (commit,) = policy.tick(10.9)
    assert commit.decision.reason == "silence_limit"


def test_a_turn_does_not_last_for_ever():
    policy = EndpointingPolicy(NORMAL, "en")
    ended, outputs = 0.0, []
    while not any(isinstance(output, CommitTurn) for output in outputs):
        ended += 2
        _, _, outputs = turn("and", 0.0, policy=policy, ended_at=ended, at=ended + 0.3)
    assert outputs[0].decision.reason == "turn_limit"
    assert 60 <= ended <= 62


# --- settings -----------------------------------------------------------------------------


def test_the_session_s_numbers_replace_those_of_its_eagerness():
    chosen = choose_settings(TurnOptions(eagerness="patient", complete_ms=100, threshold=0.9), "off")
    assert chosen == dataclasses.replace(PRESETS["patient"], complete_ms=100, threshold=0.9)
    assert choose_settings(TurnOptions(), "eager") == PRESETS["eager"]
    assert choose_settings(TurnOptions(), "off") is None
    assert choose_settings(TurnOptions(eagerness="off"), "normal") is None
    assert choose_settings(TurnOptions(limit_ms=1), "off") == dataclasses.replace(
        PRESETS["normal"], limit_ms=1
    )


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0.0},
        {"threshold": 1.1},
        {"threshold": float("nan")},
        {"complete_ms": -1},
        {"limit_ms": 10_001},
        {"eagerness": "off", "limit_ms": 10},
    ],
)
def test_numbers_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidMessageError, match=r"turn\."):
        choose_settings(TurnOptions(**options), "normal")


# --- what must hold of all evidence ---------------------------------------------------------

numbers = st.builds(
    dataclasses.replace,
    st.just(NORMAL),
    threshold=st.floats(0.05, 1),
    complete_ms=st.integers(0, 3_000),
    incomplete_ms=st.integers(0, 3_000),
    unfinished_ms=st.integers(0, 3_000),
    limit_ms=st.integers(0, 3_000),
)


@given(numbers, cues, st.floats(0, 1), st.floats(0, 1))
def test_what_sounds_more_complete_never_needs_more_silence(chosen, cue, one, other):
    less, more = sorted((one, other))
    assert judge(chosen, more, cue).needed_ms <= judge(chosen, less, cue).needed_ms


@given(numbers, probabilities)
def test_words_only_ever_move_the_silence_their_own_way(chosen, probability):
    finished, neutral, perhaps, unfinished = (
        judge(chosen, probability, cue).needed_ms for cue in (FINISHED, None, PERHAPS, UNFINISHED)
    )
    assert finished <= neutral <= perhaps <= unfinished


@given(numbers, probabilities, cues)
def test_no_evidence_needs_more_silence_than_the_limit(chosen, probability, cue):
    assert 0 <= judge(chosen, probability, cue).needed_ms <= chosen.limit_ms


@given(probabilities, cues)
def test_patience_grows_from_eager_to_patient(probability, cue):
    needed = [judge(PRESETS[name], probability, cue).needed_ms for name in ("eager", "normal", "patient")]
    assert needed == sorted(needed)


@given(numbers, probabilities, st.sampled_from(["set a timer for", "yes", "what time is it"]), st.data())
def test_a_longer_pause_never_undoes_a_decision(chosen, probability, text, data):
    """Whenever the scores come: later never means waiting where earlier meant committing."""
    delays = sorted(data.draw(st.lists(st.floats(0, 4), min_size=2, max_size=5)))
    committed = []
    for delay in delays:
        policy = EndpointingPolicy(chosen, "en")
        _, _, (output,) = turn(text, probability, policy=policy, at=10 + delay)
        committed.append(isinstance(output, CommitTurn))
    assert committed == sorted(committed)


# --- utterances that are read together ------------------------------------------------------


def paused_turn(*texts):
    """A policy that has heard these utterances and waits for the text of the next."""
    policy, at = EndpointingPolicy(NORMAL, "en", scored=False), 10.0
    for number, text in enumerate(texts, 1):
        policy.on_speech_started(at)
        policy.on_speech_stopped(at + 1, at + 1.2)
        policy.on_transcript(number, text, at + 1.25)
        at += 1.4
    policy.on_speech_started(at)
    policy.on_speech_stopped(at + 1, at + 1.2)
    return policy, at + 1.25


def test_a_text_that_was_read_again_takes_the_place_of_the_first_reading():
    policy, at = paused_turn("set a timer for wall")
    (prepare, wait) = policy.on_transcript(2, "the minutes", at, first=1, before="set a timer for")
    assert prepare == PrepareResponse("set a timer for the minutes")
    assert said(wait)[2] == "set a timer for the minutes"


def test_what_was_read_again_replaces_all_utterances_from_the_first_of_them_on():
    policy, at = paused_turn("hello", "my name", "his")
    (prepare, _) = policy.on_transcript(4, "anna", at, first=2, before="my name is")
    assert prepare == PrepareResponse("hello my name is anna")


def test_text_of_another_turn_is_not_repeated():
    policy, at = paused_turn("hello")
    policy.on_transcript(2, "there", at)
    policy.take()
    policy.on_speech_started(at)
    policy.on_speech_stopped(at + 1, at + 1.2)
    (prepare, _) = policy.on_transcript(3, "what time is it", at + 1.25, first=1, before="hello there now")
    assert prepare == PrepareResponse("what time is it")


def test_words_that_a_second_reading_finds_make_the_pause_begin_anew():
    policy, at = paused_turn("set a timer")
    due = at + NORMAL.complete_ms / 1000 - 0.25
    (_, wait) = policy.on_transcript(2, "", at, first=1, before="set a timer now please")
    assert wait.until == pytest.approx(due)


def test_noise_without_words_in_a_second_reading_keeps_the_pause():
    policy, at = paused_turn("set a timer")
    (commit,) = policy.on_transcript(2, "", at, first=1, before="set a timer")
    assert isinstance(commit, CommitTurn)


# --- what must hold of any order of events --------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """A caller and a recogniser that do anything, at any time."""

    def __init__(self):
        super().__init__()
        self.policy = EndpointingPolicy(NORMAL, "en")
        self.now = 100.0
        self.speaking = False
        self.texts_due = 0
        self.asked = None
        self.ended_at = None
        self.texts = {}
        self.said = 0
        self.wait = None
        self.prepared = False

    def take(self, outputs):
        for output in outputs:
            if isinstance(output, ScoreTurn):
                self.asked = output.pause
                continue
            if isinstance(output, PrepareResponse):
                assert output.text == " ".join(self.words)
                assert not self.speaking
                assert not self.prepared, "once for each pause"
                self.prepared = True
                continue
            assert output.decision.text == " ".join(self.words)
            if isinstance(output, WaitForMore):
                assert not self.speaking
                assert self.now < output.until <= self.ended_at + NORMAL.limit_ms / 1000
                self.wait = output.until
            elif isinstance(output, Resume):
                assert self.speaking
                assert self.wait is not None
                self.wait = None
            else:
                assert not self.speaking, "no commit while speech is active"
                assert not self.texts_due, "no commit before all words are there"
                self.texts, self.wait, self.prepared = {}, None, False

    @rule(seconds=st.floats(0.01, 5))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(self.policy.tick(self.now))

    @precondition(lambda self: not self.speaking)
    @rule()
    def speech_begins(self):
        self.speaking, self.prepared = True, False
        self.take(self.policy.on_speech_started(self.now))

    @precondition(lambda self: self.speaking)
    @rule(silence=st.floats(0.05, 0.5))
    def speech_ends(self, silence):
        self.speaking = False
        self.now += silence
        self.ended_at = self.now - silence
        self.texts_due += 1
        self.take(self.policy.on_speech_stopped(self.ended_at, self.now))

    @precondition(lambda self: self.texts_due)
    @rule(text=texts, back=st.integers(0, 3), before=texts)
    def text_comes(self, text, back, before):
        """The text of an utterance, perhaps read together with some of those before it, of any turn."""
        self.texts_due -= 1
        self.said += 1
        first = self.said - back if back else 0
        if first in self.texts:
            self.texts = {number: said for number, said in self.texts.items() if number < first}
            self.texts[first] = before
        self.texts[self.said] = text
        self.take(self.policy.on_transcript(self.said, text, self.now, first=first, before=before))

    @property
    def words(self):
        return [text for text in self.texts.values() if text]

    @precondition(lambda self: self.asked is not None)
    @rule(probability=probabilities)
    def score_comes(self, probability):
        asked, self.asked = self.asked, None
        self.take(self.policy.on_score(asked, probability, self.now))

    @precondition(lambda self: self.words and not self.speaking and not self.texts_due and self.asked is None)
    @rule()
    def silence_lasts(self):
        """Nothing is forgotten: in the end every word is committed."""
        self.now = max(self.now, self.ended_at + NORMAL.limit_ms / 1000)
        self.take(self.policy.tick(self.now))
        assert self.words == []

    @invariant()
    def nothing_is_late(self):
        assert self.wait is None or self.wait > self.now


AnyOrder.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
