"""The other end of :mod:`.process`: starts it, asks it, and replaces it when it fails."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import threading
from collections.abc import Sequence

from parley.errors import InferenceError
from parley.runtime.python import find_python

_PROGRAM = "parley.tts.espeak_phonemes.process"
_TIMEOUT_S = 10.0
"""For a text; the first one waits for the start of the process too."""
_END_S = 2.0


class PhonemeProcess:
    """espeak-ng's phonemes, from a process that runs from the first text on; any thread may ask.

    Args:
        command: of the process; None: that of :mod:`.process`.
        timeout_s: for each text (seconds).
    """

    def __init__(self, command: Sequence[str] | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._command = command or (find_python(os.environ) or "python3", "-m", _PROGRAM)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def phonemes(self, voice: str, text: str) -> str:
        """What espeak-ng says for a text without marks: words in IPA, with single spaces.

        Args:
            voice: espeak-ng's identifier (``roa/es``).
            text: on one line.

        Raises:
            InferenceError: the process failed or did not answer in time; the next text starts another one.
        """
        with self._lock:
            process = self._process or self._start()
            try:
                return self._ask(process, json.dumps([voice, text]))
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                self._end()
                raise InferenceError(f"espeak-ng's process failed: {error}") from error

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[str]:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        except OSError as error:
            raise InferenceError(f"espeak-ng's process cannot be started: {error}") from error
        return self._process

    def _ask(self, process: subprocess.Popen[str], line: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        # Each answer is one short line, written at once: when the pipe is readable, it is complete.
        if not select.select([process.stdout], [], [], self._timeout_s)[0]:
            raise ValueError(f"no answer within {self._timeout_s:g} s")
        answer = process.stdout.readline()
        if not answer:
            raise ValueError(f"it ended with status {process.wait(_END_S)}")
        return str(json.loads(answer))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a text that could not be written is tried once more
                    pipe.close()
