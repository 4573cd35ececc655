"""What users say, read as exact values."""

from __future__ import annotations

import random
from datetime import date

import pytest
from traced_lines import lines_of

from parley.agent.collecting.checks import CHECKS, iban, luhn, write
from parley.agent.collecting.corrections import correct
from parley.agent.collecting.dialogue import Dialogue
from parley.agent.collecting.reading import Doubt, UserAnswer, read
from parley.agent.collecting.spelling import hypotheses, spell
from parley.checkpoint import CollectState
from parley.protocol import CollectField

TODAY = date(2026, 11, 29)
CARD = "4539148803436467"


def field(kind, **options) -> CollectField:
    return CollectField(name="it", kind=kind, **options)


def value(kind, text, **options) -> str:
    return read(field(kind, **options), UserAnswer(text), TODAY).value


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("phone", "My number is five five five, double seven oh nine.", "5557709"),
        ("phone", "It's 555-1212.", "5551212"),
        ("phone", "plus four nine three zero one two three", "+4930123"),
        ("phone", "fifty-five twelve nineteen triple two", "551219222"),
        ("phone", "eight hundred five five five", "800555"),
        ("code", "B 7 K 3 M", "B7K3M"),
        ("code", "Bravo seven Kilo three Mike", "B7K3M"),
        ("code", "B as in Bertha, seven, see, are, double u", "B7CRW"),
        ("code", "It's Mk3231.", "MK3231"),
        ("code", "N has in novander, four", "N4"),
        ("code", "O was in Oscar, four", "O4"),
        ("code", "O isn't Oscar, four", "O4"),
        ("code", "A double B as in Bravo 7", "ABB7"),
        ("code", "triple M for Mike, double Oscar, double seven", "MMMOO77"),
        ("code", "double u as in Whiskey, A as in Alpha, B as in Bravo", "WAB"),
        ("code", "A B 1 2 or C", "AB12C"),
        ("number", "five or six", "56"),
        ("phone", "555 1212 or my office", "5551212"),
        ("number", "We are twenty-five.", "25"),
        ("number", "two hundred and five", "205"),
        ("number", "about 3.5 please", "3.5"),
        ("number", "for four people", "4"),
        ("email", "My email is john dot smith at example dot com", "john.smith@example.com"),
        ("email", "j o h n underscore seven at gmail dot com", "john_7@gmail.com"),
        ("email", "My email is nina dot patel at game dot com", "nina.patel@gmail.com"),
        ("email", "J as in Juliet double O as in Oscar N at example dot com", "joon@example.com"),
        ("email", "john dot S as in Sierra, M as in Mike at example dot com", "john.sm@example.com"),
        ("email", "john.s as in Sierra, M as in Mike_seven at example dot com", "john.sm_7@example.com"),
        ("email", "My email is anna underscore B as in Bravo, K as in Kilo at a dot de", "anna_bk@a.de"),
        ("email", "anna at G as in Golf, A as in Alpha, M as in Mike, E as in Echo dot com", "anna@game.com"),
        ("email", "lisa dot oscar at example dot com", "lisa.oscar@example.com"),
        ("email", "oscar dot S as in Sierra, M as in Mike at mike dot com", "oscar.sm@mike.com"),
        ("email", "lisa dot sierra mike india at example dot com", "lisa.smi@example.com"),
        ("email", "Juliet, dot, Sierra, Mike, India at example dot com", "j.smi@example.com"),
        ("email", "lisa dot smith at alpha bravo charlie dot com", "lisa.smith@abc.com"),
        ("email", "L as in Lisa dot papa echo at example dot com", "l.pe@example.com"),
        ("name", "It's John Miller.", "John Miller"),
        ("name", "My name is Laura Janson. Jampin is spelled J-A-N-S-E-N.", "Laura Jansen"),
        ("name", "Mayer, M A Y E R", "Mayer"),
        ("name", "Mary Ann Smith, spelled M A R Y", "Mary Ann Smith"),
        ("name", "Mary Ann Smith. M A R Y", "Mary Ann Smith"),
        ("name", "Mary Ann Smith Mike Alpha Romeo Yankee", "Mary Ann Smith"),
        ("name", "It's Mary calling from Boston. M A R Y", "Mary"),
        ("name", "Mary J. Smith. M A R Y", "Mary J Smith"),
        ("name", "Smith. S M I T H. Thank you", "Smith"),
        ("name", "Smith, spelled S. M. I. T. H. Thank you.", "Smith"),
        ("name", "Smyth. S as in Sierra. M as in Mike. I T H. Are you there?", "Smith"),
        ("name", "Anna Berg spelled A N N A", "Anna Berg"),
        ("name", "My name is Laura Janson. And that's spelled J A N S E N", "Laura Jansen"),
        ("name", "The company name is Acme, my name is Bob Stohn, S T O N E", "Bob Stone"),
        ("date", "next Friday please", "2026-12-04"),
        ("date", "on December 5th", "2026-12-05"),
        ("time", "At 9:40 pm, please.", "21:40"),
        ("text", "no nuts please", "no nuts please"),
    ],
)
def test_words_of_a_kind_become_its_value(kind, text, expected):
    assert value(kind, text) == expected


