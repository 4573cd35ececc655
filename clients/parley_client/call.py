"""One conversation."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.checkpoint import HistoryState
from parley.errors import DeadlineExceededError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE, ToolCancelled, ToolRequest, ToolResponse
from parley.timeouts import hold_task, is_set_within
from parley_client.audio.files import read_speech
from parley_client.call_session import CallSession
from parley_client.call_stats import CallStats
from parley_client.errors import CallEndedError, CallLostError
from parley_client.events import CallEvent
from parley_client.options import Bounds, Deadlines, check_keys, check_size, check_start, check_text
from parley_client.queues import BYTES_PER_MS, EventQueue, SendQueue
from parley_client.reconnection import Reconnect
from parley_client.resumption import CallCheckpoint
from parley_client.tools import CANCEL_GRACE_S, ToolTable
from parley_client.transport import CallStream

_MAX_RUNNING = 64
_PIECE_S = 0.1
"""Of a recording that is spoken."""


class CallTools:
    """Runs the tools that the agent asks for, sends their answers, and cancels tools on request."""

    def __init__(
        self,
        call_id: str,
        table: ToolTable,
        respond: Callable[[ToolResponse], None],
        on_failure: Callable[[ToolRequest, ParleyError], None],
    ) -> None:
        self._call_id = call_id
        self._table = table
        self._respond = respond
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[str, asyncio.Task[None]] = {}
        """Those whose answers the agent waits for, by the id of the call."""

    def on_event(self, event: ToolRequest | ToolCancelled) -> None:
        """Begin a tool, or stop one; never waits. A request repeated while it runs changes nothing."""
        if isinstance(event, ToolCancelled):
            task = self._asked.pop(event.call_id, None)
            if task is not None:
                task.cancel()
        elif event.call_id not in self._asked:
            self._begin(event)

    def _begin(self, request: ToolRequest) -> None:
        if len(self._tasks) >= _MAX_RUNNING:
            busy = {"error": "too many tools are running"}
            self._send(request, ToolResponse(call_id=request.call_id, output=busy, is_error=True))
            return
        name = f"call-{self._call_id}-{request.call_id}"
        self._asked[request.call_id] = hold_task(self._tasks, self._answer(request), name)

    async def _answer(self, request: ToolRequest) -> None:
        send = functools.partial(self._send, request)
        response = await self._table.answer(request, send)
        if self._asked.pop(request.call_id, None) is not None:
            self._send(request, response)

    def _send(self, request: ToolRequest, response: ToolResponse) -> None:
        try:
            self._respond(response)
        except CallEndedError:
            pass  # after the hang-up the server waits for no tool, and its `closed` is still to come
        except ParleyError as error:
            self._on_failure(request, error)

    async def close(self) -> None:
        """Cancel all; a tool that ignores its cancellation goes on unattended."""
        self._asked.clear()
        for task in self._tasks:
            if not task.cancelling():
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * CANCEL_GRACE_S)


class Call:
    """An open conversation: send audio, iterate over events, leave the ``async with`` to hang up.

    Made by :func:`parley_client.connect`. It belongs to the event loop that opened it, and its
    events have one reader.

    Args:
        stream: The open stream; the call owns it.
        call_id: The sequence's correlation id; sequences on later servers have this one, a point and a
            number.
        start: How the session is opened.
        tools: Answers tool requests by itself; None: the application answers them with
            :meth:`respond`.
        reconnect: Where the call goes on when it loses its server; None: nowhere.
        shows_checkpoints: Whether its events contain the checkpoints of the server; with ``reconnect``.
    """

    def __init__(
        self,
        stream: CallStream,
        call_id: str,
        start: protocol.Start,
        *,
        tools: ToolTable | None = None,
        deadlines: Deadlines | None = None,
        bounds: Bounds | None = None,
        reconnect: Reconnect | None = None,
        shows_checkpoints: bool = False,
    ) -> None:
        deadlines, bounds = deadlines or Deadlines(), bounds or Bounds()
        self.id = call_id
        self.stats = CallStats()
        self.output = start.output
        """Whether the agent speaks (`audio`) or writes (`text`), as asked for last."""
        self.greets = False
        """Whether the agent speaks first, as the server said when it opened the call."""
        self.text_tokens = 0
        """The server's limit for a remembered text (``Connected.text_tokens``)."""
        self._tools = CallTools(call_id, tools, self.respond, self._on_tool_failure) if tools else None
        self._deadlines = deadlines
        self._outbox = SendQueue(bounds.audio_ms, bounds.messages, bounds.outage_ms if reconnect else 0)
        self._inbox: EventQueue[CallEvent] = EventQueue(bounds.events, deadlines.consumer_s)
        self._session = CallSession(
            stream,
            call_id=call_id,
            start=start,
            outbox=self._outbox,
            inbox=self._inbox,
            stats=self.stats,
            deadlines=deadlines,
            bounds=bounds,
            on_tool_event=self._tools.on_event if self._tools else None,
            reconnect=reconnect,
            shows_checkpoints=shows_checkpoints,
        )
        self._half_sample = b""
        self.messages = 0
        """Messages that were queued to be sent, without those on playback."""

    # --- open and close -----------------------------------------------------------------------------

    async def open(self) -> protocol.Connected:
        """Send START and wait for ``connected``.

        Raises:
            ParleyError: what the server answered instead.
            DeadlineExceededError: no answer within ``Deadlines.connect_s``.
        """
        self._session.begin()
        try:
            async with asyncio.timeout(self._deadlines.connect_s):
                connected = await self._session.connected
        except TimeoutError as error:
            waited = f"the server did not answer within {self._deadlines.connect_s:g} s"
            raise DeadlineExceededError(waited) from error
        self._session.max_chunk_bytes = connected.max_chunk_ms * BYTES_PER_MS
        self.greets, self.text_tokens = connected.greets, connected.text_tokens
        return connected

    async def hang_up(self) -> protocol.Closed | None:
        """End the call, after what is queued was sent; events can still be read, up to ``closed``.

        Returns:
            The server's ``closed``; None if it did not come within ``Deadlines.close_s`` or the
            call is lost.
        """
        self._session.hang_up()
        await is_set_within(self._session.is_over, self._deadlines.close_s)
        return self._session.closed

    async def aclose(self) -> None:
        """Hang up, drop unread events, and free everything."""
        self._inbox.discard()
        connected = self._session.connected
        try:
            if connected.done() and not connected.cancelled():
                await self.hang_up()
                if not self.is_over:  # no answer within the deadline
                    return
            await self._session.drain()
        finally:
            await self._session.stop()
            if self._tools is not None:
                await self._tools.close()

    @property
    def closed(self) -> protocol.Closed | None:
        """How the server ended the call; None while it lasts, or if it was lost."""
        return self._session.closed

    @property
    def is_over(self) -> bool:
        """Whether no further event will come."""
        return self._session.is_over.is_set()

    @property
    def checkpoint(self) -> CallCheckpoint | None:
        """From what another client could go on with the session; None: there is nothing yet."""
        return self._session.checkpoint

    @property
    def history(self) -> HistoryState | None:
        """The conversation as it was played: what another server would go on from.

        None: the call does not outlive its server (``resume`` of :func:`parley_client.connect`), or the
        server sends no checkpoints.
        """
        return self._session.history

    # --- sending --------------------------------------------------------------------------

    async def send_audio(self, pcm: bytes | NDArray[np.int16]) -> None:
        """Send 16 kHz mono PCM16 of any length, waiting while the send queue is full.

        Raises:
            DeadlineExceededError: no room within ``Deadlines.send_s``; a call that may move leaves its server
                then, and goes on trying for ``Deadlines.resume_s``.
            CallEndedError: the call has ended.
            CallLostError: the call was lost.
        """
        for chunk in self._chunks(pcm):
            await self._put_audio(chunk)

    async def speak(self, recording: Path | str) -> None:
        """Send a recording as fast as it is spoken, and a second of silence, which ends the turn.

        Raises:
            AudioFileError: it cannot be read.
            ParleyError: as :meth:`send_audio`.
        """
        speech = np.append(read_speech(Path(recording)), np.zeros(INPUT_SAMPLE_RATE, np.int16))
        piece = int(_PIECE_S * INPUT_SAMPLE_RATE)
        for start in range(0, len(speech), piece):
            await self.send_audio(speech[start : start + piece])
            await asyncio.sleep(_PIECE_S)

    async def _put_audio(self, chunk: bytes) -> None:
        give_up_s: float | None = None
        while True:
            try:
                await self._outbox.put_audio(chunk, self._deadlines.send_s)
            except DeadlineExceededError as error:
                now = asyncio.get_running_loop().time()
                give_up_s = give_up_s or now + self._deadlines.resume_s
                if now >= give_up_s or not self._session.leave_stalled(error):
                    raise
            else:
                return

    def offer_audio(self, pcm: bytes | NDArray[np.int16]) -> float:
        """Send without waiting: the oldest queued audio gives way.

        Returns:
            How much was dropped (milliseconds); ``stats.dropped_audio_ms`` adds it up.

        Raises:
            CallEndedError: the call has ended.
            CallLostError: the call was lost.
        """
        dropped = sum(self._outbox.offer_audio(chunk) for chunk in self._chunks(pcm)) / BYTES_PER_MS
        self.stats.dropped_audio_ms += dropped
        return dropped

    def send_text(self, text: str) -> None:
        """Send what the user typed: it interrupts the agent, and is answered as if it had been said.

        Raises:
            InvalidMessageError: there are no words in it, or too many.
            OverloadedError: too many messages are waiting to be sent.
            CallEndedError: the call has ended.
            CallLostError: the call was lost.
        """
        check_text("the text", text)
        self._send(protocol.Text(text=text))

    def send_dtmf(self, digits: str) -> None:
        """Send keys that the user pressed: ``#`` ends them, or two seconds without another.

        Raises:
            InvalidMessageError: something else than keys; otherwise as :meth:`send_text`.
        """
        check_keys(digits)
        self._send(protocol.Dtmf(digits=digits))

    def say(self, text: str, *, interruptible: bool = True, remember: bool = True) -> None:
        """Make the agent say this, word for word, after what it is saying now.

        Args:
            text: What is said.
            interruptible: False: what the user says meanwhile is answered afterwards.
            remember: Whether it goes into the history that the language model gets.

        Raises:
            InvalidMessageError: as :meth:`send_text`, and so are the others.
        """
        check_text("the text", text)
        self._send(protocol.Say(text=text, interruptible=interruptible, remember=remember))

    def respond(self, response: protocol.ToolResponse) -> None:
        """Answer a ``tool_request`` (with a tool table this happens by itself)."""
        self._send(response)

    def update(self, update: protocol.Update) -> None:
        """Change the session: ``updated`` follows, or an error.

        Raises:
            InvalidMessageError: a number is out of its range; otherwise as :meth:`send_text`.
        """
        given = {
            name: value
            for name, value in msgspec.structs.asdict(update).items()
            if value is not msgspec.UNSET
        }
        check_start(protocol.Start(**given))
        self._send(update)
        if update.output is not msgspec.UNSET:
            self.output = update.output

    def commit(self) -> None:
        """End the user's turn now, whatever its pauses; all audio sent before belongs to it."""
        self._send(protocol.Commit())

    def discard(self) -> None:
        """Drop what the user has said in the turn that is not over."""
        self._send(protocol.Discard())

    def ask_response(
        self, *, system_prompt: str | None = None, use_tools: bool = True, must_call: str | None = None
    ) -> None:
        """Make the agent answer what the history holds, without waiting for the user.

        Args:
            system_prompt: for this answer only; None: the session's.
            use_tools: whether the language model may call tools for it.
            must_call: name of the tool that it begins with a call of, or ``ANY_TOOL``; None: the session's.
        """
        self._send(protocol.Respond(system_prompt=system_prompt, use_tools=use_tools, must_call=must_call))

    def remember(self, role: Literal["user", "assistant", "system"], text: str) -> None:
        """Add to the history, as if it had been said.

        Raises:
            InvalidMessageError: there are no words in it; otherwise as :meth:`send_text`.
        """
        check_text("the text", text)
        self._send(protocol.Remember(role=role, text=text))

    def interrupt(self, response_id: str | None = None) -> None:
        """Stop this response only; None: what the agent says, and what waits to be said."""
        self._send(protocol.Interrupt(response_id=response_id))

    def truncate(self, response_id: str, played_ms: float) -> None:
        """Correct how much of a response was heard (milliseconds), also after it is over."""
        self._send(protocol.Truncate(response_id=response_id, played_ms=round(played_ms)))

    def mute(self) -> None:
        """Make the server ignore the audio that follows."""
        self._send(protocol.Control(action="mute"))

    def unmute(self) -> None:
        """Make the server process audio again."""
        self._send(protocol.Control(action="unmute"))

    def report_playback(self, response_id: str, played_ms: float) -> None:
        """Report how much of a response has been played (milliseconds)."""
        if self._session.keep_playback(response_id, played_ms):
            return  # reports must not fill the queue of a call that has no server for some time
        self._send(protocol.Playback(response_id=response_id, played_ms=round(played_ms)))

    def _send(self, message: protocol.ClientMessage) -> None:
        raw = protocol.encode(message)
        check_size(raw)
        self._outbox.put_message(raw)
        self.messages += not isinstance(message, protocol.Playback)

    def _chunks(self, pcm: bytes | NDArray[np.int16]) -> list[bytes]:
        """Whole samples, in pieces that the server takes; half a sample waits for its other half."""
        raw = np.asarray(pcm, "<i2").tobytes() if isinstance(pcm, np.ndarray) else bytes(pcm)
        raw = self._half_sample + raw
        whole = len(raw) - len(raw) % 2
        self._half_sample = raw[whole:]
        size = self._session.max_chunk_bytes
        return [raw[at : min(at + size, whole)] for at in range(0, whole, size)]

    # --- receiving ------------------------------------------------------------------------

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> CallEvent:
        """The next event; the iteration ends after ``closed``.

        Raises:
            CallLostError: the stream broke, or the server stopped answering, and no other server took the
                call.
            SlowConsumerError: events were not read in time.
        """
        event = await self._inbox.get()
        if event is not None:
            return event
        if self._session.failure is not None:
            raise self._session.failure
        raise StopAsyncIteration

    def _on_tool_failure(self, request: protocol.ToolRequest, error: ParleyError) -> None:
        self._session.fail(CallLostError(f"tool {request.name} could not be answered: {error}"), error)
