"""What an engine may write within a tool call, so that its arguments are those that the tool takes.

Free text stays free: the grammar begins where the model opens a call of the Hermes format, and knows
one form for each tool. It is a *structural tag* of xgrammar, which vLLM applies while it draws tokens.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import msgspec

from parley.protocol import Tool

_TRIGGER = "<tool_call>"
_KEPT = 64
# Schemas are the clients', and compiling a grammar cannot be stopped: strings of up to 1,000 characters took
# four seconds, 60 levels of objects 0.3 s, and 10,000 properties minutes.
_MOST_BYTES = 16_384
_MOST_LEVELS = 24
_LIMITS = {
    "minLength": 100,
    "maxLength": 100,
    "minItems": 100,
    "maxItems": 100,
    "minProperties": 10,
    "maxProperties": 10,
}
_MOST_PATTERN = 200
_MOST_REPEATS = 100
# They forbid what is left unsaid, so that a part of them is not less but something else.
_UNSUPPORTED = ("patternProperties", "propertyNames")
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_ANYTHING = {"type": "object"}
_log = logging.getLogger(__name__)


class ToolGuidance:
    """Makes the structural tags of sessions' tools, and keeps those of the last sessions.

    A tool whose schema the grammar's compiler does not support gets calls with any arguments, and a
    line in the log.

    Args:
        check: takes a structural tag and raises an error of any kind if it is not supported.
    """

    def __init__(self, check: Callable[[str], object]) -> None:
        self._check = check
        self._known: OrderedDict[bytes, str | None] = OrderedDict()

    def tag(self, tools: Sequence[Tool]) -> str | None:
        """What the answer of a model with these tools must look like; None: anything."""
        key = msgspec.json.encode(tools)
        if key not in self._known:
            self._known[key] = self._make(tools)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def _make(self, tools: Sequence[Tool]) -> str | None:
        if not tools:
            return None
        forms = []
        for tool in tools:
            try:
                form = _form(tool.name, relaxed(tool.parameters) or _ANYTHING)
                self._check(_tag([form]))
            except Exception as error:  # noqa: BLE001 - whatever the compiler cannot do: calls work without
                _log.warning("tool %r is called with unguided arguments: %s", tool.name, error)
                form = _form(tool.name, _ANYTHING)
            forms.append(form)
        tag = _tag(forms)
        try:
            self._check(tag)
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("calls are not guided: %s", error)
            return None
        return tag


def relaxed(schema: Any) -> Any:
    """A JSON schema without the limits that take a grammar's compiler too long.

    What is left out is still checked when the tool is called.

    Raises:
        ValueError: even then it might take too long.
    """
    if len(msgspec.json.encode(schema)) > _MOST_BYTES:
        raise ValueError(f"a schema of more than {_MOST_BYTES} bytes")
    return _relaxed(schema, _MOST_LEVELS)


def _relaxed(schema: Any, levels: int) -> Any:
    if isinstance(schema, list):
        return [_relaxed(item, levels) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if not levels:
        raise ValueError(f"a schema of more than {_MOST_LEVELS} levels")
    for keyword in _UNSUPPORTED:
        if keyword in schema:
            raise ValueError(f"a schema with {keyword}")
    return {
        name: _relaxed(value, levels - 1) for name, value in schema.items() if not _too_costly(name, value)
    }


def _too_costly(keyword: str, value: Any) -> bool:
    # A property may have a keyword's name; it is described by an object.
    if keyword in _LIMITS:
        return isinstance(value, (int, float)) and value > _LIMITS[keyword]
    if keyword == "pattern" and isinstance(value, str):
        repeats = [int(most or least) for least, most in _REPEAT.findall(value)]
        return len(value) > _MOST_PATTERN or prod(max(1, count) for count in repeats) > _MOST_REPEATS
    return False


def _form(name: str, schema: Any) -> dict[str, Any]:
    """How one tool is called, to the letter as Qwen3's chat template writes it."""
    return {
        "type": "tag",
        "begin": f'{_TRIGGER}\n{{"name": {json.dumps(name)}, "arguments": ',
        "content": {
            "type": "json_schema",
            "json_schema": schema,
            # In the order that the model is used to, and never nothing but blanks.
            "any_order": True,
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
