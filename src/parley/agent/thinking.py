"""Where a turn's words come from: the language model and its tools, or a text to be said as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.fillers import Filler
from parley.agent.generation import generate
from parley.agent.memory import UNREMEMBERED, Round, remember
from parley.agent.prompt import Prompt
from parley.agent.tools import ToolDesk
from parley.engines.base import ChatModel
from parley.errors import ContextTooLongError
from parley.llm.messages import (
    Completed,
    GenerateRequest,
    Priority,
    Sampling,
    TextDelta,
    ToolCall,
    ToolCalled,
)
from parley.protocol import Tool
from parley.tts.segmenter import Segmenter


@dataclass(frozen=True)
class Floor:
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


@dataclass
class Thought:
    """What came of it, and how long it took."""

    rounds: list[Round] = field(default_factory=list)
    first_token_at: float | None = None
    """Seconds of the loop's clock."""
    llm_ms: float | None = None
    tool_ms: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def acted(self) -> bool:
        """Whether a tool has been run, so that the turn cannot simply be taken again."""
        return any(answer.results for answer in self.rounds)

    def count(self, completed: Completed) -> None:
        """Add up what a request has cost."""
        self.prompt_tokens += completed.prompt_tokens
        self.cached_tokens += completed.cached_tokens
        self.completion_tokens += completed.completion_tokens


class Thinker(Protocol):
    """Finds the words of one turn."""

    thought: Thought

    async def think(self, floor: Floor) -> None:
        """Find them all; ``floor`` takes them as they come.

        Raises:
            ParleyError: there are no more to be found; what was said before stays.
        """
        ...


class Recital:
    """A text that is said word for word.

    Args:
        text: what to say.
        remember: whether the language model is to know of it.
    """

    def __init__(self, text: str, *, remember: bool = True) -> None:
        self._text = text
        self._remember = remember
        self.thought = Thought()

    async def think(self, floor: Floor) -> None:
        """Say it."""
        if self._remember:
            self.thought.rounds.append(Round(text=self._text))
        floor.write(self._text)
        segmenter = Segmenter()
        for segment in [*segmenter.push(self._text), *segmenter.finish()]:
            await floor.say(0 if self._remember else UNREMEMBERED, segment)


class Answer:
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
        prompt: Prompt,
        *,
        desk: ToolDesk,
        fillers: Sequence[str] = (),
        sampling: Sampling,
        config: AgentConfig,
    ) -> None:
        self._chat = chat
        self._prompt = prompt
        self._desk = desk
        self._fillers = fillers
        self._sampling = sampling
        self._config = config
        self._requests = 0
        self.thought = Thought()

    async def think(self, floor: Floor) -> None:
        """Ask the language model until it calls no more tools."""
        limit = self._config.max_tool_rounds
        filler = self._make_filler(floor)
        for index in range(limit + 1):
            # The last time without tools, so that the turn ends with an answer.
            answer = await self._ask(index, self._prompt.tools if index < limit else (), floor)
            if not answer.calls:
                break
            await floor.certain.wait()
            silent = not any(answer.text.strip() for answer in self.thought.rounds)
            async with filler.while_waiting() if silent else nullcontext():
                await self._run_tools(floor.number, answer)

    async def _ask(self, index: int, tools: Sequence[Tool], floor: Floor) -> Round:
        answer = Round()
        self.thought.rounds.append(answer)
        while True:
            try:
                await self._generate(index, answer, tools, floor)
            except ContextTooLongError:
                # The estimate was too low: forget until it fits.
                if answer.text or not self._prompt.forget_oldest():
                    raise
            else:
                return answer

    async def _generate(self, index: int, answer: Round, tools: Sequence[Tool], floor: Floor) -> None:
        thought = self.thought
        # Of every attempt its own: the model takes one that was stopped before for stopped for good.
        request_id = f"{floor.name}-llm{self._requests}"
        self._requests += 1
        request = GenerateRequest(
            request_id=request_id,
            messages=[*self._prompt.messages(), *remember(thought.rounds, None)],
            tools=list(tools),
            sampling=self._sampling,
            priority=Priority.ANSWER if floor.certain.is_set() else Priority.SPECULATION,
        )
        segmenter = Segmenter()
        started = _now()
        try:
            async with aclosing(generate(self._chat, request, self._config.deadlines)) as events:
                async for event in events:
                    if thought.first_token_at is None:
                        thought.first_token_at = _now()
                    if isinstance(event, TextDelta):
                        answer.text += event.text
                        floor.write(event.text)
                        for segment in segmenter.push(event.text):
                            await floor.say(index, segment)
                    elif isinstance(event, ToolCalled):
                        if tools:
                            answer.calls.append(self._named(floor.number, event.call))
                    else:
                        thought.count(event)
        finally:
            thought.llm_ms = (thought.llm_ms or 0.0) + (_now() - started) * 1000
        for segment in segmenter.finish():
            await floor.say(index, segment)

    def _named(self, number: int, call: ToolCall) -> ToolCall:
        """The call with an id that is unique in the session: models count theirs anew each time."""
        count = sum(len(answer.calls) for answer in self.thought.rounds) + 1
        return msgspec.structs.replace(call, id=f"call-{number}-{count}")

    def _make_filler(self, floor: Floor) -> Filler:
        phrase = self._fillers[floor.number % len(self._fillers)] if self._fillers else ""
        return Filler(phrase, self._config.filler_after_s, partial(floor.say, UNREMEMBERED))

    async def _run_tools(self, number: int, answer: Round) -> None:
        started = _now()

        async def run(call: ToolCall) -> None:
            answer.results[call.id] = await self._desk.call(number, call)

        try:
            async with asyncio.TaskGroup() as group:
                for call in answer.calls:
                    group.create_task(run(call), name=call.id)
        finally:
            self.thought.tool_ms = (self.thought.tool_ms or 0.0) + (_now() - started) * 1000


def _now() -> float:
    return asyncio.get_running_loop().time()
