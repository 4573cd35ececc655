"""The utterances of ``s3gen``, and the thread that makes their audio.

Requests only change a table, under a lock; one thread chooses the next batch from the table,
makes it without the lock, and sends the audio of utterances that were not stopped meanwhile. So a
stop, a new utterance or more tokens never wait for a step, and all utterances share the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parley.errors import (
    InferenceError,
    InvalidMessageError,
    ParleyError,
    SessionIdleError,
    SessionNotFoundError,
    ShuttingDownError,
    TooManySessionsError,
    UnsupportedSampleRateError,
)
from parley.runtime.admission import EarlyAborts
from parley_torch.tts.s3gen.flow import AudioVoice
from parley_torch.tts.s3gen.messages import AudioChunk, OpenUtterance, PushTokens
from parley_torch.tts.s3gen.scheduling import PlayoutSchedule, S3GenLimits, Work, choose_batch
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley_torch.tts.s3gen.utterance import AudioUtterance, Plan

_log = logging.getLogger("parley.torch")
_RATES = (8_000, 48_000)
_LONGEST_AFTER_S = 60.0


class AudioSink(Protocol):
    """Receives the audio of one utterance."""

    def send(self, chunk: AudioChunk, audio: NDArray[np.int16]) -> bool:
        """Send a piece; False if the client has cancelled."""
        ...

    def finish(self) -> None:
        """End the response: everything was sent, or the utterance was stopped."""
        ...

    def fail(self, error: ParleyError) -> None:
        """End the response with an error."""
        ...


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of all utterances together."""

    batch: S3GenLimits
    max_utterances: int = 64
    """Open at once."""
    idle_s: float = 10.0
    """Without tokens, while more are expected; then the utterance fails."""
    gather_s: float = 0.003
    """Wait of an idle thread once there is work: tokens of many utterances arrive together."""


@dataclass
class _Entry:
    utterance: AudioUtterance
    sink: AudioSink
    playout: PlayoutSchedule
    fed_at: float
    prepared: bool = False

    def close(self, error: ParleyError | None = None) -> None:
        """End its request; a failure is only logged, because the other utterances go on."""
        try:
            if error is None:
                self.sink.finish()
            else:
                self.sink.fail(error)
        except Exception:  # noqa: BLE001 - logged
            _log.exception("the request of an utterance could not be ended")


