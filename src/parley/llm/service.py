"""Chat requests against an engine: admission, abort, tool calls, typed events."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from parley.chat import ToolCall
from parley.errors import InferenceError, InvalidInputError, InvalidMessageError, InvalidModelOutputError
from parley.llm.engine import Engine, EngineRequest, EngineTimes, Progress
from parley.llm.guidance import json_tag
from parley.llm.messages import (
    MAX_QUESTIONS,
    Choices,
    Completed,
    GenerateRequest,
    LlmEvent,
    Priority,
    TextDelta,
    ToolCalled,
    TurnEnd,
    check_sampling,
    new_cache_salt,
)
from parley.llm.prompt import Prompt, PromptBuilder, QuestionPrompt
from parley.llm.questions import QuestionEngine, first_report
from parley.llm.replies import (
    BadCall,
    HermesFormat,
    OpensSpeech,
    ParsedReply,
    Piece,
    PlainText,
    Reply,
    ReplyFormat,
    TextPiece,
)
from parley.protocol import ANY_TOOL
from parley.runtime.admission import Admission
from parley.tracing import NO_TRACE, Trace

_log = logging.getLogger(__name__)


class ChatService:
    """Answers :class:`GenerateRequest` on one event loop.

    ``scores_prompts``: whether the engine has log probabilities in the place of tokens of a prompt.
    """

    def __init__(
        self,
        engine: Engine[EngineRequest],
        prompts: PromptBuilder,
        replies: ReplyFormat | None = None,
        *,
        max_requests: int = 64,
        scores_prompts: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._replies = replies or HermesFormat()
        self._scores_prompts = scores_prompts
        self._admission = Admission(max_requests, clock=clock)
        self._questions = QuestionEngine(engine, self._admission.is_aborted)

    @property
    def active(self) -> int:
        """Requests running or waiting."""
        return len(self._admission)

    async def generate(
        self, request: GenerateRequest, span: Trace = NO_TRACE
    ) -> AsyncGenerator[LlmEvent, None]:
        """Stream the answer; the last event is ``Completed``. ``span`` is of the request.

        An answer with which the model cannot go on is over, as if it had reached its limit.

        Raises:
            InvalidMessageError: the id is in use, a sampling value is out of range, or the
                messages cannot be rendered.
            OverloadedError: too many requests already.
            ContextTooLongError: the conversation does not fit.
            InvalidModelOutputError: the model wrote a call that cannot be read, or not the one it must.
            InferenceError: the engine failed.
        """
        request_id = request.request_id
        if self._admission.was_aborted(request_id):
            yield Completed(finish_reason="abort")
            return
        with self._admission.place(request_id):
            run = self._compare if request.questions else self._end_turn if request.turn_end else self._run
            async with aclosing(run(request, span)) as events:
                async for event in events:
                    yield event

    async def abort(self, request_id: str) -> None:
        """Stop a request: running, waiting, or still on its way here."""
        if self._admission.abort(request_id):
            await self._questions.abort(request_id)
            await self._engine.abort(request_id)

    async def _compare(self, request: GenerateRequest, span: Trace) -> AsyncGenerator[LlmEvent, None]:
        questions = request.questions
        if len(questions) > MAX_QUESTIONS or any(not one.text or len(one.choices) < 2 for one in questions):
            raise InvalidMessageError(f"at most {MAX_QUESTIONS} questions, each with a text and two choices")
        if not self._replies.continues:
            raise InvalidMessageError("a model that thinks before it answers cannot compare answers")
        prompts = self._prompts.build_questions(request.messages, request.tools, questions)
        found = await self._questions.ask(_one_token(request, span), prompts)
        tokens = sum(len(prompt.ids) for prompt in prompts)
        span.set(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.input_tokens": tokens,
                "gen_ai.usage.cache_read.input_tokens": found.cached_tokens,
                "parley.questions": len(questions),
                "parley.priority": request.priority.name.lower(),
            }
        )
        if found.aborted:
            yield Completed(finish_reason="abort")
            return
        yield Choices(probabilities=found.probabilities)
        yield Completed(
            finish_reason="stop",
            prompt_tokens=tokens,
            cached_tokens=found.cached_tokens,
            completion_tokens=len(prompts),
        )

    async def _end_turn(self, request: GenerateRequest, span: Trace) -> AsyncGenerator[LlmEvent, None]:
        prompt = self._prompts.build_turn_end(request.messages, request.tools)
        if not prompt.choices:
            raise InvalidMessageError("the chat template has no place behind the user's words")
        asked = replace(_one_token(request, span), prompt=prompt.ids, scored=tuple(prompt.choices))
        report = await first_report(self._engine, asked)
        span.set(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.input_tokens": len(prompt.ids),
                "gen_ai.usage.cache_read.input_tokens": report.cached_tokens,
                "parley.priority": request.priority.name.lower(),
            }
        )
        if report.finish_reason == "abort":
            yield Completed(finish_reason="abort")
            return
        ending = _turn_end(report.logprobs, prompt.choices)
        if ending.probability is None:
            raise InferenceError("the engine gave no log probabilities of the next token")
        yield ending
        yield Completed(
            finish_reason="stop",
            prompt_tokens=len(prompt.ids),
            cached_tokens=report.cached_tokens,
            completion_tokens=1,
        )

    async def _run(self, request: GenerateRequest, span: Trace) -> AsyncGenerator[LlmEvent, None]:
        sampling = request.sampling
        check_sampling(sampling)
        if request.prefix and not self._replies.continues:
            yield Completed(finish_reason="length")
            return
        prompt = self._prompts.build(request.messages, request.tools, sampling.max_tokens, request.prefix)
        asked = request.reads_turn and self._scores_prompts
        read = self._prompts.find_turn_end(request.messages, prompt) if asked else QuestionPrompt([], [])
        is_read = bool(read.choices)
        if request.reads_turn and not is_read:
            yield TurnEnd(probability=None)
        spoken = [message.role for message in request.messages if message.role != "system"]
        after_results = spoken[-1:] == ["tool"]
        reply = self._begin_reply(request, prompt, after_results=after_results)
        last = Progress()
        times: EngineTimes | None = None
        calls = tokens = cached = 0
        engine_request = EngineRequest(
            request.request_id,
            prompt.ids,
            prompt.max_tokens,
            sampling.temperature,
            sampling.top_p,
            sampling.seed,
            request.priority,
            reply.structural_tag,
            reply.skip_special_tokens,
            request.cache_salt or new_cache_salt(),
            span.traceparent,
            scored=tuple(read.choices),
            scored_at=(len(read.ids),) if read.choices else (),
        )
        only_speaks = after_results and reply.structural_tag is not None
        speech = self._open_speech(request, engine_request, only_speaks=only_speaks)
        forced = bool(request.must_call) or request.json_schema is not None
        try:
            async with aclosing(self._steps(engine_request, reply, speech, forced=forced)) as steps:
                async for answer, step in steps:
                    last, times = step, step.times or times
                    tokens += step.tokens
                    cached = max(cached, step.cached_tokens)  # the report of an abort may not have it
                    if is_read and step.finish_reason != "abort":
                        scores, is_read = step.prompt_logprobs, False
                        yield _turn_end(scores[0] if scores else {}, read.choices)
                    for piece in _read(answer, step):
                        event = _event(piece, f"{request.request_id}-{calls}")
                        calls += isinstance(event, ToolCalled)
                        yield event
                    if answer.is_over and last.finish_reason != "abort":
                        last = replace(last, finish_reason="stop")
                        break
        finally:
            # Also of a request that was aborted or has failed.
            _record(span, request, prompt, replace(last, cached_tokens=cached), tokens)
            if times is not None:
                times.record(span)
        if last.finish_reason is None:
            raise InferenceError("the engine ended the answer without a reason")
        if request.must_call and not calls and last.finish_reason != "abort":
            raise InvalidModelOutputError("the answer ended before its tool call")
        yield Completed(
            finish_reason="tool_calls" if calls and last.finish_reason == "stop" else last.finish_reason,
            prompt_tokens=len(prompt.ids),
            cached_tokens=cached,
            example_tokens=prompt.example_tokens,
            completion_tokens=tokens,
        )

    def _begin_reply(self, request: GenerateRequest, prompt: Prompt, *, after_results: bool) -> Reply:
        name, tools = request.must_call, request.tools
        if request.json_schema is not None:
            if request.prefix or tools or not self._replies.continues:
                raise InvalidMessageError(
                    "JSON needs a model that does not think first, and neither tools nor text"
                )
            return ParsedReply(json_tag(request.json_schema), PlainText())
        if not name:
            return self._replies.begin(
                tools, prompt.ids, after_results=after_results, continued=bool(request.prefix)
            )
        if request.prefix or not any(name in (ANY_TOOL, tool.name) for tool in tools):
            raise InvalidMessageError("no text, and one of the tools, is needed for a call that must be made")
        reply = self._replies.begin_call(tools, prompt.ids, name)
        if reply.structural_tag is None:
            raise InvalidMessageError("the model's tool calls are not guided, and cannot be forced")
        return reply

    def _open_speech(
        self, request: GenerateRequest, plain: EngineRequest, *, only_speaks: bool
    ) -> _Speech | None:
        """An answer whose prompt ends with the beginning of speech, for which the model needs no step.

        ``only_speaks``: the grammar allows no call. Else the model's choice is read in the first step. None:
        it cannot be read, or there is no such beginning.
        """
        # What is warmed up is the grammar of calls.
        if request.prefix or request.must_call or not request.tools or request.priority == Priority.WARM_UP:
            return None
        if not isinstance(self._replies, OpensSpeech):
            return None
        if not only_speaks and (plain.temperature or not self._scores_prompts):
            return None
        opening = self._prompts.find_opening(request.tools)
        if opening is None or plain.max_tokens <= len(opening.ids):
            return None
        reply = self._replies.begin_speech(request.tools)
        begun = replace(
            plain,
            prompt=[*plain.prompt, *opening.ids],
            max_tokens=plain.max_tokens - len(opening.ids),
            structural_tag=reply.structural_tag,
            skip_special_tokens=reply.skip_special_tokens,
        )
        if only_speaks:
            return _Speech(begun, reply, opening.ids[0], ())
        begun = replace(
            begun,
            scored=tuple({*plain.scored, opening.ids[0], *opening.others}),
            scored_at=(*plain.scored_at, len(plain.prompt)),
        )
        return _Speech(begun, reply, opening.ids[0], opening.others)

    async def _steps(
        self, plain: EngineRequest, reply: Reply, speech: _Speech | None, *, forced: bool
    ) -> AsyncGenerator[tuple[Reply, Progress], None]:
        """The engine's reports, each with its reader: of ``speech``, or of ``plain`` if it was not chosen."""
        if speech is not None:
            begun = False
            async with aclosing(self._progress(speech.request)) as steps:
                async for step in steps:
                    if not begun and step.finish_reason != "abort" and not speech.is_chosen(step):
                        break
                    begun = True
                    yield speech.reply, step
                else:
                    return
            yield reply, Progress(cached_tokens=step.cached_tokens, prompt_logprobs=step.prompt_logprobs)
            plain = replace(plain, scored=(), scored_at=())
        async with aclosing(self._progress(plain, forced=forced)) as steps:
            async for step in steps:
                yield reply, step

    async def _progress(
        self, request: EngineRequest, *, forced: bool = False
    ) -> AsyncGenerator[Progress, None]:
        """The engine's reports; without guidance if the engine refuses a grammar that is not ``forced``."""
        if self._admission.is_aborted(request.request_id):  # as long as the engine did not have it
            yield Progress(finish_reason="abort")
            return
        begun = False
        try:
            async with aclosing(self._engine.generate(request)) as steps:
                async for step in steps:
                    begun = True
                    yield step
        except (InvalidInputError, InferenceError) as error:
            # Not their subclasses: a dead or late engine does no better without a grammar.
            refused = type(error) in (InvalidInputError, InferenceError)
            if begun or forced or request.structural_tag is None or not refused:
                raise
            _log.warning("%s: not guided: %s", request.request_id, error.to_log(), extra=error.log_extra())
        else:
            return
        async with aclosing(self._progress(replace(request, structural_tag=None))) as steps:
            async for step in steps:
                yield step