@pytest.mark.parametrize("kind", ["phone", "code", "number", "email", "date", "time", "name"])
def test_a_question_about_something_else_is_no_value(kind):
    reading = read(field(kind), UserAnswer("What are your opening hours?"), TODAY)
    assert (reading.value, reading.tried) == ("", False)


@pytest.mark.parametrize(
    "text",
    [
        "no one's name is perfect, I want a pizza",
        "I told you my name is on the booking",
        "the company name is Acme, my name is Bob Stone",
    ],
)
def test_a_sentence_with_the_words_name_is_gives_no_name(text):
    assert value("name", text) == ""


@pytest.mark.parametrize("kind", ["phone", "code", "number"])
@pytest.mark.parametrize("text", ["٣٣٣٣٣٣٣", "٣.٣", "3 3 3 ٣ 3 3 3"])
def test_digits_of_other_scripts_are_in_no_value(kind, text):
    assert value(kind, text).isascii()
    assert value(kind, text, pattern="9999999") == ""


def test_digits_of_other_scripts_pass_no_check():
    for check, code in (("luhn", CARD), ("ean", "4006381333931"), ("isbn", "9783161484100")):
        assert not CHECKS[check](code.translate({ord("3"): "٣"}))
    assert write("٣٣", "99") is None


def test_a_number_too_long_for_a_day_is_no_date():
    reading = read(field("date"), UserAnswer("May I give you my number instead, 4915112345678?"), TODAY)
    assert reading.value == ""


def test_every_check_accepts_a_known_code_and_no_changed_digit():
    known = {"luhn": CARD, "iban": "DE89370400440532013000", "isbn": "9783161484100", "ean": "4006381333931"}
    assert known.keys() == CHECKS.keys()
    for name, code in known.items():
        assert CHECKS[name](code)
        for place in range(4, len(code)):
            other = str((int(code[place]) + 1) % 10)
            assert not CHECKS[name](code[:place] + other + code[place + 1 :])
    assert CHECKS["isbn"]("080442957X")
    for check in CHECKS.values():
        assert not any(map(check, ("", "0", "-", "é" * 13, "٣" * 13, "A" * 64)))


def test_the_check_digit_chooses_between_digits_that_sound_alike():
    heard = "five".join(" ".join(CARD).split("9", 1)) if "9" in CARD else ""
    spoken = " ".join(CARD).replace("9", "5", 1)
    assert heard
    reading = read(field("code", check="luhn", length=16), UserAnswer(spoken), TODAY)
    assert reading.tried
    assert reading.value == "" or luhn(reading.value)
    assert CARD in {text for text, _ in hypotheses(spell(spoken, letters=False))}