class S3GenService:
    """Owns the utterances and the thread.

    Only the thread uses the synthesizer. The plan is that of every utterance.

    Raises:
        BaseException: what ``warm_up`` raised, in the thread before it serves.
    """

    def __init__(
        self,
        synthesizer: AudioSynthesizer,
        plan: Plan,
        limits: ServiceLimits,
        *,
        warm_up: Callable[[], None] = lambda: None,
        on_batch: Callable[[int, float], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._synthesizer = synthesizer
        self._warm_up = warm_up
        self._on_batch = on_batch
        self._plan = plan
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}  # guarded by the condition's lock, as all below
        self._early_stops = EarlyAborts()
        self._closed = False
        self._warm: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="s3gen", daemon=True)
        self._thread.start()
        self._warm.result()

    def __len__(self) -> int:
        return len(self._entries)

    def open(
        self, message: OpenUtterance, voice: AudioVoice, tokens: NDArray[np.integer[Any]], sink: AudioSink
    ) -> None:
        """Begin an utterance; afterwards its sink gets the audio and the end or an error.

        Raises:
            ParleyError: it cannot begin; its sink is not called.
        """
        if not message.utterance_id:
            raise InvalidMessageError("utterance_id is empty")
        if not _RATES[0] <= message.sample_rate <= _RATES[1]:
            raise UnsupportedSampleRateError(
                f"{message.sample_rate} Hz; it must be {_RATES[0]} to {_RATES[1]}"
            )
        if message.seed < 0:
            raise InvalidMessageError("seed is negative")
        if not 0.0 <= message.after_s <= _LONGEST_AFTER_S:
            raise InvalidMessageError(f"after_s is {message.after_s}; it must be 0 to {_LONGEST_AFTER_S:g}")
        self._check_tokens(voice.tokens)
        self._check_tokens(tokens)
        utterance = AudioUtterance(voice, self._plan, seed=message.seed, rate=message.sample_rate)
        utterance.push(tokens)
        with self._changed:
            if self._closed:
                raise ShuttingDownError("the model is being unloaded")
            if message.utterance_id in self._entries:
                raise InvalidMessageError(f"utterance id {message.utterance_id!r} is in use")
            if self._early_stops.take(message.utterance_id):
                sink.finish()
                return
            if len(self._entries) >= self._limits.max_utterances:
                raise TooManySessionsError(f"{self._limits.max_utterances} utterances are open already")
            now = self._clock()
            self._entries[message.utterance_id] = _Entry(
                utterance, sink, PlayoutSchedule(now + message.after_s), now
            )
            if message.final:
                self._end(message.utterance_id)
            self._changed.notify()

    def push(self, message: PushTokens, tokens: NDArray[np.integer[Any]]) -> None:
        """Add tokens to an utterance.

        Raises:
            ParleyError: they cannot be added; the utterance stays as it was.
        """
        self._check_tokens(tokens)
        with self._changed:
            entry = self._entries.get(message.utterance_id)
            if entry is None:
                raise SessionNotFoundError(f"utterance {message.utterance_id!r} is not open")
            if message.first != entry.utterance.tokens:
                raise InvalidMessageError(
                    f"tokens from {message.first} on arrived after {entry.utterance.tokens} tokens"
                )
            entry.utterance.push(tokens)
            entry.fed_at = self._clock()
            if message.final:
                self._end(message.utterance_id)
            self._changed.notify()

    def stop(self, utterance_id: str) -> None:
        """Stop an utterance, also one whose request has not arrived yet."""
        with self._changed:
            entry = self._entries.pop(utterance_id, None)
            if entry is None:
                self._early_stops.add(utterance_id)
            else:
                entry.close()

    def close(self, timeout_s: float = 10.0) -> None:
        """Fail the open utterances and end the thread."""
        with self._changed:
            self._closed = True
            for entry in self._entries.values():
                entry.close(ShuttingDownError("the model is being unloaded"))
            self._entries.clear()
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("the synthesis did not stop within %g s", timeout_s)

    def _check_tokens(self, tokens: NDArray[np.integer[Any]]) -> None:
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self._synthesizer.vocabulary:
            raise InvalidMessageError(
                f"tokens from {tokens.min()} to {tokens.max()}; they must be 0 to "
                f"{self._synthesizer.vocabulary - 1}"
            )

    def _end(self, utterance_id: str) -> None:
        entry = self._entries[utterance_id]
        entry.utterance.end()
        if entry.utterance.finished:  # there was not a single token
            del self._entries[utterance_id]
            entry.close()

    def _run(self) -> None:
        try:
            self._synthesizer.begin()
            self._warm_up()  # here, because the thread that serves is the one whose state has to be warm
        except BaseException as error:  # noqa: BLE001 - raised by the constructor, which waits for it
            self._warm.set_exception(error)
            return
        self._warm.set_result(None)
        while (batch := self._next_batch()) is not None:
            try:
                if not batch:
                    self._prepare()
                    continue
                began = self._clock()
                results = self._synthesizer.step([job for _, job in batch])
                self._on_batch(len(batch), self._clock() - began)
                for (key, job), result in zip(batch, results, strict=True):
                    self._send(key, job, result)
            except Exception as error:  # noqa: BLE001 - logged and answered
                # The thread goes on for the other utterances.
                _log.exception("a step failed")
                for key, job in batch:
                    self._send(key, job, ParleyError(f"{type(error).__name__}: {error}"))

    def _next_batch(self) -> list[tuple[str, Job]] | None:
        """Wait for jobs; an empty batch if utterances can be prepared, None when closed."""
        waited = False
        with self._changed:
            while not self._closed:
                self._fail_idle()
                jobs = {
                    key: Job(entry.utterance, end)
                    for key, entry in self._entries.items()
                    if (end := entry.utterance.next_end()) is not None
                }
                if jobs and waited:
                    # An utterance that begins alone stays alone: its chunks fall between the others'.
                    waited = False
                    self._changed.wait_for(lambda: self._closed, self._limits.gather_s)
                    continue
                if jobs:
                    ready = [self._work(key, job) for key, job in jobs.items()]
                    return [(work.key, jobs[work.key]) for work in choose_batch(ready, self._limits.batch)]
                if not all(entry.prepared for entry in self._entries.values()):
                    return []
                self._changed.wait(self._limits.idle_s / 4)
                waited = True
            return None

    def _prepare(self) -> None:
        """Prepare before the first tokens arrive; once for each utterance, whether it succeeds or not."""
        with self._changed:
            waiting = [entry for entry in self._entries.values() if not entry.prepared]
            for entry in waiting:
                entry.prepared = True
        self._synthesizer.prepare([entry.utterance for entry in waiting])

    def _work(self, key: str, job: Job) -> Work[str]:
        frames = job.utterance.frames_until(job.end)
        return Work(key, self._synthesizer.padded_frames(frames), self._entries[key].playout.deadline)

    def _fail_idle(self) -> None:
        before = self._clock() - self._limits.idle_s
        for key, entry in tuple(self._entries.items()):
            if not entry.utterance.ended and entry.fed_at < before:
                del self._entries[key]
                entry.close(SessionIdleError(f"no tokens for {self._limits.idle_s:g} s"))

    def _send(self, key: str, job: Job, result: NDArray[np.int16] | ParleyError) -> None:
        with self._changed:
            entry = self._entries.get(key)
            if entry is None or entry.utterance is not job.utterance:
                return  # stopped meanwhile
            final = entry.utterance.finished
            if final or isinstance(result, ParleyError):
                del self._entries[key]
            if isinstance(result, ParleyError):
                entry.close(result)
                return
            rate = entry.utterance.output.rate
            entry.playout.on_sent(len(result) / rate, self._clock())
            # Sent under the lock, so that nothing is sent after `stop` has returned.
            open_, failure = True, None
            try:
                open_ = not len(result) or entry.sink.send(_describe(entry.utterance, len(result)), result)
            except Exception as error:  # noqa: BLE001 - logged and answered
                _log.exception("audio could not be sent")
                failure = InferenceError(f"audio could not be sent: {error}")
            if final or failure or not open_:
                self._entries.pop(key, None)
                entry.close(failure)


def _describe(utterance: AudioUtterance, samples: int) -> AudioChunk:
    rate, end = utterance.output.rate, utterance.output.samples
    begin = end - samples
    return AudioChunk(
        sample_rate=rate,
        offset=begin,
        start_ms=round(1000 * begin / rate, 3),
        end_ms=round(1000 * end / rate, 3),
        final=utterance.finished,
    )
