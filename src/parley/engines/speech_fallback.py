"""Several synthesizers as one that goes on speaking when one of them fails."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.audio.pcm import Resampler
from parley.engines.base import Synthesizer
from parley.errors import (
    InferenceError,
    ModelUnavailableError,
    ParleyError,
    ShuttingDownError,
    UnsupportedLanguageError,
)
from parley.languages import find_language, primary_language
from parley.timeouts import best_effort, loop_time, with_timeout
from parley.tts.messages import SpeakRequest, SpeechChunk, TtsFallback, WordMark
from parley.tts.text import is_speakable
from parley.tts.voice_routing import find_route, speaks, spoken_languages, voice_names

_WORD = re.compile(r"\S+")
_CHARACTERS_PER_S = 15.0  # of ordinary speech, for engines that give no marks
_SILENT = 33  # highest sample, i16, of what cannot be heard: -60 dB


class JoinedSpeech:
    """Makes one stream of audio and marks out of those of all engines.

    Args:
        rate: hertz of the result; None: that of the first engine.
    """

    def __init__(self, text: str, rate: int | None) -> None:
        self._text = text
        self._rate = rate
        self._samples = 0
        self._begun = 0  # end of the last word that began
        # Of the engine that speaks:
        self._first_char = 0
        self._first_sample = 0
        self._resampler: Resampler | None = None
        self._seconds = 0.0
        self._marked = False
        self._peak = 0
        self._unheard: list[WordMark] = []  # of what cannot be heard so far

    @property
    def silent(self) -> bool:
        """Whether all audio so far is silent."""
        return self._peak <= _SILENT

    @property
    def unspoken(self) -> str:
        """The text from the first word on that had not begun when the last engine ended."""
        return self._text[self._first_char :]

    def add(self, chunk: SpeechChunk, audio: NDArray[np.int16]) -> tuple[SpeechChunk, NDArray[np.int16]]:
        """What an engine said, as a part of the whole."""
        if self._rate is None:
            self._rate = chunk.sample_rate
        if self._resampler is None:
            self._resampler = Resampler(chunk.sample_rate, self._rate)
        self._seconds += len(audio) / chunk.sample_rate
        self._peak = max(self._peak, int(audio.max(initial=0)), -int(audio.min(initial=0)))
        self._marked = self._marked or bool(chunk.words)
        for mark in chunk.words:
            self._begun = max(self._begun, self._first_char + mark.end_char)
        resampled = self._resampler.push(audio) if len(audio) else audio
        marks = [*self._unheard, *(self._moved(mark, self._rate / chunk.sample_rate) for mark in chunk.words)]
        self._unheard = marks if self.silent else []
        spans = chunk.end_char > chunk.start_char
        joined = msgspec.structs.replace(
            chunk,
            sample_rate=self._rate,
            offset=self._samples,
            words=[] if self.silent else marks,
            start_char=self._first_char + chunk.start_char if spans else 0,
            end_char=self._first_char + chunk.end_char if spans else 0,
        )
        self._samples += len(resampled)
        return joined, resampled

    def finish_engine(self) -> tuple[SpeechChunk, NDArray[np.int16]] | None:
        """The engine says no more: what is left of its audio. The next one is to say :attr:`unspoken`."""
        rest = None
        if self._resampler is not None and self._rate is not None:
            audio = self._resampler.finish()
            if len(audio):
                rest = SpeechChunk(sample_rate=self._rate, offset=self._samples), audio
                self._samples += len(audio)
        if self.silent:
            self._begun = self._first_char  # whatever it has marked
        elif not self._marked:
            self._begun = max(self._begun, self._estimated())
        following = _WORD.search(self._text, self._begun)
        self._first_char = following.start() if following else len(self._text)
        self._first_sample = self._samples
        self._resampler, self._seconds, self._marked, self._peak = None, 0.0, False, 0
        self._unheard = []
        return rest

    def fallback_chunk(self, fallback: TtsFallback) -> SpeechChunk:
        """The chunk that reports a replacement."""
        return SpeechChunk(sample_rate=self._rate or 0, offset=self._samples, fallback=fallback)

    def _estimated(self) -> int:
        """End of the last word that can have begun, for an engine without marks."""
        until = self._first_char + self._seconds * _CHARACTERS_PER_S
        begun = [word.end() for word in _WORD.finditer(self._text) if word.start() < until]
        return max(begun, default=0) if self._seconds else 0

    def _moved(self, mark: WordMark, ratio: float) -> WordMark:
        return WordMark(
            start_char=self._first_char + mark.start_char,
            end_char=self._first_char + mark.end_char,
            at_sample=self._first_sample + int(mark.at_sample * ratio),
        )


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
    reloads_s: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Pauses before each time that an engine which nothing replaces is asked for the rest of a text again,
    because its process has ended: it is loaded again meanwhile.
    """


