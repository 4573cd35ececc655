"""misaki's phonemes in espeak-ng's spelling."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tiny_voice import PHONEMES, write_voice

from parley.errors import ModelLoadingError
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.piper.notation import Notation, mark_after, read_settings, spelled

TABLE = {symbol: (index,) for index, symbol in enumerate(PHONEMES)}


def word(text, phonemes, before="", after=""):
    return PronouncedWord(text, phonemes, 0, 1, before, after)


def written(words):
    """The symbols of a phrase without pads, start and end."""
    ids = Notation(TABLE).symbols(words).ids
    return "".join(PHONEMES[index] for index in ids if index > 2)


@pytest.mark.parametrize(
    ("text", "phonemes", "expected"),
    [
        ("hello", "həlˈO", "həlˈoʊ"),
        ("judge", "ʤˈʌʤ", "dʒˈʌdʒ"),
        ("water", "wˈɔɾəɹ", "wˈɔːɾɚ"),
        ("bird", "bˈɜɹd", "bˈɜːd"),
        ("hurry", "hˈɜɹi", "hˈɜːɹi"),
        ("camera", "kˈæməɹə", "kˈæmɚɹə"),
        ("people", "pˈipᵊl", "pˈiːpəl"),
        ("happy", "hˈæpi", "hˈæpi"),
        ("we", "wi", "wiː"),
        ("you", "ju", "juː"),
        ("father", "fˈɑðəɹ", "fˈɑːðɚ"),
        ("long", "lˈɔŋ", "lˈɔŋ"),
        ("law", "lˈɔ", "lˈɔː"),
        ("boy", "bˈY", "bˈɔɪ"),
        ("about", "əbˈWt", "ɐbˈaʊt"),
        ("arrive", "əɹˈIv", "ɚɹˈaɪv"),
        ("before", "bəfˈɔɹ", "bᵻfˈɔːɹ"),
        ("balloon", "bəlˈun", "bəlˈuːn"),
        ("I", "ˌI", "aɪ"),
        ("the", "ði", "ðɪ"),
        ("the", "ðə", "ðə"),
    ],
)
def test_sounds(text, phonemes, expected):
    assert spelled(word(text, phonemes)) == expected


@pytest.mark.parametrize(
    ("marks", "symbol"),
    [
        (",", ","),
        ("…", "."),
        ("—", ","),
        ("?!", "?"),
        (").", "."),
        ("”", ""),
        (")", ","),
        ("(", ","),
        ("", ""),
    ],
)
def test_the_strongest_mark_counts(marks, symbol):
    assert mark_after(marks) == symbol


def test_a_phrase():
    words = [word("weather", "wˈɛðəɹ"), word("in", "ɪn", after=","), word("us", "ˌʌs", "(", ").")]
    assert written(words) == "wˈɛðɚɹ ɪn, ˌʌs."
    symbols = Notation(TABLE).symbols(words)
    assert symbols.ids[:2] == (1, 0)
    assert symbols.ids[-1] == 2
    firsts = [PHONEMES[symbols.ids[start]] for start in symbols.starts]
    assert firsts == ["w", "ɪ", "ˌ", "."]


def test_an_r_is_not_carried_over_a_pause():
    words = [word("number", "nˈʌmbəɹ", after=","), word("is", "ɪz")]
    assert written(words) == "nˈʌmbɚ, ɪz"


def test_what_the_voice_has_no_symbol_for_is_left_out():
    assert written([word("x", "h\u2603ə")]) == "hə"


def test_without_a_mark_the_end_follows():
    symbols = Notation(TABLE).symbols([word("a", "hə")])
    assert symbols.starts[-1] == len(symbols.ids) - 1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_speakers": 2}, "several speakers"),
        ({"phoneme_id_map": {"_": [0]}}, "no symbols"),
        (None, "read"),
    ],
)
def test_a_voice_that_cannot_be_used_is_named(tmp_path, change, match):
    path = write_voice(tmp_path / "voice") / "en_US-joe-medium.onnx.json"
    content = "{" if change is None else json.dumps(json.loads(path.read_text()) | change)
    path.write_text(content)
    with pytest.raises(ModelLoadingError, match=match):
        read_settings(path)
