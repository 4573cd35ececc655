"""The grammar of tool calls that an engine gets."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parley.llm.guidance import ToolGuidance, relaxed
from parley.protocol import Tool

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Check:
    """Refuses whatever contains one of the given words."""

    def __init__(self, *refused):
        self.refused = refused
        self.seen = []

    def __call__(self, tag):
        self.seen.append(tag)
        if any(word in tag for word in self.refused):
            raise RuntimeError("not supported")


def forms(tag):
    return {form["begin"]: form["content"]["json_schema"] for form in json.loads(tag)["format"]["tags"]}


def test_every_tool_has_its_form():
    tools = [Tool(name="get_time", parameters=CITY), Tool(name="stop")]
    assert forms(ToolGuidance(Check()).tag(tools)) == {
        '<tool_call>\n{"name": "get_time", "arguments": ': CITY,
        '<tool_call>\n{"name": "stop", "arguments": ': {"type": "object"},
    }


@pytest.mark.parametrize(("name", "called"), [("*", ["get_time", "stop"]), ("stop", ["stop"])])
def test_forced_call_is_of_the_wanted_tools(name, called):
    tools = [Tool(name="get_time", parameters=CITY), Tool(name="stop")]
    elements = json.loads(ToolGuidance(Check()).call_tag(tools, name))["format"]["elements"]
    begins = [f'<tool_call>\n{{"name": "{one}", "arguments": ' for one in called]
    assert [element["begin"] for element in elements] == begins
    assert ToolGuidance(Check("structural_tag")).call_tag(tools, name) is None


def test_without_tools_there_is_nothing_to_guide():
    check = Check()
    assert ToolGuidance(check).tag([]) is None
    assert check.seen == []


def test_names_are_written_as_json():
    (begin,) = forms(ToolGuidance(Check()).tag([Tool(name='a"b')]))
    assert begin == '<tool_call>\n{"name": "a\\"b", "arguments": '


def test_unsupported_tool_leaves_the_others_guided(caplog):
    tools = [Tool(name="get_time", parameters=CITY), Tool(name="odd", parameters={"not": {}})]
    found = forms(ToolGuidance(Check('"not"')).tag(tools))
    assert list(found.values()) == [CITY, {"type": "object"}]
    assert "tool 'odd' is called with unguided arguments: not supported" in caplog.text


def test_when_nothing_is_supported_calls_are_free(caplog):
    assert ToolGuidance(Check("structural_tag")).tag([Tool(name="stop")]) is None
    assert "calls are not guided" in caplog.text


def test_tags_are_made_once_and_the_oldest_are_forgotten():
    check = Check()
    guidance = ToolGuidance(check)
    first = [Tool(name="first")]
    assert guidance.tag(first) == guidance.tag([Tool(name="first")])
    once = len(check.seen)
    for number in range(63):
        guidance.tag([Tool(name=f"tool{number}")])
    guidance.tag(first)  # used again: not the oldest
    guidance.tag([Tool(name="last")])
    assert len(check.seen) == 65 * once
    guidance.tag(first)
    assert len(check.seen) == 65 * once
    guidance.tag([Tool(name="tool0")])
    assert len(check.seen) == 66 * once


@pytest.mark.parametrize(
    ("keyword", "value", "stays"),
    [
        ("maxLength", 100, True),
        ("maxLength", 101, False),
        ("minLength", 1, True),
        ("minLength", 2, False),
        ("minLength", 1e9, False),
        ("pattern", "^[A-Z]{3}$", False),
        ("pattern", {"type": "string"}, True),  # a property of this name
        ("maxItems", 100, True),
        ("maxItems", 5_000, False),
        ("minProperties", 1, False),
        ("maxProperties", 1, False),
        ("maxProperties", {"type": "integer"}, True),
        ("minimum", -1e18, True),
        ("exclusiveMaximum", 1e300, False),
        ("enum", ["a"] * 500, True),
    ],
)
def test_costly_constraint_is_left_out_at_any_depth(keyword, value, stays):
    def schema(limits):
        return {"type": "object", "properties": {"a": {"anyOf": [{"type": "string", **limits}]}}}

    assert relaxed(schema({keyword: value})) == schema({keyword: value} if stays else {})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"maxLength": 5}, {"maxLength": 8}),
        ({"maxLength": 9.0}, {"maxLength": 32}),
        ({"minLength": 3, "maxLength": 33}, {"maxLength": 100}),
        ({"minLength": 5, "maxLength": 5}, {"minLength": 5, "maxLength": 5}),
        ({"minLength": 9, "maxLength": 9}, {"maxLength": 32}),
        ({"minLength": 50, "maxLength": 5}, {"maxLength": 8}),
        ({"minLength": "5", "maxLength": None}, {}),
    ],
)
def test_texts_have_few_different_lengths(given, kept):
    text = {"type": "string", "pattern": "^a"}
    assert relaxed({"items": {**text, **given}}) == {"items": {"type": "string", **kept}}


def test_values_that_look_like_limits_stay():
    schema = {"enum": [{"maxLength": 5, "minProperties": 3}]}
    assert relaxed(schema) == schema


def test_properties_may_be_named_as_limits_are():
    schema = {"properties": {"minLength": {"type": "integer"}, "maxLength": {"type": "integer"}}}
    assert relaxed(schema) == schema


def nested(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (nested(60), "levels"),
        ({"enum": json.loads("[" * 900 + "]" * 900)}, "levels"),
        ({"enum": ["x" * 200] * 100}, "bytes"),
        ({"properties": {"a": {"patternProperties": {"^a": {}}}}}, "patternProperties"),
        ({"propertyNames": {"maxLength": 5}}, "propertyNames"),
    ],
)
def test_a_schema_that_may_take_too_long_is_not_even_looked_at(schema, why, caplog):
    check = Check()
    (found,) = forms(ToolGuidance(check).tag([Tool(name="odd", parameters=schema)])).values()
    assert found == {"type": "object"}
    assert "tool 'odd' is called with unguided arguments: a schema " in caplog.text
    assert why in caplog.text
    assert [form for tag in check.seen for form in forms(tag).values()] == [found, found]


def many(count, schema):
    return {"type": "object", "properties": {f"p{number}": schema for number in range(count)}}


@pytest.mark.parametrize(
    "large",
    [
        many(20, {"type": "number", "minimum": 0.5, "maximum": 99.5}),
        {"enum": [*range(2500)]},
        many(85, {"type": "string"}),  # of which each may be left out
    ],
)
def test_tools_share_what_a_grammar_may_hold(large, caplog):
    tools = [Tool(name=name, parameters=large) for name in ("first", "second")]
    found = forms(ToolGuidance(Check()).tag([*tools, Tool(name="get_time", parameters=CITY)]))
    assert list(found.values()) == [large, {"type": "object"}, CITY]
    assert "tool 'second' is called with unguided arguments: the schemas of all tools hold " in caplog.text


def test_descriptions_of_tools_cost_nothing():
    schema = many(100, {"type": "string", "description": "What it is, in many words. " * 4})
    schema["required"] = [*schema["properties"]]
    tools = [Tool(name=f"tool{number}", parameters=schema) for number in range(5)]
    assert set(map(str, forms(ToolGuidance(Check()).tag(tools)).values())) == {str(schema)}


GROUP = "(" + "|".join(["a{100}"] * 20) + ")"


@pytest.mark.parametrize(
    "schema",
    [
        many(75, {"type": "string", "pattern": GROUP}),
        many(75, {"type": "string", "pattern": "a{ 1000 }"}),
        many(20, {"type": "number", "minimum": -1234567.123456789, "maximum": 98765432.987654321}),
        many(900, True),
        {**many(300, True), "minProperties": 10},
        {**many(300, True), "maxProperties": 10},
        many(20, many(20, True)),
        {"type": "object", "properties": {"a": {"enum": [f"{number:x}" for number in range(2000)]}}},
    ],
)
def test_no_schema_holds_up_the_event_loop(schema):
    grammar = pytest.importorskip("xgrammar").Grammar
    tools = [Tool(name=f"tool{number}", parameters=schema) for number in range(32)]
    began = time.thread_time()
    assert ToolGuidance(grammar.from_structural_tag).tag(tools) is not None
    assert time.thread_time() - began < 0.5  # some tens of milliseconds on a quiet machine


BOOKING = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "guests": {"type": "integer", "minimum": 1, "maximum": 20},
        "when": {
            "type": "object",
            "properties": {"day": {"enum": ["today", "tomorrow"]}, "hour": {"type": "integer"}},
            "required": ["day"],
        },
        "window": {"type": "boolean"},
    },
    "required": ["city", "when"],
}


@pytest.fixture(scope="module")
def accepts():
    """Whether the grammar of a tool ``book`` accepts a call with these arguments, as written."""
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [*map(chr, range(32, 127)), "\n", "<end>"]
    tokens = xgrammar.TokenizerInfo(
        vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[len(vocabulary) - 1]
    )
    compiler = xgrammar.GrammarCompiler(tokens)

    def accepts(schema, arguments):
        tag = ToolGuidance(xgrammar.Grammar.from_structural_tag).tag([Tool(name="book", parameters=schema)])
        matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(tag))
        return matcher.accept_string(
            f'A moment. <tool_call>\n{{"name": "book", "arguments": {arguments}}}\n</tool_call>'
        )

    return accepts


ARGUMENTS = st.fixed_dictionaries(
    {
        "city": st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12),
        "guests": st.none() | st.integers(1, 20),
        "when": st.sampled_from([{"day": "today"}, {"day": "tomorrow", "hour": -3}]),
        "window": st.none() | st.booleans(),
    }
)


@given(ARGUMENTS, st.sampled_from([(",", ":"), (", ", ": ")]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_call_that_the_schema_allows_can_be_written(accepts, chosen, separators):
    # In the order of the schema, whatever that of the example is.
    arguments = {name: chosen[name] for name in BOOKING["properties"] if chosen[name] is not None}
    assert accepts(BOOKING, json.dumps(arguments, separators=separators))


@pytest.mark.parametrize(
    "arguments",
    [
        "{}",
        '{"city": "Rome"}',
        '{"city": "Rome", "city": "Rome"}',
        '{"city": "Rome", "guests": 2}',
        '{"city": "Rome", "guests": 2, "guests": 2}',
        '{"city": "Rome", "when": {"day": "today"}, "city": "Rome"}',
        '{"city": "Rome", "when": {"day": "today"}, "window": true, "window": true}',
        '{"city": "Rome", "when": {}}',
        '{"city": "Rome", "when": {"hour": 7}}',
        '{"city": "Rome", "when": {"day": "today", "day": "tomorrow"}}',
        '{"city": "Rome", "when": {"day": "never"}}',
        '{"city": "Rome", "when": {"day": "today"}, "smoking": true}',
        '{"city": "Rome", "guests": 21, "when": {"day": "today"}}',
    ],
)
def test_no_call_lacks_what_is_required_or_says_anything_twice(accepts, arguments):
    assert not accepts(BOOKING, arguments)