_NO_LIMITS = FallbackLimits(first_audio_s=math.inf, next_audio_s=math.inf)


class FallbackSynthesizer:
    """:class:`parley.engines.base.Synthesizer` over a list of others.

    An engine that fails, is late, or makes silence of a text that has words, is replaced by the next in the
    list that speaks the request's language: for the rest of the text, from the first word on that had not
    begun, and for all later requests of the same utterance. Where no other engine is left, one whose process
    has ended is asked for the rest again. An engine that nothing could replace has no time limit here.
    An engine that refuses a language, as one does whose weights have fewer than its kind, is not asked for it
    again.
    A chunk without samples reports which engine was replaced and why. All audio of a request has one sample
    rate: the one that was asked for, else that of the engine that began.

    Args:
        engines: by name, the best first; at least one.
        count: called for every replacement.
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
        self._refused: set[tuple[int, str]] = set()  # engines, and languages that they listed and refused

    async def speak(self, request: SpeakRequest) -> AsyncGenerator[Piece, None]:
        """Stream the text's audio; raises what the last engine that was asked raised."""
        speech = JoinedSpeech(request.text, request.sample_rate)
        # Where none speaks the language, the first one says so.
        index = self._find(self._replaced.get(request.utterance, 0), request.language) or 0
        reloads_s = iter(self._limits.reloads_s)
        while True:
            failures: list[ParleyError] = []
            async with aclosing(self._try(index, request, speech, failures)) as pieces:
                async for piece in pieces:
                    yield piece
            if not failures:
                return
            (failure,) = failures
            following = self._find(index + 1, request.language)
            if isinstance(failure, ShuttingDownError):
                raise failure
            if following is not None:
                fallback = self._replace(request.utterance, index, following, failure)
                index = following
                yield speech.fallback_chunk(fallback), _NOTHING
            elif isinstance(failure, ModelUnavailableError) and (pause_s := next(reloads_s, 0.0)):
                name = self._engines[index][0]
                _log.warning(
                    "%s again in %g s: %s", name, pause_s, failure.to_log(), extra=failure.log_extra()
                )
                await asyncio.sleep(pause_s)
            else:
                raise failure
            if not is_speakable(speech.unspoken):
                return

    async def _try(
        self, index: int, request: SpeakRequest, speech: JoinedSpeech, failures: list[ParleyError]
    ) -> AsyncGenerator[Piece, None]:
        """What one engine says of the rest of a text; its failure, if there is one, goes to ``failures``."""
        name, engine = self._engines[index]
        try:
            async with aclosing(self._speak_rest(name, engine, request, speech)) as pieces:
                async for piece in pieces:
                    yield piece
            is_last = self._find(index + 1, request.language) is None
            if speech.silent and is_speakable(speech.unspoken) and not is_last:
                # Of the last engine it is taken as it is: a script that it cannot read, for example.
                failures.append(InferenceError(f"{name} made only silence"))
        except ParleyError as error:
            failures.append(error)
            # One that lists its voices may have refused the language for this voice only.
            if isinstance(error, UnsupportedLanguageError) and engine.voices is None:
                self._refused.add((index, primary_language(request.language)))
        rest = speech.finish_engine()
        if rest is not None:
            yield rest

    def check_known(self, voice: str | None, language: str) -> bool:
        """Check the first engine; see :class:`parley.engines.base.Synthesizer`."""
        return self._engines[0][1].check_known(voice, language)

    async def check_voice(self, voice: str) -> None:
        """Return if the first engine has this voice; see :class:`parley.engines.base.Synthesizer`."""
        await self._engines[0][1].check_voice(voice)

    async def abort(self, request_id: str) -> None:
        """Stop ``speak`` of this id at once.

        Raises:
            InferenceError: the engine did not answer in time.
        """
        engine = self._speaking.get(request_id)
        if engine is not None:
            await engine.abort(request_id)

    async def _speak_rest(
        self, name: str, engine: Synthesizer, request: SpeakRequest, speech: JoinedSpeech
    ) -> AsyncGenerator[Piece, None]:
        own = _for_engine(request, engine, speech.unspoken)
        limits = self._limits if len(self._engines) > 1 else _NO_LIMITS
        left_s = limits.first_audio_s  # what the caller does between two chunks takes nothing of it
        heard = done = False
        stream = engine.speak(own)
        self._speaking[request.request_id] = engine
        try:
            async with aclosing(stream):
                while True:
                    began = loop_time()
                    try:
                        chunk, audio = await with_timeout(
                            anext(stream), limits.next_audio_s if heard else left_s, name
                        )
                    except StopAsyncIteration:
                        break
                    left_s -= loop_time() - began
                    heard = heard or len(audio) > 0
                    yield speech.add(chunk, audio)
            done = True
        except ModelUnavailableError:
            done = True  # there is no process that could be stopped, and asking it to would take its time
            raise
        finally:
            del self._speaking[request.request_id]
            if not done:
                await best_effort(engine.abort(own.request_id), limits.abort_s, f"stopping {name}")

    def _find(self, first: int, language: str) -> int | None:
        """Index of the first engine from ``first`` on that speaks a language; None: there is none."""
        own = primary_language(language)
        for index in range(first, len(self._engines)):
            if speaks(self._engines[index][1].languages, language) and (index, own) not in self._refused:
                return index
        return None

    def _replace(self, utterance: str, index: int, following: int, failure: ParleyError) -> TtsFallback:
        before, after = self._engines[index][0], self._engines[following][0]
        fallback = TtsFallback(from_engine=before, to_engine=after, reason=failure.code)
        _log.warning("%s is replaced by %s: %s", before, after, failure.to_log(), extra=failure.log_extra())
        self._count(fallback)
        if utterance:
            self._replaced[utterance] = following
            if len(self._replaced) > _REMEMBERED:
                self._replaced.popitem(last=False)
        return fallback


