"""One session: a conversation with its call, its timers and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.asr.messages import TranscribeRequest
from parley.errors import InvalidInputError, ParleyError
from parley.languages import without_region
from parley.llm.messages import LlmEvent, Priority, Sampling
from parley.timeouts import is_set_within
from parley_client.call import Call
from parley_gateway.apis.openai.rest import LANGUAGE_MODELS
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.conversation import RealtimeConversation
from parley_gateway.apis.realtime.output_audio import AudioOutput
from parley_gateway.apis.realtime.resumption import ResumedSession
from parley_gateway.apis.realtime.server_events import Emit
from parley_gateway.apis.realtime.session_config import SessionConfig
from parley_gateway.apis.realtime.side_responses import SideRequest
from parley_gateway.apis.sessions.kept import KeptSession
from parley_gateway.errors import SessionExpiredError
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.principal import Principal
from parley_gateway.websocket import REGULAR_REASONS, IdleLimit
from parley_stages import Generation, Transcriber


class RealtimeSession:
    """Runs a :class:`RealtimeConversation`: opens its call, runs its timers, and ends it.

    ``limiter`` bounds responses outside the conversation, together with those of other sessions.
    """

    def __init__(
        self,
        gateway: Gateway,
        principal: Principal,
        config: SessionConfig,
        emit: Emit,
        speaker: AudioOutput,
        *,
        limiter: ModelLimiter,
        webrtc: bool = False,
        resumed: ResumedSession | None = None,
    ) -> None:
        self._gateway = gateway
        self._principal = principal
        self._limiter = limiter
        self._id: str = config.body["id"]
        self._resumed = resumed
        self._kept: KeptSession | None = None
        self._emit = emit
        self._settings = gateway.settings.realtime
        self.commands = AgentCommands(self._settings, self._on_refused)
        self.conversation = RealtimeConversation(
            config,
            self.commands,
            self._send,
            speaker,
            time.monotonic,
            write=self._write,
            transcribe=self._transcribe,
            webrtc=webrtc,
        )
        self._config = config
        self._rescheduled = asyncio.Event()
        self.has_opened = False
        """Whether the agent's call was opened."""
        self.closed: protocol.Closed | None = None
        """The agent's last event; None: the agent has not ended the call."""
        self.has_hung_up = False
        """Whether the client has ended the session, and not only this connection."""

    def begin(self) -> None:
        """Send the first events, when the client is connected."""
        if self._resumed is None:
            self.conversation.begin()
        else:
            self.conversation.resume(self._resumed)

    def _send(self, kind: str, /, **fields: Any) -> None:
        self._emit(kind, **fields)
        if self._kept is not None and not kind.endswith(".delta"):
            self._kept.on_change()

    async def on_client_event(self, raw: str | bytes, emit: Emit | None = None) -> None:
        """Handle an event of the client, and wait until there is room for another.

        ``emit`` gets the error where it is refused; None: all that listen do.
        """
        await self.conversation.on_client_event(raw, emit)
        self._rescheduled.set()
        await self.commands.wait_for_room()

    async def run(self) -> None:
        """Run until the agent ends the session; raises its timeouts and the error of the call."""
        try:
            await self._run()
        finally:
            await self.conversation.close()

    async def _run(self) -> None:
        limit_s = self._settings.session_s
        async with session_deadline(min(limit_s, self._resumed.left_s) if self._resumed else limit_s):
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
        async with self._gateway.calls.open(
            start, principal=self._principal, api="realtime", shows_checkpoints=True
        ) as call:
            self.has_opened = True
            self.conversation.on_call_opened(call.text_tokens)
            helpers = [self.commands.run(call), self._run_timers(), self._keep_alive()]
            kept = self._kept = self._keep(call)
            if kept is None:
                await run_with_helpers(self._read(call), *helpers)
                return
            try:
                await run_with_helpers(self._read(call), *helpers, kept.run())
            finally:
                await kept.finish(is_over=self._is_over)

    def _keep(self, call: Call) -> KeptSession | None:
        return self._gateway.kept.keep(
            call,
            lambda _: None,
            session_id=self._id,
            owner=self._principal,
            claim=self._resumed.claim if self._resumed else None,
            api_state=lambda: msgspec.json.encode(self.conversation.state()),
        )

    @property
    def _is_over(self) -> bool:
        """Whether the conversation is over, and not only this connection."""
        closed = self.closed
        return self.has_hung_up or (
            closed is not None
            and closed.reason in REGULAR_REASONS
            and not self._gateway.calls.going_away.is_set()
        )

    async def _write(self, request: SideRequest) -> AsyncGenerator[LlmEvent, None]:
        """The language model's answer to a request outside the conversation."""
        if "chat" not in self._principal.scopes:
            self._principal.check_agent("")  # no agent's own prompt is part of it
        limit = self._gateway.settings.stages.answer_tokens
        with self._limiter.lease(self._principal) as server:
            generation = Generation(server, model=LANGUAGE_MODELS[0], cache_salt=self._principal.cache_salt)
            async with generation as chat:
                answer = chat.answer(
                    request.messages,
                    tools=request.tools,
                    must_call=request.must_call,
                    sampling=Sampling(max_tokens=request.max_tokens or limit),
                    priority=Priority.BACKGROUND,
                )
                async with answer:
                    async for event in answer:
                        yield event

    async def _transcribe(self, samples: NDArray[np.int16]) -> str:
        """What is said in the audio of an item."""
        transcription, limit_s = self._config.transcription, self._gateway.settings.stages.transcribe_s
        language = (transcription.language if transcription else None) or ""
        request = TranscribeRequest(language=without_region(language))
        with self._limiter.lease(self._principal) as server:
            async with Transcriber(server, timeout_s=limit_s) as recordings:
                return (await recordings.transcribe(samples, request)).text

    async def _read(self, call: Call) -> None:
        async for event in call:
            if isinstance(event, protocol.Checkpoint):
                if self._kept is not None:
                    await self._kept.on_checkpoint()
                continue
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
