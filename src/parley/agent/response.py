"""Sources of a turn's text: the language model with its tools, or a fixed text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from parley.agent.answer_text import AnswerText, HeldBackError
from parley.agent.collecting.collector import Collector, find_question
from parley.agent.config import AgentConfig
from parley.agent.continued import BegunResponse
from parley.agent.ending import Ending, find_ending, refuse_ending
from parley.agent.facts.checking import SessionFacts
from parley.agent.filler import Filler
from parley.agent.generation import generate
from parley.agent.memory import NO_RESULT, UNREMEMBERED, ToolRound, remember, shorten_results
from parley.agent.prompt import SystemPrompt
from parley.agent.retrieval import Retrieval, Retrieved
from parley.agent.steps import forget_transitions
from parley.agent.tools import ToolExecutor, make_call_id
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import AgentTurnState, RoundState
from parley.engines.base import ChatModel
from parley.errors import (
    ContextTooLongError,
    DeadlineExceededError,
    InferenceError,
    InvalidMessageError,
    InvalidModelOutputError,
    NoAnswerError,
)
from parley.knowledge.passages import content_words
from parley.llm.messages import (
    CUT,
    Completed,
    GenerateRequest,
    Priority,
    Sampling,
    TextDelta,
    ToolCalled,
    TurnEnd,
)
from parley.protocol import HeldBack, Tool
from parley.timeouts import loop_time
from parley.tracing import NO_TRACE, Trace
from parley.tts.markdown import MarkdownSegmenter
from parley.tts.text import has_words

_MAX_UNREADABLE = 2
"""Invalid tool calls of one turn, after which the model gets no tools."""
_CORRECT_CALL = (
    "Your last tool call was not run: {}. Write it again, whole and in the form of a tool call, "
    "or answer without it."
)
_NO_TOOLS = "No tool can be called now, and the user waits. Answer in words, with what you know."
_CORRECT_FACT = (
    "Your answer was stopped before {!r}: that is not in your instructions, in a result or in what the user "
    "has said. Go on with the answer without it; if it is needed, say that you do not know it."
)
_AS_I_SAID = f"As I was saying{CUT} "
"""Before the rest of a sentence that was interrupted. It is taken up in English only."""
_MOST_CORRECTIONS = 1
"""Times that one answer may be corrected."""
_SHORTER = 4
"""Divisor of the budget of tool results after a failure."""
_LEAST_RESULTS = 64
"""Tokens; shorter results are useless."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TurnContext:
    """What a response source needs from its turn."""

    number: int
    name: str
    """Unique for each turn; prefix of the requests' ids."""
    write: Callable[[str], None]
    say: Callable[[int, str], Awaitable[None]]
    """Called with each segment to be spoken and the number of its round."""
    certain: asyncio.Event
    """Set when the end of the user's turn is certain."""
    aloud: bool = True
    changed: Callable[[], None] = lambda: None
    """Called when :meth:`ResponseSource.state` has changed."""
    on_read: Callable[[float | None], None] = lambda _: None
    """Called with how likely a sentence ends with the user's words (0-1); None: the answer does not say it.
    The first call counts."""
    retrieved: Callable[[Retrieved], None] = lambda _: None
    """Called with the passages of documents that the language model reads."""
    trace: Trace = NO_TRACE