def _for_engine(request: SpeakRequest, engine: Synthesizer, text: str) -> SpeakRequest:
    """The request for ``text`` with the voice and the language that an engine has for it."""
    voice, language = request.voice, request.language
    if voice is not None and engine.voices is not None and voice not in engine.voices:
        voice = None
    language = find_language(language, engine.languages) or language
    return msgspec.structs.replace(request, text=text, voice=voice, language=language)


class RoutedSynthesizer:
    """:class:`parley.engines.base.Synthesizer` over others: the one that has the voice speaks.

    :func:`parley.tts.voice_routing.find_route` says which one that is.

    Args:
        lineup: synthesizers by name, in order of preference; at least one.
        on_first_audio: called with the name of the synthesizer and the seconds until a segment's first audio.
    """

    def __init__(
        self,
        lineup: Sequence[tuple[str, Synthesizer]],
        on_first_audio: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        self._lineup = tuple(lineup)
        self._on_first_audio = on_first_audio
        self.languages: Sequence[str] = spoken_languages(self._lineup)
        self._asked: OrderedDict[str, Synthesizer] = OrderedDict()  # by request, until it is done or stopped

    @property
    def voices(self) -> Sequence[str] | None:
        """Voices of all engines, the default first; None: those of one engine come and go."""
        if any(synthesizer.voices is None for _, synthesizer in self._lineup):
            return None
        return voice_names(self._lineup)

    def check_known(self, voice: str | None, language: str) -> bool:
        """See :class:`parley.engines.base.Synthesizer`."""
        route = find_route(self._lineup, voice, language)
        return self._lineup[route.index][1].check_known(route.voice, language)

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
        name, synthesizer = self._lineup[route.index]
        asked_at, silent = loop_time(), True
        own = msgspec.structs.replace(request, voice=route.voice)
        self._asked[request.request_id] = synthesizer
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        async with aclosing(synthesizer.speak(own)) as pieces:
            async for piece in pieces:
                if silent and len(piece[1]):
                    silent = False
                    self._on_first_audio(name, loop_time() - asked_at)
                yield piece
        self._asked.pop(request.request_id, None)

    async def abort(self, request_id: str) -> None:
        """Stop ``speak`` of this id at once; what was closed early has to be stopped too.

        Raises:
            InferenceError: the synthesizer did not answer in time.
        """
        synthesizer = self._asked.pop(request_id, None)
        if synthesizer is not None:
            await synthesizer.abort(request_id)
