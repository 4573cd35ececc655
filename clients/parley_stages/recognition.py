"""A recogniser alone: a stream of audio to speech activity and texts.

::

    async with open_server("127.0.0.1:8001") as server, Recognition(server) as stream:
        stream.send(pcm)      # as it comes, pieces of any length
        stream.end()          # no more comes
        async for event in stream:
            if isinstance(event, TranscriptEvent) and event.is_final:
                print(event.text)
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrOptions, AsrReply, SpeechStoppedEvent, TranscriptEvent
from parley.audio.buffer import AudioPiece
from parley.engines.recognizers import Mark, ModelRecognizer, RecognizerFeed, retry_if_busy
from parley.engines.registry import recognizers_for
from parley.errors import DeadlineExceededError, InvalidInputError, OverloadedError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE
from parley.timeouts import with_timeout
from parley.triton.grpc_client import GrpcModelClient
from parley_client.errors import CallEndedError, ClientError, StreamLostError
from parley_client.queues import EventQueue
from parley_stages.recognition_types import (
    FinalizedEvent,
    RecognitionEvent,
    RecognitionLimits,
    read_samples,
)
from parley_stages.server import StageServer
from parley_stages.synthesis import AUTO
from parley_stages.transcription import find_loaded


def stream_lost(error: ParleyError) -> StreamLostError:
    """The end of a stream, after a failure that no request can mend."""
    lost = StreamLostError(f"the stream of audio broke: {error} ({error.code})")
    lost.__cause__ = error
    return lost


_PER_S = INPUT_SAMPLE_RATE
_MAX_POLL_S = 0.064
_MAX_CHUNK_MS = 500


class Recognition:
    """One stream of speech; enter it, send audio, and iterate it in one task for its events.

    Audio that is sent while the model is busy goes to it with its next request. Leaving the stream ends it at
    the model in any case.

    Args:
        server: where the recogniser is.
        options: of the stream.
        model: ``parakeet_tdt``, ``nemotron_streaming``, ``moonshine``, ``whisper`` or ``sherpa_onnx``;
            ``auto``: the first of
            :func:`parley.engines.registry.recognizers_for` that the server has.
        limits: of size and time.
        chunk_ms: audio of one request at least (milliseconds): more makes events later, and costs the server
            less. What was sent before :meth:`finalize` or :meth:`end` waits for nothing. 0: as the model
            takes it, 32 ms. At most 500.

    Raises:
        InvalidInputError: ``chunk_ms`` is out of range.
    """

    def __init__(
        self,
        server: StageServer,
        options: AsrOptions | None = None,
        *,
        model: str = AUTO,
        limits: RecognitionLimits | None = None,
        chunk_ms: int = 0,
    ) -> None:
        if not 0 <= chunk_ms <= _MAX_CHUNK_MS:
            raise InvalidInputError(f"chunk_ms is {chunk_ms}; it must be 0 to {_MAX_CHUNK_MS}")
        self._limits = limits or RecognitionLimits()
        self._options = options or AsrOptions()
        self._server = server
        self._port = GrpcModelClient(lambda: server.channel)
        self._name = model
        self._model: ModelRecognizer | None = None
        self._feed: RecognizerFeed[None] = RecognizerFeed(
            int(self._limits.audio_s * _PER_S), max_poll_s=_MAX_POLL_S, least=chunk_ms * _PER_S // 1000
        )
        self._buffer = self._feed.buffer
        self._events: EventQueue[RecognitionEvent] = EventQueue(self._limits.events, self._limits.consumer_s)
        self._room = asyncio.Event()
        self._owed: set[int] = set()  # utterances that stopped and have no final text
        self._ended = self._closing = False
        self._failure: ParleyError | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        """The recogniser's name; ``auto`` until the stream is open."""
        return self._name

    @property
    def waiting_s(self) -> float:
        """Audio that was sent and not heard yet (seconds)."""
        return len(self._buffer) / _PER_S

    def send(self, audio: bytes | NDArray[np.int16]) -> None:
        """Take the next piece; never waits.

        Args:
            audio: 16 kHz mono, any length: PCM16 little endian, or int16 ``[n]``.

        Raises:
            InvalidAudioError: an odd number of bytes.
            OverloadedError: too much waits already; nothing of the piece was taken.
            CallEndedError: the stream has ended.
            ParleyError: what it failed with.
        """
        self._check_open()
        samples = read_samples(audio)
        if len(self._buffer) + len(samples) > self._buffer.capacity:
            raise OverloadedError(f"{self.waiting_s:.1f} s of audio are waiting to be heard already")
        self._feed.append(samples, 0.0)

    async def send_all(self, audio: bytes | NDArray[np.int16]) -> None:
        """Take a piece, waiting for room; for audio that comes faster than it is spoken.

        Raises:
            DeadlineExceededError: there was no room in time.
            ParleyError: as :meth:`send`.
        """
        samples = read_samples(audio)
        step = self._buffer.capacity // 2
        for start in range(0, len(samples), step):
            piece = samples[start : start + step]
            await with_timeout(self._wait_for_room(len(piece)), self._limits.room_s, "the recogniser")
            self.send(piece)

    def finalize(self) -> bool:
        """Write down now what was sent so far; :class:`FinalizedEvent` follows. Never waits.

        Returns:
            Whether that event is one more; False: nothing was sent since the last one that is still to come.

        Raises:
            CallEndedError: the stream has ended.
            ParleyError: what it failed with.
        """
        self._check_open()
        if self._feed.marked:
            return False
        self._feed.mark(None)
        return True

    def end(self) -> None:
        """No more audio comes; what was sent is written down, and then the events end."""
        self._ended = True
        self._feed.wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecognitionEvent:
        """The next event.

        Raises:
            StreamLostError: the stream broke; a new one may work.
            ParleyError: the model refused the audio; its answer.
            SlowConsumerError: events were not read for too long.
        """
        event = await self._events.get()
        if event is not None:
            return event
        if self._failure is not None:
            raise self._failure
        if self._task is not None:
            await asyncio.shield(self._task)  # raises unexpected errors
        raise StopAsyncIteration

    # --- the stream's life ------------------------------------------------------------------

    async def open(self) -> None:
        """Open the stream.

        Raises:
            InvalidMessageError: the options are out of range.
            UnsupportedLanguageError: the model does not understand the language.
            TooManySessionsError: the model holds as many streams as it may.
            InferenceError: the model failed, is not there, or did not answer in time.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(opened))
        try:
            await asyncio.shield(opened)
        except asyncio.CancelledError:
            self._close_soon()
            raise

    async def close(self) -> None:
        """End the stream at once; what was sent and not written down is lost."""
        self._close_soon()
        if self._task is not None:
            await asyncio.shield(asyncio.wait([self._task]))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *problem: object) -> None:
        """End the stream at once."""
        await self.close()

    def _close_soon(self) -> None:
        self._ended = self._closing = True
        self._events.discard()
        self._feed.wake()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._ended:
            raise CallEndedError("the stream of audio has ended")

    async def _wait_for_room(self, length: int) -> None:
        while len(self._buffer) + length > self._buffer.capacity:
            self._check_open()
            self._room.clear()
            await self._room.wait()

    # --- the task that talks to the model ---------------------------------------------------

    async def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            if self._name == AUTO:
                self._name = await find_loaded(
                    self._server.channel, recognizers_for(self._options.language), self._limits.answer_s
                )
            self._model = ModelRecognizer(
                self._port, uuid4().hex, model=self._name, timeout_s=self._limits.answer_s
            )
            await self._model.start(self._options)
            opened.set_result(None)
            while not self._closing and await self._step():
                pass
        except (InvalidInputError, ClientError) as error:
            self._failure = error
        except ParleyError as error:
            self._failure = stream_lost(error) if opened.done() else error
        finally:
            self._ended = True
            if self._model is not None:
                await self._model.close()
            await self._port.close()
            if not opened.done():
                opened.set_exception(self._failure or CallEndedError("the stream of audio has ended"))
                opened.exception()  # retrieved: the waiter may be gone
            self._events.end()
            self._room.set()

    async def _step(self) -> bool:
        """One request to the model, or a wait; False: there is nothing left."""
        work = self._feed.take(drain=self._ended)
        if work is None:
            if self._ended:
                await self._finish_utterance()
                return False
            work = await self._feed.wait(awaits_final=bool(self._owed))
        if isinstance(work, Mark):
            await self._finish(work)
        elif work is not None:
            self._room.set()
            if (mark := self._feed.take_reached()) is not None:
                await self._finish(mark, work)
            else:
                await self._push(work)
        return True

    async def _finish(self, mark: Mark[None], last: AudioPiece | None = None) -> None:
        """Write down what was sent up to a mark; ``last`` is the end of it."""
        await self._finish_utterance(last)
        await self._events.put(FinalizedEvent(at_ms=mark.position * 1000 // _PER_S))

    async def _push(self, piece: AudioPiece) -> None:
        model = self._opened()
        await self._pass_on(await retry_if_busy(lambda: model.push(piece.samples)))

    def _opened(self) -> ModelRecognizer:
        assert self._model is not None  # nothing is sent before it is there
        return self._model

    async def _finish_utterance(self, last: AudioPiece | None = None) -> None:
        model = self._opened()
        # One request: the last audio by itself would be decoded for a partial text that is soon outdated.
        end = model.flush if last is None else partial(model.flush, last.samples)
        await self._pass_on(await retry_if_busy(end))
        limit_s = self._limits.final_s
        if not await self._feed.await_finals(self._awaits_final, self._push, limit_s):
            raise DeadlineExceededError(f"the final text did not come within {limit_s:g} s")

    def _awaits_final(self) -> bool:
        return bool(self._owed) and not self._closing

    async def _pass_on(self, reply: AsrReply) -> None:
        for event in reply.events:
            if isinstance(event, SpeechStoppedEvent):
                self._owed.add(event.utterance)
            elif isinstance(event, TranscriptEvent) and event.is_final:
                self._owed.discard(event.utterance)
            await self._events.put(event)
