"""Prompts out of messages, through the tokenizer's own chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from parley.chat import ChatMessage
from parley.errors import ContextTooLongError, InvalidMessageError
from parley.llm.guidance import ToolSetCache
from parley.llm.messages import Question
from parley.protocol import Tool

_MIN_ANSWER = 128
"""Tokens that every answer may have: about 90 words of English."""
_MESSAGE_TOKENS = 4
"""Tokens that a template writes for any message: its beginning, its role and its end."""
_TOKEN_BYTES = 8
"""Bytes of JSON for each token of the context window; texts have three to five."""
_NOTE = "Now describe the user."
"""Before questions about the conversation."""
_SIGNS = " .,;:!?…-"
_ENDS = (".", "?", "!", "...", '."', ".\n", "?\n", "!\n", ".\n\n", "?\n\n")
"""What ends a sentence, where a tokenizer has one token for it."""
_FILL = " ."
"""One token, which says nothing."""
_TAG = re.compile(r"<[^<>\s{}'\"\\]+>")


class ChatTokenizer(Protocol):
    """The used part of a Hugging Face tokenizer."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any:
        """Render a conversation."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text."""
        ...

    def get_added_vocab(self) -> Mapping[str, int]:
        """Texts that are always one token: what templates write, such as ``<tool_call>``."""
        ...

    @property
    def chat_template(self) -> Any:
        """A template of Jinja, several by name, or None."""
        ...


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation."""

    ids: list[int]
    max_tokens: int
    """What was asked for, or as much as still fits."""
    example_tokens: int = 0
    """Tokens of ``ids`` that are examples, which every conversation has."""


@dataclass(frozen=True)
class QuestionPrompt:
    """A rendered conversation with a question, which the first token behind it answers."""

    ids: list[int]
    choices: list[int]
    """The token of each choice; empty: two begin with the same, or the template has no such place."""


@dataclass(frozen=True)
class Opening:
    """How every answer begins that is spoken."""

    ids: list[int]
    others: list[int]
    """The first token of whatever else an answer may begin with."""


class PromptBuilder:
    """Renders conversations for one model; prompts share whole blocks of its prefix cache, or nothing."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        max_length: int,
        options: Mapping[str, Any] = MappingProxyType({}),
        rendering: Rendering | None = None,
        *,
        block: int = 1,
    ) -> None:
        self._block = block
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._options = options
        self._rendering = rendering or TemplateRendering()
        self._example_tokens: dict[int, int] = {}  # by their number
        self._marks = _marks(tokenizer)
        written = (tokenizer.encode(text, add_special_tokens=False) for text in _ENDS)
        self._sentence_ends = [tokens[0] for tokens in written if len(tokens) == 1]
        self._closing: list[int] | None = None
        self._openings = ToolSetCache(self._make_opening)

    def build(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], max_tokens: int, prefix: str = ""
    ) -> Prompt:
        """Render the conversation up to the point where the assistant answers, or goes on behind ``prefix``.

        Raises:
            InvalidMessageError: the template cannot render these messages.
            ContextTooLongError: no room is left for an answer of 128 tokens, or of ``max_tokens`` if these
                are fewer. An answer that had less would end in the middle of a sentence.
        """
        part = msgspec.json.encode(_Part(list(messages), list(tools), prefix))
        self._check_size(len(messages), len(part))
        messages, tools, prefix = self._without_marks(part, messages, tools, prefix)
        rendered = self._rendering.render(messages, tools)
        ids = list(self._ids(rendered.conversation, rendered.tools))
        if prefix:
            ids += self._begin(prefix, tools)
        room = self._max_length - len(ids)
        needed = min(max_tokens, _MIN_ANSWER)
        if room < needed:
            raise ContextTooLongError(
                f"the conversation has {len(ids)} tokens; the model takes {self._max_length} "
                f"with its answer, for which {needed} are reserved"
            )
        return Prompt(ids, min(max_tokens, room), self._count(rendered.examples))

    def build_questions(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], questions: Sequence[Question]
    ) -> list[QuestionPrompt]:
        """Render the conversation with each question, as if the assistant wrote it down and answered it.

        So a small model answers better than in the place of the user, and each question adds no more than its
        own tokens: what is before them fills whole blocks of the prefix cache.

        Raises:
            InvalidMessageError: as in :meth:`build`.
            ContextTooLongError: as in :meth:`build`.
        """
        noted, other = (
            [*messages, ChatMessage(role="system", content=note)] for note in (_NOTE, f"{_NOTE} Go")
        )
        choices = [self._choices(question) for question in questions]
        # Rendered once: it takes long, and other conversations wait.
        common = self.build(noted, tools, 1).ids
        prompts = []
        for question, (begun, _) in zip(questions, choices, strict=True):
            part = msgspec.json.encode(_Part([], [], question.text))
            *_, text = self._without_marks(part, [], [], question.text)
            prompts.append([*common, *self._begin(text, tools), *begun])
        if max(map(len, prompts)) + self._block > self._max_length:
            raise ContextTooLongError(f"no room is left for questions in {self._max_length} tokens")
        fill: list[int] = []
        at = _common([common, self.build(other, tools, 1).ids])
        if len(prompts) > 1:
            token = self._tokenizer.encode(_FILL, add_special_tokens=False)[-1:]
            fill = token * (-_common(prompts) % self._block)
        return [
            QuestionPrompt([*ids[:at], *fill, *ids[at:]], tokens)
            for ids, (_, tokens) in zip(prompts, choices, strict=True)
        ]

    def build_turn_end(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> QuestionPrompt:
        """Render the conversation up to the last word of its last message, which is the user's.

        The choices are the tokens that end a sentence, or the message.

        Raises:
            InvalidMessageError: the last message is not the user's, or has no words; or as in :meth:`build`.
            ContextTooLongError: as in :meth:`build`.
        """
        words, _ = _last_words(messages)
        if not words:
            raise InvalidMessageError("turn_end needs words of the user as the last message")
        ids = self.build([*messages[:-1], ChatMessage(role="user", content=words)], tools, 1).ids
        return self._cut(ids, "")

    def find_turn_end(self, messages: Sequence[ChatMessage], prompt: Prompt) -> QuestionPrompt:
        """The part of an answer's prompt that :meth:`build_turn_end` renders, if there is one."""
        words, signs = _last_words(messages)
        return self._cut(prompt.ids, signs) if words else QuestionPrompt(prompt.ids, [])

    def find_opening(self, tools: Sequence[Tool]) -> Opening | None:
        """How all speech of a model with these tools begins; None: it does not, or as a call may begin."""
        return self._openings(tools)

    def _make_opening(self, tools: Sequence[Tool]) -> Opening | None:
        ids = self._begin("", tools)
        calls = [
            self._tokenizer.encode(one, add_special_tokens=False) for one in self._rendering.calls(tools)
        ]
        others = sorted({call[0] for call in calls})
        return Opening(ids, others) if ids and ids[0] not in others else None

    def _cut(self, ids: list[int], signs: str) -> QuestionPrompt:
        """What is before the last signs of the user and what the template writes behind them."""
        if self._closing is None:
            self._closing = self._find_closing()
        end = [*self._tokenizer.encode(signs, add_special_tokens=False), *self._closing]
        at = len(ids) - len(end)
        if not self._closing or ids[at:] != end:
            return QuestionPrompt(ids, [])
        return QuestionPrompt(ids[:at], sorted({self._closing[0], *self._sentence_ends}))

    def _find_closing(self) -> list[int]:
        """What the template writes behind the words of the user."""
        one, other = (self._ids([{"role": "user", "content": text}], None) for text in ("yes", "no"))
        return list(one)[len(one) - _common([one[::-1], other[::-1]]) :]

    def _begin(self, text: str, tools: Sequence[Tool]) -> list[int]:
        """The tokens of an answer that begins with a text."""
        ids: list[int] = self._tokenizer.encode(self._rendering.open(text, tools), add_special_tokens=False)
        return ids

    def _choices(self, question: Question) -> tuple[list[int], list[int]]:
        """The tokens that all choices begin with, behind the question, and then the first of each.

        Both are empty where two choices begin with the same token.
        """
        written = [self._tokenizer.encode(f" {one}", add_special_tokens=False) for one in question.choices]
        begun = _common(written)
        tokens = {ids[begun] for ids in written if len(ids) > begun}
        if len(tokens) < len(written):
            return [], []
        return written[0][:begun], [ids[begun] for ids in written]

    def _ids(self, conversation: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Sequence[int]:
        options = {"tools": tools, "add_generation_prompt": True, "tokenize": True, "return_dict": False}
        try:
            ids: Sequence[int] = self._tokenizer.apply_chat_template(
                conversation, **{**self._options, **options}
            )
        except Exception as error:  # templates raise errors of their own (jinja2)
            raise InvalidMessageError(f"the chat template does not accept these messages: {error}") from error
        return ids

    def _count(self, examples: Sequence[dict[str, Any]]) -> int:
        """Tokens of the examples, which a renderer has in one or two sets."""
        if not examples:
            return 0
        if len(examples) not in self._example_tokens:
            system = {"role": "system", "content": "."}
            with_them, without = self._ids([system, *examples], None), self._ids([system], None)
            self._example_tokens[len(examples)] = len(with_them) - len(without)
        return self._example_tokens[len(examples)]

    def _check_size(self, messages: int, size: int) -> None:
        """Refuse what is certainly too long before it is rendered, which takes as long as it is."""
        most, most_bytes = self._max_length // _MESSAGE_TOKENS, self._max_length * _TOKEN_BYTES
        if messages > most or size > most_bytes:
            raise ContextTooLongError(
                f"the conversation has {messages} messages and {size} bytes with its tools; the model takes "
                f"at most {most} messages and {most_bytes} bytes"
            )

    def _without_marks(
        self, part: bytes, messages: Sequence[ChatMessage], tools: Sequence[Tool], prefix: str
    ) -> tuple[Sequence[ChatMessage], Sequence[Tool], str]:
        """The parts without the marks that only the template may write; ``part`` is their JSON.

        A tokenizer takes ``<|im_end|>`` in a text for the token itself: what a web page says through a tool
        could end the turn and begin one of the system's, or be another tool's result.
        """
        text = part.decode()
        found = [mark for mark in self._marks if mark in text]
        if not found:
            return messages, tools, prefix
        # The longest first: one may contain another.
        for mark in found:
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        clean = msgspec.json.decode(text, type=_Part)
        return clean.messages, clean.tools, clean.prefix


def _last_words(messages: Sequence[ChatMessage]) -> tuple[str, str]:
    """Of the user's last message, and the signs behind them; without words, both are empty."""
    said = messages[-1].content if messages and messages[-1].role == "user" else ""
    words = said.rstrip(_SIGNS)
    return words, said[len(words) :]


class _Part(msgspec.Struct):
    """What a prompt has from outside."""

    messages: list[ChatMessage]
    tools: list[Tool]
    prefix: str


def _common(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with."""
    return next(
        (place for place, tokens in enumerate(zip(*prompts, strict=False)) if len({*tokens}) > 1),
        min(map(len, prompts)),
    )


def _marks(tokenizer: ChatTokenizer) -> list[str]:
    """Tokens of the tokenizer that are no words, and tags of the template; the longest first."""
    marks = {*tokenizer.get_added_vocab(), *_TAG.findall(str(tokenizer.chat_template))}
    # Some tokenizers have tokens for lines and columns of blanks.
    return sorted((mark for mark in marks if len(mark.strip()) > 2), key=len, reverse=True)


@dataclass(frozen=True)
class Rendered:
    """Arguments of a chat template."""

    conversation: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    """None: the template gets none."""
    examples: Sequence[dict[str, Any]] = ()
    """Those of its messages that are the same in every conversation."""


class Rendering(Protocol):
    """Turns messages, tools, calls and results into what one model's chat template takes."""

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Rendered:
        """The conversation, and the tools that may be called now."""
        ...

    def open(self, text: str, tools: Sequence[Tool]) -> str:
        """The beginning of an answer that begins with ``text``, as the model writes it."""
        ...

    def calls(self, tools: Sequence[Tool]) -> Sequence[str]:
        """How calls of the tools begin, where :meth:`open` writes something before the text."""
        ...


class TemplateRendering:
    """Leaves calls and tools to the chat template."""

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Rendered:
        """The messages and the tools as they are."""
        return Rendered(
            [plain_message(message) for message in messages], [described(tool) for tool in tools] or None
        )

    def open(self, text: str, tools: Sequence[Tool]) -> str:  # noqa: ARG002 - others need it
        """The text as it is."""
        return text

    def calls(self, tools: Sequence[Tool]) -> Sequence[str]:  # noqa: ARG002 - others need it
        """None: nothing is before the text."""
        return ()


def plain_message(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates expect it."""
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


def described(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates expect it."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }
