"""What an engine may write within a tool call, so that its arguments are those that the tool takes.

Free text stays free: the grammar begins where the model opens a call of the Hermes format, and has
one form for each tool. It is a *structural tag* of xgrammar, which vLLM applies while it samples tokens.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from parley.errors import InvalidMessageError
from parley.protocol import ANY_TOOL, Tool

_TRIGGER = "<tool_call>"
CACHED_TOOL_SETS = 64
# Schemas are the clients', the grammar is made on the event loop that all callers share, and that cannot be
# stopped: strings of up to 1,000 characters took four seconds, 60 levels of objects 0.3 s, and 10,000
# properties minutes. A pattern of a few characters can take longer than any of them.
_MOST_BYTES = 16_384
_MOST_LEVELS = 24
_LIMITS = {"minItems": 100, "maxItems": 100}
# The compiler tries the whole vocabulary at each place of a text, in the threads that all callers' grammars
# share, and keeps what it has found for texts of the same limits. 128 texts of different lengths, all below
# 100, took 43 seconds; of these lengths they take 20 ms, after one or two seconds for the first.
_LENGTHS = (8, 32, 100)
# Of properties in an order, xgrammar makes a rule for each one and each count so far: 300 optional properties
# with minProperties 10 took 12 seconds.
_LEFT_OUT = ("minProperties", "maxProperties")
_RANGE = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGEST = 1e18
# They forbid what is left unsaid, so that a part of them is not less but something else.
_UNSUPPORTED = ("patternProperties", "propertyNames")
# Values, nested ones and names of properties included, in the schemas of all tools together; about 5 us each.
_MOST_VALUES = 3_000
# Values that take as long.
_WEIGHTS = dict.fromkeys((*_RANGE, "format"), 60)
_TOOL = 20
# Any of the properties of an object that may be left out may follow any other: 400 of them took 8 seconds.
_OPTIONAL_PAIRS_PER_VALUE = 4
_CHARACTERS_PER_VALUE = 16
_SAID_ONLY = ("title", "description")
_ANYTHING = {"type": "object"}
# The compiler ignores them, without an error.
_IGNORED = frozenset(
    "not if then else contains minContains maxContains uniqueItems multipleOf dependentRequired "
    "dependentSchemas dependencies unevaluatedItems".split()
)
_NAMING = ("properties", "$defs", "definitions")
_DATA = ("enum", "const", "default", "examples")
# Beside one of them the compiler reads nothing else.
_COMBINING = ("$ref", "anyOf", "oneOf", "allOf")
_ANNOTATIONS = frozenset("$defs definitions type title description default examples discriminator".split())
_log = logging.getLogger(__name__)
Made = TypeVar("Made")


class ToolSetCache(Generic[Made]):
    """Results of ``make`` for the sets of tools that were used last."""

    def __init__(self, make: Callable[[Sequence[Tool]], Made]) -> None:
        self._make = make
        self._cached: OrderedDict[bytes, Made] = OrderedDict()

    def __call__(self, tools: Sequence[Tool]) -> Made:
        """Return the result for these tools; it is made if it is not cached."""
        key = msgspec.json.encode(tools)
        if key not in self._cached:
            self._cached[key] = self._make(tools)
            if len(self._cached) > CACHED_TOOL_SETS:
                self._cached.popitem(last=False)
        self._cached.move_to_end(key)
        return self._cached[key]


class ToolGuidance:
    """Makes and caches the structural tags of sessions' tools.

    A tool whose schema the grammar's compiler does not support gets calls with any arguments, and a
    line in the log.

    Args:
        check: takes a structural tag and raises an error of any kind if it is not supported.
    """

    def __init__(self, check: Callable[[str], object]) -> None:
        self._check = check
        self._tags = ToolSetCache(self._make)

    def tag(self, tools: Sequence[Tool]) -> str | None:
        """What the answer of a model with these tools must look like; None: anything."""
        return self._tags(tools)

    def call_tag(self, tools: Sequence[Tool], name: str) -> str | None:
        """The form of one call of the tool ``name``, or of any (``ANY_TOOL``); None: as in :meth:`tag`."""
        tag = self._tags(tools)
        if tag is None:
            return None
        forms = json.loads(tag)["format"]["tags"]
        wanted = [form for form in forms if name == ANY_TOOL or form["begin"] == _beginning(name)]
        return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": wanted}})

    def _make(self, tools: Sequence[Tool]) -> str | None:
        schemas = guidable(tools)
        if not schemas:
            return None
        forms = []
        for tool, schema in zip(tools, schemas, strict=True):
            form = _form(tool.name, schema)
            supported = is_supported(self._check, _tag([form]), unguided_arguments(tool))
            forms.append(form if supported else _form(tool.name, _ANYTHING))
        tag = _tag(forms)
        return tag if is_supported(self._check, tag, "calls are not guided") else None


def is_supported(check: Callable[[str], object], tag: str, otherwise: str) -> bool:
    """Whether ``check`` accepts a structural tag; if not, the log has ``otherwise`` and the reason."""
    try:
        check(tag)
    except Exception as error:  # noqa: BLE001 - the compiler's own: calls work without its grammar
        _log.warning("%s: %s", otherwise, error)
        return False
    return True


def unguided_arguments(tool: Tool) -> str:
    """The log's words for a tool whose schema becomes no grammar."""
    return f"tool {tool.name!r} is called with unguided arguments"


