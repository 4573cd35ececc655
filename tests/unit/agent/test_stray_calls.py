"""Text of a language model that only a program can read."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from traced_lines import lines_of

from parley.agent.stray_calls import StrayCallFilter

TOOLS = ("reserve_table", "bookTable", "weather")


def kept(text: str, seed: int | None = None, tools: Sequence[str] = ()) -> tuple[str, bool]:
    """What is left of a text that comes in pieces of random lengths, and whether a call was found."""
    reader, pieces, at = StrayCallFilter(tools), random.Random(seed), 0
    said: list[str] = []
    while at < len(text):
        length = len(text) if seed is None else pieces.randint(1, 6)
        said.append(reader.push(text[at : at + length]))
        at += length
    return "".join([*said, reader.finish()]), reader.found


CALLS = [
    ('Hello. {"name": "get_weather", "arguments": {"city": "}"}} Bye.', "Hello.  Bye."),
    ("Well <tool_call>{}</tool_call> then.", "Well  then."),
    ("<tool_call>get_weather", ""),
    ("<function=get_weather>{}</function>It is sunny.", "It is sunny."),
    ('get_weather(city="Paris (France)") done', " done"),
    ("Use end_call() now", "Use  now"),
    ("x = tools.find(1)", "x = "),
    ('say("Hello.")', ""),
    ('[TOOL_CALLS] [{"name": "x"}]', " "),
    ("Action: get_weather\nAction Input: {}\nIt is sunny.", "\n\nIt is sunny."),
    ('```json\n{"a": [1]}\n```\nDone.', "```json\n\n```\nDone."),
    ("The result: {temperature: 5}", "The result: "),
    ("f(name='a)b') Good.", " Good."),
    ("f(name='6\" disc') Good.", " Good."),
    ("f(name='it\\'s :) Joe\\\\') Good.", " Good."),
    ("f(note='it's :) Joe') Good.", " Good."),
    ("f(note=f'a)b', other=r\"a)b\") Good.", " Good."),
    ('f(note="""a) "b) c""") Good.', " Good."),
    ("f(note=\u201ca)b\u201d) It's good.", " It's good."),
    ('{"said": "say "hi :}" now"} Good.', " Good."),
    ('{"path": "C:\\\\"} Good.', " Good."),
    ('{"a": [1, {"b": 2} Good. Yes.', ""),
    ('{"a": [1, 2} Good.', " Good."),
    ("{note: don't (stop)} It's good.", " It's good."),
    ("weather() Good.", " Good."),
    (f"Action Input: {'word ' * 60}\nGood.", "\nGood."),
    (f"Tool call: {'word ' * 60}", ""),
    (f"<think>{chr(0x130) * 9}</think><tool_call>{chr(0x130) * 9}</TOOL_CALL>Good.", "Good."),
]


NAMED_CALLS = [
    ('[TOOL_CALLS]reserve_table{"people": 4} Good.', " Good."),
    ('functions.reserve_table:0{"people": 4} Good.', " Good."),
    ('reserve_table {"people": 4} Good.', " Good."),
    ("reserve_table (people=4) Good.", " Good."),
    ("reserve\\_table(people=4) Good.", " Good."),
    ("**reserve_table**(people=4) Good.", "** Good."),
    ("print(reserve_table(people=4)) Good.", " Good."),
    ("bookTable(4) Good.", " Good."),
    ("bookTable(people: 4) Good.", " Good."),
    ("weather{}Good.", "Good."),
    ("<reserve_table people=4/>Good.", "Good."),
    ("<reserve_table><people>4</people></reserve_table>Good.", "Good."),
    ("I call reserve_table now.", "I call  now."),
    ("reserve_table", ""),
]


@pytest.mark.parametrize(("text", "left"), NAMED_CALLS)
def test_calls_of_known_tools_are_left_out_in_other_notations(text, left):
    assert {kept(text, seed, TOOLS) for seed in (None, *range(50))} == {(left, True)}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<|channel|>final<|message|>Hello.", "Hello."),
        ("<|start|>assistant<|channel|>commentary to=functions.x <|message|>", ""),
        ("<|start_header_id|>assistant<|end_header_id|>Hello.", "Hello."),
        ("<reasoning>They ask.</reasoning>Hello.", "Hello."),
        ("<thought>They ask.</thought>Hello.", "Hello."),
        ("The weather (in Paris) is fine, as weather reports say.", None),
        ("The function weather: sunny.", None),
        ("A reserve table, and a book table (for 4).", None),
    ],
)
def test_roles_and_thoughts_are_left_out_and_ordinary_words_are_not(text, left):
    assert {kept(text, seed, TOOLS) for seed in (None, *range(50))} == {
        (text if left is None else left, False)
    }


@pytest.mark.parametrize(("text", "left"), CALLS)
def test_calls_and_json_are_left_out_however_they_come(text, left):
    assert {kept(text, seed) for seed in (None, *range(50))} == {(left, True)}


@pytest.mark.parametrize(
    ("text", "left"),
    [("Hi.<|im_end|><|assistant|>", "Hi."), ("<think>well</think>Hi.", "Hi."), ("[INST] Hi.", " Hi.")],
)
def test_tags_of_templates_are_left_out_and_are_no_calls(text, left):
    assert {kept(text, seed) for seed in (None, *range(50))} == {(left, False)}


@pytest.mark.parametrize(
    "text",
    [
        "Press [Enter] now [or not].",
        "The person(s) of f(x), and 3 < 5, a<b>.",
        "It is open (really), see example.com (home).",
        "Say {name} please.",
        "A <b>bold</b> word, <your name> here.",
        "Action is needed. Tool Input needed.",
        "snake_case is a word",
        "[1, 2] of 3",
        'She said "yes" and left',
        "Function of the tool",
    ],
)
def test_other_text_stays(text):
    assert {kept(text, seed) for seed in (None, *range(50))} == {(text, False)}


def test_words_are_passed_on_as_they_are_complete():
    reader = StrayCallFilter()
    assert [reader.push(piece) for piece in ("It ", "is ", "sun", "ny. ", "Yes")] == [
        "It ",
        "is ",
        "",
        "sunny. ",
        "",
    ]
    assert reader.finish() == "Yes"


@pytest.mark.parametrize(
    "piece", ["word ", "<", "{", "[", "a_", "a(b", '{"a":"', "<|", "Action ", '["', "<think ", "a."]
)
def test_work_grows_with_the_text_only(piece):
    short, long = (lines_of(kept, (piece * 4_000)[:size], 1) for size in (1_000, 4_000))
    assert long < 5 * short + 500
