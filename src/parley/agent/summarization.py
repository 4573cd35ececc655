"""Summaries that are made while nobody waits for them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from parley.agent.config import AgentDeadlines
from parley.agent.response import generate, warm_up
from parley.engines.base import ChatModel
from parley.errors import ParleyError
from parley.llm.history import History
from parley.llm.messages import TextDelta
from parley.llm.summaries import SummaryPlan, summary_request
from parley.waiting import within

_log = logging.getLogger(__name__)


class Summarizer:
    """Keeps one session's history short; one summary at a time, less urgent than all answers.

    A summary that fails or comes too late costs nothing but its making: the history forgets its oldest
    exchanges when it has to, as it does without summaries.

    Args:
        chat: writes the summaries.
        history: is kept short.
        name: of the session, unlike that of any other; ids of requests begin with it.
        limits: deadlines; a summary as a whole has ``limits.summary_s``.
    """

    def __init__(self, chat: ChatModel, history: History, name: str, limits: AgentDeadlines) -> None:
        self._chat = chat
        self._history = history
        self._name = name
        self._limits = limits
        self._count = 0
        self._failed: SummaryPlan | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def note_change(self) -> None:
        """The history has grown: begin a summary if one is wanted and none is being made."""
        if self._closed or self._task is not None:
            return
        plan = self._history.plan_summary()
        if plan is None or plan == self._failed:
            return
        self._count += 1
        name = f"{self._name}-summary{self._count}"
        self._task = asyncio.create_task(self._summarise(plan, name), name=name)

    def close(self) -> set[asyncio.Task[None]]:
        """Make no more summaries; returns what is still ending."""
        self._closed = True
        if self._task is None:
            return set()
        self._task.cancel()
        return {self._task}

    async def _summarise(self, plan: SummaryPlan, request_id: str) -> None:
        try:
            text = await within(self._ask(plan, request_id), self._limits.summary_s, "the summary")
            if self._history.apply_summary(plan, text):
                # The beginning of all prompts is a new one, which the model reads before it is needed.
                messages, tools = self._history.messages(), self._history.tools
                await warm_up(self._chat, request_id, messages, tools, self._limits)
            else:
                self._failed = plan
        except ParleyError as error:
            self._failed = plan
            _log.warning("%s: %s", request_id, error.to_log())
        except Exception:  # noqa: BLE001 - logged; the conversation goes on without a summary
            self._failed = plan
            _log.exception("%s failed", request_id)
        finally:
            self._task = None

    async def _ask(self, plan: SummaryPlan, request_id: str) -> str:
        request = summary_request(plan, request_id)
        async with aclosing(generate(self._chat, request, self._limits, retries=0)) as events:
            return "".join([event.text async for event in events if isinstance(event, TextDelta)])
