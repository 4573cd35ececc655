"""One turn of the agent: the language model's answer, its tools, and the voice that speaks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.agent.config import AgentConfig
from parley.agent.engines import Engines
from parley.agent.generation import generate
from parley.agent.memory import Round, remember
from parley.agent.playout import Heard, Playout
from parley.agent.tools import ToolDesk
from parley.agent.voice import Speaker, Voice
from parley.errors import ContextTooLongError, ParleyError, TtsFallbackError
from parley.llm.history import History
from parley.llm.messages import ChatMessage, Completed, GenerateRequest, TextDelta, ToolCall, ToolCalled
from parley.protocol import (
    Audio,
    ErrorEvent,
    ResponseDone,
    ResponseText,
    ServerEvent,
    Tool,
    TurnMetrics,
)
from parley.tts.messages import TtsFallback
from parley.tts.segmenter import Segmenter

Emit = Callable[[ServerEvent, NDArray[np.int16] | None], None]


@dataclass(frozen=True)
class TurnContext:
    """What a turn needs of its session."""

    session: str
    """A name that no other session has or had."""
    engines: Engines
    history: History
    tools: Sequence[Tool]
    desk: ToolDesk
    speaker: Speaker
    config: AgentConfig
    emit: Emit


@dataclass
class _Times:
    """Seconds of the loop's clock, or durations in milliseconds; None: not reached."""

    heard: float
    detected: float | None
    decided: float | None
    first_token: float | None = None
    llm_ms: float | None = None
    tool_ms: float | None = None


