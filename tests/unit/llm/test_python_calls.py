"""Tools as Python functions: the prompt, the grammar, and the parser."""

from __future__ import annotations

import json
import random
import time

import pytest
from fake_engines import ScriptedEngine, WordTokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parley.chat import ChatMessage, ToolCall
from parley.errors import InvalidModelOutputError
from parley.llm.engine import Progress
from parley.llm.messages import Completed, GenerateRequest, TextDelta, ToolCalled
from parley.llm.prompt import PromptBuilder
from parley.llm.python_calls import functions
from parley.llm.python_calls.format import CallGrammar, CallStream, PythonFormat
from parley.llm.python_calls.functions import as_functions, compact
from parley.llm.python_calls.rendering import PythonRendering
from parley.llm.replies import BadCall, ParsedCall, TextPiece
from parley.llm.service import ChatService
from parley.protocol import Tool

STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def tool(name, description="", /, required=(), **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(name=name, description=description, parameters=schema)


TIMER = tool("set_timer", "Start a timer", ["minutes"], label=STRING, minutes=INTEGER)
BOOK = tool(
    "book-table",
    'Book """a""" table\nfor tonight',
    ["people", "area"],
    people={"type": "integer", "minimum": 1, "maximum": 20, "description": "How many"},
    area={"type": "string", "enum": ["inside", "outside"]},
    outdoor={"type": "boolean"},
    wishes={"type": "array", "items": STRING},
)
STOP = Tool(name="stop")
ODD = tool("odd", "", [], **{"user-id": STRING})
MENU = tool("menu", "", [], day=STRING, vegan={"type": "boolean"})
TOOLS = [TIMER, BOOK, STOP, ODD, MENU]
BY_NAME = {function.name: function for function in as_functions(TOOLS)}


# --- functions ------------------------------------------------------------------------------


def test_a_tool_is_shown_as_a_function():
    assert BY_NAME["set_timer"].definition() == (
        'def set_timer(minutes: int, label: str = None):\n    """Start a timer"""'
    )
    assert BY_NAME["book_table"].definition() == (
        'def book_table(people: int, area: Literal["inside", "outside"], outdoor: bool = None, '
        "wishes: list[str] = None):\n    \"\"\"Book '''a''' table for tonight\n    people: How many\"\"\""
    )
    assert BY_NAME["stop"].definition() == 'def stop():\n    """"""'
    assert BY_NAME["odd"].definition().startswith("def odd(**arguments):\n")
    assert "user-id" in BY_NAME["odd"].definition()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["say", "say_"], ["say_", "say__"]),
        (["a-b", "a_b"], ["a_b", "a_b_"]),
        (["class", "print"], ["class_", "print"]),
        (["911-call", "_911_call"], ["_911_call", "_911_call_"]),
    ],
)
def test_every_function_has_a_name_of_its_own(names, expected):
    assert [function.name for function in as_functions([Tool(name=name) for name in names])] == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"required": ["a"]}], "properties": {"a": STRING}},
        {"properties": {"from": STRING}},
        {"properties": {"a": STRING}, "required": ["b"]},
        {"properties": {"a": STRING}, "required": [{"a": 1}]},
        {"properties": {f"p{number}": STRING for number in range(17)}, "required": ["p0"]},
        {"properties": {f"p{number}": STRING for number in range(5)}},
        {"properties": []},
    ],
)
def test_tool_without_a_plain_signature_takes_an_object(schema):
    (function,) = as_functions([Tool(name="odd", parameters=schema)])
    assert function.parameters is None
    assert function.call({"a": 1}) == 'odd(**{"a": 1})'


def arguments_of(**schema):
    """What the prompt says of a tool whose arguments are one object."""
    (function,) = as_functions([Tool(name="odd", parameters=schema)])
    assert function.parameters is None
    first, *lines, last = function.definition().split("\n    ")
    assert first == "def odd(**arguments):"
    assert lines[0] == '"""'
    types, *described = [*lines[1:], last.removesuffix('"""')]
    return [types.removeprefix("arguments: "), *described]


