"""The grammar and the parser of answers that call tools as Python functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parley.llm.guidance import ToolSetCache, guidable, is_supported, unguided_arguments
from parley.llm.python_calls.functions import SAY, Function, Parameter, as_functions, python_value
from parley.llm.replies import (
    AnswerParser,
    BadCall,
    ParsedCall,
    ParsedReply,
    Piece,
    PlainText,
    Reply,
)
from parley.protocol import ANY_TOOL, Tool

SPOKEN = r"""[^\s!-/:-@\[-`{-~][^"\\\n\r*#_`<>|{}\[\]]*"""
"""Text to be spoken: in one line, no markup, and it begins with a letter or digit."""
_REST = r"""[^"\\\n\r*#_`<>|{}\[\]]*"""
"""Text that goes on with what is spoken."""
_ANYTHING = {"type": "object"}
_LONGEST_TEXT = 200
"""Characters of an argument whose schema has no limit: one that goes on and on would never be a call."""
_COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if"})
_Format = dict[str, Any]
_CALL = re.compile(r"([A-Za-z_]\w*)\(", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ARGUMENT = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)
_CONSTANTS = {"True": True, "False": False, "None": None}
_OPENINGS = ('"', 'text="')
"""Beginnings of spoken text; a model without a grammar may write the second."""
_ESCAPES = {"n": " ", "t": " ", "r": " "}
_decoder = json.JSONDecoder()


class CallGrammar:
    """Makes and caches the structural tags of sessions' tools.

    A function whose arguments the grammar's compiler does not support takes any object, and the log says so.

    Args:
        check: takes a structural tag and raises an error of any kind if it is not supported.
    """

    def __init__(self, check: Callable[[str], object]) -> None:
        self._check = check
        self._tags = ToolSetCache(self._make)

    def tag(
        self,
        tools: Sequence[Tool],
        *,
        after_results: bool = False,
        continued: bool = False,
        opened: bool = False,
    ) -> str | None:
        """What the answer of a model with these tools must look like; None: anything.

        Without tools it is a text that can be spoken; ``after_results`` of tools no call is allowed.
        ``continued``: it is the rest of a text. ``opened``: it is what is said, behind the quote.
        """
        tag = self._tags(tools)
        if tag and opened:
            return _tag(_sequence(_spoken(), _text('")')))
        if tag and continued:
            return _tag(_sequence(_rest(), _text('")')) if tools else _rest())
        return _tag(_said()) if tag and tools and after_results else tag

    def call_tag(self, tools: Sequence[Tool], name: str) -> str | None:
        """The form of one call of the tool ``name``, or of any (``ANY_TOOL``); None: as in :meth:`tag`."""
        tag = self._tags(tools)
        if tag is None:
            return None
        _, *forms = json.loads(tag)["format"]["elements"]
        wanted = [form for tool, form in zip(tools, forms, strict=True) if name in (ANY_TOOL, tool.name)]
        return _tag({"type": "or", "elements": wanted})

    def _make(self, tools: Sequence[Tool]) -> str | None:
        forms = []
        for function, schema in zip(as_functions(tools), guidable(tools), strict=True):
            form = _call(function, schema)
            if not is_supported(self._check, _tag(form), unguided_arguments(function.tool)):
                form = _sequence(_text(f"{function.name}(**"), _json(_ANYTHING), _text(")"))
            forms.append(form)
        tag = _tag({"type": "or", "elements": [_said(), *forms]} if forms else _spoken())
        return tag if is_supported(self._check, tag, "answers are not guided") else None


def _spoken() -> _Format:
    return {"type": "regex", "pattern": SPOKEN}


def _rest() -> _Format:
    return {"type": "regex", "pattern": _REST}


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


class CallStream(AnswerParser):
    """Parser of one answer, which comes in pieces of any size.

    Speech is returned as it comes, a call when it is complete. An answer that is neither, which is possible
    without a grammar, is text. ``continued``: it is the rest of what is said. ``opened``: all of it, behind
    the quote.
    """

    def __init__(
        self, functions: Mapping[str, Function], *, continued: bool = False, opened: bool = False
    ) -> None:
        self._functions = functions
        self._held = ""  # not yet known what it is, or white space at the end of what is said
        self._has_text = continued
        self._state = self._said if continued or opened else self._begin

    @property
    def is_over(self) -> bool:
        """Whether one statement was read."""
        return self._state == self._end

    def feed(self, text: str) -> list[Piece]:
        """Read the next piece of text."""
        self._held += text
        pieces: list[Piece] = []
        while self._state(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """Read what was held back, at the end of the answer."""
        pieces: list[Piece] = []
        rest = self._held.strip()
        if self._state == self._call:
            pieces.append(BadCall(rest, "the answer ended within the call"))
        elif self._state == self._begin and not any(
            f"{SAY}({opening}".startswith(rest) for opening in _OPENINGS
        ):
            self._add_text(self._held, pieces)
        self._held = ""
        return pieces

    # --- states: each returns whether there may be more to do -----------------------------

    def _begin(self, pieces: list[Piece]) -> bool:  # noqa: ARG002 - nothing is said there
        """Before a statement."""
        self._held = self._held.lstrip()
        if not self._held:
            return False
        if (name := _NAME.match(self._held)) is None:
            self._state = self._plain
            return True
        if name.end() == len(self._held):
            return False  # the name may go on
        call = _CALL.match(self._held)
        if call is None:
            self._state = self._plain
        elif call[1] != SAY:
            self._state = self._call
        else:
            return self._begin_saying(self._held[call.end() :])
        return True

    def _begin_saying(self, rest: str) -> bool:
        """Behind the bracket of what is to be said."""
        for opening in _OPENINGS:
            if rest.startswith(opening):
                self._held = rest[len(opening) :]
                self._state = self._said
                self._has_text = False
                return True
        if any(opening.startswith(rest) for opening in _OPENINGS):
            return False  # it may go on so
        self._state = self._call
        return True

    def _said(self, pieces: list[Piece]) -> bool:
        """Within the quotes of what is said."""
        taken: list[str] = []
        index = 0
        while index < len(self._held):
            character = self._held[index]
            if character == '"':
                self._add_text("".join(taken).rstrip(), pieces)
                self._held = self._held[index + 1 :]
                self._state = self._end
                return True
            if character == "\\":
                if index + 1 == len(self._held):
                    break
                index += 1
                character = _ESCAPES.get(self._held[index], self._held[index])
            taken.append(character)
            index += 1
        text = "".join(taken)
        sure = text.rstrip()
        self._add_text(sure, pieces)
        self._held = text[len(sure) :] + self._held[index:]
        return False

    def _end(self, pieces: list[Piece]) -> bool:  # noqa: ARG002 - nothing is said there
        """Behind what was said, up to the end of the line."""
        _, newline, rest = self._held.partition("\n")
        self._held = rest
        if not newline:
            return False
        self._state = self._begin
        return True

    def _call(self, pieces: list[Piece]) -> bool:
        """Within a call."""
        if ")" not in self._held:
            return False
        read = _read_call(self._held)
        if read is None:
            return False
        name, arguments, end = read
        function = self._functions.get(name)
        if function is None:
            pieces.append(BadCall(self._held[:end], f"there is no function {name}"))
        else:
            pieces.append(ParsedCall(function.tool.name, arguments))
        self._held = self._held[end:]
        self._state = self._end
        return True

    def _plain(self, pieces: list[Piece]) -> bool:
        """In an answer that is not Python."""
        sure = self._held.rstrip()
        self._add_text(sure, pieces)
        self._held = self._held[len(sure) :]
        return False


def _read_call(text: str) -> tuple[str, dict[str, Any], int] | None:
    """A call's name, its arguments and where it ends; None: it is not complete, or none that is known."""
    begin = _CALL.match(text)
    if begin is None:
        return None
    try:
        arguments, end = _read_arguments(text, begin.end())
    except (ValueError, IndexError, RecursionError):
        return None
    return begin[1], arguments, end


def _read_arguments(text: str, index: int) -> tuple[dict[str, Any], int]:
    if text.startswith("**", index):
        whole, index = _read_value(text, index + 2)
        if not isinstance(whole, dict) or text[index] != ")":
            raise ValueError
        return whole, index + 1
    arguments: dict[str, Any] = {}
    while text[index] != ")":
        if arguments:
            if text[index] != ",":
                raise ValueError
            index = _skip_spaces(text, index + 1)
        named = _ARGUMENT.match(text, index)
        if named is None or named[1] in arguments:
            raise ValueError
        arguments[named[1]], index = _read_value(text, named.end())
        index = _skip_spaces(text, index)
    return arguments, index + 1


def _read_value(text: str, index: int) -> tuple[Any, int]:
    for name, value in _CONSTANTS.items():
        if text.startswith(name, index):
            return value, index + len(name)
    return _decoder.raw_decode(text, index)


def _skip_spaces(text: str, index: int) -> int:
    while text[index] == " ":
        index += 1
    return index


class PythonFormat:
    """:class:`parley.llm.replies.ReplyFormat` of models that are given tools as Python functions.

    Without tools the answer is plain text. After results it is something said: the model would often make the
    same call once more.

    Args:
        grammar: of answers; None: they are not constrained.
    """

    continues = True

    def __init__(self, grammar: CallGrammar | None = None) -> None:
        self._grammar = grammar
        self._functions = ToolSetCache(
            lambda tools: {function.name: function for function in as_functions(tools)}
        )

    def begin(
        self,
        tools: Sequence[Tool],
        prompt: Sequence[int],  # noqa: ARG002 - others need it
        *,
        after_results: bool = False,
        continued: bool = False,
    ) -> Reply:
        """Prepare to read an answer."""
        grammar = self._grammar
        tag = grammar.tag(tools, after_results=after_results, continued=continued) if grammar else None
        if not tools:
            return ParsedReply(tag, PlainText())
        return ParsedReply(tag, CallStream(self._functions(tools), continued=continued))

    def begin_call(self, tools: Sequence[Tool], prompt: Sequence[int], name: str) -> Reply:  # noqa: ARG002
        """See :class:`parley.llm.replies.ReplyFormat`."""
        tag = self._grammar.call_tag(tools, name) if self._grammar else None
        return ParsedReply(tag, CallStream(self._functions(tools)))

    def begin_speech(self, tools: Sequence[Tool]) -> Reply:
        """See :class:`parley.llm.replies.OpensSpeech`."""
        tag = self._grammar.tag(tools, opened=True) if self._grammar else None
        return ParsedReply(tag, CallStream(self._functions(tools), opened=True))