class Turn:
    """Answers the history's last user message.

    :meth:`run` may be cancelled at any time; the engines are then told to stop. After
    :meth:`stop` nothing of this turn reaches the client any more.

    Args:
        number: counts the session's turns from 1.
        context: of the session.
        heard_at: when the user's final transcript was there (seconds of the loop's clock).
        detected_at: when the end of the user's speech was detected; None: unknown.
        decided_at: when it was decided that the user's turn is over; None: at once.
    """

    def __init__(
        self,
        number: int,
        context: TurnContext,
        heard_at: float,
        detected_at: float | None,
        decided_at: float | None = None,
    ) -> None:
        self.number = number
        self.response_id = f"{context.session}-{number}"
        self.playout = Playout()
        self._context = context
        self._rounds: list[Round] = []
        self._requests = 0
        self._times = _Times(heard_at, detected_at, decided_at)
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._stopped = False
        self._failed = False
        self._thinking: asyncio.Task[None] | None = None
        self._voice = Voice(
            context.engines.synthesizer,
            speaker=context.speaker,
            name=self.response_id,
            turn=number,
            playout=self.playout,
            emit=self._emit_audio,
            on_failure=self._lose_voice,
            on_fallback=self._change_voice,
            config=context.config,
        )

    @property
    def acted(self) -> bool:
        """Whether a tool has been run, so that the turn cannot simply be taken again."""
        return any(answer.results for answer in self._rounds)

    async def run(self) -> None:
        """Take the turn; returns when the user has heard it."""
        try:
            async with asyncio.TaskGroup() as group:
                self._thinking = group.create_task(self._think(), name=f"{self.response_id} thinking")
                await self._voice.send_all()
        finally:
            # However it ended: a client waits for it. A turn that was stopped says nothing more.
            audio_ms = round(self.playout.sent_ms)
            self._emit(ResponseDone(turn=self.number, response_id=self.response_id, audio_ms=audio_ms))
        if self._voice.sent_at is not None:
            await self._voice.wait_until_played()

    def stop(self) -> Heard:
        """Say nothing more; returns what was heard."""
        self._stopped = True
        self._context.desk.drop()
        return self.playout.heard(_now())

    def memory(self, heard: Heard | None = None) -> list[ChatMessage]:
        """What is to be remembered, if the user has heard ``heard``; None: what there was to hear."""
        if heard is None and self._failed:
            heard = self.playout.heard(_now())
        return remember(self._rounds, heard)

    def metrics(self, *, interrupted: bool) -> TurnMetrics:
        """Where the time went."""
        times, voice = self._times, self._voice
        return TurnMetrics(
            turn=self.number,
            asr_final_ms=_between(times.detected, times.heard),
            end_of_turn_ms=_between(times.heard, times.decided),
            llm_first_token_ms=_between(times.decided or times.heard, times.first_token),
            llm_total_ms=_rounded(times.llm_ms),
            tool_ms=_rounded(times.tool_ms),
            tts_first_audio_ms=_between(voice.asked_at, voice.made_at),
            first_audio_ms=_between(times.detected, voice.sent_at),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            interrupted=interrupted,
        )

    # --- thinking -------------------------------------------------------------------------

    async def _think(self) -> None:
        """Ask the language model until it calls no more tools."""
        limit = self._context.config.max_tool_rounds
        try:
            for number in range(limit + 1):
                # The last time without tools, so that the turn ends with an answer.
                answer = await self._ask(number, self._context.tools if number < limit else ())
                if not answer.calls:
                    break
                await self._run_tools(answer)
        except ParleyError as error:
            self._fail(error)
        # After a failure, what was said so far is still spoken.
        await self._voice.finish()

    async def _ask(self, number: int, tools: Sequence[Tool]) -> Round:
        answer = Round()
        self._rounds.append(answer)
        while True:
            try:
                await self._generate(number, answer, tools)
            except ContextTooLongError:
                # The estimate was too low: forget until it fits.
                if answer.text or not self._context.history.forget_oldest():
                    raise
            else:
                return answer

    async def _generate(self, number: int, answer: Round, tools: Sequence[Tool]) -> None:
        context = self._context
        # Of every attempt its own: the model takes one that was stopped before for stopped for good.
        request_id = f"{self.response_id}-llm{self._requests}"
        self._requests += 1
        messages = [*context.history.messages(), *remember(self._rounds, None)]
        request = GenerateRequest(
            request_id=request_id, messages=messages, tools=list(tools), sampling=context.config.sampling
        )
        segmenter = Segmenter()
        started = _now()
        try:
            async with aclosing(generate(context.engines.chat, request, context.config.deadlines)) as events:
                async for event in events:
                    if self._times.first_token is None:
                        self._times.first_token = _now()
                    if isinstance(event, TextDelta):
                        answer.text += event.text
                        self._emit(
                            ResponseText(turn=self.number, response_id=self.response_id, text=event.text)
                        )
                        for segment in segmenter.push(event.text):
                            await self._voice.say(number, segment)
                    elif isinstance(event, ToolCalled):
                        if tools:
                            answer.calls.append(self._named(event.call))
                    else:
                        self._count(event)
        finally:
            self._times.llm_ms = (self._times.llm_ms or 0.0) + (_now() - started) * 1000
        for segment in segmenter.finish():
            await self._voice.say(number, segment)

    def _named(self, call: ToolCall) -> ToolCall:
        """The call with an id that is unique in the session: models count theirs anew each time."""
        count = sum(len(answer.calls) for answer in self._rounds) + 1
        return msgspec.structs.replace(call, id=f"call-{self.number}-{count}")

    async def _run_tools(self, answer: Round) -> None:
        started = _now()

        async def run(call: ToolCall) -> None:
            answer.results[call.id] = await self._context.desk.call(self.number, call)

        try:
            async with asyncio.TaskGroup() as group:
                for call in answer.calls:
                    group.create_task(run(call), name=call.id)
        finally:
            self._times.tool_ms = (self._times.tool_ms or 0.0) + (_now() - started) * 1000

    def _count(self, completed: Completed) -> None:
        self._prompt_tokens += completed.prompt_tokens
        self._cached_tokens += completed.cached_tokens
        self._completion_tokens += completed.completion_tokens

    # --- telling the client ---------------------------------------------------------------

    def _fail(self, error: ParleyError) -> None:
        self._failed = True
        self._emit(ErrorEvent.of(error))

    def _lose_voice(self, error: ParleyError) -> None:
        """Nothing more can be said: there is no use in thinking on."""
        self._fail(error)
        if self._thinking is not None:
            self._thinking.cancel()

    def _change_voice(self, fallback: TtsFallback) -> None:
        text = (
            f"{fallback.from_engine} ({fallback.reason}); {fallback.to_engine} speaks the rest of the answer"
        )
        self._emit(ErrorEvent.of(TtsFallbackError(text)))

    def _emit(self, event: ServerEvent) -> None:
        if not self._stopped:
            self._context.emit(event, None)

    def _emit_audio(self, event: Audio, samples: NDArray[np.int16]) -> None:
        if not self._stopped:
            self._context.emit(event, samples)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _between(start: float | None, end: float | None) -> float | None:
    """Milliseconds from ``start`` to ``end``, which are seconds."""
    return None if start is None or end is None else _rounded((end - start) * 1000)


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 1)
