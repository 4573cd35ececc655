"""A caller who asks one question again and again, and calls again when the call is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from parley.agent.config import AgentConfig
from parley.errors import ParleyError
from parley.launcher.options import ROOT
from parley.protocol import ErrorEvent, ResponseDone, ResponseText, TurnOptions
from parley_client import Backoff, connect
from parley_client.audio.files import read_speech
from parley_client.audio.microphone import PacedMicrophone
from parley_client.call import Call
from parley_client.demo_tools import DEMO_TOOLS
from parley_client.events import CallEvent

QUESTION = ROOT / "tests/data/conversation/08-time.wav"
TURN_S = 25.0
"""A turn without an answer is given up after so many seconds."""
_APOLOGIES = {AgentConfig.apology, AgentConfig.acted_apology, AgentConfig.deaf_apology}
"""What the agent says instead of an answer. In a long call the tiny language model says "Sorry" of itself."""
_PAUSE_S = 0.5
_OPENING = Backoff(attempts=8)


@dataclass
class Turn:
    """One question."""

    asked: float
    """When it was begun, on the clock of :func:`time.time`; so for the next one."""
    ended: float = 0.0
    """0: it is under way."""
    answered: bool = False
    """In full, and aloud."""
    codes: set[str] = field(default_factory=set)
    """Of the errors that the caller was told meanwhile."""


@dataclass
class Loss:
    """A call that ended although the caller did not hang up."""

    at: float
    reason: str


@asynccontextmanager
async def calling(address: str, numbers: Iterable[int]) -> AsyncGenerator[list[Caller]]:
    """Callers who ask one question after the other until this is left.

    Args:
        address: ``host:port`` of gRPC.
        numbers: one for each caller.

    Raises:
        ExceptionGroup: a caller failed otherwise than by a lost call.
    """
    async with asyncio.TaskGroup() as group:
        callers = [Caller(address, number) for number in numbers]
        tasks = [group.create_task(caller.run()) for caller in callers]
        try:
            yield callers
        finally:
            for task in tasks:
                task.cancel()


class Caller:
    """Asks for ever; what came of it is in :attr:`turns` and :attr:`losses`."""

    def __init__(self, address: str, number: int) -> None:
        self._address = address
        self.number = number
        self.turns: list[Turn] = []
        self.losses: list[Loss] = []
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

    def _lose(self, reason: str) -> None:
        self.losses.append(Loss(time.time(), reason))
        if self.turns and not self.turns[-1].ended:
            self.turns[-1].ended = time.time()

    async def _call(self) -> None:
        calling = connect(
            self._address, tools=DEMO_TOOLS, turn=TurnOptions(eagerness="normal"), retry=_OPENING
        )
        async with calling as call:
            self._events = []
            microphone = PacedMicrophone(call.send_audio)
            microphone.restart()
            tasks = [
                asyncio.create_task(work)
                for work in (self._listen(call), microphone.run(), self._ask(microphone))
            ]
            try:
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in ended:
                task.result()
            self._lose(f"closed: {call.closed.reason if call.closed else 'without a word'}")

    async def _listen(self, call: Call) -> None:
        async for event in call:
            async with self._changed:
                self._events.append(event)
                self._changed.notify_all()

    async def _ask(self, microphone: PacedMicrophone) -> None:
        question = read_speech(QUESTION)
        await asyncio.sleep(0.2 * self.number)
        while True:
            turn = Turn(time.time())
            self.turns.append(turn)
            await microphone.speak(question).ended.wait()
            # What came before may be the late answer to an earlier question.
            mark = len(self._events)
            answers = await self._answers_from(mark)
            turn.codes = {event.code for event in self._events[mark:] if isinstance(event, ErrorEvent)}
            turn.answered = any(text not in _APOLOGIES for text in answers)
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
