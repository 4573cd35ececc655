import random

import pytest

from parley.llm.replies import BadCall, ParsedCall, TextPiece, ToolStream

CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Paris"}}\n</tool_call>'
PARSED = ParsedCall("get_time", {"city": "Paris"})


def parse(pieces):
    stream = ToolStream()
    found = [piece for text in pieces for piece in stream.feed(text)] + stream.finish()
    joined = []
    for piece in found:
        if isinstance(piece, TextPiece) and joined and isinstance(joined[-1], TextPiece):
            joined[-1] = TextPiece(joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hello there.", [TextPiece("Hello there.")]),
        ("  Hello.\n\n", [TextPiece("Hello.")]),
        (CALL, [PARSED]),
        (f"\n{CALL}\n", [PARSED]),
        (f"Let me see.\n{CALL}", [TextPiece("Let me see."), PARSED]),
        (f"{CALL}\n{CALL}", [PARSED, PARSED]),
        (f"{CALL} And then?", [PARSED, TextPiece("And then?")]),
        ("a < b and <tool> or </tool_call>", [TextPiece("a < b and <tool> or </tool_call>")]),
        ("it ends with <tool_ca", [TextPiece("it ends with <tool_ca")]),
        ("<tool_call>" + '{"name": "stop"}' + "</tool_call>", [ParsedCall("stop", {})]),
        ('<tool_call>{"name": "x", "arguments": null}</tool_call>', [ParsedCall("x", {})]),
        ('<tool_call>{"name": "x", "arguments": "{\\"a\\": 1}"}</tool_call>', [ParsedCall("x", {"a": 1})]),
        (
            '<tool_call>{"name": "x", "arguments": {"say": "Zürich 😀"}}</tool_call>',
            [ParsedCall("x", {"say": "Zürich 😀"})],
        ),
        ("<tool_<tool_call>{}", [TextPiece("<tool_"), BadCall("{}", "the answer ended within the call")]),
        ('<tool_call>{"name": "x", "arguments": {"a": 1}}', [ParsedCall("x", {"a": 1})]),
    ],
)
def test_the_same_however_it_is_cut(text, expected):
    assert parse([text]) == expected
    assert parse(text) == expected  # character by character
    rng = random.Random(1)
    for _ in range(20):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(4))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert parse(parts) == expected, parts


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        "[1, 2]",
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 5}',
        '{"name": "x", "arguments": [1]}',
        '{"name": "x", "arguments": "no object"}',
        "",
    ],
)
def test_calls_that_cannot_be_read(body):
    (piece,) = parse([f"<tool_call>{body}</tool_call>"])
    assert isinstance(piece, BadCall)
    assert piece.raw == body
    assert piece.reason


def test_text_is_given_out_as_soon_as_it_is_sure():
    stream = ToolStream()
    assert stream.feed("Hello") == [TextPiece("Hello")]
    assert stream.feed(" ") == []
    assert stream.feed("you") == [TextPiece(" you")]
    assert stream.feed(" <to") == []
    assert stream.feed("day") == [TextPiece(" <today")]
    assert stream.feed("<tool_call") == []
    assert stream.feed('>{"name": "x"}</tool_call') == []
    assert stream.feed(">") == [ParsedCall("x", {})]
    assert stream.finish() == []


def test_a_long_call_is_read_in_linear_time():
    big = "x" * 200_000
    text = f'<tool_call>{{"name": "x", "arguments": {{"a": "{big}"}}}}</tool_call>'
    assert parse(text[i : i + 10] for i in range(0, len(text), 10)) == [ParsedCall("x", {"a": big})]
