"""Schemas of tools: which are accepted, what they say of arguments, and that none holds anything up."""

from __future__ import annotations

import time

import jsonschema
import pytest

from parley.tools import schema as schema_module
from parley.tools.schema import MAX_DEPTH, MAX_NODES, SchemaError, argument_schema


def problems(properties, arguments, **others):
    return argument_schema({"type": "object", "properties": properties, **others}).problems(arguments)


def test_arguments_that_suit_have_no_problems():
    properties = {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["C", "F"]},
    }
    assert problems(properties, {"city": "Rome", "days": 3, "unit": "C"}, required=["city"]) == []
    assert problems(properties, {"city": "Rome"}, required=["city"]) == []
    assert argument_schema({}).problems({"anything": [1]}) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "arguments: 'city' is a required property"),
        ({"city": 5}, "arguments.city: 5 is not of type 'string'"),
        ({"city": "Rome", "days": 9}, "arguments.days: 9 is greater than the maximum of 7"),
        ({"city": "Rome", "stops": [1, "x"]}, "arguments.stops[1]: 'x' is not of type 'integer'"),
        ({"city": "Rome", "extra": 1}, "arguments: Additional properties are not allowed"),
    ],
)
def test_problems_say_where_and_what(arguments, said):
    properties = {
        "city": {"type": "string"},
        "days": {"type": "integer", "maximum": 7},
        "stops": {"type": "array", "items": {"type": "integer"}},
    }
    (problem,) = problems(properties, arguments, required=["city"], additionalProperties=False)
    assert problem.startswith(said)


def test_problems_are_few_and_short():
    properties = {f"p{number}": {"enum": ["a"]} for number in range(50)}
    found = problems(properties, dict.fromkeys(properties, "x" * 10_000))
    assert len(found) == 3
    assert all(len(problem) < 300 for problem in found)


def test_references_inside_the_schema_are_followed():
    schema = {
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/place"}, "to": {"$ref": "#/$defs/place"}},
        "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    assert argument_schema(schema).problems({"from": {"city": "Rome"}}) == []
    assert argument_schema(schema).problems({"to": {"city": 1}}) == [
        "arguments.to.city: 1 is not of type 'string'"
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json"}}},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"properties": {"a": {"$ref": "other.json"}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"$dynamicRef": "#x"}}},
        {"properties": {"a": {"$ref": "#b"}}, "$defs": {"b": {"$anchor": "b"}}},
        {"$defs": {"b": {"$anchor": "b"}}},
        {"$defs": {"b": {"$dynamicAnchor": "b"}}},
        {"properties": {"a": {"$ref": "#/allOf/x"}}, "allOf": [{}]},
        {"properties": {"a": {"$ref": "#/type"}}, "type": "object"},
        {"properties": {"a": {"$ref": "#/maxProperties/x"}}, "maxProperties": 5},
        {"properties": {"default": {"$ref": "http://127.0.0.1:1/"}}},
        {"$defs": {"enum": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"$ref": "#/default/b"}}, "default": {"b": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"$id": "http://127.0.0.1:1/"}}},
        {"$schema": "http://127.0.0.1:1/meta.json"},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}},
        {"properties": {"a": {"minimum": "low"}}},
        {"properties": {"a": {"type": "int"}}},
        {"properties": {"a": {"type": 5}}},
        {"properties": {"a": {"type": [{}]}}},
        {"properties": []},
        {"properties": {"a": True}},
        {"properties": {"a": 3}},
        {"required": ["a"]},
        {"required": [[]]},
        {"type": "array"},
        {"anyOf": 5},
    ],
)
def test_schemas_that_cannot_be_used_are_refused(schema):
    with pytest.raises(SchemaError):
        argument_schema(schema)


def test_schemas_are_bounded():
    deep = {}
    for _ in range(MAX_DEPTH):
        deep = {"properties": {"a": deep}}
    with pytest.raises(SchemaError, match="deeper"):
        argument_schema(deep)
    with pytest.raises(SchemaError, match="more than"):
        argument_schema({"properties": {f"p{n}": {"type": "string"} for n in range(MAX_NODES)}})


@pytest.mark.parametrize("name", ["$ref", "$id", "$schema"])
def test_properties_may_be_called_as_keywords_are(name):
    assert problems({name: {"type": "integer"}}, {name: 1}) == []
    assert problems({"a": {"const": {name: "http://x/"}}}, {"a": {name: "http://x/"}}) == []


def test_older_dialects_are_known():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}},
    }
    assert argument_schema(schema).problems({"pair": ["a", 1]}) == []
    assert argument_schema(schema).problems({"pair": ["a", "b"]}) != []


