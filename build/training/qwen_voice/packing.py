"""Sessions as one row of tokens each.

::

    system prompt and tools
      └ conversation 1
      └ conversation 2 ...

What the conversations share is computed once. Each attends to it and to itself, with the positions
that it has when it is alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from parley.chat import ChatMessage
from parley.llm.python_calls.rendering import PythonRendering
from qwen_voice.dialogues import Session


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text, marks such as ``<|im_start|>`` included."""
        ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], *, tokenize: bool) -> str:
        """The text of a conversation."""
        ...


@dataclass(frozen=True)
class Row:
    """One session; N tokens."""

    ids: Tensor
    """i64 ``[1, N]``."""
    positions: Tensor
    """i64 ``[1, N]``."""
    seen: Tensor
    """bool ``[1, 1, N, N]``: which tokens each token attends to."""
    learned: Tensor
    """bool ``[N]``: what the assistant says, with the mark of its end."""


class Packer:
    """Encodes sessions as the model ``qwen3`` renders them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rendering = PythonRendering(examples=False)

    def pack(self, session: Session, most: int) -> Row:
        """One row.

        Args:
            session: the session; a tool's result and its caller may be long, so not all of it may fit.
            most: tokens from which on no further conversation is added.
        """
        ids: list[int] = []
        positions: list[int] = []
        number: list[int] = []
        learned: list[bool] = []
        shared = 0
        for index, conversation in enumerate(session.conversations, 1):
            opening, *messages = self._rendered(session, conversation)
            if not ids:
                ids = self._encode(opening)
                shared = len(ids)
                positions, number, learned = list(range(shared)), [0] * shared, [False] * shared
            elif len(ids) > most:
                break
            position = shared
            for message in messages:
                head = self._tokenizer.encode(f"<|im_start|>{message['role']}\n", add_special_tokens=False)
                whole = self._encode(message)
                # The line break behind the mark of the end is the template's, not the model's.
                own = message["role"] == "assistant"
                learned += [own and len(head) <= place < len(whole) - 1 for place in range(len(whole))]
                ids += whole
                positions += range(position, position + len(whole))
                number += [index] * len(whole)
                position += len(whole)
        owner = torch.tensor(number)
        sees = (owner[None, :] == owner[:, None]) | (owner[None, :] == 0)
        return Row(
            torch.tensor([ids]),
            torch.tensor([positions]),
            (sees & torch.ones_like(sees).tril())[None, None],
            torch.tensor(learned),
        )

    def check(self, session: Session) -> None:
        """Compare with the chat template.

        Raises:
            ValueError: a conversation alone is not what the template makes of it.
        """
        for conversation in session.conversations:
            rendered = self._rendered(session, conversation)
            text = self._tokenizer.apply_chat_template(rendered, tokenize=False)
            whole = self._tokenizer.encode(text, add_special_tokens=False)
            if whole != [token for message in rendered for token in self._encode(message)]:
                raise ValueError(f"the chat template writes this otherwise: {text}")

    def _rendered(self, session: Session, conversation: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        system = ChatMessage(role="system", content=session.system)
        return self._rendering.render([system, *conversation], session.tools).conversation

    def _encode(self, message: dict[str, Any]) -> list[int]:
        text = f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
        return self._tokenizer.encode(text, add_special_tokens=False)