ADDRESS = {
    "type": "object",
    "properties": {"street": STRING, "number": {"anyOf": [INTEGER, {"type": "null"}]}},
    "required": ["street"],
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"properties": {"a-b": STRING, "n": {**INTEGER, "description": "How\n many"}}, "required": ["n"]},
            ['{"n": int, "a-b"?: str}', "n: How many"],
        ),
        (
            {
                "properties": {"day": STRING, "a": INTEGER, "b": {"enum": ["x", 1]}},
                "required": ["day"],
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            ['{"day": str, "a"?: int, "b"?: Literal["x", 1]} & ({"a": int} | {"b": Literal["x", 1]})'],
        ),
        (
            {"anyOf": [{"$ref": "#/$defs/address"}, {"const": 1}], "$defs": {"address": ADDRESS}},
            ['{"street": str, "number"?: int | None}'],
        ),
        (
            {
                "$ref": "#/$defs/order",
                "$defs": {
                    "a/b": ADDRESS,
                    "order": {
                        "properties": {"to": {"type": "array", "items": {"$ref": "#/$defs/a~1b"}}},
                        "required": ["to", "name"],
                    },
                },
            },
            ['{"to": list[{"street": str, "number"?: int | None}], "name": Any}'],
        ),
        (
            {"allOf": [ADDRESS, {"properties": {"city": {"const": "Rome"}}, "required": ["city"]}]},
            ['{"street": str, "city": Literal["Rome"], "number"?: int | None}'],
        ),
        (
            {"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}},
            ['{"next"?: {"next"?: {"next"?: {"next"?: dict}}}}'],
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, ["dict"]),
        ({"properties": {"a-b": {"$ref": "https://x.example/a"}}}, ['{"a-b"?: Any}']),
        ({"properties": {"a-b": {"$ref": "#text"}}, "$anchor": "text"}, ['{"a-b"?: Any}']),
        (
            {"properties": {"a-b": {"$ref": "#/$defs/a%20b/0"}}, "$defs": {"a b": [STRING]}},
            ['{"a-b"?: str}'],
        ),
        (
            {"properties": {"a-b": {"properties": {"x": STRING}, "anyOf": [{"required": ["x"]}]}}},
            ['{"a-b"?: {"x"?: str}}'],
        ),
        ({"properties": []}, ["dict"]),
        ({"not": {"required": ["a"]}, "properties": {"a": True}}, ['{"a"?: Any}']),
    ],
)
def test_arguments_as_one_object_are_described_by_their_types(schema, expected):
    assert arguments_of(**schema) == expected


@pytest.mark.parametrize("times", [4, 40])
def test_schemas_that_refer_to_one_another_are_looked_at_so_often_and_no_more(times, monkeypatch):
    looked_at = []
    choices = functions._choices

    def counted(schema):
        looked_at.append(schema)
        return choices(schema)

    monkeypatch.setattr(functions, "_choices", counted)
    members = [{"$ref": "#"}] * 8
    looping = {
        "properties": {f"p{number}": {"$ref": "#"} for number in range(8)},
        "allOf": [{"anyOf": members}] * times,
    }
    assert sum(map(len, compact(looping, 600))) <= 600
    assert len(looked_at) < 4_000


def test_arguments_that_are_too_many_are_left_out_as_a_whole():
    wide = {"type": "object", "properties": {f"field_{number}": STRING for number in range(8)}}
    properties = {f"p{number}": {**wide, "description": "What it is. " * 9} for number in range(60)}
    types, *described = arguments_of(properties=properties, required=["p59"])
    assert types.startswith('{"p59": dict, "p0"?: dict, ')
    assert types.endswith(" dict, ...}")
    assert 550 < len(types) <= 600
    assert described == []
    few = dict(list(properties.items())[:3])
    types, *described = arguments_of(properties=few, anyOf=[{}])
    assert types.count("field_7") == 3
    assert described == [f"p0: {few['p0']['description'].strip()}"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["#", "#/$defs/a", "object"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("$ref", "allOf", "anyOf", "oneOf", "properties", "required", "items", "type"),
                    "enum",
                    "$defs",
                    "a",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(["$ref", "allOf", "anyOf", "properties", "required", "$defs"]), JSON))
def test_description_of_any_schema_is_bounded(schema):
    assert sum(map(len, compact(schema, 200))) <= 200


