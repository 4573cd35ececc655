"""The other end of :mod:`.process`: starts it, asks it, and replaces it when it fails.

A text waits for the process for a moment at most, because the caller has one thread for the texts of all
sessions. So the process is started beside it, and while there is none texts are refused at once::

    keeper (a thread):  start ──► ready ──► ended ──► wait, by the attempts before ──┐
                          ▲                                                         │
                          └─────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import select
import subprocess
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence

import psutil

from parley.errors import InferenceError, InvalidInputError, ModelUnavailableError
from parley.metrics import Family
from parley.python import find_python
from parley.runtime.attempts import Attempts
from parley.tts.espeak_phonemes.process import READY

DIED, UNRESPONSIVE = "died", "unresponsive"
"""Why a process was replaced."""
PHONEME_RESTARTS = Family(
    "parley_phoneme_process_restarts_total",
    "counter",
    "Processes of espeak-ng that pronounced for a model and were replaced",
    ("model", "reason"),
)
_PROGRAM = "parley.tts.espeak_phonemes.process"
_TIMEOUT_S = 0.5
_PATIENCE = 4
"""So many times as long is waited for a process that gets no processor meanwhile."""
_LOOK_S = 0.1
"""Between two looks at the processor time of a process that is late."""
_START_S = 20.0
_END_S = 2.0
_MOST_STARTS = 5
"""More starts again within the window of :class:`parley.runtime.attempts.Attempts` have to wait for it."""
_FATAL = 2
"""Texts over which the process has ended so often are refused."""
_REMEMBERED = 64
"""Texts over which it has ended."""
_IDLE_S = 5.0
"""Between two looks whether there may be another attempt."""
_LONGEST = 1 << 20
"""Bytes of an answer."""
_log = logging.getLogger(__name__)


def is_installed() -> bool:
    """Whether the package with espeak-ng's library is there, which is not loaded for it."""
    return importlib.util.find_spec("espeakng_loader") is not None


