"""Questions about the conversation, which the language model answers beside its answers to the user."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Literal, TypeAlias

from parley.agent.config import AgentDeadlines
from parley.agent.generation import generate
from parley.agent.outcomes import Outcomes
from parley.chat import ChatMessage
from parley.engines.base import ChatModel
from parley.errors import InferenceError, InvalidMessageError, ParleyError
from parley.llm.history import History
from parley.llm.messages import Choices, GenerateRequest, Priority, Question, Sampling
from parley.names import check_known, check_names
from parley.protocol import Closed, Decision, DecisionQuestion, Start, Transfer
from parley.timeouts import hold_task, loop_time, with_timeout

DecisionOutcome: TypeAlias = Literal["decided", "unusable", "failed", "cancelled"]
"""What came of a question. ``unusable``: the model gave no probabilities. ``cancelled``: the next turn began
before the answer came."""
_MOST_CONTEXTS = 3
"""Requests of one turn: the questions that read as much are one."""
_TURN, _END = "turn", "end"
_log = logging.getLogger(__name__)


class Decisions:
    """Asks a session's questions while no answer needs the language model; one batch at a time.

    A question without a usable answer is left out. The questions of a turn that goes on elsewhere are asked
    there once more. ``name`` is unique for each session, and the prefix of the requests' ids.
    """

    def __init__(
        self,
        chat: ChatModel,
        start: Start,
        history: History,
        outcomes: Outcomes,
        name: str,
        *,
        limits: AgentDeadlines,
        language: str,
        count: Callable[[DecisionOutcome], None],
    ) -> None:
        self._chat = chat
        # Those that read as much are one request.
        self._questions = sorted(start.decisions, key=lambda question: question.context)
        self._targets = {target.name: target for target in start.ending.transfers}
        self._history = history
        self._outcomes = outcomes
        self._name = name
        self._limits = limits
        self._language = language
        self._count = count
        self._requests = 0
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended_by: tuple[int, DecisionQuestion] | None = None
        self._failures: set[str] = set()

    def ask(self, turn: int) -> None:
        """Begin the questions of a turn, whose answer needs the language model no more."""
        step = self._outcomes.state.step
        asked = [one for one in self._questions if _TURN in (one.at or (_TURN,)) or (step and step in one.at)]
        if asked:
            self.cancel()
            self._task = hold_task(self._tasks, self._ask(asked, turn), f"{self._name} decisions")

    async def ask_at_end(self, turn: int) -> None:
        """Ask the questions of the end, within their deadline."""
        self.cancel()
        asked = [one for one in self._questions if _END in one.at]
        if asked and any(message.role == "user" for message in self._history.conversation):
            await self._ask(asked, turn)

    def cancel(self) -> None:
        """An answer needs the language model, or the session ends."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def close(self) -> set[asyncio.Task[None]]:
        """Cancel what runs; returns the tasks that are still ending."""
        self.cancel()
        return set(self._tasks)

    async def wait_for_ending(self) -> None:
        """Wait for the answers, if the call may end by one of them."""
        if self._task is not None and any(one.ends or one.transfer for one in self._questions):
            await asyncio.wait({self._task})

    def closed(self, turn: int) -> Closed | None:
        """The session's last event, if an answer to a question of this turn ends the call."""
        if self._ended_by is None or self._ended_by[0] != turn:
            return None
        question = self._ended_by[1]
        target = self._targets.get(question.transfer)
        if target is None:
            return Closed(reason="agent_ended", agent_reason=question.name)
        return Closed(
            reason="transferred",
            transfer=Transfer(name=target.name, to=target.to, language=self._language, warm=target.warm),
        )

    async def _ask(self, asked: Sequence[DecisionQuestion], turn: int) -> None:
        left = len(asked)
        overdue_at = loop_time() + self._limits.decision_s
        try:
            for context, group in groupby(asked, key=lambda question: question.context):
                questions = list(group)
                try:
                    limit_s = overdue_at - loop_time()
                    found = await with_timeout(self._request(questions, context), limit_s, "the decisions")
                except ParleyError as error:
                    self._on_failure(error, len(questions))
                else:
                    for question, probabilities in zip(questions, found, strict=True):
                        self._decide(question, probabilities, turn)
                left -= len(questions)
        except asyncio.CancelledError:
            for _ in range(left):
                self._count("cancelled")
            raise
        except Exception:  # noqa: BLE001 - logged; the conversation goes on without decisions
            _log.exception("%s: the decisions failed", self._name)
            for _ in range(left):
                self._count("failed")

    async def _request(self, questions: Sequence[DecisionQuestion], context: int) -> list[list[float]]:
        self._requests += 1
        request = GenerateRequest(
            request_id=f"{self._name}-decisions{self._requests}",
            messages=_last(self._history.messages(), context),
            tools=list(self._history.tools),
            sampling=Sampling(max_tokens=1),
            questions=[make_question(one) for one in questions],
            priority=Priority.BACKGROUND,
        )
        found: list[list[float]] = []
        async with aclosing(generate(self._chat, request, self._limits, retries=0)) as events:
            async for event in events:
                if isinstance(event, Choices):
                    found = event.probabilities
        if len(found) != len(questions):
            raise InferenceError("the language model compares no answers")
        return found

    def _decide(self, question: DecisionQuestion, probabilities: Sequence[float], turn: int) -> None:
        answers = question.answers
        usable = len(probabilities) == len(answers) and all(
            math.isfinite(one) and 0 <= one <= 1 for one in probabilities
        )
        if not usable:
            self._count("unusable")
            return
        found = dict(zip(answers, probabilities, strict=True))
        wanted = question.answer or "yes"
        if (question.ends or question.transfer) and found.get(wanted, 0.0) >= question.threshold:
            self._ended_by = turn, question
        self._count("decided")
        rounded = {answer: round(probability, 4) for answer, probability in found.items()}
        value = max(found, key=lambda answer: found[answer])
        self._outcomes.set_decision(
            Decision(turn=turn, name=question.name, value=value, probabilities=rounded)
        )

    def _on_failure(self, error: ParleyError, questions: int) -> None:
        for _ in range(questions):
            self._count("failed")
        # A server that has no log probabilities has none for the next turn either.
        level = logging.DEBUG if error.code in self._failures else logging.WARNING
        self._failures.add(error.code)
        _log.log(level, "%s: no decisions: %s", self._name, error.to_log(), extra=error.log_extra())