@dataclass(frozen=True)
class _Speech:
    """An answer that has begun as speech before it is known whether the model speaks."""

    request: EngineRequest
    reply: Reply
    token: int
    """The first of speech."""
    others: Sequence[int]
    """The first tokens of calls; empty: it can only speak."""

    def is_chosen(self, report: Progress) -> bool:
        """Whether speech is the likeliest answer; not if the first report does not say it."""
        if not self.others:
            return True
        scores = report.prompt_logprobs[-1] if report.prompt_logprobs else {}
        chosen = scores.get(self.token, math.nan)
        return all(chosen >= scores.get(other, math.nan) for other in self.others)


def _record(span: Trace, request: GenerateRequest, prompt: Prompt, last: Progress, tokens: int) -> None:
    span.set(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.max_tokens": prompt.max_tokens,
            "gen_ai.request.temperature": request.sampling.temperature,
            "gen_ai.request.top_p": request.sampling.top_p,
            "gen_ai.usage.input_tokens": len(prompt.ids),
            "gen_ai.usage.cache_read.input_tokens": last.cached_tokens,
            "gen_ai.usage.output_tokens": tokens,
            "gen_ai.response.finish_reason": last.finish_reason,
            "parley.priority": request.priority.name.lower(),
        }
    )


def _one_token(request: GenerateRequest, span: Trace) -> EngineRequest:
    """The engine's request for the first token, without a prompt."""
    return EngineRequest(
        request.request_id,
        (),
        1,
        priority=request.priority,
        cache_salt=request.cache_salt or new_cache_salt(),
        traceparent=span.traceparent,
    )


def _turn_end(scores: Mapping[int, float], choices: Sequence[int]) -> TurnEnd:
    """Without a probability where there are no log probabilities, or they are no numbers."""
    probability = sum(math.exp(scores.get(token, math.nan)) for token in choices)
    return TurnEnd(probability=None if math.isnan(probability) else min(1.0, probability))


def _read(reply: Reply, step: Progress) -> list[Piece]:
    if step.finish_reason == "abort":
        return []  # the answer is discarded, and half of a call is no error
    return reply.read(step.text, step.token_ids, last=step.finish_reason is not None)


def _event(piece: Piece, call_id: str) -> LlmEvent:
    if isinstance(piece, TextPiece):
        return TextDelta(text=piece.text)
    if isinstance(piece, BadCall):
        raise InvalidModelOutputError(f"the model wrote a tool call that cannot be read: {piece.reason}")
    return ToolCalled(call=ToolCall(id=call_id, name=piece.name, arguments=piece.arguments))
