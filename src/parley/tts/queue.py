"""The queue of a synthesizer of complete texts, and the one thread that makes their audio."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidMessageError, OverloadedError, ParleyError, ShuttingDownError
from parley.logs import log_ids
from parley.runtime.admission import EarlyAborts
from parley.tts.messages import SpeakRequest, SpeechChunk
from parley.tts.requests import SpeechSink, check_request, kept_free

Send: TypeAlias = Callable[[SpeechChunk, NDArray[np.int16]], bool]
"""Takes a chunk; False: no more is wanted."""
_log = logging.getLogger(__name__)


class PiecewiseSpeech(Protocol):
    """The audio of one request, made piece by piece in the thread of the queue."""

    @property
    def made_s(self) -> float:
        """Length of the audio so far."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        ...

    def stop(self) -> None:
        """End it as soon as possible, also while a piece is made; from any thread."""
        ...

    def advance(self, send: Send) -> bool:
        """Make the next piece and send it; returns whether it was the last one.

        Raises:
            ParleyError: it cannot be made.
        """
        ...


@dataclass(eq=False)
class _Job:
    request: SpeakRequest
    sink: SpeechSink
    speech: PiecewiseSpeech
    due: float
    """When the audio that was sent has been played (monotonic clock)."""
    begun: bool = False

    def send(self, chunk: SpeechChunk, audio: NDArray[np.int16]) -> bool:
        if not self.speech.stopped and not self.sink.send(chunk, audio):
            self.speech.stop()
        return not self.speech.stopped


class SpeechQueue:
    """Speaks requests a piece at a time: first the one whose audio runs out first.

    Requests of calls are before those of the background. ``submit`` and ``abort`` must come from one thread.

    Args:
        begin: checks a request and returns its speech; raises ``ParleyError``.
        max_requests: open at most.
    """

    def __init__(
        self, begin: Callable[[SpeakRequest], PiecewiseSpeech], *, name: str, max_requests: int
    ) -> None:
        self._begin = begin
        self._max_requests = max_requests
        self._changed = threading.Condition()
        self._jobs: dict[str, _Job] = {}  # by id; guarded by the condition's lock
        self._running: _Job | None = None
        self._closed = False
        self._early_aborts = EarlyAborts()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, request: SpeakRequest, sink: SpeechSink) -> None:
        """Begin a request; everything that happens from now on goes to its sink."""
        try:
            self._admit(request, sink)
        except ParleyError as error:
            sink.fail(error)

    def abort(self, request_id: str) -> None:
        """Stop a request at once: while a piece is made, waiting, or before it has arrived."""
        with self._changed:
            job = self._jobs.get(request_id)
            is_waiting = job is not None and job is not self._running
            if is_waiting:
                del self._jobs[request_id]
        if job is None:
            self._early_aborts.add(request_id)
            return
        job.speech.stop()
        if is_waiting:
            job.sink.finish()

    @property
    def ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def close(self, timeout_s: float = 5.0) -> None:
        """Fail all requests and stop the thread."""
        with self._changed:
            self._closed = True
            jobs = tuple(self._jobs.values())
            self._changed.notify_all()
        for job in jobs:
            job.speech.stop()
            job.sink.fail(ShuttingDownError("the model is being unloaded"))
        self._thread.join(timeout_s)
        if not self.ended:
            _log.error("the synthesis thread did not stop within %g s", timeout_s)

    def _admit(self, request: SpeakRequest, sink: SpeechSink) -> None:
        check_request(request)
        job = _Job(request, sink, self._begin(request), time.monotonic())
        if self._early_aborts.take(request.request_id):
            sink.finish()
            return
        with self._changed:
            if self._closed:
                raise ShuttingDownError("the model is being unloaded")
            if request.request_id in self._jobs:
                raise InvalidMessageError(f"request id {request.request_id!r} is in use")
            if len(self._jobs) + kept_free(request, self._max_requests) >= self._max_requests:
                raise OverloadedError(f"{len(self._jobs)} requests are open already")
            self._jobs[request.request_id] = job
            self._changed.notify_all()

    # --- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._next()) is not None:
            with log_ids(request=job.request.request_id):
                try:
                    is_over = self._advance(job)
                except Exception:  # noqa: BLE001 - logged
                    # The one thread goes on: the other requests have nothing to do with this one.
                    _log.exception("speech request %s could not be ended", job.request.request_id)
                    is_over = True
            with self._changed:
                self._running = None
                if is_over:
                    del self._jobs[job.request.request_id]

    def _next(self) -> _Job | None:
        """One that was stopped; else the one whose audio runs out first, of a call if there is one."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._running = min(
                self._jobs.values(),
                key=lambda job: (not job.speech.stopped, job.request.background, job.due),
            )
            return self._running

    def _advance(self, job: _Job) -> bool:
        """Make the next piece of a request and send it; returns whether the request is over."""
        made_s = job.speech.made_s
        try:
            if not job.sink.wanted:
                job.speech.stop()
            if not job.begun:
                job.begun = True
                job.sink.on_begun()
            is_over = job.speech.stopped or job.speech.advance(job.send)
        except ParleyError as error:
            job.sink.fail(error)
            return True
        except Exception as error:  # noqa: BLE001 - answered and logged
            _log.exception("speech request %s failed", job.request.request_id)
            job.sink.fail(ParleyError(f"{type(error).__name__}: {error}"))
            return True
        if is_over or job.speech.stopped:
            job.sink.finish()
            return True
        # A late piece is played at once.
        job.due = max(job.due, time.monotonic()) + job.speech.made_s - made_s
        return False