def make_question(question: DecisionQuestion) -> Question:
    """A question as the language model gets it."""
    text, choices = question.question, question.answers
    match question.kind:
        case "yes_no":
            choices = ["Yes", "No"]
        case "choice":
            text = f"{text} ({', '.join(choices)})"
        case "score":
            text = f"{text} (1: not at all, 5: very much)"
    return Question(text=text, choices=choices)


def _last(messages: list[ChatMessage], exchanges: int) -> list[ChatMessage]:
    """The system message and this many of the last exchanges, which begin with the user's words; 0: all."""
    begins = [place for place, message in enumerate(messages) if message.role == "user"]
    if not exchanges or len(begins) <= exchanges:
        return messages
    opening = messages[:1] if messages[0].role == "system" else []
    return [*opening, *messages[begins[-exchanges] :]]


def check_decisions(start: Start) -> None:
    """Refuse questions that cannot be asked, and names that nothing has.

    Raises:
        InvalidMessageError: the text names the field.
    """
    check_names([question.name for question in start.decisions], "decisions", "questions")
    if len({question.context for question in start.decisions}) > _MOST_CONTEXTS:
        raise InvalidMessageError(f"decisions: context may have {_MOST_CONTEXTS} different values")
    targets = [target.name for target in start.ending.transfers]
    times = [_TURN, _END, *(step.name for step in start.steps)]
    for number, question in enumerate(start.decisions):
        at = f"decisions[{number}]"
        _check_options(question, at)
        for name in question.at:
            check_known(name, times, f"{at}.at: no step")
        if question.transfer:
            check_known(question.transfer, targets, f"{at}.transfer: ending.transfers has no target")
        if question.ends or question.transfer:
            wanted = question.answer or "yes"
            check_known(wanted, question.answers, f"{at}.answer: the question has no answer")


def _check_options(question: DecisionQuestion, at: str) -> None:
    if (question.kind == "choice") != bool(question.options):
        raise InvalidMessageError(f"{at}.options: a choice has options, and other kinds have none")
    if question.kind == "choice" and not _told_apart(question.options):
        raise InvalidMessageError(
            f"{at}.options: there must be at least two, and none may begin with the first word of another, "
            "behind words that all begin with"
        )


def _told_apart(options: Sequence[str]) -> bool:
    """Whether each has another first word, behind the words that all begin with."""
    rest = [option.casefold().split() for option in options]
    while all(rest) and len({one[0] for one in rest}) == 1 < len(rest):
        rest = [one[1:] for one in rest]
    return 1 < len(rest) == len({one[0] for one in rest if one})