def test_a_mask_leaves_only_what_can_stand_at_each_place():
    reading = read(field("code", pattern="AA-99"), UserAnswer("O K 8 5"), TODAY)
    assert reading.value == "OK-85"
    assert value("code", "0 K 8 5", pattern="AA-99") == "OK-85"
    assert value("code", "O K 8", pattern="AA-99") == ""
    assert write("AB12", "AA-99") == "AB-12"


def test_and_is_the_letter_n_or_no_letter_as_the_length_demands():
    assert value("code", "B and four", length=2) == "B4"
    assert value("code", "B and four", length=3) == "BN4"
    assert value("code", "B and four", pattern="A9") == "B4"
    assert value("code", "B and four", pattern="AA9") == "BN4"
    assert read(field("code"), UserAnswer("B and four"), TODAY).doubt == Doubt("BN4", "B4")


@pytest.mark.parametrize("text", ["The E 12 34", "E 12 34", "D E 12 34", "12 34"])
def test_letters_that_begin_every_value_are_taken_as_said(text):
    assert value("code", text, pattern="DE99 99") == "DE12 34"


@pytest.mark.parametrize("text", ["E 12 3", "The A 12 34", "The F E 12 34"])
def test_letters_that_begin_every_value_replace_no_others(text):
    assert value("code", text, pattern="DE99 99") == ""


def test_an_alternative_of_the_recogniser_chooses_what_the_check_digit_demands():
    wrong, right = CARD[:-1] + "1", CARD
    heard = UserAnswer(" ".join(wrong), 0.9, (" ".join(right),))
    assert read(field("code", check="luhn"), heard, TODAY).value == right


def test_alternatives_that_are_as_likely_leave_the_place_in_doubt():
    reading = read(field("code"), UserAnswer("A B 4", 0.9, ("A D 4",)), TODAY)
    assert reading.doubt == Doubt("B", "D", 1)


def test_a_code_among_known_ones_is_the_nearest():
    codes = ["BX-471", "KM-902"]
    assert value("code", "D X 4 7 1", values=codes) == "BX-471"
    assert value("code", "Q Q 1 1 1", values=codes) == ""


def test_choices_of_equal_distance_are_in_doubt():
    rooms = field("choice", values=["Room one", "Room two", "Hall A", "Hall B"])
    assert read(rooms, UserAnswer("the room two please"), TODAY).value == "Room two"
    assert read(rooms, UserAnswer("the hall"), TODAY).doubt is not None


@pytest.mark.parametrize(
    ("kind", "before", "text", "after"),
    [
        ("code", "B7KN", "no, M as in Mike", "B7KM"),
        ("number", "15", "not fifteen, fifty", "50"),
        ("phone", "5551215", "the last two are four five", "5551245"),
        ("phone", "5551215", "the first three are 6 6 6", "6661215"),
        ("code", "ABB", "the third letter is D", "ABD"),
        ("code", "AG42", "No, not a, be as in bravo.", "BG42"),
        ("code", CARD, "the thirteenth digit is nine", "4539148803439467"),
        ("code", CARD, "the 13th digit is nine", "4539148803439467"),
        ("code", CARD, "the last digit is nine", "4539148803436469"),
        ("number", "85", "nought, not eight", "05"),
        ("number", "-15", "not fifteen, sixteen", "-16"),
        ("number", "-15", "the second digit is six", "-16"),
        ("number", "-15", "minus sixteen, not minus fifteen", "-16"),
        ("number", "-25", "not minus twenty-five, twenty-five", "25"),
        ("number", "-25", "not -25, 25", "25"),
        ("name", "Jan Smith", "Y as in Yankee", "Jan Smyth"),
        ("name", "Mario Gomez", "No, Mario, spelled M as in Mike, O as in Alpha, R, I, A.", "Maria Gomez"),
    ],
)
def test_a_correction_changes_only_the_part_that_it_names(kind, before, text, after):
    assert correct(field(kind), before, text) == after


@pytest.mark.parametrize(
    "text",
    ["no", "M as in Mike", "not nine, five", "what?", "the last ninety nine are nine", "the 0th digit is 9"],
)
def test_a_correction_of_no_clear_part_changes_nothing(text):
    assert correct(field("code"), "AB12", text) is None


def test_a_whole_name_that_is_spelled_replaces_no_single_word():
    assert correct(field("name"), "Anna Berg", "no, my name is spelled A N N A B E R G") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B as an Echo, f as a foxtrot, Aizen alpha", "EFA"),
        ("Diaz and Delta, T as in Tango, he as in Echo", "DTE"),
        ("No end as in November, I as in India, and as in November", "NIN"),
        ("p.s.n. papa e.s.n. echo, t.s.n. tango", "PET"),
        ("N as a geno-vember. O as in asker, m as in might", "NOM"),
        ("e as in zoom, M for mother, T as in Tom", "ZMT"),
        ("O as in Alpha, K as in Kilo, 4", "AK4"),
        ("Fox Strut, I as an India, G as in Golf", "FIG"),
    ],
)
def test_letters_named_by_words_are_read_where_all_else_is_misheard(text, expected):
    assert spell(text, letters=True).text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "M. Asin Might, Alazin Alpha, are asin Romeo. I as India, dot, O as in asker m as in might, "
                "e as in echo, e as in zoom at example dot com."
            ),
            "mari.omez@example.com",
        ),
        ("p.s.n. papa e.s.n. echo, r.s.n. Romeo. A dot, S as in Sierra at example.com.", "per.s@example.com"),
        (
            "as in Alpha and as in November, Diaz and Delta, he as in Tango at example.com. Oh, no.",
            "andt@example.com",
        ),
        ("p as in Papa, O as in Alpha, U as in Uniform, Y as in Echo at Game.com.", "paue@gmail.com"),
        ("Sierra, Tango, Oscar, dot, Romeo, Mike at example dot com", "sto.rm@example.com"),
    ],
)
def test_an_address_spelled_with_words_is_read_where_all_else_is_misheard(text, expected):
    assert value("email", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "Helen Carver, Philadelphia and Charlie, Evan Alpha, R. Evan Romeo, V. Evan Victor, E. Evan "
                "Echo, R. Evan Romeo."
            ),
            "Helen Carver",
        ),
        (
            (
                "No Victor Stone, Beld Esses and Sierra, Tia's in Tango, O was an Oscar, and as a November, "
                "E as an Echo."
            ),
            "Victor Stone",
        ),
        ("1. My name is Victor Stone. Donus Felt, S-T-O-N-E.", "Victor Stone"),
        ("My name is Nina Patel, Patelisfeld, P-A-T-E-L.", "Nina Patel"),
        ("Oscar Brand. Bravo, Romeo, Alpha, November, Delta, Tango.", "Oscar Brandt"),
    ],
)
def test_a_name_ends_with_what_is_spelled_also_where_the_words_between_are_misheard(text, expected):
    assert value("name", text) == expected


def test_or_between_digits_is_a_four():
    assert value("phone", "058, six or nine, two") == "0586492"


def test_words_for_letters_are_expected_once_a_value_was_wrong():
    dialogue = Dialogue([field("code", phrases=["Zed"])])
    dialogue.ask("it")
    assert list(dialogue.phrases) == ["Zed"]
    dialogue.on_turn(UserAnswer("B 7"), TODAY)
    assert "as in Bravo" in dialogue.phrases


def test_what_was_dictated_is_read_whatever_the_digits():
    draw = random.Random(3)
    words = "zero one two three four five six seven eight nine".split()
    for _ in range(200):
        digits = "".join(draw.choice("0123456789") for _ in range(draw.randrange(3, 16)))
        said = ", ".join(words[int(one)] for one in digits)
        assert value("phone", f"It's {said}.") == digits
        assert value("phone", digits) == digits


