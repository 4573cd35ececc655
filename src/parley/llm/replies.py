"""How a model writes its answers: what is text, what is a tool call, and what is neither.

Hermes, the default, is parsed here, although :mod:`parley.llm.vllm_replies` can do it with vLLM's parser:
this parser needs no vLLM and reads an answer once. vLLM's also needs a pydantic request for each answer, and
the whole answer is parsed again at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from parley.llm.guidance import ToolGuidance
from parley.protocol import Tool

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class Reply(Protocol):
    """Reads one answer."""

    structural_tag: str | None
    """What the engine must keep to; None: nothing."""
    skip_special_tokens: bool
    """Whether the engine leaves tokens that are no text out of the text."""

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow what was read: the model need not say so, which takes it a step."""
        ...

    def read(self, text: str, token_ids: Sequence[int], *, last: bool) -> list[Piece]:
        """Read what was written since the last call; ``last``: nothing follows."""
        ...


class ReplyFormat(Protocol):
    """One model's way to write answers. Used from one thread."""

    continues: bool
    """Whether the model goes on behind the beginning of an answer."""

    def begin(
        self,
        tools: Sequence[Tool],
        prompt: Sequence[int],
        *,
        after_results: bool = False,
        continued: bool = False,
    ) -> Reply:
        """Prepare to read the answer to a prompt, given as token ids.

        ``after_results``: the answer follows results of tools. ``continued``: the prompt ends with the
        beginning of its text.

        Raises:
            InvalidMessageError: the format has no way to call one of these tools.
        """
        ...

    def begin_call(self, tools: Sequence[Tool], prompt: Sequence[int], name: str) -> Reply:
        """Prepare to read an answer that is one call of the tool ``name``, or of any (``ANY_TOOL``).

        The reply has no structural tag if calls are not guided.

        Raises:
            InvalidMessageError: as in :meth:`begin`.
        """
        ...


@runtime_checkable
class OpensSpeech(Protocol):
    """A format in which all that is spoken begins alike, so that the model need not write it."""

    def begin_speech(self, tools: Sequence[Tool]) -> Reply:
        """Prepare to read what is spoken, by a model with tools, behind that beginning."""
        ...


class HermesFormat:
    """Qwen3's format, which many models share.

    Args:
        guidance: of tool calls; None: they are not constrained.
    """

    continues = True

    def __init__(self, guidance: ToolGuidance | None = None) -> None:
        self._guidance = guidance

    def begin(
        self,
        tools: Sequence[Tool],
        prompt: Sequence[int],  # noqa: ARG002 - others need it
        *,
        after_results: bool = False,  # noqa: ARG002 - as above
        continued: bool = False,
    ) -> Reply:
        """Prepare to read an answer."""
        tag = self._guidance.tag(tools) if self._guidance else None
        return ParsedReply(tag, ToolStream(continued=continued))

    def begin_call(self, tools: Sequence[Tool], prompt: Sequence[int], name: str) -> Reply:  # noqa: ARG002
        """See :class:`ReplyFormat`."""
        return ParsedReply(self._guidance.call_tag(tools, name) if self._guidance else None, ToolStream())


class AnswerParser(ABC):
    """Splits one answer, which comes in pieces of any size."""

    _has_text = False
    """Whether text was returned since the start or the last call."""

    @property
    def is_over(self) -> bool:
        """Whether an answer that keeps to the grammar is complete."""
        return False

    @abstractmethod
    def feed(self, text: str) -> list[Piece]:
        """Read the next piece of text."""

    @abstractmethod
    def finish(self) -> list[Piece]:
        """Read what was held back, at the end of the answer."""

    def _add_text(self, text: str, pieces: list[Piece]) -> None:
        if not self._has_text:
            text = text.lstrip()
        if text:
            self._has_text = True
            pieces.append(TextPiece(text))


