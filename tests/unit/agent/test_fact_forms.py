"""Which figures and names of a text mean what a source says."""

from __future__ import annotations

import asyncio
import random
import string

import pytest
from traced_lines import lines_of

from parley.agent.facts import checking
from parley.agent.facts.checking import SessionFacts
from parley.agent.facts.extraction import facts_of
from parley.chat import ChatMessage


async def unknown(text: str, *sources: str, language: str = "en", begins: bool = True) -> str:
    """The first figure of a text that no source has, or empty."""
    known = await SessionFacts(language).check("", [ChatMessage(role="user", content=one) for one in sources])
    found = known.find_unknown(text, begins=begins)
    return found.text if found else ""


TIMES = [
    "7:30 pm",
    "19:30",
    "half past seven",
    "7.30 p.m.",
    "seven thirty",
    "half seven",
    "7:30 in the evening",
]


@pytest.mark.parametrize("source", TIMES)
@pytest.mark.parametrize("said", TIMES)
async def test_forms_of_a_time_are_equal(said, source):
    assert not await unknown(f"Come at {said}.", f"it is at {source}")


SAME = [
    ("It is €4.50.", "4.50 EUR"),
    ("It is four euros fifty.", "€4,50"),
    ("It is four fifty.", "€4.50"),
    ("It is 4.50.", "four euros and fifty cents"),
    ("That is 50 cents.", "$0.50"),
    ("It costs 1,200 dollars.", "$1200"),
    ("It costs twelve hundred dollars.", "$1,200"),
    ("It is a hundred and twenty kilometers.", "120 km"),
    ("We have twenty-two rooms.", "22 rooms"),
    ("On March 3rd.", "2026-03-03"),
    ("On the third of March, 2026.", "2026-03-03"),
    ("On 3 March.", "march third"),
    ("On Tuesday.", "2026-03-03"),
    ("On the 3rd.", "03/03/2026"),
    ("That is 03.04.2026.", "April 3rd 2026"),
    ("At a quarter to eight.", "07:45"),
    ("At twenty to nine.", "8:40 am"),
    ("At noon.", "12 pm"),
    ("At seven o'clock.", "from 7 to 9"),
    ("It takes half an hour.", "30 minutes"),
    ("It takes an hour and a half.", "90 minutes"),
    ("It takes two hours and twenty minutes.", "140 min"),
    ("Two days.", "48 hours"),
    ("Ten percent.", "10%"),
    ("Call 030 123 45 67.", "+49 30 1234567"),
    ("Call five five five, one two one two.", "555-1212"),
    ("The code is AB-123.", "a b 1 2 3 is spelled AB123"),
    ("The code is A B 1 2 3.", "AB-123"),
    ("Write to info at bella dot com.", "info@bella.com"),
    ("See bella.com.", "https://www.bella.com/menu"),
    ("Ask for José.", "jose"),
    ("That is Rossi's.", "giulia rossi"),
    ("The second floor.", "floor 2"),
    ("Twice a day.", "2 times a day"),
    ("From five to ten euros.", "€5-10"),
    ("It is half price.", "50% off"),
    ("Your limit is now 61.", "sixty one euros"),
    ("It makes 28 GBP.", "twenty eight British pounds"),
    ("Pallet H 107 is there.", "the label says h 107"),
    ("Enjoy Nina Simone!", "nina simone"),
    ("They lost, 1 to 4.", "1:4"),
]


@pytest.mark.parametrize(("said", "source"), SAME)
async def test_figure_in_another_form_is_known(said, source):
    assert not await unknown(said, source)