def guidable(tools: Sequence[Tool]) -> list[Any]:
    """The schemas of the tools' arguments from which a grammar is made within some tens of milliseconds.

    A tool's that might take longer allows any arguments, and the log says so; so do those of the tools for
    which those before have left too little.
    """
    left = _MOST_VALUES - _TOOL * len(tools)
    schemas = []
    for tool in tools:
        try:
            schema = relaxed(tool.parameters) or _ANYTHING
        except ValueError as error:
            _warn(tool, error)
            schema = _ANYTHING
        values = _values(schema)
        if values > left and schema is not _ANYTHING:
            _warn(tool, f"the schemas of all tools hold more than {_MOST_VALUES} values")
            schema, values = _ANYTHING, 0
        left -= values
        schemas.append(schema)
    return schemas


def json_tag(schema: dict[str, Any]) -> str:
    """The structural tag of an answer that is JSON of this schema.

    Raises:
        InvalidMessageError: a grammar of it might take too long, or would not enforce all of it.
    """
    try:
        kept = relaxed(schema)
    except ValueError as error:
        raise InvalidMessageError(f"the answer's schema: {error}") from error
    if kept != schema:
        raise InvalidMessageError(
            "the answer's schema has limits that are not enforced: pattern, minProperties, maxProperties, "
            f"minLength above 1, maxLength other than {_LENGTHS}, or large ones"
        )
    for keyword in _ignored(schema):
        raise InvalidMessageError(f"the answer's schema has {keyword!r} in a form that is not enforced")
    if _values(schema) > _MOST_VALUES:
        raise InvalidMessageError(f"the answer's schema holds more than {_MOST_VALUES} values")
    form = {"type": "json_schema", "json_schema": schema, "any_order": False, "max_whitespace_cnt": 1}
    return json.dumps({"type": "structural_tag", "format": form})


def _ignored(schema: Any) -> Iterator[str]:
    """The keywords of a schema, and of those within it, of which the compiler makes no grammar."""
    if isinstance(schema, list):
        for one in schema:
            yield from _ignored(one)
    if not isinstance(schema, dict):
        return
    properties, required = schema.get("properties"), schema.get("required")
    named = properties if isinstance(properties, dict) else {}
    if isinstance(required, list) and any(str(name) not in named for name in required):
        yield "required"
    for name, value in schema.items():
        is_several = name == "allOf" and isinstance(value, list) and len(value) > 1
        is_elsewhere = name == "$ref" and not str(value).startswith("#")
        hides = name in _COMBINING and bool(schema.keys() - {name} - _ANNOTATIONS)
        if is_several or is_elsewhere or hides or (name in _IGNORED and value is not False):
            yield name
        if name in _NAMING and isinstance(value, dict):
            yield from _ignored([*value.values()])
        elif name not in _DATA:
            yield from _ignored(value)


def _warn(tool: Tool, error: object) -> None:
    _log.warning("%s: %s", unguided_arguments(tool), error)


