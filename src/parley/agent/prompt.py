"""What one answer of the language model is asked with."""

from __future__ import annotations

from collections.abc import Sequence

from parley.agent.facts.checking import KnownFacts, SessionFacts
from parley.agent.retrieval import format_passages
from parley.agent.unheard import Unheard
from parley.chat import ChatMessage
from parley.knowledge.passages import Passage, content_words
from parley.llm.history import History
from parley.llm.messages import GenerateRequest
from parley.protocol import Tool

_UNHEARD = "The user has interrupted your last answer, and has not heard the rest: {!r}"
_LONGEST_UNHEARD = 600
"""Characters of what was not heard in the prompt: about 150 tokens."""
_FEW_WORDS = 2
"""A question with fewer words, apart from common ones, is one about what was said before."""


class SystemPrompt:
    """Messages and tools of one answer.

    ``draft`` is the user's text of a prepared answer that is not in the history yet. ``system_prompt``
    replaces the session's, ``must_call`` the session's tool that must be called. ``unheard``: of the answer
    that the user has interrupted.
    """

    def __init__(
        self,
        history: History,
        draft: str | None = None,
        *,
        system_prompt: str | None = None,
        use_tools: bool = True,
        must_call: str | None = None,
        unheard: Unheard | None = None,
    ) -> None:
        self._history = history
        self.unheard = unheard
        self._draft = draft
        self.system_prompt = system_prompt
        self.use_tools = use_tools
        self.must_call = must_call
        self.tools: Sequence[Tool] = history.tools if use_tools else ()
        """Those of the answer's next request."""
        self._passages = ""

    def drop_draft(self) -> None:
        """The draft is part of the history now."""
        self._draft = None

    def renew(self) -> None:
        """Offer the tools of the session's present step from the next request on."""
        self.tools = self._history.tools if self.use_tools else ()

    def messages(self) -> list[ChatMessage]:
        """The prompt."""
        messages = self._conversation()
        note = _UNHEARD.format(self.unheard.text[:_LONGEST_UNHEARD]) if self.unheard is not None else ""
        notes = "\n\n".join(filter(None, (self._passages, note)))
        if notes and messages and messages[-1].role == "user":
            # Behind what the next prompt has too, which stays in the model's cache.
            messages.insert(-1, ChatMessage(role="system", content=notes))
        return messages

    def _conversation(self) -> list[ChatMessage]:
        if self._draft is not None:
            return self._history.preview(self._draft)
        return self._history.messages(self.system_prompt)

    @property
    def question(self) -> str:
        """What the user has said last, for a search in documents; empty: nothing."""
        messages = self._conversation()
        if not messages or messages[-1].role != "user":
            return ""
        said = [one.content for one in messages if one.role == "user"]
        return " ".join(said[-2:] if len(content_words(said[-1])) < _FEW_WORDS else said[-1:])

    def add_passages(self, passages: Sequence[Passage]) -> None:
        """Put passages before the user's last message; the history does not get them."""
        self._passages = format_passages(passages)

    async def known_facts(self, facts: SessionFacts, results: Sequence[ChatMessage]) -> KnownFacts:
        """What an answer to the prompt may speak of; ``results``: messages of its own turn."""
        history, prompt = self._history, self.system_prompt
        instructions = history.system_prompt if prompt is None else prompt
        sources = [self._passages] if self._passages else []
        return await facts.check(
            instructions, [*history.conversation, *results], sources, draft=self._draft or ""
        )

    def calibrate(self, request: GenerateRequest, tokens: int) -> None:
        """Correct the history's estimate by the token count of a request's prompt."""
        self._history.calibrate(request.messages, request.tools, tokens)

    def forget_oldest(self) -> bool:
        """Drop the oldest exchange; False: the prompt cannot be shorter."""
        return self._draft is None and self._history.forget_oldest()