@pytest.mark.parametrize("kind", ["name", "date", "time", "number", "phone", "email", "code", "text"])
def test_texts_of_any_kind_are_read_without_failing(kind):
    draw = random.Random(5)
    pieces = [
        "at",
        "dot",
        "no",
        "not",
        "the last",
        "double",
        "M as in",
        "½",
        "٣",
        "plus",
        "1" * 40,
        "hundred",
        "é",
        ",",
        "@",
    ]
    for _ in range(200):
        text = " ".join(draw.choice(pieces) for _ in range(draw.randrange(40)))
        dialogue = Dialogue([field(kind)])
        dialogue.ask("it")
        for _ in range(4):
            dialogue.on_turn(UserAnswer(text, draw.random()), TODAY)
        assert dialogue.active is None or dialogue.state.attempts < 3


def test_the_value_is_read_back_and_agreed_to():
    dialogue = Dialogue([field("phone", label="phone number")])
    assert dialogue.ask("it") == "What is your phone number?"
    asked = dialogue.on_turn(UserAnswer("five five five one two one two"), TODAY)
    assert asked.say == "I have five five five, one two one two. Is that right?"
    done = dialogue.on_turn(UserAnswer("Yes, that's right."), TODAY)
    assert (done.field, done.value, done.confirmed) == ("it", "5551212", True)
    assert dialogue.active is None


@pytest.mark.parametrize(
    ("text", "agrees"),
    [
        ("Yes.", True),
        ("That's right, thanks", True),
        ("that is correct", True),
        ("Okay, how much is it?", False),
        ("I'm not sure", False),
        ("yes but the last one is four", False),
        ("", False),
    ],
)
def test_only_words_that_agree_confirm_a_value(text, agrees):
    dialogue = Dialogue([field("phone")])
    dialogue.ask("it")
    dialogue.on_turn(UserAnswer("5551212"), TODAY)
    assert dialogue.on_turn(UserAnswer(text), TODAY).confirmed == agrees


def test_only_the_doubtful_place_is_asked_again():
    dialogue = Dialogue([field("code")])
    dialogue.ask("it")
    asked = dialogue.on_turn(UserAnswer("A B 4", 0.9, ("A D 4",)), TODAY)
    assert asked.say == "Was the second character B as in Bravo or D as in Delta?"
    assert "A as in Alpha, D as in Delta, four" in dialogue.on_turn(UserAnswer("D as in Delta"), TODAY).say


def test_a_value_that_cannot_be_is_asked_again_three_times_at_most():
    dialogue = Dialogue([field("phone", length=7)])
    dialogue.ask("it")
    assert "one digit at a time" in dialogue.on_turn(UserAnswer("five five"), TODAY).say
    assert "keys of your phone" in dialogue.on_turn(UserAnswer("five five five"), TODAY).say
    given_up = dialogue.on_turn(UserAnswer("five"), TODAY)
    assert (given_up.field, given_up.value, given_up.say) == ("it", "", "")


def test_values_that_the_user_denies_again_and_again_are_given_up():
    dialogue = Dialogue([field("phone")])
    dialogue.ask("it")
    outcomes = [dialogue.on_turn(UserAnswer("no, " + "5" * (4 + digit)), TODAY) for digit in range(7)]
    assert all(outcome.say for outcome in outcomes[:-1])
    assert (outcomes[-1].field, outcomes[-1].value) == ("it", "")


def test_questions_about_a_part_count_as_values_that_are_read_back():
    dialogue = Dialogue([field("code")])
    dialogue.ask("it")
    turns = [UserAnswer(f"no, A B {digit}", 0.9, (f"A D {digit}",)) for digit in range(7)]
    outcomes = [dialogue.on_turn(turn, TODAY) for turn in turns]
    assert any(outcome.say.startswith("Was the second character") for outcome in outcomes)
    assert all(outcome.say for outcome in outcomes[:-1])
    assert (outcomes[-1].field, outcomes[-1].value) == ("it", "")


