"""Several synthesizers as one that has the voices of all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.engines.base import Synthesizer
from parley.tts.messages import SpeakRequest, SpeechChunk
from parley.tts.voice_routing import find_route, spoken_languages, voice_names

_REMEMBERED = 256
"""Requests that may still have to be stopped."""


class RoutedSynthesizer:
    """:class:`parley.engines.base.Synthesizer` over others: the one that has the voice speaks.

    :func:`parley.tts.voice_routing.find_route` says which one that is.

    Args:
        lineup: synthesizers by name, in order of preference; at least one.
    """

    def __init__(self, lineup: Sequence[tuple[str, Synthesizer]]) -> None:
        self._lineup = tuple(lineup)
        self.languages: Sequence[str] = spoken_languages(self._lineup)
        self._asked: OrderedDict[str, Synthesizer] = OrderedDict()  # by request, until it is done or stopped

    @property
    def voices(self) -> Sequence[str] | None:
        """Of all of them, the default first; None: of one they come and go."""
        if any(synthesizer.voices is None for _, synthesizer in self._lineup):
            return None
        return voice_names(self._lineup)

    def check_known(self, voice: str | None, language: str) -> bool:
        """See :class:`parley.engines.base.Synthesizer`."""
        return find_route(self._lineup, voice, language).certain

    async def check_voice(self, voice: str) -> None:
        """Ask the synthesizer that may have the voice; see :class:`parley.engines.base.Synthesizer`."""
        route = find_route(self._lineup, voice, None)
        if not route.certain and route.voice is not None:
            await self._lineup[route.index][1].check_voice(route.voice)

    async def speak(
        self, request: SpeakRequest
    ) -> AsyncGenerator[tuple[SpeechChunk, NDArray[np.int16]], None]:
        """Stream the text's audio; raises what the voice's synthesizer raises.

        Raises:
            UnsupportedVoiceError: no synthesizer has the voice.
            UnsupportedLanguageError: none speaks the language with it.
        """
        route = find_route(self._lineup, request.voice, request.language)
        synthesizer = self._lineup[route.index][1]
        own = msgspec.structs.replace(request, voice=route.voice)
        self._asked[request.request_id] = synthesizer
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        async with aclosing(synthesizer.speak(own)) as pieces:
            async for piece in pieces:
                yield piece
        self._asked.pop(request.request_id, None)

    async def abort(self, request_id: str) -> None:
        """Stop ``speak`` of this id at once; what was closed early has to be stopped too.

        Raises:
            InferenceError: the synthesizer could not be told in time.
        """
        synthesizer = self._asked.pop(request_id, None)
        if synthesizer is not None:
            await synthesizer.abort(request_id)