@dataclass
class GenerationLog:
    """Rounds, token counts and latencies of one response."""

    has_run: Callable[[str], bool] = lambda _: False
    """Whether the call with this id was run."""
    result_of: Callable[[str], str | None] = lambda _: None
    """The result of the call with this id, if it has come and is in no round yet."""
    built_in: Collection[str] = ()
    """Names of the tools that the session's options ask for."""
    rounds: list[ToolRound] = field(default_factory=list)
    first_token_at: float | None = None
    """Seconds of the loop's clock."""
    llm_ms: float | None = None
    tool_ms: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    replacement: str = ""
    """Name of the language model that has answered in the place of another."""
    cut: bool = False
    """Whether ``max_tokens`` ended the answer."""
    held_back: list[HeldBack] = field(default_factory=list)
    """Why text of the model was not passed on."""
    hedged: bool = False
    """Whether a fixed sentence has taken its place."""

    @property
    def ending(self) -> Ending | None:
        """The call with which the response ends the conversation."""
        return find_ending(self.rounds, self.built_in)

    @property
    def acted(self) -> bool:
        """Whether a tool was run: the turn cannot simply be repeated."""
        return any(map(self._acts, self.rounds))

    @property
    def answered(self) -> bool:
        """Whether text for the user came after the last tool call."""
        last = max((index for index, answer in enumerate(self.rounds) if self._acts(answer)), default=-1)
        return any(answer.said for answer in self.rounds[last + 1 :])

    def _acts(self, answer: ToolRound) -> bool:
        return any(self.has_run(call.id) for call in answer.calls)

    def complete_results(self) -> None:
        """Give every call that was run its result, or one that reports the cancellation."""
        for answer in self.rounds:
            for call in answer.calls:
                if call.id not in answer.results and self.has_run(call.id):
                    answer.results[call.id] = self.result_of(call.id) or NO_RESULT

    def results_of(self, answer: ToolRound) -> dict[str, str]:
        """The results of a round, also those that it has not yet."""
        come = {call.id: self.result_of(call.id) for call in answer.calls if call.id not in answer.results}
        return answer.results | {call_id: result for call_id, result in come.items() if result is not None}

    def count(self, completed: Completed) -> None:
        """Add the tokens of a request."""
        self.prompt_tokens += completed.prompt_tokens
        self.cached_tokens += completed.cached_tokens
        self.completion_tokens += completed.completion_tokens
        self.replacement = completed.model or self.replacement
        self.cut = completed.finish_reason == "length"


class ResponseSource(Protocol):
    """Generates the text of one turn."""

    log: GenerationLog

    async def generate(self, context: TurnContext) -> None:
        """Pass all text to ``context``.

        Raises:
            ParleyError: the text is incomplete.
        """
        ...

    def state(self, turn: int, response_id: str, *, interruptible: bool) -> AgentTurnState:
        """What another session needs to go on with the turn."""
        ...


class FixedText:
    """A text that is spoken verbatim; with ``remember`` it is added to the history.

    ``begun``: what another session has spoken of it.
    """

    def __init__(self, text: str, *, remember: bool = True, begun: BegunResponse | None = None) -> None:
        self._text = text
        self._remember = remember
        self._begun = begun
        self.log = GenerationLog()
        if begun is not None:
            self._add_round()

    async def generate(self, context: TurnContext) -> None:
        """See :class:`ResponseSource`."""
        context.on_read(None)
        begun, left = self._begun, self._text
        if begun is None:
            self._add_round()
        if begun is None or not begun.written:
            context.write(self._text)
        else:
            left = "".join(text for _, text in begun.left)
        await _say_whole(0 if self._remember else UNREMEMBERED, left, context)

    def state(self, turn: int, response_id: str, *, interruptible: bool) -> AgentTurnState:
        """See :class:`ResponseSource`."""
        return AgentTurnState(
            turn=turn,
            response_id=response_id,
            kind="say",
            text=self._text,
            interruptible=interruptible,
            remember=self._remember,
        )

    def _add_round(self) -> None:
        if self._remember:
            self.log.rounds.append(ToolRound(text=self._text, said=True, ended=True))


async def _say_whole(round_number: int, text: str, context: TurnContext) -> None:
    segmenter = MarkdownSegmenter()
    for segment in [*segmenter.push(text), *segmenter.finish()]:
        await context.say(round_number, segment)