class PhonemeProcess:
    """espeak-ng's phonemes, from a process that is started now and replaced when it ends; thread-safe.

    Args:
        command: of the process; None: that of :mod:`.process`.
        timeout_s: for each question (seconds); four times as long where the process gets no processor.
        start_s: for a process to be ready (seconds).
        attempts: to start it again.
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        start_s: float = _START_S,
        attempts: Attempts | None = None,
    ) -> None:
        self._command = command or (find_python(os.environ) or "python3", "-m", _PROGRAM)
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._attempts = attempts or Attempts(_MOST_STARTS)
        self._asking = threading.Lock()
        """Held while the pipes are used."""
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._tried = False
        """Whether the first process has become ready, or has not."""
        self._closing = False
        self._late = False
        """Whether the process was killed for want of an answer."""
        self._restarts: Counter[str] = Counter()
        self._fatal: OrderedDict[tuple[str, tuple[str, ...]], int] = OrderedDict()
        self._keeper = threading.Thread(target=self._keep, name="espeak-ng's process", daemon=True)
        self._keeper.start()

    def wait_until_tried(self) -> bool:
        """Wait for the first process; returns whether it can be asked."""
        with self._changed:
            self._changed.wait_for(lambda: self._tried or self._closing, self._start_s)
            return self._ready

    def restarts(self) -> Counter[str]:
        """How often a process was replaced so far, by reason: :data:`DIED` or :data:`UNRESPONSIVE`."""
        with self._changed:
            return self._restarts.copy()

    def phonemes(self, voice: str, texts: Sequence[str]) -> Sequence[str]:
        """What espeak-ng says for texts without marks: words in IPA, with single spaces.

        ``voice``: espeak-ng's identifier (``roa/es``).

        Raises:
            ModelUnavailableError: there is no process now.
            InferenceError: the process ended or did not answer in time, and is replaced.
            InvalidInputError: it has ended over these texts before, several times.
        """
        question = voice, tuple(texts)
        with self._asking:
            if self._fatal.get(question, 0) >= _FATAL:
                raise InvalidInputError(f"espeak-ng's process has ended over this text {_FATAL} times")
            with self._changed:
                process = self._process if self._ready else None
            if process is None:
                raise ModelUnavailableError("espeak-ng's process is not running; it is started again")
            limit = _Limit(process.pid, self._timeout_s)
            try:
                answer = self._ask(process, question, limit)
            except (OSError, ValueError) as error:
                self._on_failure(
                    process, question, late=isinstance(error, TimeoutError), held_up=limit.held_up
                )
                raise InferenceError(f"espeak-ng's process failed: {error}") from error
            self._fatal.pop(question, None)
        return answer

    def close(self) -> None:
        """End the process and the thread."""
        with self._changed:
            self._closing = True
            if self._process is not None:
                self._process.kill()
            self._changed.notify_all()
        self._keeper.join(_END_S)
        if self._keeper.is_alive():
            _log.error("espeak-ng's process did not end within %g s", _END_S)

    def _ask(
        self, process: subprocess.Popen[bytes], question: tuple[str, Sequence[str]], limit: _Limit
    ) -> Sequence[str]:
        _write_line(process, question, limit)
        answer = _read_line(process, limit)
        if not isinstance(answer, list) or len(answer) != len(question[1]):
            raise ValueError("its answer is to another question")
        return [str(sounds) for sounds in answer]

    def _on_failure(
        self,
        process: subprocess.Popen[bytes],
        question: tuple[str, tuple[str, ...]],
        *,
        late: bool,
        held_up: bool,
    ) -> None:
        """Have the process replaced, and remember over which texts it has failed."""
        if not held_up:
            self._fatal[question] = self._fatal.pop(question, 0) + 1
            if len(self._fatal) > _REMEMBERED:
                self._fatal.popitem(last=False)
        with self._changed:
            self._ready = False
            self._late = late
        process.kill()

    # --- the keeper ---------------------------------------------------------------------------

    def _keep(self) -> None:
        while True:
            end = self._run()
            with self._changed:
                if self._closing:
                    return
                reason = UNRESPONSIVE if self._late else DIED
                self._tried, self._late = True, False
                self._changed.notify_all()
            _log.warning("espeak-ng's process %s: it is started again, Spanish and French wait for it", end)
            if not self._wait_for_attempt():
                return
            with self._changed:
                self._restarts[reason] += 1

    def _wait_for_attempt(self) -> bool:
        """Wait until the process may be started again; False: it is not any more."""
        reported = False
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                due = self._attempts.next_at(now)
                if due is None and not reported:
                    reported = True
                    _log.error("espeak-ng's process has ended too often; it is not started again for now")
                if due is not None and now >= due:
                    self._attempts.add(now)
                    return True
                self._changed.wait(_IDLE_S if due is None else due - now)
        return False

    def _run(self) -> str:
        """Start a process, let it be asked, and return how it ended."""
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            return f"cannot be started ({error})"
        with self._changed:
            self._process = process
            if self._closing:
                process.kill()
        failure = ""
        try:
            _await_ready(process, _Limit(process.pid, self._start_s))
            with self._changed:
                self._ready = self._tried = True
                self._changed.notify_all()
            status = process.wait()
        except (OSError, ValueError) as error:
            failure = f" before it was ready ({error})"
            process.kill()
            status = process.wait()
        with self._changed:
            self._ready, self._process = False, None
        with self._asking:  # a thread that is asking reads the end of the pipe first
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        return f"ended with status {status}{failure}"


class _Limit:
    """How long a process may take for an answer.

    Args:
        timeout_s: seconds; :data:`_PATIENCE` times as long while it got a processor for less than half.
    """

    def __init__(self, pid: int, timeout_s: float) -> None:
        self._pid = pid
        self._timeout_s = timeout_s
        self._began_s = time.monotonic()
        self._used_s = _processor_s(pid)
        self.held_up = False
        """Whether the time was over although the process had got no processor."""

    def next_wait_s(self) -> float:
        """For how long to wait before the next look (seconds).

        Raises:
            TimeoutError: the time is over.
        """
        waited_s = time.monotonic() - self._began_s
        if waited_s < self._timeout_s:
            return self._timeout_s - waited_s
        self.held_up = _processor_s(self._pid) - self._used_s < self._timeout_s / 2
        if not self.held_up or waited_s >= _PATIENCE * self._timeout_s:
            raise TimeoutError("it does not answer")
        return _LOOK_S


def _processor_s(pid: int) -> float:
    """Processor time that a process has used (seconds); 0.0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _await_ready(process: subprocess.Popen[bytes], limit: _Limit) -> None:
    """Wait for the first line; raises as :func:`_read_line` does."""
    if _read_line(process, limit) != READY:
        raise ValueError("it is another program")


def _write_line(process: subprocess.Popen[bytes], value: object, limit: _Limit) -> None:
    """Write a value as a line.

    Raises:
        OSError: it cannot be written; TimeoutError: in time.
    """
    assert process.stdin is not None
    pipe = process.stdin.fileno()
    os.set_blocking(pipe, False)
    line = json.dumps(value).encode() + b"\n"
    while line:
        _wait([], [pipe], limit)
        line = line[os.write(pipe, line) :]


def _read_line(process: subprocess.Popen[bytes], limit: _Limit) -> object:
    """The value of the next line that the process writes.

    Raises:
        OSError: it cannot be read; TimeoutError: in time.
        ValueError: it is no JSON, or the process has ended.
    """
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    line = b""
    while not line.endswith(b"\n"):
        _wait([pipe], [], limit)
        piece = os.read(pipe, _LONGEST)
        if not piece:
            raise ValueError("it has ended")
        line += piece
        if len(line) > _LONGEST:
            raise ValueError("its answer is too long")
    return json.loads(line)


def _wait(readable: list[int], writable: list[int], limit: _Limit) -> None:
    while not any(select.select(readable, writable, [], limit.next_wait_s())):
        pass
