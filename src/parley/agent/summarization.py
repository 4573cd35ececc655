"""Summaries of a session's history, made in the background."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from parley.agent.config import AgentDeadlines
from parley.agent.generation import generate, warm_up
from parley.checkpoint import HistoryState
from parley.engines.base import ChatModel
from parley.errors import ParleyError
from parley.llm.history import History, SummaryPlan, summary_request
from parley.llm.messages import TextDelta
from parley.timeouts import with_timeout

_log = logging.getLogger(__name__)


class Summarizer:
    """Summarises one session's history; one summary at a time, with a lower priority than answers.

    After a failed or late summary the history drops its oldest exchanges, as without summaries.

    ``name`` is unique for each session, and the prefix of the requests' ids.
    """

    def __init__(self, chat: ChatModel, history: History, name: str, limits: AgentDeadlines) -> None:
        self._chat = chat
        self._history = history
        self._name = name
        self._limits = limits
        self._count = 0
        self._failed: SummaryPlan | None = None
        self._task: asyncio.Task[None] | None = None
        self._whole = False
        self._closed = False

    def on_history_changed(self) -> None:
        """Start a summary if the history needs one and none is under way."""
        if self._closed or self._task is not None:
            return
        plan, self._whole = self._history.plan_summary(whole=self._whole), False
        if plan is None or plan == self._failed:
            return
        self._count += 1
        name = f"{self._name}-summary{self._count}"
        self._task = asyncio.create_task(self._summarise(plan, name), name=name)

    def summarise_all(self) -> None:
        """Summarise all but the last exchange, once a summary under way is made."""
        self._whole = True
        self.on_history_changed()

    def close(self) -> set[asyncio.Task[None]]:
        """Start no more summaries; returns the tasks that are still ending."""
        self._closed = True
        if self._task is None:
            return set()
        self._task.cancel()
        return {self._task}

    async def _summarise(self, plan: SummaryPlan, request_id: str) -> None:
        try:
            text = await with_timeout(
                _ask(self._chat, plan, request_id, self._limits), self._limits.summary_s, "the summary"
            )
            if self._history.apply_summary(plan, text):
                # All prompts have a new prefix now.
                messages, tools = self._history.messages(), self._history.tools
                await warm_up(self._chat, request_id, messages, tools, self._limits)
            else:
                self._failed = plan
        except ParleyError as error:
            self._failed = plan
            _log.warning("%s: %s", request_id, error.to_log(), extra=error.log_extra())
        except Exception:  # noqa: BLE001 - logged; the conversation goes on without a summary
            self._failed = plan
            _log.exception("%s failed", request_id)
        finally:
            self._task = None
            if self._whole:
                self.on_history_changed()


async def summarize(chat: ChatModel, history: HistoryState, request_id: str, limits: AgentDeadlines) -> str:
    """A summary of a call that is over; empty: nothing was said.

    Raises:
        ParleyError: the model failed.
    """
    if not history.messages:
        return ""
    plan = SummaryPlan(0, tuple(history.messages), history.summary)
    return " ".join((await _ask(chat, plan, request_id, limits)).split())


async def _ask(chat: ChatModel, plan: SummaryPlan, request_id: str, limits: AgentDeadlines) -> str:
    request = summary_request(plan, request_id)
    async with aclosing(generate(chat, request, limits, retries=0)) as events:
        return "".join([event.text async for event in events if isinstance(event, TextDelta)])
