"""A network that makes the sound of clauses, and how it is stopped while it does."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from parley.errors import InferenceError
from parley.tts.clauses.splitting import ClauseLimits
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.messages import SpeakRequest


class StoppedError(Exception):
    """What was being made is not wanted any more."""


class Stop:
    """Ends what a request does; any thread may ask for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = False
        self._running: Any = None

    @property
    def asked(self) -> bool:
        """Whether the request is over."""
        return self._asked

    def ask(self) -> None:
        """End it now: a network that runs ends with the operator that it is at."""
        with self._lock:
            self._asked = True
            if self._running is not None:
                self._running.terminate = True

    def run(self, session: Any, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run a session of ONNX Runtime.

        Raises:
            StoppedError: :meth:`ask` was called, before or meanwhile.
            InferenceError: the network failed.
        """
        options = onnxruntime.RunOptions()
        # Errors are raised; that a run was ended is none.
        options.log_severity_level = 4
        with self._lock:
            if self._asked:
                raise StoppedError
            self._running = options
        try:
            outputs: list[NDArray[Any]] = session.run(None, feeds, options)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            if self._asked:
                raise StoppedError from None
            raise InferenceError(f"the network failed: {error}") from error
        finally:
            with self._lock:
                self._running = None
        return outputs


class FrontEnd(Protocol):
    """Turns a text into words as they are said."""

    def pronounce(self, text: str) -> Sequence[PronouncedWord]:
        """The words of a text."""
        ...


class ClauseSound(Protocol):
    """The sound of a clause, which may be made piece by piece. Used from the thread of the network."""

    @property
    def begins(self) -> Sequence[int]:
        """Sample at which each word of the clause begins."""
        ...

    @property
    def complete(self) -> bool:
        """Whether all of it has been made."""
        ...

    def make(self, stop: Stop) -> NDArray[np.int16]:
        """The samples that follow, as they are heard; not to be called when it is complete.

        The first begin and the last end at zero, with little silence; pieces join without a step.

        Raises:
            StoppedError: they are not wanted any more.
            InferenceError: the network failed, or made what is no speech.
        """
        ...


class ClauseNetwork(Protocol):
    """Makes the sound of clauses. Used from one thread."""

    sample_rate: int
    limits: ClauseLimits
    """How texts are cut for it."""

    def check(self, voice: str | None, language: str) -> None:
        """Return if it can speak so; from any thread.

        Raises:
            UnsupportedVoiceError: there is no such voice.
            UnsupportedLanguageError: the language is not spoken.
        """
        ...

    def pronounce(self, text: str) -> Sequence[PronouncedWord]:
        """The words of a text as they are said; may be none."""
        ...

    def speak(self, words: Sequence[PronouncedWord], request: SpeakRequest, stop: Stop) -> ClauseSound:
        """Begin the sound of a clause.

        Args:
            words: of the clause.
            request: that it belongs to, for the voice and the seed.
            stop: ends it.

        Raises:
            StoppedError: it is not wanted any more.
            InferenceError: the network failed, or made what is no speech.
        """
        ...
