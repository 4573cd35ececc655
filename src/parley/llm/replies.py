"""How a model writes its answers: what is text, what is a tool call, and what is neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from parley.llm.guidance import ToolGuidance
from parley.llm.tool_stream import Piece, ToolStream
from parley.protocol import Tool


class Reply(Protocol):
    """Reads one answer."""

    structural_tag: str | None
    """What the engine must keep to; None: nothing."""
    skip_special_tokens: bool
    """Whether the engine leaves tokens that are no text out of the text."""

    def read(self, text: str, token_ids: Sequence[int], *, last: bool) -> list[Piece]:
        """Take what was written since the last call; ``last``: nothing follows."""
        ...


class ReplyFormat(Protocol):
    """One model's way to write answers. Used from one thread."""

    def begin(
        self,
        tools: Sequence[Tool],
        prompt: Sequence[int],
        *,
        after_results: bool = False,
    ) -> Reply:
        """Prepare to read the answer to a prompt, given as token ids.

        ``after_results``: the answer follows results of tools.

        Raises:
            InvalidMessageError: the format has no way to call one of these tools.
        """
        ...


class HermesFormat:
    """Qwen3's format, which many models share; see :mod:`parley.llm.tool_stream`.

    Args:
        guidance: of tool calls; None: the model writes what it likes.
    """

    def __init__(self, guidance: ToolGuidance | None = None) -> None:
        self._guidance = guidance

    def begin(
        self,
        tools: Sequence[Tool],
        prompt: Sequence[int],  # noqa: ARG002 - others need it
        *,
        after_results: bool = False,  # noqa: ARG002 - as above
    ) -> Reply:
        """Prepare to read an answer."""
        return _HermesReply(self._guidance.tag(tools) if self._guidance else None)


class _HermesReply:
    def __init__(self, structural_tag: str | None) -> None:
        self.structural_tag = structural_tag
        self.skip_special_tokens = True
        self._stream = ToolStream()

    def read(self, text: str, token_ids: Sequence[int], *, last: bool) -> list[Piece]:  # noqa: ARG002
        pieces = self._stream.feed(text)
        return pieces + self._stream.finish() if last else pieces
