"""Where a turn's words come from: the language model and its tools, or a text to be said as it is."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.agent.fillers import Filler
from parley.agent.memory import UNREMEMBERED, ToolRound, remember, shorten_results
from parley.agent.tools import ToolExecutor
from parley.engines.base import ChatModel
from parley.errors import (
    ContextTooLongError,
    DeadlineExceededError,
    InferenceError,
    InvalidModelOutputError,
    NoAnswerError,
    ParleyError,
    ShuttingDownError,
)
from parley.llm.history import History
from parley.llm.messages import (
    CUT,
    ChatMessage,
    Completed,
    GenerateRequest,
    LlmEvent,
    Priority,
    Sampling,
    TextDelta,
    ToolCall,
)
from parley.protocol import Tool
from parley.tts.segmenter import TextSegmenter
from parley.waiting import try_within, within

_MAX_UNREADABLE = 2
"""Tool calls of one turn that cannot be read, after which the model gets no tools."""
_CORRECT_CALL = (
    "Your last tool call was not run: {}. Write it again, whole and in the form of a tool call, "
    "or answer without it."
)
_NO_TOOLS = "No tool can be called now, and the user waits. Answer in words, with what you know."
_SHORTER = 4
"""After a failure tool results get this part of their budget."""
_LEAST_RESULTS = 64
"""Tokens; results that have no more together are of no use."""
_NO_RESULT = '{"error":"cancelled before its result was known; it may have been done"}'
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TurnContext:
    """The turn that words are sought for, and where they go."""

    number: int
    """Of the turn."""
    name: str
    """That no other turn has; requests are named after it."""
    write: Callable[[str], None]
    """Takes the text as it is written."""
    say: Callable[[int, str], Awaitable[None]]
    """Takes each segment to be spoken, with the number of its round."""
    certain: asyncio.Event
    """Set as soon as it is certain that the user's turn is over."""
    aloud: bool = True
    """Whether what is written is spoken too."""


@dataclass
class GenerationLog:
    """What came of it, and how long it took."""

    has_run: Callable[[str], bool] = lambda _: False
    """Whether the call with this id was handed to its tool."""
    rounds: list[ToolRound] = field(default_factory=list)
    first_token_at: float | None = None
    """Seconds of the loop's clock."""
    llm_ms: float | None = None
    tool_ms: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cut: bool = False
    """Whether the language model had more to say than it was allowed to."""

    @property
    def acted(self) -> bool:
        """Whether a tool has been run, so that the turn cannot simply be taken again."""
        return any(map(self._acts, self.rounds))

    @property
    def answered(self) -> bool:
        """Whether something was said to the user since the last tool was run."""
        last = max((index for index, answer in enumerate(self.rounds) if self._acts(answer)), default=-1)
        return any(answer.said for answer in self.rounds[last + 1 :])

    def _acts(self, answer: ToolRound) -> bool:
        return any(self.has_run(call.id) for call in answer.calls)

    def settle(self) -> None:
        """Nothing more comes: a call whose result was not waited for has one that says so."""
        for answer in self.rounds:
            for call in answer.calls:
                if call.id not in answer.results and self.has_run(call.id):
                    answer.results[call.id] = _NO_RESULT

    def count(self, completed: Completed) -> None:
        """Add up what a request has cost."""
        self.prompt_tokens += completed.prompt_tokens
        self.cached_tokens += completed.cached_tokens
        self.completion_tokens += completed.completion_tokens
        self.cut = completed.finish_reason == "length"


class ResponseSource(Protocol):
    """Finds the words of one turn."""

    log: GenerationLog

    async def think(self, context: TurnContext) -> None:
        """Find them all; ``context`` takes them as they come.

        Raises:
            ParleyError: there are no more to be found; what was said before stays.
        """
        ...


class FixedText:
    """A text that is said word for word.

    Args:
        text: what to say.
        remember: whether the language model is to know of it.
    """

    def __init__(self, text: str, *, remember: bool = True) -> None:
        self._text = text
        self._remember = remember
        self.log = GenerationLog()

    async def think(self, context: TurnContext) -> None:
        """Say it."""
        if self._remember:
            self.log.rounds.append(ToolRound(text=self._text, said=True))
        context.write(self._text)
        segmenter = TextSegmenter()
        for segment in [*segmenter.push(self._text), *segmenter.finish()]:
            await context.say(0 if self._remember else UNREMEMBERED, segment)