class LlmResponse:
    """The language model's answer, after its tool calls.

    ``tools`` runs the calls once the end of the user's turn is certain. ``must_call`` is called first
    (``ANY_TOOL``: any). One of ``fillers`` is spoken while tools take long. ``begun``: what another session
    has done of it. ``facts``: the sources of what may be said; None: anything may be. ``enter_step``: called
    where the prompt may change; returns whether a step has changed it. ``collector`` asks for what the step
    wants. ``retrieval`` searches the agent's documents; None: there are none.
    """

    def __init__(
        self,
        chat: ChatModel,
        prompt: SystemPrompt,
        *,
        tools: ToolExecutor,
        must_call: str = "",
        fillers: Sequence[str] = (),
        sampling: Sampling,
        config: AgentConfig,
        begun: BegunResponse | None = None,
        facts: SessionFacts | None = None,
        enter_step: Callable[[], bool],
        collector: Collector,
        retrieval: Retrieval | None = None,
    ) -> None:
        self._collector = collector
        self._enter_step = enter_step
        self._retrieval = retrieval
        self._is_new = begun is None
        self._begun = begun or BegunResponse()
        self._facts = facts
        self._corrections = 0
        self._chat = chat
        self._prompt = prompt
        self._tools = tools
        self._must_call = must_call
        self._fillers = fillers
        self._sampling = sampling
        self._config = config
        self._requests = 0
        self._results_budget = config.prompt_tokens // 2
        self.log = GenerationLog(tools.has_run, tools.result_of, tools.built_in)
        self.log.rounds += self._begun.rounds
        self.log.cut = self._begun.cut
        self._spaced = self._begun.spaced
        self._open_round: ToolRound | None = None
        if self._begun.text:
            text = self._begun.text
            self._open_round = ToolRound(text=text, said=has_words(text), ended=self._begun.over)
            self.log.rounds.append(self._open_round)

    def state(self, turn: int, response_id: str, *, interruptible: bool) -> AgentTurnState:
        """See :class:`ResponseSource`."""
        return AgentTurnState(
            turn=turn,
            response_id=response_id,
            interruptible=interruptible,
            system_prompt=self._prompt.system_prompt,
            use_tools=self._prompt.use_tools,
            must_call=self._prompt.must_call,
            rounds=[
                RoundState(
                    text=one.text, said=one.said, calls=list(one.calls), results=self.log.results_of(one)
                )
                for one in self.log.rounds
                if one.ended
            ],
        )

    async def generate(self, context: TurnContext) -> None:
        """Request rounds until one has no tool calls.

        Raises:
            NoAnswerError: there was no text for the user.
            ParleyError: the model failed; after tools also once more without tools and with shorter results.
        """
        if self._retrieval is not None and not self._begun.over:
            found = await self._retrieval.retrieve(self._prompt.question, context.certain)
            self._prompt.add_passages(found.passages)
            if self._is_new:  # else the client has them already
                context.retrieved(found)
        try:
            await self._answer(context)
        except InferenceError as error:
            if not self._can_retry(error):
                raise
            _log.warning(
                "%s: once more without tools: %s", context.name, error.to_log(), extra=error.log_extra()
            )
            self._results_budget //= _SHORTER
            try:
                answer = await self._request_round((), context, _NO_TOOLS)
            except InferenceError:
                raise error from None
            if not self._is_answer(answer):
                raise
        self._enter_step()
        if self.log.rounds and self.log.ending is None and self._collector.missing:
            await context.certain.wait()
            if question := self._collector.ask_missing():
                await self._add(self.log.rounds[-1], question, context)

    def _can_retry(self, error: InferenceError) -> bool:
        """Whether a shorter request may succeed after tools; not after a timeout."""
        hopeless = isinstance(error, DeadlineExceededError | NoAnswerError | InvalidModelOutputError)
        return self.log.acted and not self.log.answered and not hopeless

    async def _answer(self, context: TurnContext) -> None:
        filler = self._make_filler(context)
        await self._go_on(context, filler)
        self._go_to_step()
        if self._begun.over or await self._ends(context):
            return
        if self._begun.rounds and await self._asks(self._begun.rounds[-1], context):
            return
        unreadable = 0
        note = ""
        used = sum(bool(answer.calls) for answer in self._begun.rounds)
        for left in range(max(0, self._config.max_tool_rounds - used), -1, -1):
            # The last round has no tools: the turn must end with an answer.
            tools = self._prompt.tools if left and unreadable < _MAX_UNREADABLE else ()
            answer = await self._request_round(tools, context, note or self._collector.note)
            if answer.calls:
                await self._complete(answer, context, filler)
                if await self._ends(context) or await self._asks(answer, context):
                    return
            elif answer.unreadable is None or not tools:
                break
            note = ""
            if answer.unreadable is not None:
                unreadable += 1
                note = _NO_TOOLS if unreadable >= _MAX_UNREADABLE else _CORRECT_CALL.format(answer.unreadable)
        if not self._is_answer(answer) and note != _NO_TOOLS:
            answer = await self._request_round((), context, _NO_TOOLS)
        if not self._is_answer(answer):
            raise answer.unreadable or NoAnswerError("the language model returned no text")
        await self._take_up(answer, context)

    @property
    def _forced(self) -> str:
        """The tool that the next request must call; empty: there is none, or the answer has begun."""
        return "" if any(answer.calls or answer.said for answer in self.log.rounds) else self._must_call

    async def _take_up(self, answer: ToolRound, context: TurnContext) -> None:
        """Say what was not heard of the answer before, if it is still of use and not said already."""
        unheard = self._prompt.unheard
        if unheard is None or not unheard.wanted or not self._is_new or self.log.acted or self.log.cut:
            return
        if answer.text.rstrip().endswith("?"):
            return  # the user is to answer that
        said, rest = (set(content_words(text)) for text in (answer.text, unheard.text))
        if len(rest - said) * 2 > len(rest):
            await self._add(
                answer, f"{_AS_I_SAID if unheard.text[0].islower() else ''}{unheard.text}", context
            )

    async def _ends(self, context: TurnContext) -> bool:
        """Whether the conversation ends with this turn; the language model is asked for words if it has none.

        Without them it ends all the same.
        """
        ending = self.log.ending
        if ending is not None and (self._open_round is not None or not ending.answer.said):
            try:
                await self._request_round((), context, ending.note)
            except InferenceError as error:
                _log.warning(
                    "%s: the call ends without a goodbye: %s",
                    context.name,
                    error.to_log(),
                    extra=error.log_extra(),
                )
        return ending is not None

    async def _asks(self, answer: ToolRound, context: TurnContext) -> bool:
        """Whether the turn ends with a question for a value, which is said if the model has asked nothing."""
        question = find_question(answer, self.log.built_in)
        if question is not None and "?" not in answer.text:
            await self._add(answer, question, context)
        return question is not None

    async def _add(self, answer: ToolRound, text: str, context: TurnContext) -> None:
        """Say a fixed text behind what the language model has written."""
        self._separate(context)
        answer.text = f"{answer.text.rstrip()} {text}".lstrip()
        context.write(text)
        context.changed()  # a checkpoint without the text may be on its way
        await self._say(answer, [text], context)

    async def _go_on(self, context: TurnContext, filler: Filler) -> None:
        """Speak what another session has left of the rounds that are over, and get the missing results."""
        for number, answer in enumerate(self._begun.rounds):
            await _say_whole(number, self._begun.left_of(number), context)
            if len(answer.results) < len(answer.calls):
                await self._complete(answer, context, filler)
        if self._begun.over:
            for number in (len(self._begun.rounds), UNREMEMBERED):
                await _say_whole(number, self._begun.left_of(number), context)

    async def _complete(self, answer: ToolRound, context: TurnContext, filler: Filler) -> None:
        await context.certain.wait()
        refuse_ending(answer, self.log.built_in)
        silent = not any(answer.said for answer in self.log.rounds)
        async with filler.while_waiting() if silent else nullcontext():
            await self._run_tools(context, answer)
        self._go_to_step()

    def _go_to_step(self) -> None:
        """Let a step begin that is to; the next request has its prompt and tools."""
        if self._enter_step():
            self._prompt.renew()
            forget_transitions(self.log.rounds, self.log.built_in)

    def _is_answer(self, last: ToolRound) -> bool:
        """Whether the turn may end with this round; a round of only an invalid call is no answer."""
        said = any(answer.said for answer in self.log.rounds)
        return last.said or (said and not last.unfit)

    async def _request_round(self, tools: Sequence[Tool], context: TurnContext, note: str = "") -> ToolRound:
        """One more round. ``note``: a system message behind the conversation.

        What no source has is asked for once more; then a fixed sentence takes its place.
        """
        answer, held = await self._request(tools, context, note)
        if held is not None and not answer.calls and self._corrections < _MOST_CORRECTIONS:
            self._corrections += 1
            self._separate(context)
            answer, held = await self._request(tools, context, _CORRECT_FACT.format(held.fact.text))
        hedge = self._config.hedge
        if held is not None and hedge and not answer.calls:
            self.log.hedged = True
            await self._add(answer, hedge, context)
        return answer

    def _separate(self, context: TurnContext) -> None:
        """Write a space between what was written and what follows."""
        text = next((one.text for one in reversed(self.log.rounds) if one.text), "")
        if text and not text[-1].isspace():
            context.write(" ")
        self._spaced = True

    async def _request(
        self, tools: Sequence[Tool], context: TurnContext, note: str
    ) -> tuple[ToolRound, HeldBackError | None]:
        for before in self.log.rounds:
            if not before.said:
                before.text = ""  # incomplete, or nothing to be spoken
        answer = self._open_round or ToolRound()
        if self._open_round is None:
            self.log.rounds.append(answer)
        text = await self._answer_text(answer, tools, context)
        if self._open_round is not None:
            self._open_round = None
            await text.go_on(self._begun.left_of(len(self._begun.rounds)))
        shorten_results(self.log.rounds, self._results_budget)
        prefix = answer.text
        while True:
            try:
                held = await self._generate(answer, tools, context, note, text)
            except ContextTooLongError:
                # The estimate was too low: drop exchanges until the prompt fits.
                shorter = answer.text == prefix and (self._prompt.forget_oldest() or self._shorten_results())
                if not shorter:
                    raise
            else:
                answer.ended = not answer.unfit
                context.changed()
                return answer, held

    async def _answer_text(
        self, answer: ToolRound, tools: Sequence[Tool], context: TurnContext
    ) -> AnswerText:
        def write(piece: str) -> None:
            context.write(piece.lstrip() if self._spaced else piece)
            self._spaced = False

        facts = None
        if self._facts is not None:
            before = [other for other in self.log.rounds if other is not answer]
            facts = await self._prompt.known_facts(self._facts, remember(before, None))
        say = partial(self._say, answer, context=context)
        # What facts hold back is the rest of a sentence whose beginning should not have been heard either.
        early = context.aloud and self._config.speaks_early and facts is None
        names = [tool.name for tool in tools]
        aloud = context.aloud
        return AnswerText(answer, write=write, say=say, facts=facts, aloud=aloud, early=early, tools=names)

    def _shorten_results(self) -> bool:
        """Shorten this turn's tool results; False: they cannot be shorter."""
        while self._results_budget > _LEAST_RESULTS:
            self._results_budget //= 2
            if shorten_results(self.log.rounds, self._results_budget):
                return True
        return False

    async def _generate(
        self,
        answer: ToolRound,
        tools: Sequence[Tool],
        context: TurnContext,
        note: str,
        text: AnswerText,
    ) -> HeldBackError | None:
        log = self.log
        before = [other for other in log.rounds if other is not answer]
        # New for each attempt: an aborted id stays aborted.
        request_id = f"{context.name}-llm{self._requests}"
        self._requests += 1
        notes = [ChatMessage(role="system", content=note)] if note else []
        request = GenerateRequest(
            request_id=request_id,
            messages=[*self._prompt.messages(), *remember(before, None), *notes],
            tools=list(tools),
            must_call=self._forced,
            sampling=self._sampling,
            prefix=answer.text,
            reads_turn=not context.certain.is_set(),
            priority=Priority.ANSWER if context.certain.is_set() else Priority.SPECULATION,
        )
        started, model = loop_time(), self._config.chat_models[0][0]
        names = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "parley.request_id": request_id,
        }
        with context.trace.child(f"chat {model}", names) as span:
            request = msgspec.structs.replace(request, traceparent=span.traceparent)
            if span.has_content:
                span.set_content("prompt", msgspec.json.encode(request.messages).decode())
            held = None
            try:
                await self._receive(answer, request, text, context, span)
                await text.finish(cut=log.cut)
            except HeldBackError as error:
                held, answer.unfit = error, not answer.calls
                log.held_back.append(error.fact.kind)
                span.set_content("held_back", error.fact.text)
            finally:
                log.llm_ms = (log.llm_ms or 0.0) + (loop_time() - started) * 1000
        if text.has_stray_call:
            log.held_back.append("call")
            if tools and not (answer.calls or answer.unreadable or held):
                answer.unreadable, answer.unfit = InvalidModelOutputError("it was written as text"), True
        return held

    async def _receive(
        self,
        answer: ToolRound,
        request: GenerateRequest,
        text: AnswerText,
        context: TurnContext,
        span: Trace,
    ) -> None:
        log, began, first = self.log, loop_time(), True
        try:
            async with aclosing(generate(self._chat, request, self._config.deadlines)) as events:
                async for event in events:
                    context.on_read(event.probability if isinstance(event, TurnEnd) else None)
                    if first and not isinstance(event, TurnEnd):
                        first, now = False, loop_time()
                        log.first_token_at = log.first_token_at or now
                        span.set({"parley.first_token_ms": round((now - began) * 1000, 1)})
                    if isinstance(event, TextDelta):
                        await text.push(event.text)
                    elif isinstance(event, Completed):
                        self._on_completed(event, request, span)
                        span.set_content("completion", answer.text)
                    elif request.tools and isinstance(event, ToolCalled):
                        answer.calls.append(self._named(context.number, event.call))
                    elif not isinstance(event, TurnEnd):
                        answer.unfit = True
        except InvalidMessageError as error:
            if request.must_call:
                raise InferenceError(f"{request.must_call!r} cannot be called: {error}") from error
            raise
        except InvalidModelOutputError as error:
            self._on_unreadable(answer, request, error)
            span.set_content("completion", answer.text)
            span.end(failure=error.code)

    def _on_unreadable(
        self, answer: ToolRound, request: GenerateRequest, error: InvalidModelOutputError
    ) -> None:
        if request.must_call and any(one.unreadable for one in self.log.rounds):
            raise error
        answer.unreadable, answer.unfit = error, True

    def _on_completed(self, event: Completed, request: GenerateRequest, span: Trace) -> None:
        self.log.count(event)
        span.set(
            {
                "gen_ai.usage.input_tokens": event.prompt_tokens,
                "gen_ai.usage.output_tokens": event.completion_tokens,
                "gen_ai.response.finish_reason": event.finish_reason,
            }
        )
        if event.model:
            span.set({"gen_ai.response.model": event.model})
        self._prompt.calibrate(request, event.prompt_tokens - event.example_tokens)

    async def _say(self, answer: ToolRound, segments: Sequence[str], context: TurnContext) -> None:
        # What is only shown needs no words; what is spoken does, and each segment has some.
        answer.said = answer.said or bool(segments) or (not context.aloud and bool(answer.text.strip()))
        for segment in segments:
            await context.say(len(self.log.rounds) - 1, segment)

    def _named(self, number: int, call: ToolCall) -> ToolCall:
        """The call with an id that is unique: models count theirs anew each time."""
        count = sum(len(answer.calls) for answer in self.log.rounds) + 1
        return msgspec.structs.replace(call, id=make_call_id(number, count))

    def _make_filler(self, context: TurnContext) -> Filler:
        phrase = self._fillers[context.number % len(self._fillers)] if self._fillers else ""
        return Filler(phrase, self._config.filler_after_s, partial(context.say, UNREMEMBERED))

    async def _run_tools(self, context: TurnContext, answer: ToolRound) -> None:
        started = loop_time()

        async def run(call: ToolCall) -> None:
            # A name that is no tool's may be anything that the model wrote.
            name = call.name if any(tool.name == call.name for tool in self._prompt.tools) else "unknown"
            names = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.call.id": call.id,
            }
            with context.trace.child(f"execute_tool {name}", names) as span:
                result = answer.results[call.id] = await self._tools.call(
                    context.number, call, traceparent=span.traceparent
                )
                span.set_content("arguments", msgspec.json.encode(call.arguments).decode())
                span.set_content("result", result)

            context.changed()

        context.changed()
        try:
            async with asyncio.TaskGroup() as group:
                for call in answer.calls:
                    if call.id not in answer.results:
                        group.create_task(run(call), name=call.id)
        finally:
            self.log.tool_ms = (self.log.tool_ms or 0.0) + (loop_time() - started) * 1000