DIFFERENT = [
    ("Come at half past eight.", "7:30", "half past eight"),
    ("Come at 7:30 am.", "19:30", "7:30 am"),
    ("It is 4.50 dollars.", "€4.50", "4.50 dollars"),
    ("For seven people.", "at 7 pm", "seven"),
    ("At seven.", "for seven people", "seven"),
    ("It takes five minutes.", "five euros", "five minutes"),
    ("That is thirty euros.", "10 euros each for 3 people", "thirty euros"),
    ("On March 4th.", "March 3rd and the 4th of May", "March 4th"),
    ("In April.", "March", "April"),
    ("On Monday.", "Tuesday", "Monday"),
    ("The code is AB-132.", "AB-123", "AB-132"),
    ("Call 030 123 45 76.", "030 1234567", "030 123 45 76"),
    ("See bella.org.", "bella.com", "bella.org"),
    ("Write to ann@bella.com.", "info@bella.com", "ann@bella.com"),
    ("Ask for Maria.", "Giulia", "Maria"),
    ("Maria Rossi will help.", "Giulia Rossi", "Maria"),
    ("One hundred people.", "one", "One hundred"),
    ("It is open 24/7.", "24 rooms", "24/7"),
    ("The third floor.", "the second floor", "third"),
    ("Three tables are free.", "tables", "Three"),
    ("It is an hour.", "two hours", "an hour"),
    ("On November 69th.", "November 6th", "November 69th"),
    ("On the 30th of February.", "February 3rd and the 30th of May", "30th of February"),
    ("For more than ten.", "10 euros for more than eight people", "ten"),
    ("That is question 5.", "question 4", "5"),
    ("Take room one.", "room 2", "one"),
    ("It costs hundred euros.", "ten euros", "hundred euros"),
    ("Thousand guests came.", "ten guests", "Thousand"),
    ("Go to room K.", "room B", "room K"),
    ("The code is K Q X R.", "the code is KQXS", "K Q X R"),
    ("It is K, Q, X, R.", "the code", "K, Q, X, R"),
    ("That is R-O-S-S-I.", "Rosso", "R-O-S-S-I"),
    ("It scored 1 to 5.", "the score is 1:4", "5"),
]


@pytest.mark.parametrize(("said", "source", "found"), DIFFERENT)
async def test_another_figure_is_unknown(said, source, found):
    assert await unknown(said, source) == found


@pytest.mark.parametrize(
    "text",
    [
        "I have two options for you.",
        "There are three ways: by bus, by train or on foot.",
        "Step one: press the button.",
        "First, I need your name. Second, the date.",
        "Would you like the second one?",
        "One moment, please.",
        "No one is there, but that one is.",
        "Just a second.",
        "You may march on, OK?",
        "Two things, the key and the bag.",
        "1. Press it.",
        "Unfortunately I do not know.",
        "I'm sorry, Mr and Mrs, I'll look.",
        "Certainly! Please go on.",
    ],
)
async def test_small_counts_and_idioms_need_no_source(text):
    assert not await unknown(text)


async def test_count_of_what_a_tool_has_listed_is_known():
    known = await SessionFacts("en").check(
        "", [ChatMessage(role="tool", content='{"free": ["8:00", "9:00"]}')]
    )
    assert known.find_unknown("I have two appointments.", begins=True) is None
    assert known.find_unknown("I have three appointments.", begins=True) is not None


async def test_names_of_json_are_units():
    known = await SessionFacts("en").check(
        "", [ChatMessage(role="tool", content='{"wait_min": 15, "max": 20}')]
    )
    assert known.find_unknown("It takes a quarter of an hour.", begins=True) is None
    assert known.find_unknown("It costs fifteen euros.", begins=True) is not None
    assert known.find_unknown("It costs twenty euros.", begins=True) is None


async def test_first_word_of_a_segment_within_a_sentence_may_be_a_name():
    assert await unknown("Maria.", begins=False) == "Maria"
    assert not await unknown("Maria.", begins=True)


@pytest.mark.parametrize(
    ("text", "source"), [("Das kostet 4,50 Euro um 19:30.", "4.50 und 19:30"), ("Frag Maria um acht.", "")]
)
async def test_other_languages_are_checked_by_their_digits(text, source):
    assert not await unknown(text, source, language="de")


async def test_other_languages_hold_back_other_digits():
    assert await unknown("Das kostet 5,40 Euro.", "4,50", language="de") == "5.40"


async def test_draft_is_not_kept():
    facts = SessionFacts("en")
    known = await facts.check("", [], draft="my code is AB-123")
    assert known.find_unknown("AB-123.", begins=True) is None
    known = await facts.check("", [], draft="my code is AB-124")
    assert known.find_unknown("AB-123.", begins=True) is not None


async def test_sources_of_an_answer_are_no_sources_of_the_next():
    facts = SessionFacts("en")
    assert (await facts.check("", [], ["It costs €5."])).find_unknown("It is €5.", begins=True) is None
    assert (await facts.check("", [])).find_unknown("It is €5.", begins=True) is not None


