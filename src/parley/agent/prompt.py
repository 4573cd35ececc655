"""What an answer is an answer to."""

from __future__ import annotations

from collections.abc import Sequence

from parley.llm.history import History
from parley.llm.messages import ChatMessage, GenerateRequest
from parley.protocol import Tool


class Prompt:
    """The conversation so far, as one answer sees it.

    An answer that is only prepared sees what the user has said as if it were part of the history, which it
    is only when the answer is given.

    Args:
        history: of the session.
        draft: what the user may have said; None: the history has it.
        system_prompt: in the place of the session's; None: the session's.
        use_tools: whether tools may be called.
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
        self._system_prompt = system_prompt
        self.tools: Sequence[Tool] = history.tools if use_tools else ()
        """What may be called; those of the moment when the answer was begun."""

    def settle(self) -> None:
        """What the user has said is part of the history now."""
        self._draft = None

    def messages(self) -> list[ChatMessage]:
        """For the language model."""
        if self._draft is not None:
            return self._history.preview(self._draft)
        return self._history.messages(self._system_prompt)

    def calibrate(self, request: GenerateRequest, tokens: int) -> None:
        """Note how many tokens the model has counted in the prompt of a request."""
        self._history.calibrate(request.messages, request.tools, tokens)

    def forget_oldest(self) -> bool:
        """Make it shorter; False: that cannot be done."""
        return self._draft is None and self._history.forget_oldest()