class LlmResponse:
    """What the language model has to say, after as many calls of tools as it takes.

    Args:
        chat: the language model.
        prompt: what it is asked, and what it may call.
        desk: runs its calls, once the user's turn is over for certain.
        fillers: phrases of which one is said when that takes long; empty: none is.
        sampling: how it writes.
        config: limits and deadlines.
    """

    def __init__(
        self,
        chat: ChatModel,
        prompt: SystemPrompt,
        *,
        desk: ToolExecutor,
        fillers: Sequence[str] = (),
        sampling: Sampling,
        config: AgentConfig,
    ) -> None:
        self._chat = chat
        self._prompt = prompt
        self._tools = desk
        self._fillers = fillers
        self._sampling = sampling
        self._config = config
        self._requests = 0
        self._results_budget = config.prompt_tokens // 2
        self.log = GenerationLog(desk.has_run)

    async def think(self, context: TurnContext) -> None:
        """Ask the language model until it calls no more tools.

        Raises:
            NoAnswerError: it has written nothing for the user.
            ParleyError: it failed. When tools had been run before, it was first asked once more without tools
                and with shortened results.
        """
        try:
            await self._answer(context)
        except InferenceError as error:
            if not self._is_worth_another(error):
                raise
            _log.warning("%s: once more without tools: %s", context.name, error.to_log())
            self._results_budget //= _SHORTER
            try:
                answer = await self._ask((), context, _NO_TOOLS)
            except InferenceError:
                raise error from None
            if not self._is_answer(answer):
                raise

    def _is_worth_another(self, error: InferenceError) -> bool:
        """Whether a shorter request may mend a failure after tools; not if the user has waited long."""
        hopeless = isinstance(error, DeadlineExceededError | NoAnswerError | InvalidModelOutputError)
        return self.log.acted and not self.log.answered and not hopeless

    async def _answer(self, context: TurnContext) -> None:
        filler = self._make_filler(context)
        unreadable = 0
        note = ""
        for left in range(self._config.max_tool_rounds, -1, -1):
            # The last time without tools, so that the turn ends with an answer.
            tools = self._prompt.tools if left and unreadable < _MAX_UNREADABLE else ()
            answer = await self._ask(tools, context, note)
            if answer.calls:
                await context.certain.wait()
                silent = not any(answer.said for answer in self.log.rounds)
                async with filler.while_waiting() if silent else nullcontext():
                    await self._run_tools(context.number, answer)
            elif answer.unreadable is None or not tools:
                break
            note = ""
            if answer.unreadable is not None:
                unreadable += 1
                note = _NO_TOOLS if unreadable >= _MAX_UNREADABLE else _CORRECT_CALL.format(answer.unreadable)
        if not self._is_answer(answer) and note != _NO_TOOLS:
            answer = await self._ask((), context, _NO_TOOLS)
        if not self._is_answer(answer):
            raise answer.unreadable or NoAnswerError("the language model wrote nothing that can be said")

    def _is_answer(self, last: ToolRound) -> bool:
        """Whether the turn may end with this round: one of a call alone, which was not run, is none."""
        said = any(answer.said for answer in self.log.rounds)
        return last.said or (said and not last.unfit)

    async def _ask(self, tools: Sequence[Tool], context: TurnContext, note: str = "") -> ToolRound:
        """One more round. ``note``: what the model has to know besides the conversation."""
        for before in self.log.rounds:
            if not before.said:
                before.text = ""  # a beginning, or nothing that could be said
        answer = ToolRound()
        self.log.rounds.append(answer)
        shorten_results(self.log.rounds, self._results_budget)
        while True:
            try:
                await self._generate(answer, tools, context, note)
            except ContextTooLongError:
                # The estimate was too low: forget until it fits.
                if answer.text or not (self._prompt.forget_oldest() or self._shorten_results()):
                    raise
            else:
                return answer

    def _shorten_results(self) -> bool:
        """Make this turn's own part of the request shorter; False: that cannot be done."""
        while self._results_budget > _LEAST_RESULTS:
            self._results_budget //= 2
            if shorten_results(self.log.rounds, self._results_budget):
                return True
        return False

    async def _generate(
        self, answer: ToolRound, tools: Sequence[Tool], context: TurnContext, note: str
    ) -> None:
        log = self.log
        # Of every attempt its own: the model takes one that was stopped before for stopped for good.
        request_id = f"{context.name}-llm{self._requests}"
        self._requests += 1
        notes = [ChatMessage(role="system", content=note)] if note else []
        request = GenerateRequest(
            request_id=request_id,
            messages=[*self._prompt.messages(), *remember(log.rounds, None), *notes],
            tools=list(tools),
            sampling=self._sampling,
            priority=Priority.ANSWER if context.certain.is_set() else Priority.SPECULATION,
        )
        segmenter = TextSegmenter()
        started = _now()
        try:
            async with aclosing(generate(self._chat, request, self._config.deadlines)) as events:
                async for event in events:
                    if log.first_token_at is None:
                        log.first_token_at = _now()
                    if isinstance(event, TextDelta):
                        answer.text += event.text
                        context.write(event.text)
                        await self._say(answer, segmenter.push(event.text), context)
                    elif isinstance(event, Completed):
                        log.count(event)
                        self._prompt.calibrate(request, event.prompt_tokens - event.example_tokens)
                    elif tools:
                        answer.calls.append(self._named(context.number, event.call))
                    else:
                        answer.unfit = True
        except InvalidModelOutputError as error:
            answer.unreadable, answer.unfit = error, True
        finally:
            log.llm_ms = (log.llm_ms or 0.0) + (_now() - started) * 1000
        segments, unspoken = segmenter.finish_cut() if log.cut else (segmenter.finish(), "")
        if unspoken.strip():
            answer.text = f"{answer.text.removesuffix(unspoken).rstrip()}{CUT}"
        await self._say(answer, segments, context)

    async def _say(self, answer: ToolRound, segments: Sequence[str], context: TurnContext) -> None:
        # What is only shown needs no words; what is spoken does, and each segment has some.
        answer.said = answer.said or bool(segments) or (not context.aloud and bool(answer.text.strip()))
        for segment in segments:
            await context.say(len(self.log.rounds) - 1, segment)

    def _named(self, number: int, call: ToolCall) -> ToolCall:
        """The call with an id that is unique in the session: models count theirs anew each time."""
        count = sum(len(answer.calls) for answer in self.log.rounds) + 1
        return msgspec.structs.replace(call, id=f"call-{number}-{count}")

    def _make_filler(self, context: TurnContext) -> Filler:
        phrase = self._fillers[context.number % len(self._fillers)] if self._fillers else ""
        return Filler(phrase, self._config.filler_after_s, partial(context.say, UNREMEMBERED))

    async def _run_tools(self, number: int, answer: ToolRound) -> None:
        started = _now()

        async def run(call: ToolCall) -> None:
            answer.results[call.id] = await self._tools.call(number, call)

        try:
            async with asyncio.TaskGroup() as group:
                for call in answer.calls:
                    group.create_task(run(call), name=call.id)
        finally:
            self.log.tool_ms = (self.log.tool_ms or 0.0) + (_now() - started) * 1000


