"""Answers in Python."""

from __future__ import annotations

from collections.abc import Sequence

from parley.llm.guidance import KeptByTools
from parley.llm.python_calls.functions import as_functions
from parley.llm.python_calls.grammar import CallGrammar
from parley.llm.python_calls.reading import CallStream
from parley.llm.replies import Piece, Reply, TextPiece
from parley.protocol import Tool


class PythonFormat:
    """:class:`parley.llm.replies.ReplyFormat` of models that are given tools as Python functions.

    Without tools the answer is plain text. After results it is something said: the model would often make the
    same call once more.

    Args:
        grammar: of answers; None: the model writes what it likes.
    """

    def __init__(self, grammar: CallGrammar | None = None) -> None:
        self._grammar = grammar
        self._functions = KeptByTools(
            lambda tools: {function.name: function for function in as_functions(tools)}
        )

    def begin(
        self,
        tools: Sequence[Tool],
        prompt: Sequence[int],  # noqa: ARG002 - others need it
        *,
        after_results: bool = False,
    ) -> Reply:
        """Prepare to read an answer."""
        tag = self._grammar.tag(tools, after_results=after_results) if self._grammar else None
        if not tools:
            return _TextReply(tag)
        return _PythonReply(tag, CallStream(self._functions(tools)))


class _PythonReply:
    def __init__(self, structural_tag: str | None, stream: CallStream) -> None:
        self.structural_tag = structural_tag
        self.skip_special_tokens = True
        self._stream = stream

    def read(self, text: str, token_ids: Sequence[int], *, last: bool) -> list[Piece]:  # noqa: ARG002
        pieces = self._stream.feed(text)
        return pieces + self._stream.finish() if last else pieces


class _TextReply:
    def __init__(self, structural_tag: str | None) -> None:
        self.structural_tag = structural_tag
        self.skip_special_tokens = True

    def read(self, text: str, token_ids: Sequence[int], *, last: bool) -> list[Piece]:  # noqa: ARG002
        return [TextPiece(text)] if text else []
