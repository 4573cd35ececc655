"""One session: the translator between a client's events and a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from parley import protocol
from parley.errors import ParleyError, SessionIdleError
from parley_client.call import Call
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.conversation import RealtimeConversation
from parley_gateway.apis.realtime.output_audio import Speaker
from parley_gateway.apis.realtime.server_events import Emit, server_event
from parley_gateway.apis.realtime.session_config import SessionConfig
from parley_gateway.errors import SessionExpiredError
from parley_gateway.gateway import Gateway
from parley_gateway.security.principal import Principal

API = "realtime"


class RealtimeSession:
    """Runs a :class:`RealtimeConversation`: opens its call, tells it the time, and ends.

    Args:
        gateway: The parts of the process.
        principal: Whose session it is.
        config: The session's settings.
        send: Sends a server event.
        speaker: Makes the speaker, of the function that sends events.
        webrtc: Whether audio goes another way than the events.
    """

    def __init__(
        self,
        gateway: Gateway,
        principal: Principal,
        config: SessionConfig,
        send: Callable[[dict[str, Any]], None],
        speaker: Callable[[Emit], Speaker],
        *,
        webrtc: bool = False,
    ) -> None:
        self._gateway = gateway
        self._principal = principal
        self._settings = gateway.settings.realtime
        self._send = send
        self._uplink = AgentCommands(self._settings, self._tell)
        self.conversation = RealtimeConversation(
            config, self._uplink, self._emit, speaker(self._emit), time.monotonic, webrtc=webrtc
        )
        self._rescheduled = asyncio.Event()
        self.closed: protocol.Closed | None = None
        """How the agent has ended the call; None: it has not."""

    @property
    def uplink(self) -> AgentCommands:
        """The way to the agent."""
        return self._uplink

    def begin(self) -> None:
        """The client is connected."""
        self.conversation.begin()

    async def take(self, raw: str | bytes) -> None:
        """Take an event of the client's, and wait until there is room for another."""
        await self.conversation.receive(raw)
        self._rescheduled.set()
        await self._uplink.room()

    def fail(self, error: ParleyError) -> None:
        """Tell the client why the session ends."""
        self.conversation.refuse(error)

    async def run(self) -> None:
        """Hold the session, until the agent ends it.

        Raises:
            SessionIdleError: the client does nothing.
            SessionExpiredError: it has lasted long enough.
            ParleyError: there is no call to be had, or it is lost.
        """
        try:
            async with asyncio.timeout(self._settings.session_s):
                await self._run()
        except TimeoutError as error:
            raise SessionExpiredError(
                f"a session lasts {self._settings.session_s:g} s at most; connect again"
            ) from error

    async def _run(self) -> None:
        limit_s = self._settings.first_event_s
        try:
            async with asyncio.timeout(limit_s):
                start = await self._uplink.start
        except TimeoutError as error:
            raise SessionIdleError(f"nothing was asked for within {limit_s:g} s") from error
        async with self._gateway.calls.open(start, principal=self._principal, api=API) as call:
            self.conversation.opened()
            await read_beside(self._read(call), self._uplink.run(call), self._tell_time(), self._keep_alive())

    async def _read(self, call: Call) -> None:
        async for event in call:
            self.conversation.hear(event)
            self._rescheduled.set()
        self.closed = call.closed

    async def _tell_time(self) -> None:
        while True:
            due = self.conversation.due
            wait_s = None if due is None else max(0.0, due - time.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._rescheduled.wait()
            self._rescheduled.clear()
            self.conversation.tick()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._settings.keep_alive_s)
            self._uplink.keep_alive()

    def _tell(self, error: ParleyError) -> None:
        self.conversation.hear(protocol.ErrorEvent.of(error))

    def _emit(self, kind: str, /, **fields: Any) -> None:
        self._send(server_event(kind, fields))


async def read_beside(reading: Awaitable[None], *helpers: Coroutine[Any, Any, None]) -> None:
    """Await ``reading``, and run ``helpers`` meanwhile; one of them that fails ends it at once.

    Args:
        reading: Ends when there is nothing more to do.
        *helpers: Whatever has to go on until then; to return earlier is no failure.

    Raises:
        Exception: what ``reading`` or the first helper to fail has raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(helper) for helper in helpers]
            await reading
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
