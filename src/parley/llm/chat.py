"""Prompts out of messages, through the tokenizer's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from parley.errors import ContextTooLongError, InvalidMessageError
from parley.llm.messages import ChatMessage
from parley.llm.rendering import Rendering, TemplateRendering
from parley.protocol import Tool

_ROOM = 128
"""Tokens that an answer has in any case: about 90 words of English."""


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is needed here."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any:
        """Render a conversation."""
        ...


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation."""

    ids: list[int]
    max_tokens: int
    """What was asked for, or as much as still fits."""


class PromptBuilder:
    """Renders conversations for one model.

    Args:
        tokenizer: with a chat template.
        max_length: size of the model's context window in tokens.
        options: variables of the template, besides the messages and tools.
        rendering: what the template is told; None: everything as it is.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        max_length: int,
        options: Mapping[str, Any] = MappingProxyType({}),
        rendering: Rendering | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._options = options
        self._rendering = rendering or TemplateRendering()

    def build(self, messages: Sequence[ChatMessage], tools: Sequence[Tool], max_tokens: int) -> Prompt:
        """Render the conversation up to the point where the assistant answers.

        Raises:
            InvalidMessageError: the template cannot render these messages.
            ContextTooLongError: no room is left for an answer of 128 tokens, or of ``max_tokens`` if these
                are fewer. An answer that had less would end in the middle of a sentence.
        """
        rendered = self._rendering.render(messages, tools)
        try:
            ids = self._tokenizer.apply_chat_template(
                rendered.conversation,
                **{
                    **self._options,
                    "tools": rendered.tools,
                    "add_generation_prompt": True,
                    "tokenize": True,
                    "return_dict": False,
                },
            )
        except Exception as error:  # templates raise errors of their own (jinja2)
            raise InvalidMessageError(f"the chat template does not accept these messages: {error}") from error
        room = self._max_length - len(ids)
        needed = min(max_tokens, _ROOM)
        if room < needed:
            raise ContextTooLongError(
                f"the conversation has {len(ids)} tokens; the model takes {self._max_length} "
                f"with its answer, for which {needed} are kept"
            )
        return Prompt(list(ids), min(max_tokens, room))
