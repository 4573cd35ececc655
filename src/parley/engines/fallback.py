"""Several synthesizers as one that goes on speaking when one of them fails."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.engines.base import Synthesizer
from parley.engines.joined_speech import JoinedSpeech
from parley.errors import InferenceError, ParleyError, ShuttingDownError
from parley.tts.messages import SpeakRequest, SpeechChunk, TtsFallback
from parley.tts.plain_text import is_speakable
from parley.waiting import try_within, within

Piece: TypeAlias = tuple[SpeechChunk, NDArray[np.int16]]
_NOTHING = np.zeros(0, np.int16)
_REMEMBERED = 256  # utterances with an engine that was replaced
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FallbackLimits:
    """When an engine is replaced (seconds)."""

    first_audio_s: float = 2.0
    """Without the first audio of a text."""
    next_audio_s: float = 5.0
    """Without the next."""
    abort_s: float = 1.0
    """For an engine that was replaced to confirm that it has stopped."""


class FallbackSynthesizer:
    """:class:`parley.engines.base.Synthesizer` over a list of others.

    An engine that fails, is late, or makes silence of a text that has words, is replaced by the next in the
    list: for the rest of the text, from the first word on that had not begun, and for all later requests of
    the same utterance.
    A chunk without samples tells who was replaced and why. All audio of a request has one sample
    rate: the one that was asked for, else that of the engine that began.

    Args:
        engines: by name, the best first; at least one.
        limits: when one is replaced.
        count: is told of every replacement.
    """

    def __init__(
        self,
        engines: Sequence[tuple[str, Synthesizer]],
        limits: FallbackLimits,
        count: Callable[[TtsFallback], None],
    ) -> None:
        self._engines = tuple(engines)
        self._limits = limits
        self._count = count
        self.voices: Sequence[str] | None = engines[0][1].voices
        self.languages: Sequence[str] = engines[0][1].languages
        self._replaced: OrderedDict[str, int] = OrderedDict()  # the engine to begin with, by utterance
        self._speaking: dict[str, Synthesizer] = {}

    async def speak(self, request: SpeakRequest) -> AsyncGenerator[Piece, None]:
        """Stream the text's audio; raises what the last engine of the list raised."""
        speech = JoinedSpeech(request.text, request.sample_rate)
        index = self._replaced.get(request.utterance, 0)
        while True:
            failure: ParleyError | None = None
            name, engine = self._engines[index]
            try:
                async with aclosing(self._speak_rest(name, engine, request, speech)) as pieces:
                    async for piece in pieces:
                        yield piece
                if speech.silent and is_speakable(speech.unspoken) and index + 1 < len(self._engines):
                    # Of the last engine it is taken as it is: a script that it cannot read, for example.
                    failure = InferenceError(f"{name} made nothing that can be heard")
            except ParleyError as error:
                failure = error
            rest = speech.finish_engine()
            if rest is not None:
                yield rest
            if failure is None:
                return
            index += 1
            if index == len(self._engines) or isinstance(failure, ShuttingDownError):
                raise failure
            fallback = self._replace(request.utterance, index, failure)
            yield speech.note(fallback), _NOTHING
            if not is_speakable(speech.unspoken):
                return

    def check_known(self, voice: str | None, language: str) -> bool:
        """Of the first engine; see :class:`parley.engines.base.Synthesizer`."""
        return self._engines[0][1].check_known(voice, language)

    async def check_voice(self, voice: str) -> None:
        """Return if the first engine has this voice; see :class:`parley.engines.base.Synthesizer`."""
        await self._engines[0][1].check_voice(voice)

    async def abort(self, request_id: str) -> None:
        """Stop ``speak`` of this id at once.

        Raises:
            InferenceError: the engine could not be told in time.
        """
        engine = self._speaking.get(request_id)
        if engine is not None:
            await engine.abort(request_id)

    async def _speak_rest(
        self, name: str, engine: Synthesizer, request: SpeakRequest, speech: JoinedSpeech
    ) -> AsyncGenerator[Piece, None]:
        own = _for_engine(request, engine, speech.unspoken)
        limits = self._limits
        left_s = limits.first_audio_s  # what the caller does between two chunks takes nothing of it
        heard = done = False
        stream = engine.speak(own)
        self._speaking[request.request_id] = engine
        try:
            async with aclosing(stream):
                while True:
                    began = asyncio.get_running_loop().time()
                    try:
                        chunk, audio = await within(
                            anext(stream), limits.next_audio_s if heard else left_s, name
                        )
                    except StopAsyncIteration:
                        break
                    left_s -= asyncio.get_running_loop().time() - began
                    heard = heard or len(audio) > 0
                    yield speech.add(chunk, audio)
            done = True
        finally:
            del self._speaking[request.request_id]
            if not done:
                await try_within(engine.abort(own.request_id), limits.abort_s, f"stopping {name}")

    def _replace(self, utterance: str, index: int, failure: ParleyError) -> TtsFallback:
        before, after = self._engines[index - 1][0], self._engines[index][0]
        fallback = TtsFallback(from_engine=before, to_engine=after, reason=failure.code)
        _log.warning("%s is replaced by %s: %s", before, after, failure.to_log())
        self._count(fallback)
        if utterance:
            self._replaced[utterance] = index
            if len(self._replaced) > _REMEMBERED:
                self._replaced.popitem(last=False)
        return fallback


def _for_engine(request: SpeakRequest, engine: Synthesizer, text: str) -> SpeakRequest:
    """The request for ``text`` with the voice and the language that an engine has for it."""
    voice, language = request.voice, request.language
    if voice is not None and engine.voices is not None and voice not in engine.voices:
        voice = None
    if language not in engine.languages:
        language = re.split("[-_]", language)[0].lower()
    return msgspec.structs.replace(request, text=text, voice=voice, language=language)
