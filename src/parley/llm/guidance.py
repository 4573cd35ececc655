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
# A grammar counts characters one by one: 1,000 took four seconds to compile, 100 a few milliseconds.
_MOST_CHARACTERS = 100
_MOST_PATTERN = 200
_MOST_REPEATS = 1_000
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
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
            form = _form(tool.name, relaxed(tool.parameters) or {"type": "object"})
            if not self._supported([form], f"tool {tool.name!r} is called with unguided arguments"):
                form = _form(tool.name, {"type": "object"})
            forms.append(form)
        return _tag(forms) if self._supported(forms, "calls are not guided") else None

    def _supported(self, forms: list[dict[str, Any]], otherwise: str) -> bool:
        try:
            self._check(_tag(forms))
        except Exception as error:  # noqa: BLE001 - whatever the compiler cannot do: calls work without it
            _log.warning("%s: %s", otherwise, error)
            return False
        return True


def relaxed(schema: Any) -> Any:
    """A JSON schema without the limits that take a grammar's compiler too long.

    What is left out is still checked when the tool is called.
    """
    if isinstance(schema, list):
        return [relaxed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: relaxed(value) for name, value in schema.items() if not _too_costly(name, value)}


def _too_costly(keyword: str, value: Any) -> bool:
    # A property may have a keyword's name; it is described by an object.
    if keyword in ("minLength", "maxLength"):
        return isinstance(value, (int, float)) and value > _MOST_CHARACTERS
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