async def test_texts_of_the_present_prompt_are_known_however_long_it_is():
    words = ["".join(random.Random(seed).choices(string.ascii_lowercase, k=9)) for seed in range(60_000)]
    texts = [" ".join(words[at : at + 1_000]) for at in range(0, 60_000, 1_000)]
    facts, messages = SessionFacts("en"), [ChatMessage(role="user", content=text) for text in texts]
    facts.add("Your table is AB-123.")
    said = ChatMessage(role="assistant", content="Your table is AB-123.")
    known = await facts.check("", [said, ChatMessage(role="user", content="CD-456"), *messages])
    for code in ("AB-123.", "CD-456."):
        assert known.find_unknown(code, begins=True) is None
    known = await facts.check("", messages[-1:])
    assert known.find_unknown("CD-456.", begins=True) is not None
    assert facts._count <= 41_000


@pytest.mark.parametrize("begun", [1, 2])
@pytest.mark.parametrize("steps", range(4))
async def test_texts_of_the_client_outlast_checks_that_are_cancelled(steps, begun):
    facts = SessionFacts("en")
    for code in ("AB-123", "AB-124"):
        facts.add(f"Your table is {code}.")
    checks = [asyncio.create_task(facts.check("", [])) for _ in range(begun)]
    for _ in range(steps):
        await asyncio.sleep(0)
    checks[0].cancel()
    known = [await facts.check("", []), *[await one for one in checks[1:]]]
    assert [one.find_unknown("AB-123 or AB-124.", begins=True) for one in known] == [None] * begun


@pytest.mark.parametrize(
    ("most", "kept"),
    [(checking._MOST_WAITING, [*range(100)]), (1_000, [0, 96, 97, 98, 99]), (250, [99])],
)
async def test_texts_of_the_client_wait_up_to_a_limit(monkeypatch, most, kept):
    monkeypatch.setattr(checking, "_MOST_WAITING", most)
    facts, codes = SessionFacts("en"), [f"AB-{number}" for number in range(100)]
    for text in (*codes[:99], codes[0], f"{codes[99]} " * 100):
        facts.add(text)
    known = await facts.check("", [])
    assert [at for at in range(100) if known.find_unknown(codes[at], begins=True) is None] == kept


async def test_number_that_is_all_of_a_text_is_read_as_it_is_written():
    assert not await unknown("At ten past one.", "1.10")


@pytest.mark.parametrize(
    ("said", "source"),
    [
        ("That is R-O-S-S-I.", "i am rossi"),
        ("K Q X R?", "my code is k q x r"),
        ("K Q X R?", "i k q x r"),
        ("The code is K Q X R.", "code: KQXR"),
        ("Room K is free.", '{"room": "K"}'),
        ("Take the room I booked, or rooms A, B.", ""),
        ("Use the T V.", ""),
        ("It costs hundred euros.", "100 euros"),
    ],
)
async def test_letters_and_bare_hundreds_of_a_source_are_known(said, source):
    assert not await unknown(said, source)


async def test_oldest_texts_are_forgotten_when_there_are_too_many():
    facts = SessionFacts("en")
    words = ["".join(random.Random(seed).choices(string.ascii_lowercase, k=9)) for seed in range(60_000)]
    messages = [
        ChatMessage(
            role="user",
            content=" ".join(["AB-123", *words[at : at + 1_000]] if not at else words[at : at + 1_000]),
        )
        for at in range(0, 60_000, 1_000)
    ]
    for at in range(len(messages)):
        known = await facts.check("", messages[at : at + 1])
    assert known.find_unknown("AB-123.", begins=True) is not None
    assert facts._count <= 41_000


@pytest.mark.parametrize(
    "piece",
    "It costs €4.50. |half past |1 |A1-|one two |five to ten |Maria |a@b.c |and |the dot |a b dash ".split(
        "|"
    ),
)
def test_work_grows_with_the_text_only(piece):
    short, long = (lines_of(facts_of, piece * count, "en") for count in (10, 40))
    assert long < 8 * short + 500


def test_texts_of_any_kind_are_read():
    letters = random.Random(7)
    parts = (
        "1 12 7:30 half past to one hundred and a . , €4 $ % AB-1 A B pm March 3rd "
        "½ \u0663 31/02/26 x@y.de - \u2013"
    ).split(" ")
    for _ in range(500):
        text = "".join(letters.choice(parts) + letters.choice(["", " "]) for _ in range(20))
        assert all(fact.needs for language in ("en", "de") for fact in facts_of(text, language))
