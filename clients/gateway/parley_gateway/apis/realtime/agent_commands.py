"""The way to the agent: what the translator wants, one thing after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import InvalidInputError, OverloadedError, ParleyError
from parley_client.call import Call
from parley_client.errors import CallEndedError, CallLostError
from parley_gateway.apis.realtime.command_queue import CommandQueue
from parley_gateway.apis.realtime.settings import RealtimeSettings

_Wish: TypeAlias = Callable[[Call], Awaitable[None] | None]
_RETRY_S = 0.02
_RATE = protocol.INPUT_SAMPLE_RATE


class AgentCommands:
    """The way to the agent: nothing waits, and everything arrives in the order of the calls, at its pace.

    Commands wait in a queue. The reader of the client's events calls :meth:`room` after each, so that a
    client that is faster than the agent waits in the network. Audio that comes all at once is passed on
    faster than it was spoken, but not so fast that the agent would have to drop some.

    Args:
        settings: Bounds.
        refused: Takes what the client library refuses; the call goes on.
    """

    def __init__(self, settings: RealtimeSettings, refused: Callable[[ParleyError], None]) -> None:
        self.start: asyncio.Future[protocol.Start] = asyncio.get_running_loop().create_future()
        """How the call is to be opened."""
        self._settings = settings
        self._refused = refused
        self._wishes: CommandQueue[_Wish] = CommandQueue(settings.waiting)
        self._heard_by = 0.0

    async def room(self) -> None:
        """Wait until there is room for what the client's next event may bring."""
        await self._wishes.room()

    async def run(self, call: Call) -> None:
        """Do what is wished, until cancelled, or until the call is over: its events tell how that came.

        Raises:
            ParleyError: the call takes nothing any more.
        """
        with suppress(CallEndedError, CallLostError):
            while True:
                await self._do(await self._wishes.take(), call)

    async def _do(self, wish: _Wish, call: Call) -> None:
        while True:
            try:
                done = wish(call)
                if done is not None:
                    await done
            except OverloadedError:
                await asyncio.sleep(_RETRY_S)  # the call's own queue is full; a call that is lost says so
            except InvalidInputError as error:
                self._refused(error)
                return
            else:
                return

    # --- the port ---------------------------------------------------------------------------

    def open(self, start: protocol.Start) -> None:
        """Open the call."""
        if not self.start.done():
            self.start.set_result(start)

    def update(self, update: protocol.Update) -> None:
        """Change the session."""
        self._wish(lambda call: call.update(update), len(protocol.encode(update)))

    def audio(self, samples: NDArray[np.int16]) -> None:
        """The user's audio: mono, 16 kHz, int16 [n]."""
        self._wish(lambda call: self._send(call, samples), samples.nbytes)

    def commit(self) -> None:
        """The user's turn is over."""
        self._wish(Call.commit)

    def discard(self) -> None:
        """Forget the user's turn that is not over."""
        self._wish(Call.discard)

    def respond(self, system_prompt: str | None, use_tools: bool) -> None:
        """Answer what the history holds."""
        self._wish(
            lambda call: call.ask_response(system_prompt=system_prompt, use_tools=use_tools),
            len(system_prompt or ""),
        )

    def remember(self, role: Literal["user", "assistant", "system"], text: str) -> None:
        """Add to the history."""
        self._wish(lambda call: call.remember(role, text), len(text))

    def answer_tool(self, call_id: str, output: Any) -> None:
        """What a tool returned."""
        response = protocol.ToolResponse(call_id=call_id, output=output)
        self._wish(lambda call: call.respond(response), len(protocol.encode(response)))

    def interrupt(self, response_id: str | None) -> None:
        """Stop speaking."""
        self._wish(lambda call: call.interrupt(response_id))

    def truncate(self, response_id: str, played_ms: int) -> None:
        """Only so much of it was heard."""
        self._wish(lambda call: call.truncate(response_id, played_ms))

    def played(self, response_id: str, played_ms: int) -> None:
        """So much of it has been heard so far."""
        self._wish(lambda call: call.report_playback(response_id, played_ms))

    def keep_alive(self) -> None:
        """The client is there."""
        self._wish(Call.unmute)

    def _wish(self, wish: _Wish, size: int = 0) -> None:
        self._wishes.put(wish, size)

    async def _send(self, call: Call, samples: NDArray[np.int16]) -> None:
        for at in range(0, len(samples), _RATE):
            piece = samples[at : at + _RATE]
            now = asyncio.get_running_loop().time()
            heard_by = max(now, self._heard_by) + len(piece) / _RATE / self._settings.pace
            early_s = heard_by - now - self._settings.burst_s
            if early_s > 0:
                await asyncio.sleep(early_s)
            self._heard_by = heard_by
            await call.send_audio(piece)
