"""English words and their sounds, with an excerpt of the dictionaries and a network of random weights."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.errors import ModelLoadingError
from parley.tts.english.dictionary import load_dictionary
from parley.tts.english.sounds import has_vowel
from parley.tts.normalization.normalizer import SpokenText, WrittenWord


@pytest.fixture
def say(pronounce):
    return lambda text: pronounce(text).phonemes


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("Hello, world!", "həlˈO, wˈɜɹld!"),
        ("The apple, the pear.", "ði ˈæpᵊl, ðə pˈɛɹ."),
        ("an hour, a unit", "ɐn ˈWəɹ, ɐ jˈunət"),
        ("to open, to use", "tʊ ˈOpᵊn, tə jˈuz"),
        ("“Hello” (world) … now", "“həlˈO” (wˈɜɹld)… nˈW"),
        ('"hello".', "“həlˈO”."),
        ("one - two — three", "wˈʌn— tˈu— θɹˈi"),
        ("", ""),
        ("() … !", ""),
    ],
)
def test_words_and_marks(say, text, phonemes):
    assert say(text) == phonemes


@pytest.mark.parametrize(
    ("word", "phonemes"),
    [
        ("books", "bˈʊks"),
        ("boxes", "bˈɑksᵻz"),
        ("cities", "sˈɪɾiz"),
        ("laughs", "lˈæfs"),
        ("laughed", "lˈæft"),
        ("planned", "plˈænd"),
        ("needed", "nˈidᵻd"),
        ("rated", "ɹˈAɾᵻd"),
        ("waiting", "wˈAɾɪŋ"),
        ("dating", "dˈAɾɪŋ"),
        ("emailed", "ˈimˌAld"),
        ("Joe's", "ʤˈOz"),
        ("bus's", "bˈʌsᵻz"),
        ("students'", "stˈudᵊnts"),
        ("Joe'll", "ʤˈOᵊl"),
        ("cat'd", "kˈæɾᵻd"),
        ("dog've", "dˈɔɡəv"),
        ("smartphone", "smˈɑɹtfˌOn"),
    ],
)
def test_forms_of_known_words(say, word, phonemes):
    assert say(word) == phonemes


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("NASA", "nˈæsə"),
        ("the FBI", "ði ˌɛfbˌiˈI"),
        ("PDFs", "pˌidˌiˈɛfs"),
        ("U.S.", "jˌuˈɛs."),
        ("the US", "ðə jˌuˈɛs"),
        ("IT", "ˌItˈi"),
        ("seven AM", "sˈɛvən ˌAˈɛm"),
        ("I AM", "ˌI æm"),
        ("the WHO", "ðə dˌʌbᵊljuˌAʧˈO"),
        ("WHO knows", "hˌu nˈOz"),
        ("HTTPS", "ˌAʧtˌitˌipˌiˈɛs"),
        ("PLEASE STOP NOW", "plˈiz stˈɑp nˈW"),
        ("JSON", "ʤˈAsən"),
    ],
)
def test_capitals(say, text, phonemes):
    assert say(text) == phonemes


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("GitHub", "ɡˈɪt hˈʌb"),
        ("OpenAI", "ˈOpᵊn ˌAˈI"),
        ("YouTube", "jˈutˌub"),
        ("Wi-Fi", "wˈIfˌI"),
        ("YouTube.NASA", "jˈutˌub dˈɑt nˈæsə"),
        ("chat/hub_git", "ʧˈæt slˈæʃ hˈʌb ˈʌndəɹskˌɔɹ ɡˈɪt"),
        ("100% + 2.5", "wˈʌn hˈʌndɹəd pəɹsˈɛnt plˈʌs tˈu pˈYnt fˈIv"),
        ("007", "zˈɪɹO zˈɪɹO sˈɛvən"),
        ("10345", "tˈɛn θˈWzᵊnd θɹˈi hˈʌndɹəd fˈɔɹɾi fˈIv"),
    ],
)
def test_what_nothing_has_written_out(say, text, phonemes):
    assert say(text) == phonemes


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("I record a record", "ˌI ɹəkˈɔɹd ɐ ɹˈɛkəɹd"),
        ("He read it yesterday", "hi ɹˈɛd ɪt jˈɛstəɹdˌA"),
        ("I read it daily", "ˌI ɹˈid ɪt dˈAli"),
        ("I have read it", "ˌI hæv ɹˈɛd ɪt"),
        ("We live", "wi lˈɪv"),
        ("a live book", "ɐ lˈIv bˈʊk"),
        ("Close the door", "klˈOz ðə dˈɔɹ"),
        ("the use of it", "ðə jˈus ʌv ɪt"),
        ("I used to live", "ˌI jˈust tə lˈɪv"),
        ("It is used to live", "ɪt ɪz jˈuzd tə lˈɪv"),
        ("I am used to it", "ˌI æm jˈust tʊ ɪt"),
        ("an invalid book", "ɐn ɪnvˈælɪd bˈʊk"),
        ("the content", "ðə kˈɑntɛnt"),
        ("bass guitar", "bˈAs ɡətˈɑɹ"),
        ("bass fish", "bˈæs fˈɪʃ"),
        ("lead pipe", "lˈɛd pˈIp"),
        ("Nice people", "nˈIs pˈipᵊl"),
        ("the Polish book", "ðə pˈOlɪʃ bˈʊk"),
    ],
)
def test_words_with_several_pronunciations(say, text, phonemes):
    assert say(text) == phonemes


def test_small_words_are_strong_at_the_end(say):
    assert say("I can.") == "ˌI kˈæn."
    assert say("I can run.") == "ˌI kæn ɹˈʌn."
    assert say("come in.").endswith("ˈɪn.")


def test_words_know_what_was_written_for_them(pronouncer):
    text = "It costs $5 (now)."
    written = [
        WrittenWord(0, 2, "It"),
        WrittenWord(3, 8, "costs"),
        WrittenWord(9, 11, "five dollars"),
        WrittenWord(12, 18, "(now)."),
    ]
    said = pronouncer.pronounce(SpokenText("It costs five dollars (now).", tuple(written)))
    assert [(word.text, text[word.start : word.end], word.before, word.after) for word in said.words] == [
        ("It", "It", "", ""),
        ("costs", "costs", "", ""),
        ("five", "$5", "", ""),
        ("dollars", "$5", "", ""),
        ("now", "(now).", "(", ")."),
    ]


def test_other_scripts_are_read_where_they_can_be_and_named_where_not(pronounce):
    said = pronounce("hello Привет 你好, Αθήνα naïve Łódź 😀 world")
    assert [word.text.lower() for word in said.words] == [
        "hello", "privet", "athina", "naive", "lodz", "world",
    ]  # fmt: skip
    assert [word.spoken for word in said.skipped] == ["你好,"]
    assert said.words[1].after == ","


def test_an_accent_may_make_another_word(say):
    assert say("résumé") == "ɹˈɛzəmˌA"
    assert say("resume") == "ɹəzˈum"


def test_a_very_long_word_is_read_in_pieces(pronounce):
    (word,) = pronounce("wolo" * 500).words
    assert has_vowel(word.phonemes)


def test_words_are_remembered_within_bounds(dictionary, arrays):
    from parley.tts.english.network import LetterNetwork
    from parley.tts.english.pronouncer import EnglishPronouncer

    class Counted(LetterNetwork):
        reads = 0

        def read(self, word):
            self.reads += 1
            return super().read(word)

    network = Counted(arrays)
    pronouncer = EnglishPronouncer(dictionary, network, cache=2)

    def say(text):
        pronouncer.pronounce(SpokenText(text, (WrittenWord(0, len(text), text),)))

    for text in ("blorp", "blorp", "blorp"):
        say(text)
    assert network.reads == 1
    for text in ("grunk", "flimsk", "blorp"):
        say(text)
    assert network.reads == 4


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_no_text_is_too_odd(pronounce, text):
    said = pronounce(text)
    for word in said.words:
        assert word.phonemes
        assert 0 <= word.start < word.end <= len(text)
    starts = [word.start for word in said.words]
    assert starts == sorted(starts)


@settings(max_examples=200)
@given(st.text("abcdefghijklmnopqrstuvwxyzäéøßñABCDEFGHIJKLMNOPQRSTUVWXYZ'", min_size=1, max_size=20))
def test_no_word_is_lost(pronounce, word):
    said = pronounce(word)
    assert not said.skipped
    assert len(said.words) > 0 or not any(character.isalpha() for character in word)
    assert all(has_vowel(word.phonemes) or word.phonemes in ("hm", "hmm", "m") for word in said.words)


@pytest.mark.parametrize("content", [None, "[1]", "{"])
def test_a_dictionary_that_cannot_be_read_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "us_gold.json").write_text(content)
    with pytest.raises(ModelLoadingError, match=r"us_gold\.json"):
        load_dictionary(tmp_path)