EXPLODING = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
        {"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False},
        {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**EXPLODING, "d30": {"type": "integer"}}},
        {"$ref": "#"},
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "properties": {"a": {"$ref": "#/$defs/loop"}},
            "$defs": {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#"}]}},
        },
        {"unevaluatedProperties": False, "patternProperties": {"^(a+)+$": {}}},
    ],
)
def test_no_schema_takes_long(schema):
    checked = argument_schema(schema)
    began = time.thread_time()
    checked.problems({"a": "a" * 40 + "!", "a" * 40 + "!": 1})
    assert time.thread_time() - began < 1.0


def test_what_takes_too_long_to_check_is_a_problem():
    schema = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**EXPLODING, "d30": {"type": "integer"}}}
    assert argument_schema(schema).problems({"a": 1}) == ["arguments: too complex to be checked"]
    assert argument_schema({"$ref": "#"}).problems({}) == ["arguments: too complex to be checked"]


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "string"}] * 900},
        {"not": {"allOf": [{"maxItems": 20_000}] * 900}},
        {"allOf": [{"uniqueItems": True}] * 900},
    ],
)
@pytest.mark.parametrize(
    "value", [list(range(10_000)), [{"x": n} for n in range(5_000)]], ids=["numbers", "objects"]
)
def test_schema_that_reads_a_large_value_often_is_too_complex(schema, value):
    assert problems({"a": schema}, {"a": value}) == ["arguments: too complex to be checked"]


class Compared(dict):
    """An item that counts how often it is compared."""

    count = 0

    def __getitem__(self, key):
        Compared.count += 1
        return super().__getitem__(key)

    __hash__ = None


def test_unique_items_are_read_a_bounded_number_of_times():
    items = [Compared(x=n) for n in range(3_000)]
    assert problems({"a": {"uniqueItems": True}}, {"a": items}) == []
    assert Compared.count <= len(items)


def test_unique_items_that_are_chosen_for_one_hash_have_many():
    numbers = [n * (2**61 - 1) for n in range(1_000)]
    assert len({hash(number) for number in numbers}) == 1
    assert len({hash(schema_module._hashable(number)) for number in numbers}) > 990


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, True, 0, False, "1", None], True),
        ([1, 1.0], False),
        ([[1], [True], [], {}], True),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ([{"a": 1}, {"a": True}, ["a", 1], "array"], True),
        ([None, None], False),
        ([0.5, 1e300, 10**30, 2**61 - 1, 0, [-1], [-2]], True),
        ([0.5, 0.25, 0.5], False),
    ],
)
def test_unique_items_are_compared_as_json_schema_says(items, unique):
    schema = {"type": "array", "uniqueItems": True}
    assert jsonschema.Draft202012Validator(schema).is_valid(items) == unique
    assert (problems({"a": schema}, {"a": items}) == []) == unique
    assert problems({"a": {"uniqueItems": False}}, {"a": items}) == []


def test_numbers_that_cannot_be_checked_are_a_problem():
    (problem,) = problems({"a": {"multipleOf": 0.5}}, {"a": 10**400})
    assert problem.startswith("arguments: cannot be checked")


def test_a_reference_to_what_only_looks_like_a_schema_is_a_problem():
    schema = {"properties": {"a": {"$ref": "#/default"}}, "default": {"minimum": "low"}}
    assert argument_schema(schema).problems({"a": 1}) == ["the tool's schema is broken"]


_DIALECTS = [
    jsonschema.Draft202012Validator,
    jsonschema.Draft201909Validator,
    jsonschema.Draft7Validator,
    jsonschema.Draft6Validator,
]
_KEYWORDS = (
    "additionalProperties allOf const contains default dependencies dependentRequired dependentSchemas enum "
    "exclusiveMinimum if items maxItems maximum minLength multipleOf not patternProperties prefixItems "
    "propertyNames properties required title type unevaluatedItems uniqueItems $defs"
).split()
_VALUES = [{}, True, [], [{}], [5], "x", 5, -1, None, {"a": {}}, {"a": 5}, {"a": ["b"]}, ["a", "a"], "null"]


@pytest.mark.parametrize("dialect", _DIALECTS)
@pytest.mark.parametrize("keyword", _KEYWORDS)
def test_schema_keyword_with_a_wrong_value_is_refused_as_by_its_dialect(dialect, keyword):
    for value in _VALUES:
        inner = {"allOf": [{"not": {keyword: value}}]}
        try:
            dialect.check_schema(inner)
        except jsonschema.SchemaError:
            with pytest.raises(SchemaError):
                argument_schema({"$schema": dialect.META_SCHEMA["$schema"], **inner})
        else:
            argument_schema({"$schema": dialect.META_SCHEMA["$schema"], **inner})
