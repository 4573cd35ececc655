"""Several recognisers as one: the first that understands a stream's language recognises it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrOptions, AsrReply
from parley.engines.base import Recognizer
from parley.errors import (
    InferenceError,
    InvalidInputError,
    OverloadedError,
    ParleyError,
    TooManySessionsError,
    UnsupportedLanguageError,
)
from parley.timeouts import loop_time, with_timeout

_RESERVE_S = 1.0
"""Left to each model that is asked later: requests without audio take milliseconds, more under load."""
_RESERVED = 0.4
"""Part of the limit that all of them have together at most."""
_REFUSALS = (InvalidInputError, OverloadedError, TooManySessionsError)
"""Errors that say nothing about whether a model works."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


class RoutedRecognizer:
    """One stream of audio: a :class:`parley.engines.base.ChoosingRecognizer`.

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
        self._unavailable: tuple[str, ...] = ()
        self._failed: list[Recognizer] = []
        """Those that have failed since :meth:`check` began."""
        self._endings: list[asyncio.Task[None]] = []
        """Of these streams, once another model is chosen: the server may have their sequences."""

    @property
    def model(self) -> str:
        """See :class:`parley.engines.base.Recognizer`."""
        return self._chosen.model

    @property
    def unavailable(self) -> Sequence[str]:
        """See :class:`parley.engines.base.ChoosingRecognizer`."""
        return self._unavailable

    async def languages(self) -> Sequence[str]:
        """Languages of the models that answer; see :class:`parley.engines.base.Recognizer`."""
        found: dict[str, None] = {}
        failure: ParleyError | None = None
        shares = self._begin_shares()
        self._unavailable = ()
        for later, recognizer in _count_down(self._recognizers):
            try:
                found |= dict.fromkeys(await shares.wait(recognizer.languages(), recognizer.model, later))
            except ParleyError as error:
                _log.warning("%s is left out: %s", recognizer.model, error.to_log(), extra=error.log_extra())
                failure = failure or error
                self._unavailable += (recognizer.model,)
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

    Args:
        models: how many there are.
        limit_s: of all together (seconds).
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
