"""What a person would write for what a recogniser wrote."""

import random
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.asr.itn import inverse_normalizer

ROOT = Path(__file__).resolve().parents[3]

write = inverse_normalizer("en")

DIGITS = {
    "my number is five five five one two one two": "my number is 5551212",
    "Five five five, one two one two.": "5551212.",
    "my number is five five five. one two one two": "my number is 5551212",
    "five five five oh one two three": "5550123",
    "double five one two": "5512",
    "oh seven triple nine four": "079994",
    "the code is oh seven oh nine": "the code is 0709",
    "5 5 5 one two one two": "5551212",
    "nine one one": "911",
    "five five five dash one two one two": "555-1212",
    "my number is five five five twelve twelve": "my number is 5551212",
    "my pin is twenty two thirty five": "my pin is 2235",
    "my pin is twenty-two thirty-five": "my pin is 2235",
    "eight, six, six, four, fifty, sixty, one, fifty, two": "8664506152",
    "my pin is twenty two, thirty, five": "my pin is 2235",
    "call one eight hundred five five five one two one two": "call 18005551212",
    "plus four nine one five one two three four five six": "+4915123456",
    "order seven three two nine and two pizzas": "order 7329 and two pizzas",
    "one two three oh wait": "123 oh wait",
    "oh, one two three four": "oh, 1234",
    "call one two three four five": "call 12345",
}
MAIL = {
    "my email is john dot smith at example dot com": "my email is john.smith@example.com",
    "John dot Smith at Example dot com.": "john.smith@example.com.",
    "it's john dot smith. At example dot com": "it's john.smith@example.com",
    "john at gmail dot com": "john@gmail.com",
    "it's john smith at g mail dot com": "it's johnsmith@gmail.com",
    "my e mail is mary ann smith at outlook dot com": "my e mail is maryannsmith@outlook.com",
    "please write to support at example dot co dot uk": "please write to support@example.co.uk",
    "j dot doe ninety nine at example dot com": "j.doe99@example.com",
    "j o h n at example dot com": "john@example.com",
    "J-O-H-N at example dot com": "john@example.com",
    "J. O. H. N. at example.com": "john@example.com",
    "s as in sierra m i t h at example dot com": "smith@example.com",
    "it's a n n a at gmail dot com": "it's anna@gmail.com",
    "anna double l at gmail dot com": "annall@gmail.com",
    "john underscore smith at my dash site dot org": "john_smith@my-site.org",
    "john dash smith at mail dot example dot net": "john-smith@mail.example.net",
    "anna plus news at example dot io": "anna+news@example.io",
    "anna two thousand five at gmail dot com": "anna2005@gmail.com",
    "it's a b g mail dot com": "it's a b gmail.com",
    "anna two thousand and twelve at gmail dot com": "anna2012@gmail.com",
    "it's mary ann ninety nine at gmail dot com": "it's maryann99@gmail.com",
    "it's john j o h n at gmail dot com": "it's john@gmail.com",
    "thanks anna dot k at gmail dot com": "thanks anna.k@gmail.com",
    "it is anna nineteen eighty five at yahoo dot com": "it is anna1985@yahoo.com",
    "john at sign example dot com": "john@example.com",
    "john.smith at example.com": "john.smith@example.com",
    "anna at studio fifty four dot com": "anna@studio54.com",
    "my address is anna at example dot it": "my address is anna@example.it",
    "mail anna at example dot com and bob dot b at example dot org": (
        "mail anna@example.com and bob.b@example.org"
    ),
    "my email is anna ninety nine at yahoo dot com and my number is one two three four": (
        "my email is anna99@yahoo.com and my number is 1234"
    ),
}
WEB = {
    "go to example dot com": "go to example.com",
    "go to w w w dot example dot com": "go to www.example.com",
    "double u double u double u dot example dot com": "www.example.com",
    "triple w dot b b c dot co dot uk slash news": "www.bbc.co.uk/news",
    "www dot my dash shop dot de, please": "www.my-shop.de, please",
    "look at example dot com": "look at example.com",
    "we met at example dot com": "we met at example.com",
    "reach me at example dot com": "reach me at example.com",
}
SPELLING = {
    "that's spelled j o h n": "that's spelled john",
    "my name is john, spelled J-O-H-N": "my name is john, spelled John",
    "it is spelled j, o, double n": "it is spelled jonn",
    "my last name is j as in juliet o as in oscar e as in echo": "my last name is joe",
    "k like kilo i like india m for mike": "kim",
    "spelled a n n a i think": "spelled anna i think",
}
UNCHANGED = [
    "It's $5, or $5.99 for 3.",
    "At 7:30, 8:00, 9:15 p.m.",
    "My number is 555-1212.",
    "Call 1-800-555-1212.",
    "The U.S.A. has 330,000,000 people, and 3.5% of them know.",
    "What's the weather in Paris?",
    "Write to John.Smith@example.com.",
    "",
    " ",
    "set a timer for ten minutes",
    "two",
    "twenty five",
    "what's twenty five plus two",
    "one hundred twenty three",
    "one two three hundred",
    "two thousand five hundred",
    "three point one four one five nine",
    "i was born in nineteen eighty five",
    "the number is two hundred twenty",
    "call me at seven thirty",
    "i said oh five minutes",
    "no one two or three",
    "two double espressos",
    "meet me at noon dot the i",
    "look at this",
    "i am at home",
    "i am at home dot the rest is silence",
    "put a dot in the middle",
    "put a comma at the dot in the middle",
    "a dot com company",
    "the dot com bubble",
    "connect the dots at com",
    "dot com",
    "john dot smith at example",
    "a b c",
    "play a c d c",
    "i have a b and a c",
    "how do you spell it",
    "it's spelled with a k",
    "that is right",
    "call 555-1212 or write to john.smith@example.com",
    "see www.example.com/help, or 192.168.1.1",
    "it costs $5.00 at 5:30",
    "zażółć gęślą jaźń — 你好",
]


