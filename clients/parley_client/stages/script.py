"""A text that is to be spoken and may still be growing."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from parley.errors import InvalidMessageError, SessionIdleError
from parley.tts.segmenter import TextSegmenter
from parley_client.errors import CallEndedError

MAX_TEXT = 20_000
"""Characters of one text."""


@dataclass(frozen=True)
class Segment:
    """A part that can be spoken by itself: a half-open span of characters in the whole text."""

    start: int
    end: int
    text: str


class Script:
    """Cuts a text into segments while it is being written.

    Args:
        idle_s: longest wait for more text (seconds).
    """

    def __init__(self, idle_s: float) -> None:
        self.text = ""
        """All that was written so far."""
        self.finished = False
        self._idle_s = idle_s
        self._segmenter = TextSegmenter()
        self._waiting: deque[Segment] = deque()
        self._cut = 0  # characters in segments
        self._changed = asyncio.Event()

    def add(self, text: str) -> None:
        """Write on.

        Raises:
            CallEndedError: the text is finished.
            InvalidMessageError: it is too long; nothing was added.
        """
        if self.finished:
            raise CallEndedError("the text was finished before")
        if len(self.text) + len(text) > MAX_TEXT:
            raise InvalidMessageError(f"more than {MAX_TEXT} characters in one text")
        self.text += text
        self._take(self._segmenter.push(text))

    def finish(self) -> None:
        """Nothing follows; may be called twice."""
        if not self.finished:
            self.finished = True
            self._take(self._segmenter.finish())

    def drop(self) -> None:
        """Nothing more is wanted of it."""
        self.finished = True
        self._waiting.clear()
        self._changed.set()

    async def next_segment(self) -> Segment | None:
        """The next segment; None after the last.

        Raises:
            SessionIdleError: nothing was written for too long.
        """
        while not self._waiting:
            if self.finished:
                return None
            self._changed.clear()
            try:
                async with asyncio.timeout(self._idle_s):
                    await self._changed.wait()
            except TimeoutError as error:
                raise SessionIdleError(f"no more text came within {self._idle_s:g} s") from error
        return self._waiting.popleft()

    def _take(self, segments: list[str]) -> None:
        for text in segments:
            start = self.text.index(text, self._cut)
            self._cut = start + len(text)
            self._waiting.append(Segment(start, self._cut, text))
        self._changed.set()
