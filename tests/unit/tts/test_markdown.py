"""What is said of Markdown, however its text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.tts.markdown import MarkdownFilter, MarkdownSegmenter, without_markdown

TABLE = "| Tea | Price |\n|:----|------:|\n| Green tea | $4.50 |\n| Black | |"
CODE = "Then:\n```bash\nmake *_x* # now\n```\nDone."
SAID = [
    ("**Please note, the shop is closed** on Sunday.", "Please note, the shop is closed on Sunday."),
    ("It's *really* ***very*** __so__ _big_.", "It's really very so big."),
    ('He said "**Stop.**" un**believ**able', 'He said "Stop." unbelievable'),
    ("~~Old price~~ New price: ~5 dollars", "Old price New price: ~5 dollars"),
    ("## Opening hours ##\nWe are open.", "Opening hours \nWe are open."),
    ("Title\n=====\nText\n---\n***\nEnd", "Title\n\nText\n\n\nEnd"),
    ("Kinds:\n* apples\n- pears\n  + plums\n• figs", "Kinds:\napples\npears\nplums\nfigs"),
    ("1. **Mix** it.\n2. Bake.", "1. Mix it.\n2. Bake."),
    ("- [ ] buy milk\n- [x] call Ann", "buy milk\ncall Ann"),
    ("> quoted\n>> twice", "quoted\ntwice"),
    (TABLE, "Tea, Price\n\nGreen tea, $4.50\nBlack"),
    (CODE, "Then:\nmake *_x* # now\nDone."),
    ("Run `parley talk *` now.", "Run parley talk * now."),
    ("~~~\ncode\n~~~~\nText", "code\nText"),
    ("See [our opening hours](https://example.com/hours).", "See our opening hours."),
    ('[a](x "A title"), [**b**](<y> ) and [c](z_(d)).', "a, b and c."),
    ("![A cat](cat.png) and [this][1], as said.[^1]", "A cat and this, as said."),
    ("Ask <https://example.com> or <me@example.com>.", "Ask example.com or me@example.com."),
    ("At https://www.example.com/a, HTTP://b.org.", "At example.com/a, b.org."),
    ('Hello <break time="500ms"/>world, <b>bold</b><br>next', "Hello world, bold next"),
    (r"\*not bold\* and \$5, C:\Users", r"*not bold* and $5, C:\Users"),
    ("Great \U0001f44d\U0001f3fd see you \u2705 at 5\U0001f600\U0001f600.", "Great  see you  at 5 ."),
    ("1\ufe0f\u20e3 first", "1 first"),
]
UNCHANGED = [
    "Press [Enter] to continue, then choose [Option B].",
    "[laugh] That's 5, see [1].",
    "Wow! [Yes]! It's 2 * 3, 2*3, x**2 and snake_case.",
    "-$20.50 or -5 degrees\n-5 and +3\n#1 of 3, C# and #tag",
    "5 < 6 > 4 and <your name>, 20\u00b0C \u00a9 \u2116 3",
    "http is h, https: or https:// and xhttp://a",
    "~5 of them, a - b - c, 10/2 = 5",
    ">5 people\n1. One\n2) Two",
    "Hello there.\n\nHow are you?",
    "",
]


@pytest.mark.parametrize(("written", "said"), SAID + [(text, text) for text in UNCHANGED])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1_000])
def test_filter_any_pieces_says_words_without_marks(written, said, size):
    reader = MarkdownFilter()
    pieces = [reader.push(written[begin : begin + size]) for begin in range(0, len(written), size)]
    assert "".join(pieces) + reader.finish() == said
    assert len(reader.places) == len(said)


def test_filter_target_that_is_none_keeps_its_words():
    assert without_markdown("Ask [Ann](she is here) now") == "Ask Ann (she is here) now"


def test_filter_places_are_those_of_the_characters():
    written = "See [our **hours**](https://example.com/hours), *Ann*."
    reader = MarkdownFilter()
    said = reader.push(written) + reader.finish()
    assert said == "See our hours, Ann."
    assert "".join(written[place] for place in reader.places) == said


@pytest.mark.parametrize("text", ["Hello", "Hello there.", "a ", "so, yes", "It costs $5"])
def test_filter_plain_text_is_not_held_back(text):
    assert MarkdownFilter().push(text) == text


@pytest.mark.parametrize(
    "begun", ["[", "see [a ", "[a](", "<b", "*" * 10, "| ", "```", "a\n- ", "\\", "[a][", "<!--"]
)
def test_filter_what_is_held_back_is_bounded(begun):
    reader = MarkdownFilter()
    written = begun + "x" * 5_000
    assert len(written) - len(reader.push(written)) < 100


@given(st.text(alphabet="ab1 \n*_~`[]()<>|#!-+\\.\U0001f600", max_size=60), st.integers(1, 7))
def test_filter_pieces_do_not_change_what_is_said(written, size):
    whole, pieces = MarkdownFilter(), MarkdownFilter()
    said = whole.push(written) + whole.finish()
    parts = [pieces.push(written[begin : begin + size]) for begin in range(0, len(written), size)]
    assert "".join(parts) + pieces.finish() == said
    assert pieces.places == whole.places == sorted(whole.places)
    letters = [char for char in written if char.isalnum()]
    assert set(said) - set(written) <= {" ", ","}
    assert set("".join(letters)) >= {char for char in said if char.isalnum()}


def test_segmenter_segments_are_those_of_what_is_said():
    segmenter = MarkdownSegmenter()
    tokens = [
        "Please see ",
        "[our open",
        "ing hours](",
        "https://exam",
        "ple.com/a/b",
        "c) for **de",
        "tails.*",
        "* Bye",
        "!",
    ]
    segments = [segment for token in tokens for segment in segmenter.push(token)]
    assert [*segments, *segmenter.finish()] == ["Please see our opening hours for details.", "Bye!"]
    assert segmenter.said == "Please see our opening hours for details. Bye!"
    begin = segmenter.said.index("hours")
    assert segmenter.written_span(begin, begin + 5) == (24, 29)
    assert segmenter.written_span(100, 101) == (len("".join(tokens)),) * 2


@pytest.mark.parametrize(
    ("written", "segments", "left"),
    [
        ("It is **done.** But [the", ["It is done."], " But [the"),
        ("It is **done.**", ["It is done."], ""),
        ("So **much", ["So"], " **much"),
    ],
)
def test_segmenter_cut_text_names_what_is_not_spoken(written, segments, left):
    segmenter = MarkdownSegmenter()
    pushed = segmenter.push(written)
    spoken, unspoken = segmenter.finish_cut()
    assert ([*pushed, *spoken], written[len(written) - unspoken :]) == (segments, left)


@pytest.mark.parametrize(
    "unit",
    ["](((", "](aa(aa", "- [ ] ", "> - ", "[x](( ", "|a  ", "<a ", "![", "http", "\n#", "[a](   "],
)
@pytest.mark.parametrize("size", [1, 7, 20_000])
def test_filter_long_runs_of_marks_are_read_at_once_and_alike(unit, size):
    # A pattern that goes back over a run would not end within the test's time.
    text = (unit * 20_000)[:4_000] + " \n x"
    reader = MarkdownFilter()
    said = "".join(reader.push(text[at : at + size]) for at in range(0, len(text), size)) + reader.finish()
    assert said.split() == without_markdown(text).split()


def test_filter_line_of_blanks_in_code_is_held_back_no_longer_than_others():
    reader = MarkdownFilter()
    said = reader.push("```\ncode\n" + " " * 250 + "x\n```\nAfter. ")
    assert said.split() == ["code", "x", "After."]


@pytest.mark.parametrize("sign", ["\ufffd", "\ufffc", "\u4dc0", "\uffe4", "\U0001f600", "\u2764"])
def test_filter_signs_without_a_sound_are_left_out(sign):
    assert without_markdown(f"one {sign} two{sign}").split() == ["one", "two"]


@pytest.mark.parametrize("text", ["~" * 60_000 + "`", "`" * 60_000, "[a](" + " " * 60_000])
def test_filter_long_run_before_another_mark_is_read_at_once(text):
    assert len(without_markdown(text)) <= len(text)