class ParsedReply:
    """A :class:`Reply` whose text alone shows what it is."""

    def __init__(self, structural_tag: str | None, parser: AnswerParser) -> None:
        self.structural_tag = structural_tag
        self.skip_special_tokens = True
        self._parser = parser

    @property
    def is_over(self) -> bool:
        """See :class:`Reply`."""
        return self.structural_tag is not None and self._parser.is_over

    def read(self, text: str, token_ids: Sequence[int], *, last: bool) -> list[Piece]:  # noqa: ARG002
        """See :class:`Reply`."""
        pieces = self._parser.feed(text)
        return pieces + self._parser.finish() if last else pieces


@dataclass(frozen=True)
class TextPiece:
    """A piece of the answer; never empty."""

    text: str


@dataclass(frozen=True)
class ParsedCall:
    """A complete call; the name is whatever the model wrote."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class BadCall:
    """A call that cannot be read."""

    raw: str
    reason: str


Piece: TypeAlias = TextPiece | ParsedCall | BadCall


class ToolStream(AnswerParser):
    """Parser of one answer.

    White space at the ends of the answer and around calls belongs to the format and is dropped. At the
    beginning of the rest of an answer (``continued``) it is part of the text.
    """

    def __init__(self, *, continued: bool = False) -> None:
        self._has_text = continued
        self._held = ""  # text that may turn out to be a tag or white space at the end
        self._call: list[str] | None = None  # pieces of the call being read
        self._tail = ""  # end of the call so far, where a closing tag may have begun

    def feed(self, text: str) -> list[Piece]:
        """Read the next piece of text."""
        pieces: list[Piece] = []
        while text:
            text = self._feed_call(text, pieces) if self._call is not None else self._feed_text(text, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        """Read what was held back, at the end of the answer."""
        if self._call is not None:
            raw, self._call, self._tail = "".join(self._call), None, ""
            call = _read_call(raw)
            # The call is complete if the model stops right after the JSON.
            return [
                call if isinstance(call, ParsedCall) else BadCall(raw, "the answer ended within the call")
            ]
        pieces: list[Piece] = []
        self._add_text(self._held.rstrip(), pieces)
        self._held = ""
        return pieces

    def _feed_text(self, text: str, pieces: list[Piece]) -> str:
        """Read text outside a call; returns what follows an opening tag."""
        seen = self._held + text
        before, tag, rest = seen.partition(_OPEN)
        if tag:
            self._add_text(before.rstrip(), pieces)
            self._held, self._call, self._has_text = "", [], False
            return rest
        sure = len(seen) - overlap(seen, _OPEN)
        sure = len(seen[:sure].rstrip())
        self._add_text(seen[:sure], pieces)
        self._held = seen[sure:]
        return ""

    def _feed_call(self, text: str, pieces: list[Piece]) -> str:
        """Read text inside a call; returns what follows its closing tag."""
        assert self._call is not None
        # Only the last few characters can be the beginning of a tag: no need to search it all.
        seen = self._tail + text
        end = seen.find(_CLOSE)
        if end < 0:
            self._call.append(text)
            self._tail = seen[-(len(_CLOSE) - 1) :]
            return ""
        joined = "".join(self._call) + text
        pieces.append(_read_call(joined[: len(joined) - len(seen) + end]))
        self._call, self._tail = None, ""
        return seen[end + len(_CLOSE) :]


class PlainText(AnswerParser):
    """Parser of an answer without calls."""

    def feed(self, text: str) -> list[Piece]:
        """All of it is text."""
        return [TextPiece(text)] if text else []

    def finish(self) -> list[Piece]:
        """Nothing was held back."""
        return []


def overlap(text: str, tag: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``tag``."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-size:]):
            return size
    return 0


class _CallBody(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | str | None = None


def _read_call(raw: str) -> ParsedCall | BadCall:
    try:
        body = msgspec.json.decode(raw.strip(), type=_CallBody)
        arguments = body.arguments
        if isinstance(arguments, str):  # some models quote the object once more
            arguments = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return BadCall(raw, str(error))
    if not body.name:
        return BadCall(raw, "the call has no name")
    return ParsedCall(body.name, arguments or {})
