"""What one answer of the language model is asked with."""

from __future__ import annotations

from collections.abc import Sequence

from parley.agent.facts.checking import KnownFacts, SessionFacts
from parley.chat import ChatMessage
from parley.llm.history import History
from parley.llm.messages import GenerateRequest
from parley.protocol import Tool


class SystemPrompt:
    """Messages and tools of one answer.

    ``draft`` is the user's text of a prepared answer that is not in the history yet. ``system_prompt``
    replaces the session's.
    """

    def __init__(
        self,
        history: History,
        draft: str | None = None,
        *,
        system_prompt: str | None = None,
        use_tools: bool = True,
    ) -> None:
        self._history = history
        self._draft = draft
        self.system_prompt = system_prompt
        self.use_tools = use_tools
        self.tools: Sequence[Tool] = history.tools if use_tools else ()
        """Those of the answer's next request."""

    def drop_draft(self) -> None:
        """The draft is part of the history now."""
        self._draft = None

    def renew(self) -> None:
        """Offer the tools of the session's present step from the next request on."""
        self.tools = self._history.tools if self.use_tools else ()

    def messages(self) -> list[ChatMessage]:
        """The prompt."""
        if self._draft is not None:
            return self._history.preview(self._draft)
        return self._history.messages(self.system_prompt)

    async def known_facts(self, facts: SessionFacts, results: Sequence[ChatMessage]) -> KnownFacts:
        """What an answer to the prompt may speak of; ``results``: messages of its own turn."""
        history, prompt = self._history, self.system_prompt
        instructions = history.system_prompt if prompt is None else prompt
        return await facts.check(instructions, [*history.conversation, *results], draft=self._draft or "")

    def calibrate(self, request: GenerateRequest, tokens: int) -> None:
        """Correct the history's estimate by the token count of a request's prompt."""
        self._history.calibrate(request.messages, request.tools, tokens)

    def forget_oldest(self) -> bool:
        """Drop the oldest exchange; False: the prompt cannot be shorter."""
        return self._draft is None and self._history.forget_oldest()