def test_a_call_is_written_as_python():
    assert BY_NAME["set_timer"].call({"label": 'a "b"', "minutes": 3}) == (
        'set_timer(minutes=3, label="a \\"b\\"")'
    )
    assert BY_NAME["book_table"].call({"outdoor": True, "wishes": ["x"]}) == (
        'book_table(outdoor=True, wishes=["x"])'
    )
    assert BY_NAME["set_timer"].call({"hours": None}) == 'set_timer(**{"hours": null})'


# --- reading --------------------------------------------------------------------------------


def parse(pieces):
    stream = CallStream(BY_NAME)
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
        ('say("Hello there.")', [TextPiece("Hello there.")]),
        ('\nsay(" Hello. ")\n', [TextPiece("Hello.")]),
        ('say("Café (no, 日本) 😀")', [TextPiece("Café (no, 日本) 😀")]),
        ('say("She said \\"no\\".\\nOh")', [TextPiece('She said "no". Oh')]),
        ('say("It ends here', [TextPiece("It ends here")]),
        ('say(text="Hello there.")', [TextPiece("Hello there.")]),
        ('say(text=" She said \\"no\\". ")\nstop()', [TextPiece('She said "no".'), ParsedCall("stop", {})]),
        ('say(text="It ends here', [TextPiece("It ends here")]),
        ("sa", []),
        ("say(", []),
        ("say(te", []),
        ('say(text="', []),
        ('say("', []),
        ("set_timer(minutes=10)", [ParsedCall("set_timer", {"minutes": 10})]),
        ('set_timer(minutes=10, label="tea")', [ParsedCall("set_timer", {"minutes": 10, "label": "tea"})]),
        (
            'set_timer(minutes=10, label="a ) b, c=")',
            [ParsedCall("set_timer", {"minutes": 10, "label": "a ) b, c="})],
        ),
        ("stop()", [ParsedCall("stop", {})]),
        ("stop()  # done", [ParsedCall("stop", {})]),
        ('odd(**{"user-id": "x"})', [ParsedCall("odd", {"user-id": "x"})]),
        (
            'book_table(people=2, area="inside", outdoor=False, wishes=["a", "b"])',
            [
                ParsedCall(
                    "book-table", {"people": 2, "area": "inside", "outdoor": False, "wishes": ["a", "b"]}
                )
            ],
        ),
        ("set_timer(minutes=None)", [ParsedCall("set_timer", {"minutes": None})]),
        ('say("One.")\nstop()', [TextPiece("One."), ParsedCall("stop", {})]),
        ("set_timer(minutes=1", [BadCall("set_timer(minutes=1", "the answer ended within the call")]),
        ('set_timer(label="tea', [BadCall('set_timer(label="tea', "the answer ended within the call")]),
        ("set_timer(10)", [BadCall("set_timer(10)", "the answer ended within the call")]),
        ("stop(a=1, a=2)", [BadCall("stop(a=1, a=2)", "the answer ended within the call")]),
        ("explode(now=True)", [BadCall("explode(now=True)", "there is no function explode")]),
        ("say(text=stop())", [BadCall("say(text=stop())", "the answer ended within the call")]),
        ('say(words="Hello.")', [BadCall('say(words="Hello.")', "there is no function say")]),
        ("say(stop())", [BadCall("say(stop())", "the answer ended within the call")]),
        ("Hello, I am fine.", [TextPiece("Hello, I am fine.")]),
        ("Yes", [TextPiece("Yes")]),
        ("```python\nstop()\n```", [TextPiece("```python\nstop()\n```")]),
    ],
)
def test_the_same_however_it_is_cut(text, expected):
    assert parse([text]) == expected
    assert parse(text) == expected  # character by character
    rng = random.Random(1)
    for _ in range(20):
        cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), 3)))
        ends = [*cuts, len(text)]
        assert parse([text[a:b] for a, b in zip([0, *cuts], ends, strict=True)]) == expected


def test_text_is_given_out_as_it_comes():
    stream = CallStream(BY_NAME)
    assert stream.feed("sa") == []
    assert stream.feed('y("Hel') == [TextPiece("Hel")]
    assert stream.feed("lo ") == [TextPiece("lo")]
    assert stream.feed('there")') == [TextPiece(" there")]
    assert stream.finish() == []


def test_a_call_is_given_out_with_its_last_bracket():
    stream = CallStream(BY_NAME)
    assert stream.feed("set_timer(minutes=1") == []
    assert stream.feed("0)") == [ParsedCall("set_timer", {"minutes": 10})]


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text):
    assert parse([text]) == parse(text)


def test_a_call_that_never_ends_is_held_back_as_long_as_it_lasts():
    stream = CallStream(BY_NAME)
    assert stream.feed("stop(a=[") == []
    for _ in range(1_000):
        assert stream.feed("1, (2), ") == []
    assert isinstance(stream.finish()[0], BadCall)


# --- grammar --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def matcher():
    """Makes a function that says whether the grammar of these tools accepts an answer as a whole."""
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [*map(chr, range(32, 127)), "é", '")', "\n", "<end>"]
    end = len(vocabulary) - 1
    tokens = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[end])
    compiler = xgrammar.GrammarCompiler(tokens)

    def make(*tools, must_call=""):
        grammar = CallGrammar(xgrammar.Grammar.from_structural_tag)
        tag = grammar.call_tag(tools, must_call) if must_call else grammar.tag(tools)
        assert tag is not None
        compiled = compiler.compile_structural_tag(tag)

        def accepts(text):
            matcher = xgrammar.GrammarMatcher(compiled)
            return matcher.accept_string(text) and matcher.accept_token(end)

        accepts.compiled, accepts.vocabulary, accepts.xgrammar = compiled, vocabulary, xgrammar
        return accepts

    return make


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('say("Hello, how are you?")', True),
        ('say("12 degrees")', True),
        ('say("")', False),
        ('say(" ")', False),
        ('say("...")', False),
        ('say("**Bold**")', False),
        ('say("one\ntwo")', False),
        ("Hello", False),
        ("set_timer(minutes=10)", True),
        ('set_timer(minutes=10, label="tea")', True),
        ('set_timer(label="tea", minutes=10)', False),  # in one order, so that none comes twice
        ("set_timer(minutes=10, minutes=10)", False),
        ("set_timer()", False),
        ('set_timer(minutes="10")', False),
        ('set_timer(minutes=10, label="")', False),
        ("set_timer(minutes=10, hours=1)", False),
        ("set_timer(minutes=10", False),
        ("set_timer(minutes=10)\nset_timer(minutes=10)", False),
        ("set_timers(minutes=10)", False),
        ('book_table(people=20, area="inside", outdoor=True)', True),
        ('book_table(people=21, area="inside")', False),
        ('book_table(people=2, area="roof")', False),
        ('book_table(people=2, area="outside", wishes=["quiet"])', True),
        ('book_table(people=2, area="outside", outdoor=true)', False),
        ("stop()", True),
        ("stop(a=1)", False),
        ('odd(**{"user-id": "x"})', True),
        ('odd(**{"user-id": 1})', False),
        ("menu()", True),
        ('menu(day="Monday")', True),
        ("menu(vegan=True)", True),
        ('menu(day="Monday", vegan=False)', True),
        ("menu(, vegan=False)", False),
        ('menu(vegan=False, day="Monday")', False),
    ],
)
def test_only_whole_answers_that_fit_the_tools_can_be_written(matcher, text, accepted):
    assert matcher(*TOOLS)(text) is accepted


@pytest.mark.parametrize(
    ("must_call", "text", "accepted"),
    [
        ("*", "set_timer(minutes=10)", True),
        ("*", "stop()", True),
        ("stop", "stop()", True),
        ("stop", "set_timer(minutes=10)", False),
        ("*", 'say("Hello.")', False),
        ("*", "stop()\nstop()", False),
    ],
)
def test_forced_answer_is_one_call_of_the_wanted_tool(matcher, must_call, text, accepted):
    assert matcher(*TOOLS, must_call=must_call)(text) is accepted


