"""What the end of a text says about whether the speaker goes on."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.turns.cues import find_cue

DATA = Path(__file__).resolve().parents[2] / "data"

UNFINISHED = {
    "digits": [
        "my number is four one five",
        "my phone number is five",
        "my phone number is 415 555",
        "the card number is four two four two four two four two",
        "it is four double",
        "set a timer for twenty",
        "start a timer for half",
        "a timer for an",
        "please set a timer for 20",
        "my pin is one two",
        "My number is 555.",
        "My number is 555, 123,",
        "The code is one two.",
        "It's zero nine.",
        "It's 09.",
        "It's 0987.",
        "Triple five.",
        "555.",
        "my phone number is 866 four fifty",
        "my phone number is 866 four fifty-two sixty one",
    ],
    "email": [
        "my email is",
        "my email address is john dot smith",
        "my email is john at example",
        "my email is john at example dot",
        "you can email me at john",
    ],
    "spelling": [
        *("the host is example dot", "it is spelled k", "my name is k a t", "underscore"),
        *("My name is spelled.", "My name is spelled S-M", "it's spelled SM.", "S-M-I"),
    ],
    "conjunction": [
        "set a timer and",
        "it rains so",
        "I'd like that because",
        "Paris, London, and then",
        "seven plus",
    ],
    "preposition": [
        "Set a timer for.",
        "What's the weather in?",
        "set a timer for",
        "what's the weather in",
        "I want to go to",
        "a letter from",
        "What is the capital of?",
        "what is the main part of",
        "what is the name of",
    ],
    "determiner": ["set a", "what is the", "call my", "play some"],
    "filler": ["set a timer for um", "um", "well you know", "Let me see..."],
    "opening": [
        *("can you", "tell me", "hello my name is", "I'd like", "what about"),
        *(
            "set",
            "please set",
            "my name",
            "hello my name",
            "sorry i meant",
            "how much is",
            "when is",
            "no make it",
        ),
        *("Can you.", "Tell me.", "What is?"),
        *("what time", "do you", "so what time is", "where can i"),
        *("Please tell me what,", "do you know where,"),
        *("i think what we need is", "the person who can help me is", "my friend whose name is"),
        *("what i want is", "and what he wants is", "i wonder what is", "i know what was"),
    ],
    "punctuation": [
        "Set a timer,",
        "it was late…",
        "I was thinking -",
        "Yes,",
        "Which animal says meow,",
        "How much is it,",
    ],
}
FINISHED = {
    "phrase": [
        "yes",
        "No.",
        "thank you",
        "Stop!",
        "Bye-bye.",
        "that\N{RIGHT SINGLE QUOTATION MARK}s all",
        "log in",
    ],
    "question": [
        "What time is it?",
        "Is it raining in Paris?",
        "Is it?",
        "Do you?",
        "What is it made of?",
        "Is it misspelled?",
        "Is that spelled?",
    ],
}
NOTHING = [
    "",
    "what time is it",
    "i know what time it is",
    "who am i",
    "what's my name",
    "i think so",
    "yes they are",
    "that is what he said",
    "a timer for half an hour",
    "set a timer for twenty five minutes",
    "a table for two",
    " ... ",
    "set a timer for ten minutes",
    "who is it for",
    "hello who am i talking to",
    "So, who is it for.",
    "which city do you live in",
    "i would like to know what the capital of italy is",
    "Do you know, um, where my keys are.",
    "tell me who the first man on the moon was",
    "i forgot what my name is",
    "my email is john at example dot com",
    "my email is john@example.com",
    "my phone number is five five five one two three four",
    "the code is one two three four",
    "call 911",
    "what is seven plus five",
    "it costs 150 dollars",
    "turn it on",
    "that is what I meant",
    "vitamins k a and b are in it",
    "Set a timer for 10 minutes.",
    "Wake me up at 7:30.",
    "It was 10,000.",
    "It costs $1,250.50.",
    "We meet on 3/4/25.",
    "My phone number is 555-1234.",
    "My number is 5551234.",
    "my number is double five five one two three four",
    "my phone number is 866 four fifty sixty one five two",
    "The code is 1234.",
    "It's 0987654.",
    "The code is 0123.",
    "It costs 0.50",
    "we are twenty five",
    "How is it spelled",
    "I spelled it with a comma",
]


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in UNFINISHED.items() for text in texts]
)
def test_something_is_missing(kind, text):
    cue = find_cue(text, "en")
    assert (cue.kind, cue.finished) == (kind, False)
    assert cue.words


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in FINISHED.items() for text in texts]
)
def test_finished_texts_have_their_cue(kind, text):
    cue = find_cue(text, "en")
    assert (cue.kind, cue.finished) == (kind, True)


@pytest.mark.parametrize("text", NOTHING)
def test_most_texts_say_nothing_about_it(text):
    assert find_cue(text, "en") is None


@pytest.mark.parametrize("set_name", ["asr_eval", "conversation"])
def test_what_callers_say_is_not_taken_for_unfinished(set_name):
    texts = {entry["text"] for entry in json.loads((DATA / set_name / "manifest.json").read_text())}
    found = {text: cue for text in texts if (cue := find_cue(text, "en")) and not cue.finished}
    # Some tell a phone number that is too short to be one.
    assert {cue.kind for cue in found.values()} <= {"digits"}
    assert all("number is" in text for text in found)


def test_finished_sentences_of_the_domain_are_not_taken_for_unfinished(monkeypatch):
    monkeypatch.syspath_prepend(str(DATA.parents[1] / "build/training"))
    from tiny import domain

    rng = random.Random(0)
    said = [domain.spoken(rng) for _ in range(4_000)]
    cues = [(one.intent, find_cue(one.text, "en")) for one in said]
    unfinished = [(intent, cue) for intent, cue in cues if cue and not cue.finished]
    # "hold on" asks for time; the domain's numbers have any length.
    assert {cue.words for intent, cue in unfinished if intent != "phone_number"} <= {"hold on"}
    assert {cue.kind for intent, cue in unfinished if intent == "phone_number"} <= {"digits"}
    assert sum(intent != "phone_number" for intent, _ in unfinished) < 0.01 * len(said)


@pytest.mark.parametrize(
    ("language", "text", "kind", "finished"),
    [
        ("es", "Quiero reservar una mesa para", "preposition", False),
        ("es", "Quiero ir al cine porque", "conjunction", False),
        ("es", "Hola, pon un temporizador de diez", "digits", False),
        ("es", "Mi correo es juan punto garcía arroba", "email", False),
        ("es", "Mi teléfono es seis uno dos", "digits", False),
        ("es", "Mi número es 612", "digits", False),
        ("es", "Mi apellido se escribe", "spelling", False),
        ("es", "¿Me puedes", "opening", False),
        ("es", "Quiero el más", "determiner", False),
        ("es", "Sí.", "phrase", True),
        ("es", "¿Qué hora es?", "question", True),
        ("fr", "Je voudrais réserver une table pour", "preposition", False),
        ("fr", "Je veux aller au cinéma parce que", "conjunction", False),
        ("fr", "Mets un minuteur de dix", "digits", False),
        ("fr", "Bonjour, c'est pour le", "determiner", False),
        ("fr", "Mon numéro de téléphone est zéro six", "digits", False),
        ("fr", "Mon numéro est zéro six douze", "digits", False),
        ("fr", "Mon nom s'écrit D-U", "spelling", False),
        ("fr", "Je m'appelle", "opening", False),
        ("fr", "Non merci.", "phrase", True),
        ("fr", "Combien ça coûte ?", "question", True),
    ],
)
def test_other_languages_have_cues_of_their_own(language, text, kind, finished):
    cue = find_cue(text, language)
    assert cue is not None
    assert (cue.kind, cue.finished) == (kind, finished)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("es", "Quiero una pizza."),
        ("es", "La reunión es mañana"),
        ("es", "No quiero más"),
        ("es", "Dame uno más."),
        ("es", "Un poco menos"),
        ("es", "Con veinte euros menos"),
        ("fr", "Je veux une pizza."),
        ("fr", "Il fait beau"),
        ("fr", "Je n'en veux plus"),
        ("fr", "Une fois de plus."),
        ("fr", "Un peu moins"),
    ],
)
def test_a_whole_sentence_has_no_cue(language, text):
    assert find_cue(text, language) is None


def test_a_language_without_a_list_has_no_cues():
    assert find_cue("set a timer for", "xx") is None


@given(st.text(), st.sampled_from(["en", "es", "fr", "xx"]))
def test_any_text_can_be_looked_at(text, language):
    find_cue(text, language)


@given(st.text(alphabet="abc dot@and 123,?", max_size=40))
def test_white_space_around_a_text_says_nothing(text):
    assert find_cue(f"  {text} ", "en") == find_cue(text, "en")


@given(st.integers(1, 40))
def test_digits_are_not_waited_for_for_ever(count):
    cue = find_cue(" ".join(["seven"] * count), "en")
    assert (cue is not None) == (count in {3, 5, 8, 9, 12, 13, 14, 15})