def _now() -> float:
    return asyncio.get_running_loop().time()


# Between attempts, so that all who failed together do not come back together.
_JITTER = (0.75, 1.25)
_PAUSE_GROWTH = 3.0


async def generate(
    chat: ChatModel, request: GenerateRequest, limits: AgentDeadlines, *, retries: int | None = None
) -> AsyncGenerator[LlmEvent, None]:
    """The answer's events; the model is told to stop if this ends before the answer does.

    A request that fails before its first event, in a way that may pass, is made again: after a pause, under
    an id of its own, and only while there is time left for a first event.

    Args:
        chat: the model.
        request: its id is that of the first attempt.
        limits: deadlines and pauses.
        retries: how often the request is made again; None: as ``limits`` say.

    Raises:
        ParleyError: the model failed or was silent for too long.
    """
    left = limits.llm_retries if retries is None else retries
    pause_s = limits.llm_retry_s
    overdue_at = _now() + limits.llm_s
    attempt = request
    for number in range(1, left + 2):
        begun = False
        try:
            async with aclosing(_attempt(chat, attempt, overdue_at, limits)) as events:
                async for event in events:
                    begun = True
                    yield event
            return  # noqa: TRY300 - in an else block it would be further away
        except ParleyError as error:
            pause = pause_s * random.uniform(*_JITTER)
            passing = error.retryable and not isinstance(error, ShuttingDownError)
            if begun or not passing or number > left or _now() + pause >= overdue_at:
                raise
            _log.warning("%s: again in %.2f s: %s", attempt.request_id, pause, error.to_log())
        await asyncio.sleep(pause)
        pause_s *= _PAUSE_GROWTH
        # The model takes an id that was aborted for aborted for good.
        attempt = msgspec.structs.replace(request, request_id=f"{request.request_id}-again{number}")


async def _attempt(
    chat: ChatModel, request: GenerateRequest, overdue_at: float, limits: AgentDeadlines
) -> AsyncGenerator[LlmEvent, None]:
    done = False
    limit_s = overdue_at - _now()
    try:
        async with aclosing(chat.generate(request)) as stream:
            while True:
                try:
                    event = await within(anext(stream), limit_s, "the language model")
                except StopAsyncIteration:
                    break
                limit_s = limits.llm_s
                yield event
        done = True
    finally:
        if not done:
            what = f"stopping {request.request_id}"
            await try_within(chat.abort(request.request_id), limits.abort_s, what)


async def warm_up(
    chat: ChatModel, name: str, messages: Sequence[ChatMessage], tools: Sequence[Tool], limits: AgentDeadlines
) -> None:
    """Let the model read what every prompt of a session begins with, while the user still listens.

    The model keeps it in its prefix cache, and the grammar of the tools' arguments in another, so that the
    first answer begins as quickly as all others. A failure only costs that time: it is logged, and the first
    turn will report its own.
    """
    if not messages and not tools:
        return
    request = GenerateRequest(
        request_id=f"{name}-warm-up",
        messages=[*messages, ChatMessage(role="user")],
        tools=list(tools),
        sampling=Sampling(max_tokens=1),
        priority=Priority.WARM_UP,
    )
    try:
        async with aclosing(generate(chat, request, limits, retries=0)) as events:
            async for _ in events:
                pass
    except ParleyError as error:
        _log.warning("%s: %s", request.request_id, error.to_log())


class SystemPrompt:
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
