"""The text of one round of the language model, on its way to the client and to the voice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from parley.agent.facts.checking import KnownFacts
from parley.agent.facts.extraction import before_figure
from parley.agent.facts.fact import Fact
from parley.agent.memory import ToolRound
from parley.agent.stray_calls import StrayCallFilter
from parley.llm.messages import CUT
from parley.timeouts import loop_time
from parley.tts.markdown import MarkdownSegmenter

_BEGINNING = ".!?:\u2026\u3002\uff01\uff1f"
_CLOSING = " \t\"'\u201d\u2019)]*_"
_SPOKEN_PER_S = 15.0
"""Characters."""
_FASTER = 1.2
"""So many times faster than it is spoken the model has to write, for speech to begin within a sentence."""
_SYNTHESIS_S = 0.3
"""From a segment to its first audio."""


class HeldBackError(Exception):
    """A segment has a figure or a name that no source has; nothing from there on is passed on."""

    def __init__(self, fact: Fact) -> None:
        super().__init__(fact.kind)
        self.fact = fact


class AnswerText:
    """Passes text on: what only a program can read is left out, and what no source has is held back.

    Without ``facts`` text is written as it comes; with them each segment is written and spoken as soon as it
    has passed.

    Args:
        answer: gets the text that is passed on.
        write: called with each piece that is to be shown.
        say: called with the segments that are to be spoken.
        facts: what may be said; None: anything.
        aloud: whether the text is spoken; else nothing is left out of it.
        early: whether parts of a sentence may be spoken before the rest is written.
        tools: names of those that the model may call.
    """

    def __init__(
        self,
        answer: ToolRound,
        *,
        write: Callable[[str], None],
        say: Callable[[Sequence[str]], Awaitable[None]],
        facts: KnownFacts | None,
        aloud: bool,
        early: bool = False,
        tools: Collection[str] = (),
    ) -> None:
        self._answer = answer
        self._write = write
        self._speak = say
        self._facts = facts
        self._filter = StrayCallFilter(tools) if aloud else None
        self._segmenter = MarkdownSegmenter()
        self._written = ""  # what the segmenter has got
        self._released = 0  # of it
        self._said = 0  # of what the segmenter says
        self._broken = False  # whether a segment that breaks off there goes on
        self._early = early
        self._begun_at: float | None = None
        self._since = 0  # characters that were written since then
        self._spoken_at = 0.0  # when all that is said so far will have been spoken

    @property
    def has_stray_call(self) -> bool:
        """Whether a tool call or JSON was left out."""
        return self._filter is not None and self._filter.found

    async def go_on(self, left: str) -> None:
        """Speak what another session has written and not spoken."""
        self._written, self._released = left, len(left)
        segments = self._segmenter.push(left)
        for segment in segments:
            self._said = self._segmenter.said.index(segment, self._said) + len(segment)
        await self._say(segments)

    async def push(self, text: str) -> None:
        """Add what the model has written.

        Raises:
            HeldBackError: it must not be said.
        """
        await self._add(text if self._filter is None else self._filter.push(text))

    async def finish(self, *, cut: bool) -> None:
        """No more text follows; ``cut``: it was cut off, and ends with a whole sentence if there is one.

        Raises:
            HeldBackError: it must not be said.
        """
        if self._filter is not None:
            await self._add(self._filter.finish())
        segments, unspoken = self._segmenter.finish_cut() if cut else (self._segmenter.finish(), 0)
        end = len(self._written) - unspoken
        if self._facts is not None:
            await self._pass(segments, last=True)
            self._release(end)
        if self._written[end:].strip():
            text = self._answer.text
            self._answer.text = f"{text[: len(text) - max(0, self._released - end)].rstrip()}{CUT}"
        if self._facts is None:
            await self._say(segments)

    async def _add(self, text: str) -> None:
        if not text:
            return
        self._written += text
        segments = self._segmenter.push(text, early=self._is_urgent(text))
        if self._facts is None:
            self._release(len(self._written))
            await self._say(segments)
        else:
            await self._pass(segments)

    def _is_urgent(self, text: str) -> bool:
        """Whether the next words are to be spoken before their sentence is complete.

        The first ones are if the model writes faster than is spoken; later ones before the voice is silent.
        """
        if not self._early:
            return False
        now = loop_time()
        if self._begun_at is None:
            self._begun_at = now
            return False
        self._since += len(text)
        if self._spoken_at:
            return now + _SYNTHESIS_S >= self._spoken_at
        return self._since >= _FASTER * _SPOKEN_PER_S * (now - self._begun_at)

    async def _say(self, segments: Sequence[str]) -> None:
        if segments:
            begins = max(self._spoken_at, loop_time() + _SYNTHESIS_S)
            self._spoken_at = begins + sum(map(len, segments)) / _SPOKEN_PER_S
        await self._speak(segments)

    async def _pass(self, segments: Sequence[str], *, last: bool = False) -> None:
        """Check segments; a figure in which one breaks off is checked, and said, with the next."""
        said = self._segmenter.said
        for segment in segments:
            found = said.index(segment, self._said)
            begin = self._said if self._broken else found
            self._said, self._broken = found + len(segment), False
            end = self._said if last else begin + before_figure(said[begin : self._said])
            await self._check(begin, end)
            if end < self._said:
                self._said, self._broken = end, True
        if last and self._broken:
            await self._check(self._said, len(said.rstrip()))

    async def _check(self, begin: int, end: int) -> None:
        assert self._facts is not None
        said = self._segmenter.said
        segment = said[begin:end].strip()
        before, written_end = said[max(0, begin - 8) : begin], self._segmenter.written_span(begin, end)[1]
        if written_end > self._released:
            mark = before.rstrip(_CLOSING)[-1:]
            begins = not before.strip() or "\n" in before or mark in _BEGINNING
            unknown = self._facts.find_unknown(segment, begins=begins)
            if unknown is not None:
                raise HeldBackError(unknown)
            self._release(written_end)
        await self._say([segment])

    def _release(self, end: int) -> None:
        piece, self._released = self._written[self._released : end], max(end, self._released)
        if piece:
            self._answer.text += piece
            self._write(piece)
