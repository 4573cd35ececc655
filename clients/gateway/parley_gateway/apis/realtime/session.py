"""One session: a conversation with its call, its timers and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from parley import protocol
from parley.errors import InvalidInputError, ParleyError
from parley.timeouts import is_set_within
from parley_client.call import Call
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.conversation import RealtimeConversation
from parley_gateway.apis.realtime.output_audio import AudioOutput
from parley_gateway.apis.realtime.server_events import Emit
from parley_gateway.apis.realtime.session_config import SessionConfig
from parley_gateway.errors import SessionExpiredError
from parley_gateway.gateway import Gateway
from parley_gateway.security.principal import Principal
from parley_gateway.websocket import IdleLimit


class RealtimeSession:
    """Runs a :class:`RealtimeConversation`: opens its call, runs its timers, and ends it."""

    def __init__(
        self,
        gateway: Gateway,
        principal: Principal,
        config: SessionConfig,
        emit: Emit,
        speaker: AudioOutput,
        *,
        webrtc: bool = False,
    ) -> None:
        self._gateway = gateway
        self._principal = principal
        self._settings = gateway.settings.realtime
        self.commands = AgentCommands(self._settings, self._on_refused)
        self.conversation = RealtimeConversation(
            config, self.commands, emit, speaker, time.monotonic, webrtc=webrtc
        )
        self._rescheduled = asyncio.Event()
        self.has_opened = False
        """Whether the agent's call was opened."""
        self.closed: protocol.Closed | None = None
        """The agent's last event; None: the agent has not ended the call."""

    async def on_client_event(self, raw: str | bytes) -> None:
        """Handle an event of the client, and wait until there is room for another."""
        await self.conversation.on_client_event(raw)
        self._rescheduled.set()
        await self.commands.wait_for_room()

    async def run(self) -> None:
        """Run until the agent ends the session; raises its timeouts and the error of the call."""
        async with session_deadline(self._settings.session_s):
            first_event = IdleLimit(self._settings.first_event_s, "event")
            while not self.has_opened:
                start = await first_event.wait_for(self.commands.wait_for_start())
                try:
                    await self._run_call(start)
                except InvalidInputError as error:
                    if self.has_opened or not self.conversation.on_settings_refused(error):
                        raise
                    self._gateway.metrics.on_call_failed(error, has_opened=False)

    async def _run_call(self, start: protocol.Start) -> None:
        async with self._gateway.calls.open(start, principal=self._principal, api="realtime") as call:
            self.has_opened = True
            self.conversation.on_call_opened(call.text_tokens)
            await run_with_helpers(
                self._read(call), self.commands.run(call), self._run_timers(), self._keep_alive()
            )

    async def _read(self, call: Call) -> None:
        async for event in call:
            self.conversation.on_agent_event(event)
            self._rescheduled.set()
        self.closed = call.closed

    async def _run_timers(self) -> None:
        while True:
            due = self.conversation.due
            wait_s = None if due is None else max(0.0, due - time.monotonic())
            await is_set_within(self._rescheduled, wait_s)
            self._rescheduled.clear()
            self.conversation.tick()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._settings.keep_alive_s)
            self.commands.keep_alive()

    def _on_refused(self, error: ParleyError) -> None:
        self.conversation.on_agent_event(protocol.ErrorEvent.of(error))


@asynccontextmanager
async def session_deadline(limit_s: float) -> AsyncIterator[None]:
    """Raise SessionExpiredError in the body when the session has lasted ``limit_s``."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise SessionExpiredError(f"a session lasts {limit_s:g} s at most; connect again") from error


async def run_with_helpers(reading: Awaitable[None], *helpers: Coroutine[Any, Any, None]) -> None:
    """Await ``reading`` and run ``helpers`` meanwhile; the first failure of any ends them all.

    A helper that returns early ends nothing. The failure is raised by itself, not as a group.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(helper) for helper in helpers]
            await reading
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