def relaxed(schema: Any) -> Any:
    """A JSON schema without the limits that take a grammar's compiler too long.

    Lengths of texts are rounded up. Of what is left out, ``pattern`` is never enforced, and the rest (least
    and exact lengths, and numbers of properties) is checked when the tool is called.

    Raises:
        ValueError: even then it might take too long.
    """
    if len(msgspec.json.encode(schema)) > _MOST_BYTES:
        raise ValueError(f"a schema of more than {_MOST_BYTES} bytes")
    return _relaxed(schema, _MOST_LEVELS)


def _relaxed(schema: Any, levels: int) -> Any:
    if not isinstance(schema, dict | list):
        return schema
    if not levels:
        raise ValueError(f"a schema of more than {_MOST_LEVELS} levels")
    if isinstance(schema, list):
        return [_relaxed(item, levels - isinstance(item, list)) for item in schema]
    for keyword in _UNSUPPORTED:
        if keyword in schema:
            raise ValueError(f"a schema with {keyword}")
    kept = {
        name: _relaxed(value, levels - 1) for name, value in schema.items() if not _too_costly(name, value)
    }
    if isinstance(schema.get("enum"), list):
        kept["enum"] = schema["enum"]  # values, which may look like limits
    return _with_few_lengths(kept)


def _with_few_lengths(schema: dict[str, Any]) -> dict[str, Any]:
    least, most = _length(schema, "minLength"), _length(schema, "maxLength")
    if most is not None and least == most <= _LENGTHS[0]:
        return schema  # a code of a few figures
    kept = dict(schema)
    if not isinstance(kept.get("minLength"), dict) and (least is None or least > 1):
        kept.pop("minLength", None)
    if not isinstance(kept.get("maxLength"), dict):
        kept.pop("maxLength", None)
    if most is not None:
        kept |= next(({"maxLength": length} for length in _LENGTHS if most <= length), {})
    return kept


def _length(schema: dict[str, Any], keyword: str) -> float | None:
    """None: there is none, or it is a property's schema or of the wrong kind."""
    value = schema.get(keyword)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _too_costly(keyword: str, value: Any) -> bool:
    # A property may have a keyword's name; it is described by an object.
    if keyword in _LIMITS:
        return isinstance(value, (int, float)) and value > _LIMITS[keyword]
    if keyword in _LEFT_OUT:
        return isinstance(value, (int, float))
    if keyword in _RANGE:
        return isinstance(value, (int, float)) and abs(value) > _LARGEST
    return keyword == "pattern" and isinstance(value, str)


def _values(schema: Any) -> int:
    """The cost for the grammar's compiler, in values."""
    if isinstance(schema, list):
        return 1 + sum(map(_values, schema))
    if isinstance(schema, str):
        return 1 + len(schema) // _CHARACTERS_PER_VALUE
    if not isinstance(schema, dict):
        return 1
    return (
        1
        + _pairs(schema) // _OPTIONAL_PAIRS_PER_VALUE
        + sum(
            _values(name) + _WEIGHTS.get(name, 0) + _values(value)
            for name, value in schema.items()
            if name not in _SAID_ONLY or not isinstance(value, str)
        )
    )


def _pairs(schema: dict[str, Any]) -> int:
    """Pairs of properties that may be left out."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return 0
    given = len(required) if isinstance(required, list) else 0
    return max(0, len(properties) - given) ** 2


def _beginning(name: str) -> str:
    return f'{_TRIGGER}\n{{"name": {json.dumps(name)}, "arguments": '


def _form(name: str, schema: Any) -> dict[str, Any]:
    """How one tool is called, to the letter as Qwen3's chat template writes it."""
    return {
        "type": "tag",
        "begin": _beginning(name),
        "content": {
            "type": "json_schema",
            "json_schema": schema,
            # In the order of the schema, which is that of the prompt. In any order, xgrammar would accept a
            # property twice, and another one in the place of one that is required.
            "any_order": False,
            # Never only blanks.
            "max_whitespace_cnt": 1,
        },
        "end": "}\n</tool_call>",
    }


def _tag(forms: list[dict[str, Any]]) -> str:
    return json.dumps(
        {
            "type": "structural_tag",
            "format": {"type": "triggered_tags", "triggers": [_TRIGGER], "tags": forms},
        }
    )
