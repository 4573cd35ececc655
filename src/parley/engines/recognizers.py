"""Recognisers of streams: a stream of one model, several models as one, and the audio on its way to them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrOptions, AsrReply, AsrRequest
from parley.audio.buffer import AudioBuffer, AudioPiece
from parley.engines.base import Recognizer
from parley.errors import (
    InferenceError,
    InvalidInputError,
    OverloadedError,
    ParleyError,
    SessionNotFoundError,
    TooManySessionsError,
    UnsupportedLanguageError,
)
from parley.inference import ModelClient, ModelRequest, SequenceFlags, struct_tensor, tensor_struct
from parley.timeouts import loop_time, with_timeout

T = TypeVar("T")
_NOTHING = np.zeros(0, np.int16)
# Of nearly every piece: a text as a tensor takes more time than the rest of its request.
_PLAIN = AsrRequest()
_log = logging.getLogger(__name__)

_RESERVE_S = 1.0
"""Left to each model that is asked later: requests without audio take milliseconds, more under load."""
_RESERVED = 0.4
"""Part of the limit that all of them have together at most."""
_REFUSALS = (InvalidInputError, OverloadedError, TooManySessionsError)
"""Errors that say nothing about whether a model works."""

_WINDOW = 512  # samples of one VAD decision: a shorter piece gains nothing
_MAX_PUSH = 16 * _WINDOW  # half a second: other streams of the recogniser do not wait long
_KEEP_OPEN_S = 20.0  # a recogniser closes a stream without requests after a minute
# A final transcript of another model comes with the reply to any piece, also to an empty one.
_FIRST_POLL_S = 0.016
_ATTEMPTS = 3
_RETRY_S = 0.05


class ModelRecognizer:
    """One stream of audio, a :class:`parley.engines.base.Recognizer`: one Triton sequence of a model.

    A :meth:`push` that the model refuses leaves the stream as it was, so that the same piece can be
    pushed again; after a deadline it is unknown whether the piece was processed.
    """

    def __init__(
        self, client: ModelClient, correlation_id: str, *, model: str, timeout_s: float = 5.0
    ) -> None:
        """Prepare a stream; nothing is sent before :meth:`start`."""
        self._client = client
        self._id = correlation_id
        self.model = model
        """Name of the model."""
        self._timeout_s = timeout_s
        self._open = False
        self._turn_over = False

    async def languages(self) -> Sequence[str]:
        """See :class:`parley.engines.base.Recognizer`."""
        return (await self._try(AsrOptions(language=""))).languages

    async def check(self, options: AsrOptions) -> None:
        """Check whether :meth:`start` would accept the options, with a sequence of one request.

        A refused START leaves a sequence behind, and a second request would have to end it.

        Raises:
            ParleyError: as :meth:`start`.
        """
        await self._try(options)

    async def _try(self, options: AsrOptions) -> AsrReply:
        flags = SequenceFlags(self._id, start=True, end=True)
        return await self._send(_NOTHING, AsrRequest(options=options), flags)

    async def start(self, options: AsrOptions) -> None:
        """Open the stream.

        Raises:
            InvalidMessageError: the options are out of range.
            UnsupportedLanguageError: the model does not understand the language.
            TooManySessionsError: the model holds as many streams as it may.
            InferenceError: the model failed or did not answer in time.
        """
        # Open from here on: after a failure the server may have the sequence; a superfluous END does no harm.
        self._open = True
        await self._call(_NOTHING, AsrRequest(options=options), start=True)

    async def push(self, audio: NDArray[np.int16]) -> AsrReply:
        """Process the next piece: i16 ``[n]``, 16 kHz mono.

        Raises:
            InvalidAudioError: the piece is longer than the model takes.
            SessionNotFoundError: the stream is not open, or was idle for too long.
            InferenceError: the model failed or did not answer in time.
        """
        return await self._push(audio, flush=False)

    def begin_turn(self) -> None:
        """Later audio is of another turn: it is not decoded together with earlier utterances."""
        self._turn_over = True

    async def flush(self, audio: NDArray[np.int16] = _NOTHING) -> AsrReply:
        """End the current utterance after ``audio``; arguments and errors are those of :meth:`push`.

        Its final transcript may come with the reply to a later piece, also to an empty one.
        """
        return await self._push(audio, flush=True)

    async def _push(self, audio: NDArray[np.int16], *, flush: bool) -> AsrReply:
        turn_over, self._turn_over = self._turn_over, False
        try:
            return await self._call(audio, AsrRequest(flush=flush, turn_over=turn_over))
        except ParleyError:
            self._turn_over = self._turn_over or turn_over  # the piece is pushed again
            raise

    async def close(self) -> None:
        """End the stream; safe to call twice and after a failure."""
        if not self._open:
            return
        self._open = False
        try:
            await self._send(_NOTHING, AsrRequest(), SequenceFlags(self._id, end=True))
        except ParleyError as error:
            # The model closes an idle stream by itself.
            _log.info("audio stream %s was not ended: %s", self._id, error)

    async def _call(self, audio: NDArray[np.int16], request: AsrRequest, *, start: bool = False) -> AsrReply:
        if not self._open:
            raise SessionNotFoundError(f"audio stream {self._id} is not open")
        return await self._send(audio, request, SequenceFlags(self._id, start=start))

    async def _send(self, audio: NDArray[np.int16], request: AsrRequest, flags: SequenceFlags) -> AsrReply:
        inputs = {"AUDIO": audio.reshape(1, -1)}
        if request != _PLAIN:
            inputs["REQUEST"] = struct_tensor(request, batched=True)
        response = await self._client.infer(
            ModelRequest(
                self.model,
                inputs,
                ("REPLY",),
                sequence=flags,
                timeout_s=self._timeout_s,
                frees=flags.end,
            )
        )
        return tensor_struct(response["REPLY"], AsrReply)


class RoutedRecognizer:
    """One stream of audio: a :class:`parley.engines.base.Recognizer`.

    The weights of a model say which languages it understands, so :meth:`check` asks the models in turn. One
    that has failed or hangs cannot say it, and the next is asked; so it is where the chosen one opens no
    stream. One that is full is not replaced: its load would be too much for a model of more languages.

    A stream is opened, from :meth:`check` to the end of :meth:`start` and at however many models, within one
    limit. Each model has the time that is left but for a reserve of those after it: a slow one is not
    replaced by one that needs more, and one that hangs leaves the next ones time for an answer.

    Args:
        recognizers: for this stream, in order of preference; at least one.
        limit_s: for opening the stream, and for :meth:`languages` (seconds).
        first: name of the model that is asked before all others; empty: the first one.
        last: name of the model that is asked after all others, also where one of them is full; empty: none.
    """

    def __init__(
        self, recognizers: Sequence[Recognizer], *, limit_s: float, first: str = "", last: str = ""
    ) -> None:
        self._names = [recognizer.model for recognizer in recognizers]
        self._recognizers = sorted(recognizers, key=lambda one: (one.model == last, one.model != first))
        self._last = last
        self._limit_s = limit_s
        self._chosen = self._recognizers[0]
        self._shares: _Shares | None = None
        """Of the time for opening the stream; None before :meth:`check`."""
        self._refused: set[str] = set()
        """Models that do not understand the language."""
        self.unavailable: tuple[str, ...] = ()
        """Names of the models that did not answer the last :meth:`languages`."""
        self._failed: list[Recognizer] = []
        """Those that have failed since :meth:`check` began."""
        self._endings: list[asyncio.Task[None]] = []
        """Of these streams, once another model is chosen: the server may have their sequences."""

    @property
    def model(self) -> str:
        """See :class:`parley.engines.base.Recognizer`."""
        return self._chosen.model

    async def languages(self) -> Sequence[str]:
        """Languages of the models that answer; see :class:`parley.engines.base.Recognizer`."""
        found: dict[str, None] = {}
        failure: ParleyError | None = None
        shares = self._begin_shares()
        self.unavailable = ()
        for later, recognizer in _count_down(self._recognizers):
            try:
                found |= dict.fromkeys(await shares.wait(recognizer.languages(), recognizer.model, later))
            except ParleyError as error:
                _log.warning("%s is left out: %s", recognizer.model, error.to_log(), extra=error.log_extra())
                failure = failure or error
                self.unavailable += (recognizer.model,)
        if failure is not None and not found:
            raise failure
        return list(found)

    async def check(self, options: AsrOptions) -> None:
        """Choose the recogniser; see :class:`parley.engines.base.Recognizer`.

        Raises:
            UnsupportedLanguageError: none of them understands the language.
            ParleyError: the one that understands it is full or refuses other options; or none of those that
                answer understands it, and this is the first failure of the others.
        """
        self._shares, self._failed = self._begin_shares(), []
        if failure := await self._choose(self._recognizers, options, self._shares):
            raise failure

    @property
    def _others(self) -> Sequence[Recognizer]:
        """Those that may still be chosen for this stream, without the chosen one."""
        return [
            recognizer
            for recognizer in self._recognizers
            if recognizer is not self._chosen
            and recognizer not in self._failed
            and recognizer.model not in self._refused
        ]

    @property
    def _opening(self) -> _Shares:
        if self._shares is None:
            raise InferenceError("the stream's options were not checked")
        return self._shares

    def _begin_shares(self) -> _Shares:
        return _Shares(len(self._recognizers), self._limit_s)

    async def _choose(
        self, recognizers: Sequence[Recognizer], options: AsrOptions, shares: _Shares
    ) -> ParleyError | None:
        """Choose the first of ``recognizers`` that accepts the options; returns why there is none."""
        failure: ParleyError | None = None
        for later, recognizer in _count_down(recognizers):
            try:
                await shares.wait(recognizer.check(options), recognizer.model, later)
            except UnsupportedLanguageError:
                self._refused.add(recognizer.model)
                continue
            except _REFUSALS as error:
                if later == 0 or recognizers[-1].model != self._last:
                    return error
                failure = failure or error
                continue
            except ParleyError as error:
                _log.warning("%s is left out: %s", recognizer.model, error.to_log(), extra=error.log_extra())
                failure = failure or error
                self._failed.append(recognizer)
                continue
            self._chosen = recognizer
            return None
        if failure is not None:
            return failure
        return UnsupportedLanguageError(
            f"language {options.language!r} is understood by none of {', '.join(self._names)}"
        )

    async def start(self, options: AsrOptions) -> None:
        """Open the stream at the chosen model, or at the next one that accepts the options and opens it.

        Raises:
            ParleyError: the chosen model is full or refuses the options; or none opens the stream, and this
                is the failure of the last one that was asked.
        """
        while True:
            chosen = self._chosen
            try:
                await self._opening.wait(chosen.start(options), chosen.model, len(self._others))
            except _REFUSALS:
                raise  # as in the check: its load would be too much for a model of more languages
            except ParleyError as error:
                others = self._others
                self._failed.append(chosen)
                if await self._choose(others, options, self._opening) is not None:
                    raise
                _log.warning(
                    "%s opens no stream, and %s is asked: %s",
                    *(chosen.model, self.model, error.to_log()),
                    extra=error.log_extra(),
                )
                # Not waited for here: a model that hangs would not answer.
                ending = asyncio.create_task(chosen.close(), name=f"ending a stream of {chosen.model}")
                self._endings.append(ending)
            else:
                return

    async def push(self, audio: NDArray[np.int16]) -> AsrReply:
        """See :class:`parley.engines.base.Recognizer`."""
        return await self._chosen.push(audio)

    def begin_turn(self) -> None:
        """See :class:`parley.engines.base.Recognizer`."""
        self._chosen.begin_turn()

    async def flush(self) -> AsrReply:
        """See :class:`parley.engines.base.Recognizer`."""
        return await self._chosen.flush()

    async def close(self) -> None:
        """See :class:`parley.engines.base.Recognizer`."""
        ends = await asyncio.gather(self._chosen.close(), *self._endings, return_exceptions=True)
        for error in ends:  # all have ended
            if isinstance(error, Exception):
                raise error


def _count_down(recognizers: Sequence[Recognizer]) -> Iterable[tuple[int, Recognizer]]:
    """Each with the number of those after it."""
    return zip(range(len(recognizers) - 1, -1, -1), recognizers, strict=True)


class _Shares:
    """Divides a time limit among models that are asked one after the other; it begins now.

    A call has all the time that is left but a reserve for each model that may be asked later:
    :data:`_RESERVE_S`, or less where there are many.
    """

    def __init__(self, models: int, limit_s: float) -> None:
        self._end = loop_time() + limit_s
        self._reserve_s = min(_RESERVE_S, _RESERVED * limit_s / max(models - 1, 1))

    async def wait(self, call: Awaitable[T], what: str, later: int) -> T:
        """The result of a call; ``later``: how many models may be asked after this one.

        Raises:
            DeadlineExceededError: ``what`` did not answer in that time.
        """
        share_s = self._end - loop_time() - later * self._reserve_s
        return await with_timeout(call, max(0.0, share_s), what)


@dataclass(frozen=True)
class Mark(Generic[T]):
    """The utterance under way ends here."""

    position: int
    """Samples that the client had sent."""
    payload: T


class RecognizerFeed(Generic[T]):
    """Orders the requests to one recogniser; its owner makes them, one at a time.

    Audio that arrives during a request goes into the next one. Before a mark all audio up to its position
    is taken, in pieces of any length; elsewhere pieces are whole windows.

    Args:
        capacity: samples that wait at most; the oldest are dropped.
        max_poll_s: longest wait between two polls for a final transcript; it doubles from 16 ms on.
        least: samples of a piece at least, unless a mark or the end comes before.
    """

    def __init__(self, capacity: int, *, max_poll_s: float, least: int = 0) -> None:
        self.buffer = AudioBuffer(capacity)
        self._marks: deque[Mark[T]] = deque()
        self._changed = asyncio.Event()
        self._max_poll_s = max_poll_s
        self._least = least
        self._polls = 0  # since something changed

    def append(self, samples: NDArray[np.int16], now: float) -> int:
        """Add a chunk that arrived at ``now`` (seconds); returns the number of samples dropped for it."""
        dropped = self.buffer.append(samples, now)
        self.wake()
        return dropped

    def mark(self, payload: T) -> None:
        """End the utterance after the audio so far."""
        self._marks.append(Mark(self.buffer.position, payload))
        self.wake()

    @property
    def marks(self) -> int:
        """Marks that were not reached."""
        return len(self._marks)

    @property
    def marked(self) -> bool:
        """Whether the newest mark is behind all audio."""
        return bool(self._marks) and self._marks[-1].position == self.buffer.position

    def wake(self) -> None:
        """Let :meth:`wait` return."""
        self._changed.set()

    def take(self, *, drain: bool = False) -> AudioPiece | Mark[T] | None:
        """What to do next: push a piece, or end the utterance at a mark. None: wait for more audio.

        Args:
            drain: no more audio follows; the last piece may be shorter than a window.
        """
        if not self._marks:
            if len(self.buffer) < self._least and not drain:
                return None
            return self.buffer.take(_MAX_PUSH, 1 if drain else _WINDOW)
        left = self._marks[0].position - self.buffer.start
        piece = self.buffer.take(min(_MAX_PUSH, left)) if left > 0 else None
        return piece or self._marks.popleft()

    def take_reached(self) -> Mark[T] | None:
        """The next mark, if all audio before it was taken."""
        if not self._marks or self._marks[0].position > self.buffer.start:
            return None
        return self._marks.popleft()

    async def wait(self, *, awaits_final: bool) -> AudioPiece | None:
        """Wait for a change.

        Returns:
            None after a change. Otherwise an empty piece to push: it fetches a final transcript that is due,
            or keeps the stream open.
        """
        self._changed.clear()
        try:
            async with asyncio.timeout(self._poll_s(self._polls) if awaits_final else _KEEP_OPEN_S):
                await self._changed.wait()
        except TimeoutError:
            self._polls += 1
            return self._empty()
        self._polls = 0
        return None

    async def await_finals(
        self, awaits_final: Callable[[], bool], push: Callable[[AudioPiece], Awaitable[None]], limit_s: float
    ) -> bool:
        """Push empty pieces until all final transcripts have come; returns whether they came in time."""
        loop, polls = asyncio.get_running_loop(), 0
        overdue_at = loop.time() + limit_s
        while awaits_final():
            if loop.time() >= overdue_at:
                return False
            await asyncio.sleep(self._poll_s(polls))
            await push(self._empty())
            polls += 1
        return True

    def _poll_s(self, polls: int) -> float:
        return min(self._max_poll_s, _FIRST_POLL_S * float(1 << min(polls, 16)))

    def _empty(self) -> AudioPiece:
        return AudioPiece(_NOTHING, self.buffer.position, loop_time())


async def retry_if_busy(request: Callable[[], Awaitable[AsrReply]]) -> AsrReply:
    """Repeat a request that the recogniser was too busy for; a refusal leaves its stream unchanged.

    Raises:
        OverloadedError: it stays busy.
        ParleyError: any other failure.
    """
    wait_s = _RETRY_S
    for _ in range(_ATTEMPTS - 1):
        try:
            return await request()
        except OverloadedError:
            await asyncio.sleep(wait_s)
            wait_s *= 2
    return await request()