@pytest.mark.parametrize(
    ("said", "written"), [*DIGITS.items(), *MAIL.items(), *WEB.items(), *SPELLING.items()]
)
def test_spoken_forms_become_written_forms(said, written):
    assert write(said) == written


@pytest.mark.parametrize("text", UNCHANGED)
def test_the_rest_stays_as_it_is(text):
    assert write(text) == text


def test_only_what_is_meant_changes_in_a_text():
    text = "Well…  my number\tis five five five,\none two one two; OK?  Or  anna dot k at example dot com!"
    assert write(text) == "Well…  my number\tis 5551212; OK?  Or  anna.k@example.com!"


def test_other_languages_have_no_rules():
    text = "five five five at example dot com"
    assert inverse_normalizer("de")(text) is text
    assert inverse_normalizer("")(text) is text


SPICE = (
    "one two five oh o zero twelve twenty hundred thousand double triple dash dot period at sign underscore "
    "plus slash "
    "a b j i w spelled spell name is my email number point thousand john anna com org it gmail example www "
    "home look the as in juliet like for 5 5551212 john.smith@example.com J-O-H-N e.g. , . ? - ; @"
).split()


@settings(max_examples=500)
@given(st.lists(st.sampled_from(SPICE), max_size=16), st.sampled_from([" ", ", ", ". ", "-", "  "]))
def test_written_text_is_unchanged(words, between):
    once = write(between.join(words))
    assert write(once) == once


@given(st.text())
def test_any_text_at_all_is_taken(text):
    assert write(write(text)) == write(text)


@pytest.fixture(scope="module")
def tiny():
    sys.path.insert(0, str(ROOT / "build/training"))
    try:
        from tiny import callers, domain
    finally:
        sys.path.remove(str(ROOT / "build/training"))
    return domain, callers


def test_text_of_callers_changes_only_in_figures(tiny):
    domain, callers = tiny
    rng = random.Random(0)
    for _ in range(3000):
        said = domain.spoken(rng)
        if said.intent == "phone_number":
            figures = said.slots["digits"].replace(" ", "")
            assert write(said.text) == f"my {said.slots['kind']} is {figures}"
        else:
            assert write(said.text) == said.text
    for text in (*domain.SMALL_TALK, *domain.SMALL_TALK.values(), *domain.STOP_PHRASES):
        assert write(text) == text
    for _ in range(500):
        text = callers.missing_minutes(rng).text
        assert write(text) == text


@pytest.mark.parametrize("path", ["LICENSE", "README.md", "docs/client.md", "docs/speech.md", "docs/llm.md"])
def test_prose_stays_as_it_is(path):
    text = (ROOT / path).read_text()
    # As a recogniser without punctuation would write it, too.
    for said in (text, " ".join(re.findall(r"[a-z']+", text.lower()))):
        words = re.findall(r"\s*\S+", said)
        for at in range(0, len(words), 40):
            part = "".join(words[at : at + 40])
            assert write(part) == part


def test_two_hundred_words_are_the_most():
    most = " ".join(["so"] * 195) + " five five five one two"
    assert write(most).endswith("so 55512")
    assert write("so " + most) == "so " + most


@pytest.mark.parametrize(
    "said",
    "five thousand|five|five thousand and|a|p.m|double l|a dot|the dot|a dash|a at b dot com".split("|"),
)
@pytest.mark.parametrize("words", [200, 3000])
def test_written_form_of_repeated_words_takes_bounded_work(said, words):
    text, calls = " ".join((said.split() * words)[:words]), 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        write(text)
    finally:
        sys.setprofile(None)
    assert calls < (400_000 if "five" in said else 50_000)
