"""Several recognisers as one: the first that understands a stream's language recognises it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrOptions, AsrReply
from parley.engines.base import Recognizer
from parley.errors import (
    InvalidInputError,
    OverloadedError,
    ParleyError,
    TooManySessionsError,
    UnsupportedLanguageError,
)
from parley.timeouts import loop_time, with_timeout

_RESERVE_S = 1.0
"""Left to each model that is asked later: a request without audio takes milliseconds, more under load."""
_RESERVED = 0.4
"""Part of the limit that all of them have together at most."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


class RoutedRecognizer:
    """One stream of audio: a :class:`parley.engines.base.ChoosingRecognizer` over several.

    The weights of a model say which languages it understands, so :meth:`check` asks the models in turn. One
    that has failed or hangs cannot say it, and the next is asked. One that is full is not replaced: its load
    would be too much for a model of more languages.

    Each model has the time that is left but for a reserve of those after it: a slow one is not replaced by
    one that needs more, and one that hangs leaves the next ones time for an answer.

    Args:
        recognizers: for this stream, in order of preference; at least one.
        limit_s: for :meth:`check` and :meth:`languages`, which ask several models (seconds).
        first: name of the model that :meth:`check` asks before all others; empty: the first one.
    """

    def __init__(self, recognizers: Sequence[Recognizer], *, limit_s: float, first: str = "") -> None:
        self._preferred = tuple(recognizers)
        self._recognizers = sorted(recognizers, key=lambda recognizer: recognizer.model != first)
        self._limit_s = limit_s
        self._chosen = self._recognizers[0]
        self._refused: set[str] = set()
        """Models that do not understand the language."""
        self._unavailable: tuple[str, ...] = ()
        self._failed: list[Recognizer] = []
        """Models that are not to be chosen again."""
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
        shares = _Shares(len(self._recognizers), self._limit_s)
        self._unavailable = ()
        for recognizer in self._recognizers:
            try:
                found |= dict.fromkeys(await shares.wait(recognizer.languages(), recognizer.model))
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
        if failure := await self._choose(self._recognizers, options):
            raise failure

    async def choose_other(self, options: AsrOptions) -> bool:
        """See :class:`parley.engines.base.ChoosingRecognizer`."""
        failed = self._chosen
        self._failed.append(failed)
        others = [recognizer for recognizer in self._recognizers if recognizer not in self._failed]
        if await self._choose(others, options) is not None:
            return False
        # Not waited for here: a model that hangs would not answer.
        ending = asyncio.create_task(failed.close(), name=f"ending a stream of {failed.model}")
        self._endings.append(ending)
        return True

    async def _choose(self, recognizers: Sequence[Recognizer], options: AsrOptions) -> ParleyError | None:
        """Choose the first of ``recognizers`` that accepts the options; returns why there is none."""
        failure: ParleyError | None = None
        shares = _Shares(len(recognizers), self._limit_s)
        for recognizer in recognizers:
            try:
                await shares.wait(recognizer.check(options), recognizer.model)
            except UnsupportedLanguageError:
                self._refused.add(recognizer.model)
                continue
            except (InvalidInputError, OverloadedError, TooManySessionsError) as error:
                return error
            except ParleyError as error:
                _log.warning("%s is left out: %s", recognizer.model, error.to_log(), extra=error.log_extra())
                failure = failure or error
                continue
            self._chosen = recognizer
            return None
        if failure is not None:
            return failure
        names = ", ".join(recognizer.model for recognizer in self._preferred)
        return UnsupportedLanguageError(f"language {options.language!r} is understood by none of {names}")

    async def find_better(self, options: AsrOptions) -> str:
        """See :class:`parley.engines.base.ChoosingRecognizer`; one that has refused is not asked again.

        Each model has the time that :meth:`check` gives to the one that it asks first.
        """
        before = self._preferred[: self._preferred.index(self._chosen)]
        better = [recognizer for recognizer in before if recognizer.model not in self._refused]
        for recognizer in better:
            shares = _Shares(len(self._recognizers), self._limit_s)
            try:
                await shares.wait(recognizer.check(options), recognizer.model)
            except UnsupportedLanguageError:
                self._refused.add(recognizer.model)
            except ParleyError as error:
                _log.info("%s is still left out: %s", recognizer.model, error.to_log())
            else:
                return recognizer.model
        return ""

    async def start(self, options: AsrOptions) -> None:
        """Open the stream at the model that :meth:`check` has chosen."""
        await self._chosen.start(options)

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
        await asyncio.gather(self._chosen.close(), *self._endings)


class _Shares:
    """Divides a time limit among calls that follow one another; it begins now.

    A call has all the time that is left but a reserve for each call after it: :data:`_RESERVE_S`, or less
    where there are many.

    Args:
        calls: how many there will be.
        limit_s: of all together (seconds).
    """

    def __init__(self, calls: int, limit_s: float) -> None:
        self._left = calls
        self._end = loop_time() + limit_s
        self._reserve_s = min(_RESERVE_S, _RESERVED * limit_s / max(calls - 1, 1))

    async def wait(self, call: Awaitable[T], what: str) -> T:
        """The result of the next call.

        Raises:
            DeadlineExceededError: ``what`` did not answer in that time.
        """
        self._left -= 1
        share_s = self._end - loop_time() - self._left * self._reserve_s
        return await with_timeout(call, max(0.0, share_s), what)
