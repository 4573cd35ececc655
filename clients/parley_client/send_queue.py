"""What a call has yet to send: audio bounded by its length, messages by their number."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from parley.errors import DeadlineExceededError, OverloadedError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE
from parley_client.errors import CallEndedError

BYTES_PER_MS = INPUT_SAMPLE_RATE * 2 // 1000


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """The content of one request."""

    message: bytes = b""
    audio: bytes = b""
    end: bool = False


class SendQueue:
    """A bounded queue between the application and the task that sends.

    Order is kept. A message and the audio directly behind it leave together, because every
    request costs the server a scheduling round.

    Args:
        audio_ms: Room for audio (milliseconds).
        messages: Room for messages.
    """

    def __init__(self, audio_ms: int, messages: int) -> None:
        self._room = audio_ms * BYTES_PER_MS
        self._max_messages = messages
        self._waiting: deque[OutgoingMessage] = deque()
        self._audio_bytes = 0
        self._messages = 0
        self._ended: ParleyError | None = None
        self._changed = asyncio.Event()

    def put_message(self, message: bytes) -> None:
        """Queue a message.

        Raises:
            OverloadedError: too many are waiting.
            CallEndedError: the call has ended.
        """
        self._check_open()
        if self._messages >= self._max_messages:
            raise OverloadedError(f"{self._messages} messages are waiting to be sent")
        self._messages += 1
        self._push(OutgoingMessage(message=message))

    async def put_audio(self, audio: bytes, timeout_s: float) -> None:
        """Queue a chunk, waiting for room.

        Raises:
            DeadlineExceededError: no room within ``timeout_s``.
            CallEndedError: the call has ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._is_full(len(audio)):
                    self._check_open()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise DeadlineExceededError(f"the server took no audio for {timeout_s:g} s") from error
        self._check_open()
        self._push_audio(audio)

    def offer_audio(self, audio: bytes) -> int:
        """Queue a chunk now, dropping the oldest audio if there is no room.

        Returns:
            How many bytes were dropped.
        """
        self._check_open()
        dropped = 0
        while self._is_full(len(audio)):
            oldest = next(parcel for parcel in self._waiting if parcel.audio)
            self._waiting.remove(oldest)
            self._audio_bytes -= len(oldest.audio)
            dropped += len(oldest.audio)
        self._push_audio(audio)
        return dropped

    def end(self, reason: ParleyError | None = None) -> None:
        """Take no more. The first call counts.

        Args:
            reason: Raised to whoever still puts; what is queued is thrown away. None: what is
                queued is sent before the end mark.
        """
        if self._ended is not None:
            return
        if reason is not None:
            self._waiting.clear()
            self._audio_bytes = self._messages = 0
        self._ended = reason or CallEndedError("the call has ended")
        self._push(OutgoingMessage(end=True))

    async def get(self) -> OutgoingMessage:
        """The next request's content, at last the end mark (the caller owns the deadline)."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        parcel = self._waiting.popleft()
        if parcel.message:
            self._messages -= 1
            if self._waiting and self._waiting[0].audio:
                parcel = OutgoingMessage(message=parcel.message, audio=self._waiting.popleft().audio)
        self._audio_bytes -= len(parcel.audio)
        self._changed.set()
        return parcel

    @property
    def queued_audio_ms(self) -> float:
        """Audio that waits (milliseconds)."""
        return self._audio_bytes / BYTES_PER_MS

    def _is_full(self, size: int) -> bool:
        return self._audio_bytes > 0 and self._audio_bytes + size > self._room

    def _check_open(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _push_audio(self, audio: bytes) -> None:
        self._audio_bytes += len(audio)
        self._push(OutgoingMessage(audio=audio))

    def _push(self, parcel: OutgoingMessage) -> None:
        self._waiting.append(parcel)
        self._changed.set()
