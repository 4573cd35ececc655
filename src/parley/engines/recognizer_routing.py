"""Several recognisers as one: the first that understands a stream's language recognises it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

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

_log = logging.getLogger(__name__)


class RoutedRecognizer:
    """One stream of audio: a :class:`parley.engines.base.Recognizer` over several.

    The weights of a model say which languages it understands, so :meth:`check` asks the models in turn. One
    that has failed cannot say it, and the next is asked. One that is full is not replaced: its load would be
    too much for a model of more languages.

    Args:
        recognizers: for this stream, in order of preference; at least one.
    """

    def __init__(self, recognizers: Sequence[Recognizer]) -> None:
        self._recognizers = tuple(recognizers)
        self._chosen = self._recognizers[0]

    @property
    def model(self) -> str:
        """See :class:`parley.engines.base.Recognizer`."""
        return self._chosen.model

    async def languages(self) -> Sequence[str]:
        """Languages of the models that answer; see :class:`parley.engines.base.Recognizer`."""
        found: dict[str, None] = {}
        failure: ParleyError | None = None
        for recognizer in self._recognizers:
            try:
                found |= dict.fromkeys(await recognizer.languages())
            except ParleyError as error:
                _log.warning("%s is left out: %s", recognizer.model, error.to_log(), extra=error.log_extra())
                failure = failure or error
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
        failure: ParleyError | None = None
        for recognizer in self._recognizers:
            try:
                await recognizer.check(options)
            except UnsupportedLanguageError:
                continue
            except (InvalidInputError, OverloadedError, TooManySessionsError):
                raise
            except ParleyError as error:
                _log.warning("%s is left out: %s", recognizer.model, error.to_log(), extra=error.log_extra())
                failure = failure or error
                continue
            self._chosen = recognizer
            return
        if failure is not None:
            raise failure
        names = ", ".join(recognizer.model for recognizer in self._recognizers)
        raise UnsupportedLanguageError(f"language {options.language!r} is understood by none of {names}")

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
        await self._chosen.close()