def test_a_text_may_end_with_the_token_of_quote_and_bracket(matcher):
    """xgrammar's rule for texts in JSON forbids it, and what was to end goes on."""
    accepts = matcher(TIMER)
    xgrammar, vocabulary = accepts.xgrammar, accepts.vocabulary
    found = xgrammar.GrammarMatcher(accepts.compiled)
    assert found.accept_string('set_timer(minutes=1, label="tea')
    mask = xgrammar.allocate_token_bitmask(1, len(vocabulary))
    found.fill_next_token_bitmask(mask)
    allowed = [bool(mask[0][index // 32] >> (index % 32) & 1) for index in range(len(vocabulary))]
    assert allowed[vocabulary.index('")')]
    assert not allowed[vocabulary.index("\n")]


def test_references_reach_their_definitions(matcher):
    schema = {
        "$defs": {"Day": {"enum": ["today", "tomorrow"]}},
        "properties": {"day": {"$ref": "#/$defs/Day"}},
        "required": ["day"],
    }
    accepts = matcher(Tool(name="menu", parameters=schema))
    assert accepts('menu(day="today")')
    assert not accepts('menu(day="never")')


VALUES = {
    "name": st.text(
        st.characters(codec="ascii", exclude_characters='"\\', min_codepoint=33), min_size=1, max_size=20
    ),
    "count": st.integers(-1_000, 1_000),
    "price": st.integers(-1_000, 1_000).map(lambda cents: cents / 4),
    "loud": st.booleans(),
    "kind": st.sampled_from(["a", "b c", "d's"]),
    "tags": st.lists(st.sampled_from(["x", "y"]), max_size=3),
    "place": st.fixed_dictionaries({"x": st.integers(0, 9)}),
}
SCHEMAS = {
    "name": STRING,
    "count": INTEGER,
    "price": {"type": "number"},
    "loud": {"type": "boolean"},
    "kind": {"enum": ["a", "b c", "d's"]},
    "tags": {"type": "array", "items": STRING},
    "place": {"type": "object", "properties": {"x": INTEGER}, "required": ["x"]},
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.fixed_dictionaries({}, optional=VALUES), st.sets(st.sampled_from(sorted(VALUES))))
def test_every_valid_call_can_be_written_and_is_read_as_it_was_meant(matcher, arguments, required):
    offered = {name: SCHEMAS[name] for name in SCHEMAS if name in required or len(required) > 0}
    meant = {name: value for name, value in arguments.items() if name in offered}
    needed = [name for name in offered if name in required and name in meant]
    made = tool("act", "", needed, **(offered if needed else {}))
    meant = meant if needed else {}
    (function,) = as_functions([made])
    written = function.call(meant)
    assert matcher(made)(written)
    stream = CallStream({function.name: function})
    assert stream.feed(written) + stream.finish() == [ParsedCall("act", meant)]


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("Hello, I am fine.", True),
        ("12 degrees.", True),
        ("", False),
        ("- one\n- two", False),
        ("# Tea", False),
    ],
)
def test_without_tools_the_answer_is_text_that_can_be_spoken(matcher, text, accepted):
    assert matcher()(text) is accepted


def test_without_tools_nothing_is_read_as_a_call():
    reply = PythonFormat().begin([], [])
    assert reply.structural_tag is None
    assert reply.read('say("x")', [], last=True) == [TextPiece('say("x")')]


def test_a_schema_that_is_not_supported_leaves_the_others_guided(caplog):
    def check(tag):
        if "2 fast" in tag:
            raise RuntimeError("not supported")

    odd = tool("odd", "", ["a"], a={"enum": ["2 fast"]})
    tag = CallGrammar(check).tag([odd, TIMER])
    assert "2 fast" not in tag
    assert "minutes=" in tag
    assert "tool 'odd' is called with unguided arguments: not supported" in caplog.text


def test_when_no_grammar_is_supported_answers_are_free(caplog):
    def check(_):
        raise RuntimeError("never")

    assert CallGrammar(check).tag([TIMER]) is None
    assert "answers are not guided" in caplog.text


def many(count, schema, required=()):
    properties = {f"p{number}": schema for number in range(count)}
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    "schema",
    [
        many(16, STRING, ["p0"]),
        many(4, {"type": "string", "maxLength": 100_000}),
        many(16, {"type": "string", "pattern": "(a{100}|b{100})*"}, ["p0"]),
        many(4, {"enum": [f"choice {number}" for number in range(100)]}),
        many(900, True),
        many(4, many(20, True)),
        many(16, {"type": "number", "minimum": -1234567.123456789, "maximum": 98765432.987654321}, ["p3"]),
        {"$defs": {"A": many(40, STRING)}, **many(16, {"$ref": "#/$defs/A"}, ["p0"])},
    ],
)
def test_no_schema_holds_up_the_event_loop(schema):
    grammar = pytest.importorskip("xgrammar").Grammar
    tools = [Tool(name=f"tool{number}", parameters=schema) for number in range(32)]
    began = time.thread_time()
    assert CallGrammar(grammar.from_structural_tag).tag(tools) is not None
    assert time.thread_time() - began < 1.0  # some tens of milliseconds on a quiet machine


