"""Callers who ask one question after the other, and call again when they have lost a call."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from parley.agent.config import AgentConfig
from parley.errors import ParleyError
from parley.protocol import ErrorEvent, ResponseDone, ResponseText
from parley.timeouts import first_to_end
from parley_client.audio.files import Pcm
from parley_client.audio.microphone import PacedMicrophone
from parley_client.call import Call
from parley_client.errors import ClientError
from parley_client.events import CallEvent

TURN_S = 25.0
"""Seconds after which a turn without an answer is given up: more than the agent waits for any model."""
_DEFAULTS = AgentConfig()
APOLOGIES = {_DEFAULTS.apology, _DEFAULTS.acted_apology, _DEFAULTS.deaf_apology}
"""What the agent says instead of an answer. In a long call the tiny language model says "Sorry" of itself."""
_PAUSE_S = 0.5
_LOOK_S = 0.1

Open: TypeAlias = Callable[[], AbstractAsyncContextManager[Call]]
"""Opens a call."""
End: TypeAlias = Literal["", "answered", "apology", "error", "lost", "nothing"]
"""How a turn ended. Empty: it is under way. ``nothing``: neither with an answer nor with an error."""


@dataclass
class Turn:
    """One question."""

    asked: float
    """When it was begun, on the clock of :func:`time.time`; so for the next one."""
    ended: float = 0.0
    """0: it is under way."""
    end: End = ""
    codes: set[str] = field(default_factory=set)
    """Of the errors that the caller received meanwhile."""
    events: Sequence[CallEvent] = ()
    """All that the caller received meanwhile."""

    @property
    def answered(self) -> bool:
        """Whether there was an answer, aloud and to its end."""
        return self.end == "answered"


@dataclass
class Loss:
    """A call that ended although the caller did not hang up."""

    at: float
    reason: str


@asynccontextmanager
async def calling(callers: Iterable[Caller]) -> AsyncGenerator[None]:
    """Let callers ask one question after the other until this is left.

    Raises:
        ExceptionGroup: a caller failed otherwise than by a lost call.
        ParleyError: what is done meanwhile failed.
    """
    failure: ParleyError | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(caller.run(), name=f"caller {caller.number}") for caller in callers]
        try:
            yield
        except ParleyError as error:
            failure = error  # not in a group
        finally:
            for task in tasks:
                task.cancel()
    if failure is not None:
        raise failure


async def until_all_answered(callers: Sequence[Caller], limit_s: float, since: float = 0.0) -> None:
    """Wait until every caller has had an answer to a question asked after ``since``.

    Raises:
        ClientError: one has had none within the limit (seconds).
    """
    end = time.monotonic() + limit_s
    while not all(first_answer(caller.turns, since) for caller in callers):
        if time.monotonic() > end:
            raise ClientError(f"not all calls were answered within {limit_s:g} s")
        await asyncio.sleep(_LOOK_S)


def first_answer(turns: Sequence[Turn], since: float) -> float:
    """When a question asked after ``since`` was answered for the first time; 0: not yet."""
    return next((turn.ended for turn in turns if turn.answered and turn.asked > since), 0.0)


class Caller:
    """Asks until it is cancelled; callers with higher numbers begin later."""

    def __init__(self, number: int, connect: Open, question: Pcm) -> None:
        self.number = number
        self.turns: list[Turn] = []
        self.losses: list[Loss] = []
        self._connect = connect
        self._question = question
        self._events: list[CallEvent] = []
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Call, and call again; cancel to hang up."""
        while True:
            try:
                await self._call()
            except ParleyError as error:
                self._lose(f"{type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE_S)

    def on_event(self, event: CallEvent, now: float) -> None:
        """An event has come at ``now`` (seconds of :func:`time.time`); for subclasses."""

    def _lose(self, reason: str) -> None:
        self.losses.append(Loss(time.time(), reason))
        if self.turns and not self.turns[-1].end:
            self.turns[-1].end, self.turns[-1].ended = "lost", time.time()

    async def _call(self) -> None:
        async with self._connect() as call:
            self._events = []
            microphone = PacedMicrophone(call.send_audio)
            microphone.restart()
            async with first_to_end(self._listen(call), microphone.run(), self._ask(microphone)) as tasks:
                for task in tasks:
                    if task.done():
                        task.result()
            self._lose(f"closed: {call.closed.reason if call.closed else 'without a word'}")

    async def _listen(self, call: Call) -> None:
        async for event in call:
            self.on_event(event, time.time())
            async with self._changed:
                self._events.append(event)
                self._changed.notify_all()

    async def _ask(self, microphone: PacedMicrophone) -> None:
        await asyncio.sleep(0.2 * self.number)
        while True:
            turn = Turn(time.time())
            self.turns.append(turn)
            mark = len(self._events)
            await microphone.speak(self._question).ended.wait()
            # What came before may be the late answer to an earlier question.
            asked = len(self._events)
            answers = await self._answers_from(asked)
            turn.events = self._events[mark:]
            turn.codes = {event.code for event in self._events[asked:] if isinstance(event, ErrorEvent)}
            if any(text not in APOLOGIES for text in answers):
                turn.end = "answered"
            elif answers:
                turn.end = "apology"
            else:
                turn.end = "error" if turn.codes else "nothing"
            turn.ended = time.time()
            await asyncio.sleep(_PAUSE_S)

    async def _answers_from(self, mark: int) -> list[str]:
        """What was said aloud in answer to the question, as soon as there is something."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TURN_S), self._changed:
                await self._changed.wait_for(lambda: self._spoken(mark))
        return self._spoken(mark)

    def _spoken(self, mark: int) -> list[str]:
        texts: dict[str, str] = {}
        spoken = []
        for event in self._events[mark:]:
            if isinstance(event, ResponseText):
                texts[event.response_id] = texts.get(event.response_id, "") + event.text
            elif isinstance(event, ResponseDone) and event.audio_ms:
                spoken.append(texts.get(event.response_id, "").strip())
        return spoken
