"""What an answer is an answer to."""

from __future__ import annotations

from parley.llm.history import History
from parley.llm.messages import ChatMessage


class Prompt:
    """The conversation so far, as one answer sees it.

    An answer that is only prepared sees what the user has said as if it were part of the history, which it
    is only when the answer is given.

    Args:
        history: of the session.
        draft: what the user may have said; None: the history has it.
    """

    def __init__(self, history: History, draft: str | None = None) -> None:
        self._history = history
        self._draft = draft

    def settle(self) -> None:
        """What the user has said is part of the history now."""
        self._draft = None

    def messages(self) -> list[ChatMessage]:
        """For the language model."""
        return self._history.messages() if self._draft is None else self._history.preview(self._draft)

    def forget_oldest(self) -> bool:
        """Make it shorter; False: that cannot be done."""
        return self._draft is None and self._history.forget_oldest()
