"""Requests that share one network, and the thread that makes their audio."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.errors import (
    InvalidMessageError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
    UnsupportedSampleRateError,
)
from parley.runtime.admission import EarlyAborts
from parley.tts.clauses.network import ClauseNetwork, Stop, StoppedError
from parley.tts.clauses.utterance import ClauseUtterance
from parley.tts.messages import SpeakRequest, SpeechChunk

MAX_TEXT = 4_000
"""Characters of one request: about four minutes of speech."""
_SEEDS = 2**31
_LOWEST_RATE, _HIGHEST_RATE = 8_000, 48_000
_log = logging.getLogger(__name__)


class ClauseSink(Protocol):
    """Where the audio of one request goes. Called from the thread of the network."""

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for audio."""
        ...

    def send(self, chunk: SpeechChunk, audio: NDArray[np.int16]) -> bool:
        """Take a piece; False: no more is wanted."""
        ...

    def finish(self) -> None:
        """All was said, or the request was aborted."""
        ...

    def fail(self, error: ParleyError) -> None:
        """The request failed."""
        ...


@dataclass(eq=False)
class _Job:
    request: SpeakRequest
    sink: ClauseSink
    utterance: ClauseUtterance
    due: float
    """When the audio that was sent has been heard (seconds of the monotonic clock)."""
    stop: Stop = field(default_factory=Stop)


class ClauseSynthesizer:
    """Speaks requests side by side, a piece at a time: first that whose audio runs out first.

    ``submit`` and ``abort`` must come from one thread.

    Args:
        network: makes the sound; used by the one thread from now on.
        name: of the thread.
        max_requests: open at once before more are refused.
    """

    def __init__(self, network: ClauseNetwork, *, name: str, max_requests: int = 64) -> None:
        self._network = network
        self._max_requests = max_requests
        self._changed = threading.Condition()
        self._jobs: dict[str, _Job] = {}  # by id; guarded by the condition's lock
        self._running: _Job | None = None
        self._closed = False
        self._early_aborts = EarlyAborts()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, request: SpeakRequest, sink: ClauseSink) -> None:
        """Begin a request; its sink is told everything that happens from now on."""
        try:
            self._admit(request, sink)
        except ParleyError as error:
            sink.fail(error)

    def abort(self, request_id: str) -> None:
        """Stop a request at once: while a piece is made, waiting, or still on its way here."""
        with self._changed:
            job = self._jobs.get(request_id)
            is_waiting = job is not None and job is not self._running
            if is_waiting:
                del self._jobs[request_id]
        if job is None:
            self._early_aborts.add(request_id)
            return
        job.stop.ask()
        if is_waiting:
            job.sink.finish()

    def close(self, timeout_s: float = 5.0) -> None:
        """Fail all requests and stop the thread."""
        with self._changed:
            self._closed = True
            jobs = tuple(self._jobs.values())
            self._changed.notify_all()
        for job in jobs:
            job.stop.ask()
            job.sink.fail(ShuttingDownError("the model is being unloaded"))
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("the synthesis thread did not stop within %g s", timeout_s)

    def _admit(self, request: SpeakRequest, sink: ClauseSink) -> None:
        if not request.request_id:
            raise InvalidMessageError("request_id is empty")
        if not request.final:
            raise InvalidMessageError("this synthesizer takes all of the text at once")
        if len(request.text) > MAX_TEXT:
            raise InvalidMessageError(
                f"text of {len(request.text)} characters; at most {MAX_TEXT} are allowed"
            )
        rate = request.sample_rate
        if rate is not None and not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
            raise UnsupportedSampleRateError(f"{rate} Hz; possible are {_LOWEST_RATE} to {_HIGHEST_RATE}")
        if request.seed is not None and not 0 <= request.seed < _SEEDS:
            raise InvalidMessageError(f"seed {request.seed} is not between 0 and {_SEEDS - 1}")
        self._network.check(request.voice, request.language)
        if self._early_aborts.take(request.request_id):
            sink.finish()
            return
        job = _Job(request, sink, ClauseUtterance(request, self._network), time.monotonic())
        with self._changed:
            if self._closed:
                raise ShuttingDownError("the model is being unloaded")
            if request.request_id in self._jobs:
                raise InvalidMessageError(f"request id {request.request_id!r} is in use")
            if len(self._jobs) >= self._max_requests:
                raise OverloadedError(f"{len(self._jobs)} requests are open already")
            self._jobs[request.request_id] = job
            self._changed.notify_all()

    # --- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._next()) is not None:
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
        """The request whose audio runs out first."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._running = min(self._jobs.values(), key=lambda job: job.due)
            return self._running

    def _advance(self, job: _Job) -> bool:
        """Make the next piece of a request and send it; whether the request is over."""
        made_s = job.utterance.made_s
        if not job.sink.wanted:
            job.stop.ask()
        try:
            for chunk, audio in job.utterance.make_piece(job.stop):
                if job.stop.asked or not job.sink.send(chunk, audio):
                    job.stop.ask()
                    break
        except StoppedError:
            pass
        except ParleyError as error:
            job.sink.fail(error)
            return True
        except Exception as error:  # noqa: BLE001 - answered and logged
            _log.exception("speech request %s failed", job.request.request_id)
            job.sink.fail(ParleyError(f"{type(error).__name__}: {error}"))
            return True
        if job.stop.asked or job.utterance.complete:
            job.sink.finish()
            return True
        # A piece that is late is heard at once.
        job.due = max(job.due, time.monotonic()) + job.utterance.made_s - made_s
        return False
