"""Voices of several synthesizers, and which of them speaks."""

from __future__ import annotations

from contextlib import aclosing

import numpy as np
import pytest

from parley.engines.speech_fallback import RoutedSynthesizer
from parley.errors import UnsupportedLanguageError, UnsupportedVoiceError
from parley.tts.messages import SpeakRequest, SpeechChunk
from parley.tts.voice_routing import Route, check_language, find_route, qualify, voice_names

PIECES = [(SpeechChunk(sample_rate=24_000, offset=offset), np.ones(4, np.int16)) for offset in (0, 4)]


class Engine:
    """Says how it was asked."""

    def __init__(self, voices, languages=("en",)):
        self.voices, self.languages = voices, languages
        self.spoken, self.checked, self.aborted = [], [], []

    def check_known(self, voice, language):
        check_language((), voice, language, self.languages)
        return self.voices is not None

    async def check_voice(self, voice):
        self.checked.append(voice)

    async def speak(self, request):
        self.spoken.append((request.voice, request.language))
        yield PIECES[0]
        yield PIECES[1]

    async def abort(self, request_id):
        self.aborted.append(request_id)


def lineup():
    return [
        ("piper", Engine(["joe", "sam"])),
        ("kokoro", Engine(["heart", "joe"], ("en", "en-gb"))),
        ("espeak", Engine(["man"], ("en", "de"))),
    ]


@pytest.mark.parametrize(
    ("voice", "language", "route"),
    [
        (None, "en", Route(0, None)),
        (None, "de", Route(2, None)),
        (None, "en-AU", Route(0, None)),
        ("joe", "en", Route(0, "joe")),
        ("heart", "en-GB", Route(1, "heart")),
        ("kokoro/joe", "en", Route(1, "joe")),
        ("piper/joe", "en", Route(0, "joe")),
        ("man", "de", Route(2, "man")),
    ],
)
def test_the_first_that_has_the_voice_and_the_language_speaks(voice, language, route):
    assert find_route(lineup(), voice, language) == route


@pytest.mark.parametrize("voice", ["missing", "kokoro/sam", "kokoro/", "/joe", "heart/kokoro", "", "JOE"])
def test_unknown_voice_is_refused_with_the_list_of_voices(voice):
    with pytest.raises(UnsupportedVoiceError, match="possible are joe, sam, heart, kokoro/joe, man"):
        find_route(lineup(), voice, "en")


@pytest.mark.parametrize(
    ("voice", "language", "match"),
    [
        (None, "fr", "language 'fr' is not spoken; only en, en-gb, de"),
        ("joe", "fr", "language 'fr' is not spoken"),
        ("heart", "de", "voice 'heart' does not speak 'de'; only en, en-gb"),
    ],
)
def test_a_language_that_is_not_spoken_is_refused(voice, language, match):
    with pytest.raises(UnsupportedLanguageError, match=match):
        find_route(lineup(), voice, language)


@pytest.mark.parametrize("language", ["pt", "pt-BR", "PT_br"])
def test_a_language_is_found_in_any_spelling(language):
    only = [("kokoro", Engine(["ana"], ("pt-br",)))]
    assert find_route(only, "ana", language) == Route(0, "ana")


def test_a_voice_that_is_not_known_may_be_of_one_that_has_to_be_asked():
    synthesizers = [("piper", Engine(["joe"])), ("stored", Engine(None, ("en", "de")))]
    assert find_route(synthesizers, "anna", "en") == Route(1, "anna", certain=False)
    assert find_route(synthesizers, "stored/joe", "en") == Route(1, "joe", certain=False)
    assert find_route(synthesizers, "joe", "en").certain
    with pytest.raises(UnsupportedVoiceError, match="possible are joe"):
        find_route(synthesizers, "piper/anna", "en")


def test_ambiguous_voice_names_are_qualified():
    assert voice_names(lineup()) == ["joe", "sam", "heart", "kokoro/joe", "man"]
    assert qualify([("a", ["x"]), ("b", ["x", "y"])]) == [["x"], ["b/x", "y"]]
    for name in voice_names(lineup()):
        find_route(lineup(), name, None)


async def test_the_synthesizer_of_the_voice_is_asked_by_its_own_name():
    engines = lineup()
    first = []
    routed = RoutedSynthesizer(engines, lambda name, after_s: first.append((name, after_s >= 0)))
    request = SpeakRequest(request_id="a", text="hello", voice="kokoro/joe", language="en-GB")
    assert [chunk.offset async for chunk, _ in routed.speak(request)] == [0, 4]
    assert first == [("kokoro", True)], "once for a segment"
    assert engines[1][1].spoken == [("joe", "en-GB")]
    assert routed.voices == ["joe", "sam", "heart", "kokoro/joe", "man"]
    assert list(routed.languages) == ["en", "en-gb", "de"]
    assert routed.check_known("heart", "en")
    with pytest.raises(UnsupportedVoiceError):
        routed.check_known("missing", "en")
    with pytest.raises(UnsupportedVoiceError):
        await anext(routed.speak(SpeakRequest(request_id="b", voice="missing")))


async def test_only_one_that_has_to_be_asked_is_asked():
    engines = [("piper", Engine(["joe"])), ("stored", Engine(None, ("de",)))]
    routed = RoutedSynthesizer(engines)
    assert routed.voices is None
    assert not routed.check_known("anna", "de")
    await routed.check_voice("anna")
    await routed.check_voice("joe")
    assert (engines[0][1].checked, engines[1][1].checked) == ([], ["anna"])


async def test_open_requests_can_be_aborted_and_finished_ones_not():
    engines = lineup()
    routed = RoutedSynthesizer(engines)
    async with aclosing(routed.speak(SpeakRequest(request_id="left", voice="heart"))) as pieces:
        await anext(pieces)
    await routed.abort("left")
    await routed.abort("left")
    _ = [piece async for piece in routed.speak(SpeakRequest(request_id="done", voice="heart"))]
    await routed.abort("done")
    await routed.abort("unknown")
    assert [engine.aborted for _, engine in engines] == [[], ["left"], []]
