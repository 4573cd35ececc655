"""What is an interruption, and what is not."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol import BargeInOptions
from parley.turns.interruption import (
    HOLD_S,
    InterruptionPolicy,
    InterruptSpeech,
    ResumeSpeech,
    interruption_words,
    is_echo,
    words_of,
)

AGENT = "Okay, ten minutes for the pasta, starting now."


def sound(*, closing=False, asks=False, agent=AGENT, **options):
    return InterruptionPolicy(
        BargeInOptions(**options),
        interruption_words("en"),
        agent_text=agent,
        closing=closing or asks,
        asks=asks,
        began_at=100.0,
    )


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("no make it twelve", InterruptSpeech("words")),
        ("yes but make it twelve", InterruptSpeech("words")),
        ("Stop!", InterruptSpeech("command")),
        ("no, no, no", InterruptSpeech("command")),
        ("wait a minute", InterruptSpeech("command")),
        ("mhm", ResumeSpeech("backchannel", "mhm")),
        ("Uh-huh, okay.", ResumeSpeech("backchannel", "Uh-huh, okay.")),
        ("", ResumeSpeech("no_words", "")),
        ("...", ResumeSpeech("no_words", "...")),
        ("ten minutes for the pasta", ResumeSpeech("echo", "ten minutes for the pasta")),
        ("okay ten minutes", ResumeSpeech("echo", "okay ten minutes")),
        ("Okay, 10 minutes for the pasta.", ResumeSpeech("echo", "Okay, 10 minutes for the pasta.")),
        ("No, make it 12.", InterruptSpeech("words")),
        ("Wait, wait.", InterruptSpeech("command")),
        ("Mm-hmm.", ResumeSpeech("backchannel", "Mm-hmm.")),
        ("twelve minutes for the pizza please", InterruptSpeech("words")),
    ],
)
def test_the_words_of_a_whole_utterance_decide(text, verdict):
    policy = sound()
    policy.on_speech_stopped(500, 100.5)
    assert policy.on_final(text, 0.9, 100.8) == verdict


def test_an_interruption_is_one_as_soon_as_its_words_are_there():
    policy = sound()
    assert policy.on_partial("no", 0.9, 100.15) == InterruptSpeech("command")
    policy = sound()
    assert policy.on_partial("what about", 0.9, 100.1) is None, "it may still change"
    assert policy.on_partial("what about a", 0.9, 100.15) is None, "too short so far"
    assert policy.tick(100.2) == InterruptSpeech("words")


@pytest.mark.parametrize(
    ("speech_ms", "confidence", "verdict"),
    [
        (520, 0.46, ResumeSpeech("no_words", "bye bye")),
        (520, 0.55, InterruptSpeech("words")),
        (700, 0.46, InterruptSpeech("words")),
    ],
)
def test_a_sound_as_short_as_a_hmm_has_to_be_surely_words(speech_ms, confidence, verdict):
    """Where the agent expects an answer."""
    policy = sound(closing=True)
    policy.on_speech_stopped(speech_ms, 100.0 + speech_ms / 1000 + 0.2)
    assert policy.on_final("bye bye", confidence, 100.9) == verdict


def test_few_and_doubtful_words_wait_for_the_end():
    policy = sound()
    assert policy.on_partial("london", 0.9, 100.5) is None
    assert policy.on_partial("stop", 0.4, 100.6) is None
    assert policy.on_partial("what about", 0.4, 100.7) is None
    assert policy.on_partial("what about a", 0.4, 100.7) is None
    assert policy.on_partial("what about a", 0.6, 100.7) == InterruptSpeech("words")
    policy.on_speech_stopped(500, 100.5)
    assert policy.on_final("london", 0.5, 100.9) == ResumeSpeech("too_short", "london")


@pytest.mark.parametrize(
    ("text", "speech_ms", "confidence", "stops"),
    [
        ("Emily,", 620, 0.84, False),  # an "mhm"
        ("That's high.", 700, 0.92, False),  # an "uh-huh"
        ("That's wrong.", 700, 0.95, True),
        ("What about London?", 820, 0.7, True),
        ("No, make it twelve.", 700, 0.8, True),
        ("Make sense of.", 900, 0.74, False),
        ("Make sense of.", 900, 0.95, True),
    ],
)
def test_a_few_brief_words_or_almost_a_backchannel_have_to_be_certain(text, speech_ms, confidence, stops):
    policy = sound()
    policy.on_speech_stopped(speech_ms, 100.0 + speech_ms / 1000 + 0.2)
    assert isinstance(policy.on_final(text, confidence, 102.0), InterruptSpeech if stops else ResumeSpeech)


def test_a_phrase_that_a_recogniser_repeats_was_said_once():
    policy = sound()
    assert policy.on_partial("I say I say I say I", 0.6, 100.5) is None
    assert policy.on_partial("I see, I see,", 0.8, 100.7) is None
    assert policy.text == "i see"
    policy.on_speech_stopped(700, 100.8)
    assert policy.on_final("I see.", 0.9, 101.0) == ResumeSpeech("backchannel", "I see.")


@pytest.mark.parametrize(
    ("text", "confidence", "verdict"),
    [
        ("i am", 0.36, ResumeSpeech("no_words", "i am")),
        ("bye", 0.44, ResumeSpeech("no_words", "bye")),
        ("what about london", 0.44, InterruptSpeech("words")),
        ("hold on", 0.2, InterruptSpeech("command")),
        ("okay stop", 0.3, InterruptSpeech("command")),
    ],
)
def test_words_without_conviction_are_none_unless_they_are_commands(text, confidence, verdict):
    policy = sound()
    policy.on_speech_stopped(800, 100.8)
    assert policy.on_final(text, confidence, 101.2) == verdict


def test_a_sign_of_listening_may_become_an_interruption():
    policy = sound()
    assert policy.on_partial("yeah", 0.9, 100.4) is None
    assert policy.on_partial("yeah what about london", 0.9, 100.8) == InterruptSpeech("words")


@pytest.mark.parametrize(
    ("partials", "final"),
    [
        (["I say,"], "I see."),
        (["Make make make make make", "Makes sense."], "Makes sense."),
        (["Go, go, go", "Go, go, go, go", "Go ahead."], "Go ahead."),
        (["I", "I say,"], "I see."),
        (["Okay, I", "Okay, I say"], "Okay, I see."),
        (["Go a head"], "Go ahead."),
        (["Go", "Go on"], "Go on."),
        (["That is", "That is ride"], "That is right."),
        (["Yeah okay", "Yeah okay so"], "Yeah, okay."),
    ],
)
def test_a_backchannel_with_an_unstable_partial_text_lets_the_agent_go_on(partials, final):
    policy = sound()
    for number, text in enumerate(partials):
        assert policy.on_partial(text, 0.9, 100.3 + number / 10) is None
    policy.on_speech_stopped(650, 100.9)
    assert policy.on_final(final, 0.9, 101.0) == ResumeSpeech("backchannel", final)


@pytest.mark.parametrize(
    "partials", [["I say", "I say that"], ["I say that you"], ["go ahead", "go ahead and book it"]]
)
def test_stable_words_of_a_partial_text_stop_the_agent(partials):
    policy = sound()
    verdicts = [policy.on_partial(text, 0.9, 100.3 + number / 10) for number, text in enumerate(partials)]
    assert verdicts == [None] * (len(partials) - 1) + [InterruptSpeech("words")]


@pytest.mark.parametrize(
    ("asks", "text", "verdict"),
    [
        (True, "mhm", InterruptSpeech("words")),
        (True, "okay", InterruptSpeech("words")),
        (False, "yes", InterruptSpeech("words")),
        (False, "okay go ahead", InterruptSpeech("words")),
        (False, "mhm", ResumeSpeech("backchannel", "mhm")),
        (False, "Oh, okay, I see.", ResumeSpeech("backchannel", "Oh, okay, I see.")),
        (False, "", ResumeSpeech("no_words", "")),
    ],
)
def test_end_of_an_answer_takes_answers_and_questions_take_hums(asks, text, verdict):
    policy = sound(closing=True, asks=asks)
    policy.on_speech_stopped(150, 100.5)
    assert policy.on_final(text, 0.9, 100.5) == verdict


def test_beginning_of_a_backchannel_at_the_end_of_an_answer_waits():
    policy = sound(closing=True)
    assert policy.on_partial("okay I say", 0.9, 100.3) is None
    assert policy.on_partial("okay I say it", 0.9, 100.4) == InterruptSpeech("words")


def test_noise_holds_the_agent_for_so_long_and_is_watched_after_that():
    policy = sound()
    ticks = []
    while (due := policy.due) is not None:
        ticks.append((due, policy.tick(due)))
    assert ticks == [(100.2, None), (100.0 + HOLD_S, ResumeSpeech("no_words", ""))]
    assert policy.on_partial("stop it now please", 0.9, 103.0) == InterruptSpeech("words")


def test_only_what_follows_an_echo_counts():
    policy = sound()
    assert policy.on_partial("what a day", 0.9, 100.5) is None
    assert policy.on_partial("what a day", 0.9, 100.6) == InterruptSpeech("words")
    policy.on_echo()
    assert policy.on_partial("what a day", 0.9, 100.7) is None
    assert policy.tick(101.0) is None
    assert policy.on_partial("what a day make it", 0.9, 101.1) is None
    assert policy.on_partial("what a day make it twelve", 0.9, 101.2) == InterruptSpeech("words")
    policy.on_speech_stopped(1_200, 100.5)
    assert policy.on_final("what a day", 0.9, 101.5) == ResumeSpeech("echo", "what a day")


def test_two_utterances_of_one_sound_are_judged_together():
    policy = sound(min_words=3)
    policy.on_speech_stopped(300, 100.5)
    policy.on_speech_resumed()
    assert policy.on_final("what about", 0.9, 100.6, more=True) is None
    policy.on_speech_stopped(900, 100.5)
    assert policy.on_final("london", 0.9, 101.2) == InterruptSpeech("words")


def test_a_language_without_lists_goes_by_words_alone():
    policy = InterruptionPolicy(
        BargeInOptions(), interruption_words("xx"), agent_text="", closing=False, began_at=0.0
    )
    policy.on_speech_stopped(300, 100.5)
    assert policy.on_final("mhm", 0.9, 0.5) == InterruptSpeech("words")


@pytest.mark.parametrize(
    ("language", "agreeing", "stopping"),
    [("es", "Sí, claro.", "¡Espera un momento!"), ("fr", "Oui, d'accord.", "Arrêtez, ça suffit.")],
)
def test_other_languages_have_words_of_their_own(language, agreeing, stopping):
    words = interruption_words(language)
    assert words.is_backchannel(words_of(agreeing))
    assert not words.is_command(words_of(agreeing))
    assert words.is_command(words_of(stopping))


@pytest.mark.parametrize("language", ["en", "de", "es", "fr"])
@pytest.mark.parametrize("text", ["Mm-hmm.", "Mmm-hmm.", "Mmhmm.", "Hmm-mm.", "Mh-hm.", "Hmmm.", "Mehem!,"])
def test_is_backchannel_of_a_hum_in_any_spelling_is_true(language, text):
    words = interruption_words(language)
    assert words.is_backchannel(words_of(text))
    assert words.may_become_backchannel(words_of(text))


@pytest.mark.parametrize(
    "text", ["Um-hum.", "Uh-huh, uh-huh.", "Make sense.", "It makes sense.", "Okay, sounds good."]
)
def test_is_backchannel_of_agreement_as_recognisers_write_it_is_true(text):
    assert interruption_words("en").is_backchannel(words_of(text))


@pytest.mark.parametrize("text", ["No-no.", "Hey, stop!", "Hold on a second.", "Mm-hmm, wait, please."])
def test_is_command_with_hyphens_and_longer_forms_is_true(text):
    assert interruption_words("en").is_command(words_of(text))


@pytest.mark.parametrize("language", ["en", "de", "es", "fr"])
def test_no_phrase_is_both(language):
    words = interruption_words(language)
    assert words.backchannels
    assert not words.backchannels & words.commands


def test_only_the_agents_last_words_can_echo():
    said = words_of("alpha beta " + "gamma delta " * 30)
    assert is_echo(["gamma", "delta"], said)
    assert not is_echo(["alpha", "beta"], said)
    assert not is_echo([], said)
    assert not is_echo(["alpha"], [])


TEXTS = st.sampled_from(["", "mhm", "stop", "ten minutes", "what about london", "yes", "no make it twelve"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["heard", "tick"]), st.floats(0.0, 0.6), TEXTS, st.floats(0, 1)), max_size=12
)


@given(
    STEPS,
    TEXTS,
    st.booleans(),
    st.builds(BargeInOptions, min_speech_ms=st.integers(0, 2_000), min_words=st.integers(0, 4)),
)
def test_every_sound_comes_to_an_end_once(steps, text, closing, options):
    """The last text brings a decision, if none was there before; what has no words has no reason in words."""
    policy = InterruptionPolicy(
        options, interruption_words("en"), agent_text=AGENT, closing=closing, began_at=0.0
    )
    now, resumed = 0.0, 0
    for kind, passed, words, confidence in steps:
        now += passed
        verdict = policy.on_partial(words, confidence, now) if kind == "heard" else policy.tick(now)
        if isinstance(verdict, InterruptSpeech):
            assert verdict.reason != "words" or words_of(policy.text)
            assert verdict.reason != "speech" or options.min_words == 0
            return
        resumed += isinstance(verdict, ResumeSpeech)
    assert resumed <= 1, "while it goes on, the agent is let go once"
    assert policy.due is None or policy.due > now or policy.due > 0
    policy.on_speech_stopped(now * 1000, now)
    assert policy.due is None or policy.due > now
    verdict = policy.on_final(text, 0.95, now + 0.3)
    assert isinstance(verdict, InterruptSpeech | ResumeSpeech)
    if isinstance(verdict, ResumeSpeech) and verdict.reason == "too_short":
        assert math.floor(now * 1000) <= options.min_speech_ms


class CountedPhrases(frozenset):
    """Counts how often it is searched."""

    searches = 0

    def __contains__(self, phrase):
        self.searches += 1
        return super().__contains__(phrase)


def test_signs_of_listening_that_never_end_are_read_once():
    signs = CountedPhrases({("yeah",), ("i", "see")})
    words = dataclasses.replace(interruption_words("en"), backchannels=signs)
    assert words.may_become_backchannel(["yeah"] * 200)
    assert signs.searches <= 2 * 200
