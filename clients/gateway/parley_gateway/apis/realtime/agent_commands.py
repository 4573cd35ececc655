"""Commands of the translator to the agent, in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import InvalidInputError, OverloadedError, ParleyError
from parley.timeouts import loop_time
from parley_client.call import Call
from parley_client.errors import CallEndedError, CallLostError
from parley_gateway.apis.settings import RealtimeSettings

_MAX_BYTES = 1_048_576
"""Half a minute of audio, or texts; one event may bring more, and the next one waits then."""
_RETRY_S = 0.02
_RATE_HZ = protocol.INPUT_SAMPLE_RATE

_CommandT = TypeVar("_CommandT")
_CallCommand: TypeAlias = Callable[[Call], Awaitable[None] | None]


class CommandQueue(Generic[_CommandT]):
    """A queue that accepts every command: its producer awaits :meth:`wait_for_room` before the next event."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._waiting: deque[tuple[_CommandT, int]] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, command: _CommandT, size_bytes: int = 0) -> None:
        """Append a command."""
        self._waiting.append((command, size_bytes))
        self._bytes += size_bytes
        self._update()

    async def wait_for_room(self) -> None:
        """Wait until there is room for what the client's next event may bring."""
        await self._room.wait()

    @property
    def is_full(self) -> bool:
        """Whether the producer has to wait."""
        return not self._room.is_set()

    async def wait_for_command(self) -> None:
        """Wait until the queue is not empty."""
        await self._filled.wait()

    async def get(self) -> _CommandT:
        """Remove and return the oldest command, as soon as there is one."""
        await self._filled.wait()
        command, size_bytes = self._waiting.popleft()
        self._bytes -= size_bytes
        self._update()
        return command

    def _update(self) -> None:
        has_room = len(self._waiting) < self._max_count and self._bytes < _MAX_BYTES
        (self._room.set if has_room else self._room.clear)()
        (self._filled.set if self._waiting else self._filled.clear)()


class AgentCommands:
    """Queues commands to the agent and sends them in the order of the calls.

    The reader of the client's events calls :meth:`wait_for_room` after each, so that TCP slows down a client
    that is faster than the agent. Audio that arrives all at once is sent faster than real time, but slowly
    enough for the agent not to drop any.

    Args:
        settings: Bounds.
        on_refused: Called with an error of the client library that concerns one command; the call continues.
    """

    def __init__(self, settings: RealtimeSettings, on_refused: Callable[[ParleyError], None]) -> None:
        self._start: asyncio.Future[protocol.Start] = asyncio.get_running_loop().create_future()
        self._settings = settings
        self._on_refused = on_refused
        self._queue: CommandQueue[_CallCommand] = CommandQueue(settings.waiting)
        self._paced_until_s = 0.0
        self.wait_for_room = self._queue.wait_for_room

    async def run(self, call: Call) -> None:
        """Send commands until cancelled or until the call is over, whose events give the reason."""
        with suppress(CallEndedError, CallLostError):
            while True:
                await self._send(await self._queue.get(), call)

    async def _send(self, command: _CallCommand, call: Call) -> None:
        while True:
            try:
                waiting = command(call)
                if waiting is not None:
                    await waiting
            except OverloadedError:
                await asyncio.sleep(
                    _RETRY_S
                )  # the call's own queue is full; a lost call raises another error
            except InvalidInputError as error:
                self._on_refused(error)
                return
            else:
                return

    @property
    def is_full(self) -> bool:
        """Whether the client's next event has to wait for the agent."""
        return self._queue.is_full

    async def wait_for_start(self) -> protocol.Start:
        """The options of the call, as soon as :meth:`open` was called."""
        start = await asyncio.shield(self._start)
        self._start = asyncio.get_running_loop().create_future()
        return start

    def open(self, start: protocol.Start) -> None:
        """Open the call; again only after the call was refused."""
        self._start.set_result(start)

    def update(self, update: protocol.Update) -> None:
        """Change the session."""
        self._queue.put(lambda call: call.update(update), len(protocol.encode(update)))

    def send_audio(self, samples: NDArray[np.int16]) -> None:
        """Send the user's audio: mono, 16 kHz, int16 [n]."""
        self._queue.put(lambda call: self._send_paced(call, samples), samples.nbytes)

    def commit(self) -> None:
        """End the user's turn."""
        self._queue.put(Call.commit)

    def discard(self) -> None:
        """Discard the user's turn that is not over."""
        self._queue.put(Call.discard)

    def respond(self, system_prompt: str | None, use_tools: bool, must_call: str | None) -> None:
        """Request a response to the history."""
        self._queue.put(
            lambda call: call.ask_response(
                system_prompt=system_prompt, use_tools=use_tools, must_call=must_call
            ),
            len(system_prompt or ""),
        )

    def remember(self, role: Literal["user", "assistant", "system"], text: str) -> None:
        """Add a message to the history."""
        self._queue.put(lambda call: call.remember(role, text), len(text))

    def say(self, text: str) -> None:
        """Speak a text after what is being said."""
        self._queue.put(lambda call: call.say(text), len(text))

    def send_text(self, text: str) -> None:
        """Send a turn of the user as text."""
        self._queue.put(lambda call: call.send_text(text), len(text))

    def answer_tool(self, call_id: str, output: str) -> None:
        """Send the output of a tool; the agent reads a text that is JSON as that."""
        response = protocol.ToolResponse(call_id=call_id, output=output)
        self._queue.put(lambda call: call.respond(response), len(protocol.encode(response)))

    def interrupt(self, response_id: str | None) -> None:
        """Interrupt a response; None: the current one."""
        self._queue.put(lambda call: call.interrupt(response_id))

    def truncate(self, response_id: str, played_ms: int) -> None:
        """Remove from the history what was not played of a response."""
        self._queue.put(lambda call: call.truncate(response_id, played_ms))

    def report_playback(self, response_id: str, played_ms: int) -> None:
        """Report the progress of the playback of a response."""
        self._queue.put(lambda call: call.report_playback(response_id, played_ms))

    def keep_alive(self) -> None:
        """Keep the agent's session of a silent client open."""
        self._queue.put(Call.unmute)

    async def _send_paced(self, call: Call, samples: NDArray[np.int16]) -> None:
        for at in range(0, len(samples), _RATE_HZ):
            piece = samples[at : at + _RATE_HZ]
            now_s = loop_time()
            paced_until_s = max(now_s, self._paced_until_s) + len(piece) / _RATE_HZ / self._settings.pace
            early_s = paced_until_s - now_s - self._settings.burst_s
            if early_s > 0:
                await asyncio.sleep(early_s)
            self._paced_until_s = paced_until_s
            await call.send_audio(piece)
