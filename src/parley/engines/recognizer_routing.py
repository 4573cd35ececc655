"""Several recognisers as one: the first that understands a stream's language recognises it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrOptions, AsrReply
from parley.engines.base import Recognizer
from parley.errors import UnsupportedLanguageError


class RoutedRecognizer:
    """One stream of audio: a :class:`parley.engines.base.Recognizer` over several.

    The weights of a model say which languages it understands, so :meth:`check` asks the models in turn. A
    model that fails is not replaced by the next one: only a language is a reason to go on.

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

    async def check(self, options: AsrOptions) -> None:
        """Choose the recogniser; see :class:`parley.engines.base.Recognizer`.

        Raises:
            UnsupportedLanguageError: none of them understands the language.
            ParleyError: the one that understands it refuses other options, or one of those asked has failed.
        """
        for recognizer in self._recognizers:
            try:
                await recognizer.check(options)
            except UnsupportedLanguageError:
                continue
            self._chosen = recognizer
            return
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
