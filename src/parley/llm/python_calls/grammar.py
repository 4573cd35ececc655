"""What an answer may look like: something said, or one whole call of a function that there is.

It is a *structural tag* of xgrammar, which vLLM applies while it draws tokens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parley.llm.guidance import KeptByTools, guidable
from parley.llm.python_calls.functions import SAY, Function, Parameter, as_functions
from parley.llm.python_calls.schemas import python_value
from parley.protocol import Tool

SPOKEN = r"""[^\s!-/:-@\[-`{-~][^"\\\n\r*#_`<>|{}\[\]]*"""
"""Text to be spoken: in one line, no markup, and it begins with a letter or digit."""
_ANYTHING = {"type": "object"}
_LONGEST_TEXT = 200
"""Characters of an argument whose schema has no limit: one that goes on and on would never be a call."""
_COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if"})
_log = logging.getLogger(__name__)
_Format = dict[str, Any]


class CallGrammar:
    """Makes the structural tags of sessions' tools, and keeps those of the last sessions.

    A function whose arguments the grammar's compiler does not support takes any object, and the log says so.

    Args:
        check: takes a structural tag and raises an error of any kind if it is not supported.
    """

    def __init__(self, check: Callable[[str], object]) -> None:
        self._check = check
        self._tags = KeptByTools(self._make)

    def tag(self, tools: Sequence[Tool], *, after_results: bool = False) -> str | None:
        """What the answer of a model with these tools must look like; None: anything.

        Without tools it is a text that can be spoken; ``after_results`` of tools no call is allowed.
        """
        tag = self._tags(tools)
        return _tag(_said()) if tag and tools and after_results else tag

    def _make(self, tools: Sequence[Tool]) -> str | None:
        forms = []
        for function, schema in zip(as_functions(tools), guidable(tools), strict=True):
            form = _call(function, schema)
            try:
                self._check(_tag(form))
            except Exception as error:  # noqa: BLE001 - whatever the compiler cannot do
                _log.warning("tool %r is called with unguided arguments: %s", function.tool.name, error)
                form = _sequence(_text(f"{function.name}(**"), _json(_ANYTHING), _text(")"))
            forms.append(form)
        tag = _tag({"type": "or", "elements": [_said(), *forms]} if forms else _spoken())
        try:
            self._check(tag)
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("answers are not guided: %s", error)
            return None
        return tag


def _spoken() -> _Format:
    return {"type": "regex", "pattern": SPOKEN}


def _said() -> _Format:
    return _sequence(_text(f'{SAY}("'), _spoken(), _text('")'))


def _call(function: Function, schema: Mapping[str, Any]) -> _Format:
    properties = schema.get("properties", {})
    if function.parameters is None or not {one.name for one in function.parameters} <= properties.keys():
        return _sequence(_text(f"{function.name}(**"), _json(schema), _text(")"))
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    given = [
        (parameter, _sequence(_text(f"{parameter.name}="), _value(properties[parameter.name], shared)))
        for parameter in function.parameters
    ]
    return _sequence(_text(f"{function.name}("), *_arguments(given), _text(")"))


def _arguments(given: Sequence[tuple[Parameter, _Format]]) -> list[_Format]:
    """Those that must be given, in their order, then those that may be."""
    required = [form for parameter, form in given if parameter.required]
    optional = [form for parameter, form in given if not parameter.required]
    following = [_optional(_sequence(_text(", "), form)) for form in optional]
    if required:
        first, *others = required
        return [first, *(_sequence(_text(", "), form) for form in others), *following]
    if not optional:
        return []
    # Whichever comes first has no comma before it.
    beginnings = [_sequence(form, *following[index + 1 :]) for index, form in enumerate(optional)]
    return [_optional({"type": "or", "elements": beginnings})]


def _value(schema: Any, shared: Mapping[str, Any]) -> _Format:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(schema, dict) and not _COMBINING & schema.keys():
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(choices, list) and choices:
            return {"type": "or", "elements": [_text(python_value(choice)) for choice in choices]}
        if kind == "boolean":
            return {"type": "or", "elements": [_text("True"), _text("False")]}
        if kind == "string" and "format" not in schema:
            return {"type": "regex", "pattern": _string(schema)}
    if shared and "$ref" in json.dumps(schema):
        schema = {**schema, **shared}
    return _json(schema)


def _string(schema: Mapping[str, Any]) -> str:
    """A text in quotes, never an empty one.

    xgrammar's own rule for JSON expects what follows a text in JSON: it forbids the token of a quote and a
    closing bracket, with which models end a call, and the text goes on instead.
    """
    least, most = schema.get("minLength", 1), schema.get("maxLength", _LONGEST_TEXT)
    return rf'"[^\s"\\][^"\\\x00-\x1f]{{{max(int(least), 1) - 1},{int(most) - 1}}}"'


def _json(schema: Any) -> _Format:
    # Never nothing but blanks; properties in the order of the schema, each once.
    return {"type": "json_schema", "json_schema": schema, "any_order": False, "max_whitespace_cnt": 1}


def _text(value: str) -> _Format:
    return {"type": "const_string", "value": value}


def _sequence(*elements: _Format) -> _Format:
    return {"type": "sequence", "elements": list(elements)}


def _optional(content: _Format) -> _Format:
    return {"type": "optional", "content": content}


def _tag(form: _Format) -> str:
    return json.dumps({"type": "structural_tag", "format": form})