# --- rendering ------------------------------------------------------------------------------

CALLED = ChatMessage(
    role="assistant",
    content="One moment.",
    tool_calls=[
        ToolCall(id="1", name="set_timer", arguments={"minutes": 3}),
        ToolCall(id="2", name="gone", arguments={"a": 1}),
    ],
)
HISTORY = [
    ChatMessage(role="system", content="You are Parley."),
    ChatMessage(role="user", content="Set a timer."),
    CALLED,
    ChatMessage(role="tool", content='{"ok": true}', tool_call_id="1"),
    ChatMessage(role="tool", content='{"error": "no"}', tool_call_id="2"),
    ChatMessage(role="assistant", content='It "runs"…'),
    ChatMessage(role="user", content="Thanks"),
    ChatMessage(role="system", content="Be quick."),
]


def test_the_conversation_is_one_of_python():
    rendered = PythonRendering(examples=True).render(HISTORY, TOOLS)
    assert rendered.tools is None
    first, *others = rendered.conversation
    assert first["role"] == "system"
    assert first["content"].startswith("You are Parley.\n\n")
    assert BY_NAME["book_table"].definition() in first["content"]
    assert others[-7:] == [
        {"role": "user", "content": "Set a timer."},
        {"role": "assistant", "content": 'say("One moment.")\nset_timer(minutes=3)\ngone(a=1)'},
        {"role": "user", "content": 'set_timer(minutes=3) returned {"ok": true}'},
        {"role": "user", "content": 'gone(a=1) returned {"error": "no"}'},
        {"role": "assistant", "content": 'say("It \\"runs\\"…")'},
        {"role": "user", "content": "Thanks"},
        {"role": "system", "content": "Be quick."},
    ]
    examples = others[:-7]
    assert [message["role"] for message in examples] == ["user", "assistant"] * (len(examples) // 2)
    again = PythonRendering(examples=True).render(HISTORY[1:], TOOLS).conversation
    assert again[1:] == others
    assert first["content"].endswith(again[0]["content"])


def test_calls_without_tools_stay_in_the_prompt_as_text():
    first, *others = PythonRendering(examples=True).render(HISTORY, ()).conversation
    assert first == {"role": "system", "content": "You are Parley."}
    assert others[-7:] == [
        {"role": "user", "content": "Set a timer."},
        {"role": "assistant", "content": "One moment."},
        {"role": "user", "content": 'set_timer(minutes=3) returned {"ok": true}'},
        {"role": "user", "content": 'gone(a=1) returned {"error": "no"}'},
        {"role": "assistant", "content": 'It "runs"…'},
        {"role": "user", "content": "Thanks"},
        {"role": "system", "content": "Be quick."},
    ]
    assert not any("(" in message["content"] for message in others[:-7])
    assert PythonRendering(examples=True).render(HISTORY[1:], ()).conversation == others


# --- the whole service ----------------------------------------------------------------------


def ask(*reports, tools=TOOLS, prefix=""):
    engine = ScriptedEngine(*reports)
    chat = ChatService(
        engine,
        PromptBuilder(WordTokenizer(), 2_000, rendering=PythonRendering(examples=True)),
        PythonFormat(CallGrammar(json.loads)),
    )
    message = ChatMessage(role="user", content="what time is it")
    asked = GenerateRequest(request_id="r", messages=[message], tools=tools, prefix=prefix)
    return engine, chat.generate(asked)


async def test_a_call_becomes_an_event():
    engine, answer = ask(Progress("set_timer(min", 2), Progress("utes=3)", 2, finish_reason="stop"))
    call, completed = [event async for event in answer]
    assert call == ToolCalled(call=ToolCall(id="r-0", name="set_timer", arguments={"minutes": 3}))
    assert isinstance(completed, Completed)
    assert completed.finish_reason == "tool_calls"
    assert "set_timer(" in engine.requests[0].structural_tag


async def test_say_call_is_streamed_as_text():
    _, answer = ask(Progress('say("Hel', 2), Progress('lo.")', 2, finish_reason="stop"))
    first, second, completed = [event async for event in answer]
    assert [first, second] == [TextDelta(text="Hel"), TextDelta(text="lo.")]
    assert completed.finish_reason == "stop"


async def test_a_call_that_is_cut_off_is_never_made():
    _, answer = ask(Progress('set_timer(minutes=10, label="t', 9, finish_reason="length"))
    with pytest.raises(InvalidModelOutputError, match="ended within the call"):
        assert [event async for event in answer] == []


@pytest.mark.parametrize("notes", [[], [ChatMessage(role="system", content="Be quick.")]])
async def test_answer_after_tool_results_has_text(notes):
    engine = ScriptedEngine()
    chat = ChatService(
        engine,
        PromptBuilder(WordTokenizer(), 2_000, rendering=PythonRendering(examples=True)),
        PythonFormat(CallGrammar(json.loads)),
    )
    called = ChatMessage(role="assistant", tool_calls=[ToolCall(id="1", name="stop", arguments={})])
    result = ChatMessage(role="tool", content="{}", tool_call_id="1")
    user = ChatMessage(role="user", content="again")
    for written, messages in (
        ('Done.")', [user, called, result, *notes]),  # it is opened for the model
        ('say("Done.")', [user, called, result, user, *notes]),
    ):
        engine.reports = (Progress(written, 4, finish_reason="stop"),)
        asked = GenerateRequest(request_id=written, messages=messages, tools=TOOLS)
        said, _ = [event async for event in chat.generate(asked)]
        assert said == TextDelta(text="Done.")
    after, later = (request.structural_tag for request in engine.requests)
    assert "stop(" not in after
    assert "stop(" in later


@pytest.mark.parametrize("written", ['say("Done.")', "stop()"])
@pytest.mark.parametrize("check", [json.loads, None])
async def test_a_guided_answer_ends_with_its_statement(written, check):
    engine = ScriptedEngine(Progress(written, 4), Progress("", 1, finish_reason="stop"))
    prompts = PromptBuilder(WordTokenizer(), 2_000, rendering=PythonRendering(examples=True))
    chat = ChatService(engine, prompts, PythonFormat(check and CallGrammar(check)))
    asked = GenerateRequest(request_id="r", messages=[ChatMessage(role="user", content="now")], tools=TOOLS)
    *_, completed = [event async for event in chat.generate(asked)]
    assert completed.finish_reason == ("stop" if written[:3] == "say" else "tool_calls")
    assert completed.completion_tokens == (4 if check else 5), "without a grammar another line may follow"
    assert engine.closed == ["r"]


async def test_a_guided_answer_that_is_complete_at_its_limit_is_not_cut_off():
    engine = ScriptedEngine(Progress('say("Done.")', 4, finish_reason="length"))
    prompts = PromptBuilder(WordTokenizer(), 2_000, rendering=PythonRendering(examples=True))
    chat = ChatService(engine, prompts, PythonFormat(CallGrammar(json.loads)))
    asked = GenerateRequest(request_id="r", messages=[ChatMessage(role="user", content="now")], tools=TOOLS)
    *_, completed = [event async for event in chat.generate(asked)]
    assert completed.finish_reason == "stop"


async def test_say_call_is_continued():
    reports = Progress(" ten o", 2), Progress("'clock.\")", 2, finish_reason="stop")
    engine, answer = ask(*reports, prefix='It is "about"')
    first, second, completed = [event async for event in answer]
    assert [first, second] == [TextDelta(text=" ten o"), TextDelta(text="'clock.")]
    assert completed.finish_reason == "stop"
    assert " ".join(map(str, engine.requests[0].prompt)).endswith('say("It is \\"about\\"')
    tag = json.loads(engine.requests[0].structural_tag)["format"]
    assert [element["type"] for element in tag["elements"]] == ["regex", "const_string"]


async def test_continued_say_call_may_be_complete():
    _, answer = ask(Progress('")', 1, finish_reason="stop"), prefix="It is ten.")
    (completed,) = [event async for event in answer]
    assert completed.finish_reason == "stop"


async def test_plain_text_goes_on():
    engine, answer = ask(Progress(" ten.", 2, finish_reason="stop"), tools=(), prefix="It is")
    text, _ = [event async for event in answer]
    assert text == TextDelta(text=" ten.")
    assert list(engine.requests[0].prompt)[-2:] == ["It", "is"]
    assert json.loads(engine.requests[0].structural_tag)["format"]["type"] == "regex"