@pytest.mark.parametrize(
    "text", ["Oscar and Mike and Charlie are waiting, hurry up", "Mike, Tango, Golf, Lima"]
)
def test_unrelated_words_without_a_denial_leave_the_name_that_is_confirmed(text):
    dialogue = Dialogue([field("name")], CollectState(field="it", phase="confirm", value="Laura Janson"))
    assert dialogue.on_turn(UserAnswer(text), TODAY).say == ""
    assert dialogue.state.value == "Laura Janson"


def test_a_name_that_is_spelled_again_is_read_also_where_the_denial_was_misheard():
    dialogue = Dialogue([field("name")], CollectState(field="it", phase="confirm", value="Laura Janson"))
    assert dialogue.on_turn(UserAnswer("Now Laura Janson."), TODAY).say == ""
    asked = dialogue.on_turn(UserAnswer("Laura Jamsen, spelled J, A, N, S, E, N."), TODAY)
    assert asked.say == "I have Laura Jansen, spelled J, A, N, S, E, N. Is that right?"


def test_keys_are_digits():
    dialogue = Dialogue([field("phone", confirm="if_unsure")])
    dialogue.ask("it")
    assert dialogue.on_turn(UserAnswer("5551212"), TODAY).value == "5551212"


@pytest.mark.parametrize(
    ("confirm", "confidence", "asks"),
    [("read_back", 1.0, True), ("if_unsure", 0.9, False), ("if_unsure", 0.3, True), ("never", 0.3, False)],
)
def test_the_value_is_read_back_as_the_field_says(confirm, confidence, asks):
    dialogue = Dialogue([field("phone", confirm=confirm)])
    dialogue.ask("it")
    assert bool(dialogue.on_turn(UserAnswer("555 1212", confidence), TODAY).say) == asks


def test_a_state_from_elsewhere_goes_on_or_is_dropped():
    begun = CollectState(field="it", phase="confirm", value="5551215")
    dialogue = Dialogue([field("phone")], begun)
    assert "one two four five" in dialogue.on_turn(UserAnswer("no, the last two are four five"), TODAY).say
    assert Dialogue([field("phone")], CollectState(field="other")).active is None
    hostile = CollectState(field="it", phase="part", value="x" * 10_000, one="?", other="B", place=99_999)
    for kind in ("date", "code", "choice", "name"):
        dialogue = Dialogue([field(kind, values=["a"] if kind == "choice" else [])], hostile)
        for text in ("B", "the first", "yes", "no"):
            dialogue.on_turn(UserAnswer(text), TODAY)


def test_digits_in_one_piece_are_read_as_far_as_digits_one_by_one():
    assert len(spell("1" * 1_000_000, letters=True).groups) == len(spell("1 " * 100, letters=True).groups)


def test_a_value_from_elsewhere_that_no_turn_can_have_given_is_dropped():
    assert Dialogue([field("phone")], CollectState(field="it", value="1" * 1_000_000)).active is None


@pytest.mark.parametrize("kind", ["choice", "name", "code", "phone"])
@pytest.mark.parametrize("piece", ["five thousand ", "fifteen ", "1", "B ", "double ", "Lisa ", "D E N "])
def test_comparing_with_known_values_takes_work_within_bounds(kind, piece):
    draw = random.Random(7)
    values = ["".join(draw.choices("abcdefgmn0159", k=60)) for _ in range(64)]
    dialogue = Dialogue([field(kind, values=values)])
    dialogue.ask("it")
    text = (piece * 600)[:600]
    assert lines_of(dialogue.on_turn, UserAnswer(text), TODAY) < 50_000


def test_only_the_beginning_of_a_long_turn_is_read():
    dialogue = Dialogue([field("phone")])
    dialogue.ask("it")
    text = "no " * 200 + "five five five one two one two"
    assert dialogue.on_turn(UserAnswer(text), TODAY).say == ""


def test_the_iban_is_that_of_the_letters_and_digits():
    assert iban(value("code", "D E eight nine 3704 0044 0532 0130 00", check="iban"))
