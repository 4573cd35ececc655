"""Audio to text for all streams: one thread, final texts before partial ones, streams in turns.

Stretches that wait, are of one kind and similarly long are read in one run, as the reader allows.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from parley.asr.reader import Reader, RecognizedText, Stretch, to_parley_error
from parley.errors import (
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)
from parley.runtime.onnx import Stop, StoppedError

_log = logging.getLogger(__name__)


_MOST_FAILURES = 3
"""Failures of different stretches without a success between them: then silence is read, to tell audio that
the networks cannot read, which may be that of one stream, from networks that are broken. Those have to be
loaded again."""
_MOST_STREAMS = 8
"""Streams of which one stretch each could not be read, without a success between them: the networks are
broken, though they may read silence, which is shorter."""
_REMEMBERED = 64
"""Failed stretches that are remembered, to recognise one that is tried again."""


_MOST_OF_A_STREAM = 8
"""Final texts of one stream that may wait when it needs more, and as many partial ones: the room is there for
all streams."""


@dataclass(frozen=True)
class Source:
    """Where audio is from."""

    stream: Hashable
    utterance: Hashable
    """What cannot be read of one counts as one failure."""


class TextReader(Protocol):
    """Reads audio for streams."""

    def ask(
        self, stretch: Stretch, *, final: bool, of: Source, beside: Collection[ReadRequest] = ()
    ) -> ReadRequest:
        """Have a stretch read.

        Args:
            stretch: what is read.
            final: whether it comes before all that is not.
            of: the utterance that it is from.
            beside: what is asked for of the same piece of audio, which is admitted as a whole or not at all.

        Raises:
            OverloadedError: too much waits already, without what is in ``beside``.
            ShuttingDownError: nothing is read any more.
        """
        ...

    def check(self) -> None:
        """Return if reading goes on.

        Raises:
            ModelUnavailableError: it hangs, or the networks are broken.
        """
        ...


class ReadRequest:
    """A text on its way.

    Its future has None where a partial text was given up for a final one.
    """

    def __init__(
        self,
        stretch: Stretch,
        *,
        final: bool,
        of: Source,
        clock: Callable[[], float],
    ) -> None:
        self.stretch = stretch
        self.final = final
        self.of = of
        self.future: Future[RecognizedText | None] = Future()
        self.run: ReadRun | None = None
        """In which it is read, once that begins."""
        self.dropped = False
        """Whether its result is not needed."""
        self._clock = clock
        self._asked_at = clock()
        self._done_at = self._asked_at

    @property
    def done(self) -> bool:
        """Whether there is a text, or never will be one."""
        return self.future.done()

    @property
    def took_ms(self) -> float:
        """From asking to the text, waiting included."""
        return 1000 * (self._done_at - self._asked_at)

    def result(self) -> RecognizedText | None:
        """What has become of it, once it is :attr:`done`; raises the ``ParleyError`` that it failed with."""
        return self.future.result(0)

    def drop(self) -> None:
        """Drop the request: its result is not needed."""
        self.dropped = True
        if self.run is not None:
            self.run.stop_if_dropped()

    def resolve(self, result: RecognizedText | Exception | None) -> None:
        """Set the result: a text, what it failed with, or None where it was given up."""
        if isinstance(result, Exception):
            if not isinstance(result, ParleyError):
                _log.error("a stretch of %d samples cannot be read", len(self.stretch.audio), exc_info=result)
            self.fail(to_parley_error(result))
            return
        self._done_at = self._clock()
        self.future.set_result(result)

    def fail(self, error: ParleyError) -> None:
        """Set an error in the place of a text."""
        self._done_at = self._clock()
        self.future.set_exception(error)


class ReadRun:
    """Requests that are read at once, and what stops them."""

    def __init__(self, requests: Sequence[ReadRequest]) -> None:
        self.requests = requests
        self.final = requests[0].final
        self.stop = Stop()
        for asked in requests:
            asked.run = self
        self.stop_if_dropped()  # what was dropped just now did not see the run

    def stop_if_dropped(self) -> None:
        """Stop if no result is needed."""
        if all(asked.dropped for asked in self.requests):
            self.stop.request()


class _Failures:
    """How many different stretches could not be read, one after the other.

    A session may have a stretch read several times: while it is being spoken, when it is over, and again
    after a failure. One that opens a new stream for what has failed sends the same audio.
    """

    def __init__(self) -> None:
        self.count = 0
        self._seen: deque[tuple[Source, bytes]] = deque(maxlen=_REMEMBERED)

    def add(self, asked: ReadRequest) -> None:
        """One more reading has failed."""
        digest = hashlib.sha256(asked.stretch.audio.tobytes()).digest()
        if not any(asked.of == of or digest == seen for of, seen in self._seen):
            self.count += 1
        self._seen.append((asked.of, digest))


class ThreadedReader:
    """:class:`TextReader` with a thread of its own."""

    def __init__(
        self,
        reader: Reader,
        *,
        room: int,
        stall_s: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread.

        Args:
            reader: used by the thread only.
            room: final texts that may wait when a piece of audio needs more; as many partial ones may.
            stall_s: a run of the networks that takes longer will never end.
            clock: seconds that never go back.
        """
        self._reader = reader
        self._room = room
        self._stall_s = stall_s
        self._clock = clock
        self._finals: deque[ReadRequest] = deque()
        self._partials: deque[ReadRequest] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._running: ReadRun | None = None
        self._served: frozenset[Hashable] = frozenset()
        """Streams of the last run."""
        self._began_at: float | None = None
        self._failures = _Failures()
        self._failed_streams: set[object] = set()
        self._broken = ""
        """Why nothing can be read any more; empty: as far as known it can."""
        self._thread = threading.Thread(target=self._serve, name="reading", daemon=True)
        self._thread.start()

    def ask(
        self, stretch: Stretch, *, final: bool, of: Source, beside: Collection[ReadRequest] = ()
    ) -> ReadRequest:
        """See :meth:`TextReader.ask`."""
        asked = ReadRequest(stretch, final=final, of=of, clock=self._clock)
        with self._changed:
            if self._closing:
                raise ShuttingDownError("nothing is read any more: the model is being unloaded")
            waiting = self._finals if final else self._partials
            if len(waiting) >= self._room:
                self._forget_dropped()
            others = [other for other in waiting if not other.dropped and other not in beside]
            if len(others) >= self._room:
                raise OverloadedError(f"{len(others)} texts are waiting to be read; try again later")
            if sum(other.of.stream == of.stream for other in others) >= _MOST_OF_A_STREAM:
                raise OverloadedError(f"{_MOST_OF_A_STREAM} texts of this stream are waiting to be read")
            waiting.append(asked)
            if final and self._running is not None and not self._running.final:
                self._running.stop.request()
            self._changed.notify()
        return asked

    def check(self) -> None:
        """See :meth:`TextReader.check`."""
        began_at = self._began_at
        if began_at is not None and self._clock() - began_at > self._stall_s:
            raise ModelUnavailableError(f"a stretch of speech has been read for over {self._stall_s:g} s")
        if self._broken:
            raise ModelUnavailableError(self._broken)

    def close(self, timeout_s: float) -> None:
        """Read nothing any more, and end the thread; what waits fails with ``ShuttingDownError``."""
        with self._changed:
            self._closing = True
            if self._running is not None:
                self._running.stop.request()
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("reading did not stop within %g s", timeout_s)

    def _forget_dropped(self) -> None:
        for waiting in (self._finals, self._partials):
            for asked in [asked for asked in waiting if asked.dropped]:
                waiting.remove(asked)

    def _serve(self) -> None:
        while (run := self._next()) is not None:
            self._read(run)
            self._began_at = None
        for asked in (*self._finals, *self._partials):
            asked.fail(ShuttingDownError("the model is being unloaded"))

    def _read(self, run: ReadRun) -> None:
        results: list[RecognizedText | Exception | None]
        try:
            stretches = [asked.stretch for asked in run.requests]
            results = [*self._reader.read_all(stretches, run.stop, self._on_run)]
        except StoppedError:
            results = [None] * len(run.requests)
        for asked, result in zip(run.requests, results, strict=True):
            if isinstance(result, Exception):
                self._failures.add(asked)
                if len(self._failed_streams) < _MOST_STREAMS:
                    self._failed_streams.add(asked.of.stream)
            elif result is not None:
                self._failures = _Failures()
                self._failed_streams.clear()
        if self._failures.count >= _MOST_FAILURES and not self._broken:
            self._read_silence()
        for asked, result in zip(run.requests, results, strict=True):
            asked.resolve(result)

    def _read_silence(self) -> None:
        """Find out whether the networks are broken, or have only got audio that they cannot read."""
        count, self._failures = self._failures.count, _Failures()
        if len(self._failed_streams) == _MOST_STREAMS:
            self._broken = f"no speech of the last {_MOST_STREAMS} streams could be read"
            _log.error("%s", self._broken)
            return
        self._on_run()
        try:
            self._reader.warm_up()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing can be read
            self._broken = f"neither the last {count} stretches of speech nor silence could be read: {error}"
            _log.error("%s", self._broken)
        else:
            _log.warning("the last %d stretches of speech could not be read, but silence can", count)

    def _on_run(self) -> None:
        self._began_at = self._clock()

    def _next(self) -> ReadRun | None:
        """What is read next; None: the reader is closing."""
        with self._changed:
            self._running = None
            while not self._closing:
                self._forget_dropped()
                if waiting := self._finals or self._partials:
                    self._running = self._take(waiting)
                    break
                self._changed.wait()
            return self._running

    def _take(self, waiting: deque[ReadRequest]) -> ReadRun:
        """Take the first of what waits, with what can be read in the same run.

        Streams take turns: what one has in great number does not hold up the others.
        """
        turns = sorted(waiting, key=lambda asked: asked.of.stream in self._served)
        places = self._reader.run_limits.together([len(asked.stretch.audio) for asked in turns])
        together = [turns[place] for place in places]
        waiting.clear()
        waiting.extend(asked for asked in turns if asked not in together)
        self._served = frozenset(asked.of.stream for asked in together)
        return ReadRun(together)


class InlineReader:
    """:class:`TextReader` in the thread of its caller; its single stream waits for no others."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def ask(
        self,
        stretch: Stretch,
        *,
        final: bool,
        of: Source,
        beside: Collection[ReadRequest] = (),  # noqa: ARG002 - nothing waits
    ) -> ReadRequest:
        """See :meth:`TextReader.ask`."""
        asked = ReadRequest(stretch, final=final, of=of, clock=lambda: 0.0)
        (result,) = self._reader.read_all([stretch])
        asked.resolve(result)
        return asked

    def check(self) -> None:
        """Do nothing: there is no thread that could hang."""
