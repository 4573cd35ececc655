import pytest

from parley.errors import UnsupportedLanguageError
from parley.languages import DETECT, find_language, primary_language, understood_language, without_region

KNOWN = ("en", "en-GB", "pt-BR", "pt-PT", "zh-TW", "auto")


@pytest.mark.parametrize(
    ("tag", "found"),
    [
        ("en", "en"),
        ("EN", "en"),
        ("en-gb", "en-GB"),
        ("en_GB", "en-GB"),
        ("en-AU", "en"),
        ("pt", "pt-BR"),
        ("pt-PT", "pt-PT"),
        ("pt-AO", "pt-BR"),
        ("zh-CN", "zh-TW"),
        ("auto", "auto"),
        ("eng", None),
        ("e", None),
        ("", None),
        ("-", None),
    ],
)
def test_a_tag_stands_for_the_nearest_language(tag, found):
    assert find_language(tag, KNOWN) == found


def test_a_region_is_not_part_of_the_language():
    for tag, language in (("en", "en"), ("pt-BR", "pt"), ("ES_mx", "es"), ("", "")):
        assert primary_language(tag) == without_region(tag) == language


@pytest.mark.parametrize("tag", ["-", "_", "-en", "_en", "--", " "])
def test_a_tag_without_a_language_is_no_language_and_not_taken_for_none(tag):
    assert without_region(tag) == tag
    with pytest.raises(UnsupportedLanguageError):
        understood_language(without_region(tag), KNOWN)


def test_no_language_is_a_models_first():
    for tag in ("", DETECT):
        assert understood_language(tag, ("de", "fr")) == "de"
        assert understood_language(tag, ("en", "de", DETECT)) == DETECT
        with pytest.raises(UnsupportedLanguageError):
            understood_language(tag, ())


def test_what_is_not_understood_is_refused_with_what_is():
    assert understood_language("pt_br", KNOWN) == "pt-BR"
    with pytest.raises(UnsupportedLanguageError, match=r"'fr' is not understood; only en, en-GB, pt-BR"):
        understood_language("fr", KNOWN)
